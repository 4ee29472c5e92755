"""A member's line to its relay through Flower: answers have come with the message, requests leave with the reply.

`RelayClient` checks the relay's signatures here as it does over HTTP, so whoever runs the Flower deployment cannot
change what the relay says. Only how a request is sent is replaced, in `_request`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from flwr.app import ConfigRecord, Message

from consilience.errors import RelayUnreachable
from consilience.peer.connection import RelayConnection
from consilience.peer.http import RelayClient
from consilience.peer.link import AnswersMessage
from consilience.peer.state_folder import StateFolder
from consilience_flower.requests import (
    RECORD,
    RelayRequest,
    RelayResponse,
    pack_requests,
    unpack_responses,
)

_LEAVES = "leaves with the reply"
TIMEOUT = 0.05
"""Seconds of a call: nothing is waited for, since what has not come with the message does not come."""


class FlowerLink(RelayClient):
    """The requests of one message. A request without a response is noted, and goes out with the reply."""

    def __init__(self, responses: Mapping[str, RelayResponse]) -> None:
        super().__init__("http://127.0.0.1", "")
        self.url = "the relay behind Flower"
        self.trust.url = self.url
        self._responses = responses
        self.requests: list[RelayRequest] = []
        """What goes out with the reply: uploads, then questions, which are asked after all members' uploads."""

    def _request(
        self,
        method: str,
        path: str,
        seconds: float,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> RelayResponse:  # type: ignore[override]
        response = self._responses.get(path) if method == "GET" else None
        if response is None:
            request = RelayRequest(method, path, dict(headers or {}), body or b"")
            if request not in self.requests:
                self.requests.append(request)
            raise RelayUnreachable(f"{method} {path} {_LEAVES}", may_have_arrived=method == "PUT")
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
        uploads = [int(each.path.rsplit("/", 1)[1]) for each in self.requests if "/rounds/" in each.path]
        return super().answers(max([round_, *uploads]), channels, have, draw, "", seconds, partners)

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
    link = FlowerLink(unpack_responses(message.content[RECORD]))
    store = StateFolder(folder)
    try:
        store.lock()
        connection = RelayConnection(link, store, TIMEOUT)
        connection.backoff.first = 0.0  # a request without a response is no failure
        connection.backoff.succeeded()
        return connection, link
    except BaseException:
        link.close()
        store.unlock()
        raise
