"""A member's line to its relay through Flower: responses have come with the message, requests leave with the reply.

`RelayClient` checks the relay's signatures here as it does over HTTP, so whoever runs the Flower deployment cannot
change what the relay says. Only how a request is sent is replaced, in `_request`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from flwr.app import ConfigRecord, Message

from consilience.errors import ConfigurationError, ConsilienceError, RelayError, RelayUnreachable
from consilience.peer.connection import RelayConnection
from consilience.peer.http import RelayClient
from consilience.peer.link import AnswersMessage
from consilience.peer.state_folder import StateFolder
from consilience_flower.requests import (
    ANSWERS_PATH,
    RelayRequest,
    RelayResponse,
    Responses,
    pack_requests,
    record_of,
    unpack_responses,
)

_LEAVES = "leaves with the reply"
_TIMEOUT = 60.0  # seconds of a call, which waits for nothing: what has not come with the message does not come
_NOT_AGAIN = 3600.0  # seconds: what has failed is not tried again during this message


class NodeBusy(ConsilienceError):
    """The node still works on an earlier message."""


class FlowerLink(RelayClient):
    """The requests of one message. A request without a response is noted, and goes out with the reply."""

    def __init__(self, responses: Responses) -> None:
        super().__init__("http://127.0.0.1", "")
        self.url = self.trust.url = "the relay behind Flower"
        self._responses = dict(responses)
        self.requests: list[RelayRequest] = []
        """What goes out with the reply: uploads, then questions, which are asked after all members' uploads."""

    @property
    def has_answers(self) -> bool:
        """Whether answers have come that were not read yet."""
        return any(key.startswith(f"GET {ANSWERS_PATH} ") for key in self._responses)

    def _request(  # type: ignore[override]  # a response has the same three fields, wherever it comes from
        self,
        method: str,
        path: str,
        seconds: float,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> RelayResponse:
        request = RelayRequest(method, path, dict(headers or {}), body or b"")
        response = self._responses.get(request.key)
        if response is None:
            if request not in self.requests:
                self.requests.append(request)
            raise RelayUnreachable(f"{method} {path} {_LEAVES}", may_have_arrived=method == "PUT")
        if path.startswith((ANSWERS_PATH, "/v1/rounds/")):
            del self._responses[request.key]  # each is read once; the next ones are of another round
        if response.status not in (200, 304):
            raise self._refusal(response)  # type: ignore[arg-type]
        return response

    def answers(
        self,
        round_: int,
        channels: Sequence[str],
        have: Mapping[str, int],
        draw: Mapping[str, int],
        etag: str,
        seconds: float,
        partners: Sequence[int] = (),
    ) -> AnswersMessage | None:
        """Answers of some channels. A question beside an upload is asked as of the upload's round."""
        uploads = [int(each.path.rsplit("/", 1)[1]) for each in self.requests if each.method == "PUT"]
        return super().answers(max([round_, *uploads]), channels, have, draw, "", seconds, partners)

    def reply(self, channel: str, version: int, seconds: float) -> bytes:
        """Replies do not come with messages: whoever has missed some asks for the common values themselves."""
        raise RelayError(f"the reply {version} of {channel!r} does not come with a message", code="no-such-reply")

    def wait_for_change(self, revision: int, seconds: float) -> int:
        """Nothing changes while a message is being worked on."""
        return revision

    def record(self) -> ConfigRecord:
        """The requests, for the reply."""
        return pack_requests(self.requests)


def _is_failure(record: logging.LogRecord) -> bool:
    """Whether a line of the log is about more than a request that leaves with the reply."""
    return _LEAVES not in record.getMessage()


def connect_to_message(message: Message, folder: Path) -> tuple[RelayConnection, FlowerLink]:
    """The connection of the member that a message is for, with the state in its folder."""
    logging.getLogger("consilience.peer").addFilter(_is_failure)
    link = FlowerLink(unpack_responses(record_of(message)))
    store = StateFolder(folder)
    try:
        try:
            store.lock()
        except ConfigurationError as error:
            raise NodeBusy(str(error)) from error
        connection = RelayConnection(link, store, _TIMEOUT)
        connection.backoff.first = connection.backoff.longest = _NOT_AGAIN
        connection.backoff.succeeded()
        return connection, link
    except BaseException:
        link.close()
        store.unlock()
        raise
