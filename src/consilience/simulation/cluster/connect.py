"""Connecting to a Ray cluster: one of this machine alone, the one this machine is part of, or one by its address."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator, Mapping
from typing import Any

from consilience.errors import ClusterError, ConfigurationError
from consilience.extras import install_command
from consilience.user_code import own_modules

LOCAL, AUTO = "local", "auto"
_PROBE_SECONDS = 5.0  # for an address to answer
_SETTINGS = 4  # the kind of the first frame of HTTP/2 from either side, in its fourth of nine bytes
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, _SETTINGS, 0, 0, 0, 0, 0])
_START = "start one with `ray start --head`, and on every other machine `ray start --address=HOST:PORT`"


def import_ray(cluster: str) -> Any:
    """The package, which only clusters need."""
    if cluster == LOCAL:  # it listens on the loopback address alone; Ray reads this once, when it is imported
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anybody
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # what later versions of Ray do by themselves
    try:
        import ray
    except ImportError as error:
        raise ConfigurationError(f"clusters need Ray: {install_command('ray')}") from error
    return ray


@contextlib.contextmanager
def connected(cluster: str) -> Iterator[Any]:
    """For a while, be connected to a cluster; gives the package `ray`. A connection of the program's own is used."""
    ray = import_ray(cluster)
    if ray.is_initialized():
        yield ray
        return
    _connect(ray, cluster)
    try:
        yield ray
    finally:
        ray.shutdown()


def _connect(ray: Any, cluster: str) -> None:
    settings = {"include_dashboard": False} if cluster == LOCAL else {}
    if cluster not in (LOCAL, AUTO):
        _probe(cluster)
    try:
        ray.init(address=cluster, logging_level="ERROR", log_to_driver=False, **settings)
    except (ConnectionError, OSError, RuntimeError, ValueError) as error:
        where = "this machine is part of no Ray cluster" if cluster == AUTO else f"the Ray cluster {cluster!r} refused"
        raise ClusterError(f"cluster is {cluster!r}, and {where}: {_first_line(error)}; {_START}") from error


def _probe(address: str) -> None:
    """Refuse an address at which nobody listens, or another program, which Ray itself takes minutes to find out."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=_PROBE_SECONDS) as there:
            speaks = _speaks_http2(there)
    except (OSError, OverflowError) as error:  # of a port above 65535
        reason = getattr(error, "strerror", None) or str(error)
        raise ClusterError(f"cluster is {address!r}, and nothing listens there ({reason}); {_START}") from error
    if not speaks:
        raise ClusterError(
            f"cluster is {address!r}, and what listens there is no Ray cluster; give the address of its head node, "
            f"which `ray start --head` prints, or {_START}"
        )


def _speaks_http2(there: socket.socket) -> bool:
    """Whether a server greets as those of Ray do. Encrypted connections are left to Ray."""
    if os.environ.get("RAY_USE_TLS", "0") != "0":
        return True
    try:
        there.sendall(_GREETING)
        with there.makefile("rb") as answer:
            frame = answer.read(9)
    except OSError:  # it says nothing, or hangs up
        return False
    return len(frame) == 9 and frame[3] == _SETTINGS


def losses(ray: Any) -> tuple[type[Exception], ...]:
    """The errors of a call whose process, machine or result was lost, so that it may succeed another time."""
    errors = ray.exceptions
    found = errors.RayActorError, errors.WorkerCrashedError, errors.NodeDiedError, errors.OutOfMemoryError
    return (*found, errors.ObjectLostError)


def resources(ray: Any) -> dict[str, float]:
    """What the cluster has in all: CPUs and GPUs."""
    found: Mapping[str, float] = ray.cluster_resources()
    return {kind: float(found.get(kind, 0)) for kind in ("CPU", "GPU")}


def describe_resources(ray: Any) -> str:
    """Such as "2 nodes with 8 CPUs and 1 GPU, of which 3 CPUs and 0 GPUs are free"."""
    nodes = sum(node["Alive"] for node in ray.nodes())
    free = ray.available_resources()
    has, left = (_amounts({k: float(found.get(k, 0)) for k in ("CPU", "GPU")}) for found in (resources(ray), free))
    return f"{nodes} node{'s' * (nodes != 1)} with {has}, of which {left} are free"


def _amounts(found: Mapping[str, float]) -> str:
    return " and ".join(f"{amount:g} {kind}{'s' * (amount != 1)}" for kind, amount in found.items())


@contextlib.contextmanager
def own_code_by_value(ray: Any) -> Iterator[None]:
    """For a while, what a user's own files define is sent as it is: other machines need not have the files."""
    modules = own_modules()
    for module in modules:
        ray.cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in modules:
            ray.cloudpickle.unregister_pickle_by_value(module)


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0][:300]
