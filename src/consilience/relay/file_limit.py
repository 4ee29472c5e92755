"""How many connections the process's limit of open files allows."""

from __future__ import annotations

import logging

from consilience.errors import ConfigurationError

_OWN = 64  # files of the store, of threads and of Python itself
_ACCEPTED = 256  # connections that are accepted, and refused or still without TLS
log = logging.getLogger("consilience.relay")


def fit_connections(connections: int) -> int:
    """Raise the limit of open files to what so many connections need; fewer connections if it cannot be raised."""
    try:
        import resource
    except ImportError:  # not on Windows
        return connections
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * connections + 2 * _ACCEPTED
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return connections if soft == resource.RLIM_INFINITY else _fitting(connections, soft)


def _fitting(connections: int, files: int) -> int:
    """As many connections as fit into so many open files."""
    spare = _OWN + min(_ACCEPTED, files // 4)
    if files <= spare:
        raise ConfigurationError(f"this process may open {files} files; a relay needs {_OWN * 2} or more (ulimit -n)")
    if connections <= files - spare:
        return connections
    log.warning(
        "%d connections do not fit into the limit of %d open files, of which %d are kept for other uses; at most %d "
        "are served at once. Raise the limit (ulimit -n, LimitNOFILE=) or lower --connections",
        *(connections, files, spare, files - spare),
    )
    return files - spare
