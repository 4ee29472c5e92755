"""The public set at a member: from a file, from its own samples, or from the relay; always the charter's."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from consilience.data import Dataset
from consilience.errors import ConfigurationError, RelayError, RelayUnreachable
from consilience.files import replace_file, report_write_errors
from consilience.peer.connection import FederationConnection, RelayConnection
from consilience.wire.roles import PublicSetSettings, encode_public_set

log = logging.getLogger("consilience.peer")
_FILE = "public-set.bin"
_SLOWEST = 2**16  # bytes per second: a slower download is given up and begun again
_POLL = 5.0  # seconds after which the relay is asked again although it has reported nothing
_PROGRESS = 15.0  # seconds between messages while it waits


def find_public_set(
    connection: FederationConnection,
    own: np.ndarray,
    given: np.ndarray | None = None,
    wait: float = 120.0,
    say: Callable[[str], None] = log.info,
) -> np.ndarray | None:
    """The public set, (samples, *shape), checked against the charter; None where the federation has none.

    own: the member's own samples, which are the public set where it is the host. given: samples to use, such as those
    of --public. wait: the most seconds to wait until the relay has it. The host uploads it if the relay does not have
    it.
    """
    settings = connection.charter.public_set
    if settings is None:
        if given is not None:
            raise ConfigurationError(f"federation {connection.charter.name!r} has no public set; leave --public out")
        return None
    assert isinstance(connection, RelayConnection)  # a charter without a relay has no public set
    is_host = connection.number == settings.host
    if given is None and not is_host:
        return _fetch(connection, settings, wait, say)
    what = "your data" if given is None else "--public"
    body = encode_public_set(own if given is None else given)
    try:
        found = settings.decode(body)
    except ConfigurationError as error:
        raise ConfigurationError(
            f"{what} has {len(body) // max(4 * _values(settings), 1)} training samples that are not the public set of "
            f"federation {connection.charter.name!r}: {error}. Use the samples, in the same order, that the federation "
            f"was created with"
        ) from None
    if is_host:
        _offer(connection, body, wait, say)
    return found


def public_inputs(data: Dataset) -> np.ndarray:
    """The samples of data as a public set; refuses data with samples that must not be shared."""
    if data.shareable is not None and not data.shareable.all():
        raise ConfigurationError(
            f"{int((~data.shareable).sum())} samples of the public set are marked never to be shared; use a public set "
            f"of samples that may be shared"
        )
    return data.inputs


def _values(settings: PublicSetSettings) -> int:
    return settings.size // (4 * settings.samples)


def _offer(connection: RelayConnection, body: bytes, wait: float, say: Callable[[str], None]) -> None:
    """Upload the public set if the relay does not have it; after `wait` seconds, the next start tries again."""
    end = time.monotonic() + max(wait, connection.timeout)
    while connection.backoff.wait_until_allowed(end):
        try:
            if not connection.client.federation(connection.timeout).get("public_set"):
                connection.client.upload_public_set(body, _seconds(connection, len(body)))
                say(f"the public set is at the relay now, {len(body):,} bytes")
        except RelayUnreachable as error:
            connection.backoff.report(error)
        else:
            connection.backoff.succeeded()
            return
    log.warning("the public set could not be uploaded; join again when the relay can be reached")


def _fetch(
    connection: RelayConnection, settings: PublicSetSettings, wait: float, say: Callable[[str], None]
) -> np.ndarray:
    """The public set from the folder, where an earlier download is, or from the relay."""
    file = connection.folder / _FILE
    if (saved := _read(file, settings)) is not None:
        return saved
    started, reported, why = time.monotonic(), -_PROGRESS, "the relay cannot be reached"
    while (passed := time.monotonic() - started) < wait or reported < 0:
        try:
            body = connection.client.public_set(_seconds(connection, settings.size))
            found = settings.decode(body)
        except RelayUnreachable as error:
            why = str(error)
            connection.backoff.report(error)
        except RelayError as error:
            if error.code != "no-public-set":
                raise
            why = f"its host, member {settings.host}, has not uploaded it"
        except ConfigurationError as error:  # damaged on the way
            why = str(error)
            log.warning("%s; downloading it again", error)
        else:
            with report_write_errors(file, "choose another folder with --out"):
                replace_file(file, body)
            say(f"the public set was downloaded, {len(body):,} bytes")
            return found
        if passed - reported >= _PROGRESS:
            say(f"waiting for the public set, {passed:.0f} of at most {wait:.0f} s: {why}")
            reported = max(passed, 0.0)
        left = wait - (time.monotonic() - started)
        if not connection.backoff.allows(started + wait):  # no further attempt is due in time
            break
        connection.inbox.status(time.monotonic() + max(left, 0.1), connection.timeout)
        connection.inbox.wait(min(max(left, 0.0), _POLL))
    raise ConfigurationError(
        f"the public set of federation {connection.charter.name!r} did not come within {wait:g} s: {why}. Ask its host "
        f"to join, or name your own copy with --public PATH"
    )


def _read(file: Path, settings: PublicSetSettings) -> np.ndarray | None:
    """The public set that was downloaded before; None if there is none, or if it is damaged."""
    if not file.exists():
        return None
    try:
        return settings.decode(file.read_bytes())
    except (OSError, ConfigurationError) as error:
        log.warning("%s: %s; downloading it again", file, error)
        return None


def _seconds(connection: RelayConnection, size: int) -> float:
    return connection.timeout + size / _SLOWEST
