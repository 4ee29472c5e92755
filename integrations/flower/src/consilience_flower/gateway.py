"""The relay of a ServerApp: the project's own relay on loopback, to which requests of nodes are passed on."""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpcore

from consilience.errors import ConfigurationError, WireError
from consilience.relay import admin
from consilience.relay.app import Relay
from consilience.relay.rotate import rotate
from consilience.relay.server import ServerSettings, bind_server
from consilience.wire.charter import Charter, read_charter
from consilience.wire.digests import DIGEST_HEADER
from consilience.wire.headers import UPLOAD_HEADER
from consilience_flower.requests import STATUS, RelayRequest, RelayResponse, Responses

log = logging.getLogger("flwr")
_START, _REQUEST, _POLL = 60.0, 60.0, 0.1  # seconds
_ALLOWED = re.compile(
    r"GET /v1/(answers\?[^\s#]{1,8000}|channels/[a-z0-9-]{1,64}/replies/[0-9]{1,16}|federation)"
    r"|PUT /v1/rounds/[0-9]{1,16}"
)
_HEADERS = {each.lower() for each in (UPLOAD_HEADER, DIGEST_HEADER, "Content-Type", "If-None-Match")}
"""Headers of nodes that are passed on."""
_VISIBLE = re.compile(r"[ -~]*")


def check_charter(charter: Charter) -> None:
    """Refuse what cannot run through messages of which a node gets one or two in a round."""
    if charter.roles is not None or charter.public_set is not None:
        raise ConfigurationError(
            f"federation {charter.name!r}: method {charter.method['name']!r} has several roles or a public set, whose "
            f"members wait for each other within a round, and a Flower node has one message at a time; choose a method "
            f"of one role, such as representation-sharing, or run the federation over a relay (consilience relay serve)"
        )
    if charter.members:
        raise ConfigurationError(
            f"federation {charter.name!r} is one without a relay: its charter names members and their keys; create the "
            f"charter without --member"
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
        self.url = ""

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
            self.url = url.rstrip("/")
            started.set()

        self._server = bind_server(Relay(self.store).app(), ServerSettings(port=0), ready)
        self._thread = threading.Thread(target=self._server.run, name="relay", daemon=True)
        self._thread.start()
        if not started.wait(_START):
            self._server.should_exit = True
            raise ConfigurationError(f"the relay of {self.store} did not start within {_START:g} s")
        self._pool = httpcore.ConnectionPool()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._pool.close()
        self._server.should_exit = True
        self._thread.join(_START)

    # -- members -------------------------------------------------------------------------------------------------------

    def admit(self, name: str) -> int:
        """Give a member a token, and invite it if it is new; its number. A revoked one is refused."""
        known = self._numbers()
        name_in = self.charter.name
        token = rotate(self.store, name, name_in) if name in known else admin.invite(self.store, name, name_in)
        self._tokens[name] = str(token)
        return self._numbers()[name]

    def _numbers(self) -> dict[str, int]:
        (federation,) = [each for each in admin.status(self.store) if each["federation"] == self.charter.name]
        return {each["name"]: each["number"] for each in federation["members"]}

    # -- requests ------------------------------------------------------------------------------------------------------

    def send(self, member: str, requests: Iterable[RelayRequest]) -> Responses:
        """Make requests of a member at the relay; the responses by the key of their request."""
        return {request.key: self._send(member, request) for request in requests}

    def check(self, requests: Iterable[RelayRequest]) -> None:
        """Refuse requests that no member makes."""
        for request in requests:
            if not _ALLOWED.fullmatch(f"{request.method} {request.path}"):
                raise WireError(f"{request.method[:8]} {request.path[:80]!r} is no request of a member")
            if not all(_VISIBLE.fullmatch(value) for value in request.headers.values()):
                raise WireError(f"{request.path[:80]!r} has a header that is not plain text")

    def wait_for_means(self, member: str, seconds: float) -> bool:
        """Wait until moving means have aggregated the uploads that they hold; whether they have."""
        if not any(channel.moves for channel in self.charter.channels.values()):
            return True
        end = time.monotonic() + min(seconds, self.charter.rules.deadline + 1.0)
        while any(self.status(member).get("waiting", {}).values()):
            if time.monotonic() > end:
                return False
            time.sleep(_POLL)
        return True

    def status(self, member: str) -> dict[str, Any]:
        """A member's status, as the relay tells it."""
        found = json.loads(self._send(member, STATUS).body)
        return found if isinstance(found, dict) else {}

    def _send(self, member: str, request: RelayRequest) -> RelayResponse:
        self.check([request])
        passed = {key: value for key, value in request.headers.items() if key.lower() in _HEADERS}
        headers = {**passed, "Authorization": f"Bearer {self._tokens[member]}", "Accept-Encoding": "identity"}
        try:
            answer = self._pool.request(
                request.method,
                self.url + request.path,
                headers=list(headers.items()),
                content=request.body if request.method == "PUT" else None,
                extensions={"timeout": dict.fromkeys(("connect", "read", "write", "pool"), _REQUEST)},
            )
        except (httpcore.TimeoutException, httpcore.NetworkError, httpcore.ProtocolError) as error:
            log.error("the relay of %s does not answer: %s", self.store, error or type(error).__name__)
            return RelayResponse(503, {}, json.dumps({"code": "stopping", "message": "no answer"}).encode())
        found = {key.decode("latin-1").lower(): value.decode("latin-1") for key, value in answer.headers}
        return RelayResponse(answer.status, found, answer.content)


def why_refused(response: RelayResponse) -> str:
    """What a relay says of a request that it refuses."""
    try:
        return str(json.loads(response.body)["message"])[:300]
    except (ValueError, KeyError, TypeError):
        return f"status {response.status}"


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"consilience-charter: {file.absolute()} cannot be read: {error}; write it with consilience federation, at "
            f"the place where the ServerApp runs"
        ) from error
