"""The relay of a ServerApp: the project's own relay on loopback, to which requests of nodes are passed on."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import httpcore

from consilience.errors import ConfigurationError
from consilience.relay import admin
from consilience.relay.app import Relay
from consilience.relay.rotate import rotate
from consilience.relay.server import ServerSettings, bind_server
from consilience.wire.charter import Charter, read_charter
from consilience_flower.requests import STATUS, RelayRequest, RelayResponse

_START, _REQUEST = 20.0, 60.0  # seconds
_ALLOWED = ("/v1/answers?", "/v1/rounds/", "/v1/channels/", STATUS)


def check_charter(charter: Charter) -> None:
    """Refuse what cannot run through messages of which a node gets one or two in a round."""
    if charter.roles is not None or charter.public_set is not None:
        raise ConfigurationError(
            f"federation {charter.name!r}: method {charter.method['name']!r} has several roles or a public set, whose "
            f"members wait for each other within a round, and a Flower node has one message at a time; choose a method "
            f"of one role, such as representation-sharing, or run the federation over a relay (consilience relay serve)"
        )


class RelayGateway:
    """A store, its relay in a thread, and the tokens of the members. Use it in a `with` statement.

    store: the relay's store; it is created from the charter where it does not exist.
    """

    def __init__(self, store: Path, charter: Path) -> None:
        self.charter = read_charter(_text(charter), str(charter))
        check_charter(self.charter)
        self.store = store
        if not store.exists():
            store.parent.mkdir(parents=True, exist_ok=True)
            admin.create(store, charter)
        self._check_store(charter)
        self._tokens: dict[str, str] = {}
        self._url = ""

    def _check_store(self, file: Path) -> None:
        with admin.open_store(self.store) as opened:
            known = {each.name: read_charter(each.charter) for each in opened.federations.sound()}
        found = known.get(self.charter.name)
        if found is None or found.with_relay_key(self.charter.relay_key) != self.charter:
            raise ConfigurationError(
                f"{self.store} was created with another charter than {file}, of {', '.join(known) or 'nobody'}; give "
                f"the same charter, or another consilience-store"
            )

    def __enter__(self) -> Self:
        started = threading.Event()

        def ready(url: str) -> None:
            self._url = url
            started.set()

        self._server = bind_server(Relay(self.store).app(), ServerSettings(port=0), ready)
        self._thread = threading.Thread(target=self._server.run, name="relay", daemon=True)
        self._thread.start()
        if not started.wait(_START):
            raise ConfigurationError(f"the relay of {self.store} did not start within {_START:g} s")
        self._pool = httpcore.ConnectionPool()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._pool.close()
        self._server.should_exit = True
        self._thread.join(_START)

    def admit(self, names: Sequence[str]) -> dict[str, int]:
        """Invite members that are new, in this order; their numbers by name."""
        (federation,) = [each for each in admin.status(self.store) if each["federation"] == self.charter.name]
        known = {each["name"]: each["number"] for each in federation["members"]}
        for name in names:
            token = rotate(self.store, name) if name in known else admin.invite(self.store, name)
            self._tokens[name] = str(token)
        (federation,) = [each for each in admin.status(self.store) if each["federation"] == self.charter.name]
        return {each["name"]: each["number"] for each in federation["members"] if each["name"] in names}

    def send(self, member: str, requests: Iterable[RelayRequest]) -> dict[str, RelayResponse]:
        """Make requests of a member at the relay; the responses by path."""
        return {request.path: self._send(member, request) for request in requests}

    def _send(self, member: str, request: RelayRequest) -> RelayResponse:
        if not request.path.startswith(_ALLOWED) or request.method not in ("GET", "PUT"):
            raise ConfigurationError(f"{member} asks for {request.method} {request.path[:80]!r}, which no member needs")
        headers = {**request.headers, "Authorization": f"Bearer {self._tokens[member]}", "Accept-Encoding": "identity"}
        answer = self._pool.request(
            request.method,
            self._url.rstrip("/") + request.path,
            headers=headers,
            content=request.body if request.method == "PUT" else None,
            extensions={"timeout": dict.fromkeys(("connect", "read", "write", "pool"), _REQUEST)},
        )
        found = {key.decode("latin-1").lower(): value.decode("latin-1") for key, value in answer.headers}
        return RelayResponse(answer.status, found, answer.content)


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"consilience-charter: {file} cannot be read: {error}; write it with consilience federation, at the place "
            f"where the ServerApp runs"
        ) from error
