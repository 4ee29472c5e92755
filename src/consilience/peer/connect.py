"""Connect a member: to its relay, or straight to the other members."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from consilience.errors import ConfigurationError
from consilience.peer.connection import FederationConnection, connect_to_relay
from consilience.peer.direct.connection import connect_to_peers
from consilience.peer.direct.network import PeerNetwork

TOKEN_VARIABLE = "CONSILIENCE_TOKEN"
"""The environment variable with the token where none is given."""


def connect(
    url: str | PeerNetwork,
    token: str = "",
    folder: Path | str | None = None,
    timeout: float = 5.0,
    ca_file: str | None = None,
    relay_key: str | None = None,
    partners: Iterable[int] = (),
) -> FederationConnection:
    """The connection of a member; the arguments are those of `consilience.join`."""
    connection = _open(url, token, folder, timeout, ca_file, relay_key)
    try:
        connection.use_partners(partners)
    except BaseException:
        connection.disconnect()
        raise
    return connection


def _open(
    url: str | PeerNetwork,
    token: str,
    folder: Path | str | None,
    timeout: float,
    ca_file: str | None,
    relay_key: str | None,
) -> FederationConnection:
    if isinstance(url, str):
        _refuse_other_than_text(token)
        return connect_to_relay(url, token or os.environ.get(TOKEN_VARIABLE, ""), folder, timeout, ca_file, relay_key)
    if token or ca_file or relay_key:
        raise ConfigurationError(
            "a PeerNetwork has no relay: leave out token and relay_key, and give ca_file to the PeerNetwork"
        )
    return connect_to_peers(url, folder, timeout)


def _refuse_other_than_text(token: object) -> None:
    """A model in its place is likely, as the token may be left out; None is as good as leaving it out."""
    if token is not None and not isinstance(token, str):
        raise ConfigurationError(
            f"the token, the second argument, is of the type {type(token).__name__}, and must be the text from your "
            f"invitation; where {TOKEN_VARIABLE} has it, leave it out, and name the others: "
            f"consilience.join(url, model=model)"
        )
