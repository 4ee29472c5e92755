"""Responses whose bytes are shared by all who read them, and handed to a connection piece by piece."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from consilience.relay.answer_cache import SharedAnswer

PIECE = 64 * 1024
"""Bytes that a connection has in its own buffer at most; it gets more when the client has read them."""


class SharedResponse(Response):
    """An answer from one bytes object.

    A connection copies what its client has not read yet into a buffer of its own: here that is one piece, not all of
    the body. on_end: called once, when all of it is sent or the client is gone.
    """

    def __init__(self, answer: SharedAnswer, on_end: Callable[[], None]) -> None:
        self.answer, self._on_end = answer, on_end
        self.status_code, self.background = 200, None
        self.raw_headers = answer.headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer."""
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.answer.headers})
            if len(self.answer.body) <= PIECE or scope["method"] == "HEAD":
                await send({"type": "http.response.body", "body": self.answer.body})
            else:
                await self._send_pieces(send)
        finally:
            self._on_end()

    async def _send_pieces(self, send: Send) -> None:
        body = memoryview(self.answer.body)
        for start in range(0, len(body), PIECE):
            piece, more = body[start : start + PIECE], start + PIECE < len(body)
            await send({"type": "http.response.body", "body": piece, "more_body": more})  # waits for the client
            await asyncio.sleep(0)  # others have their turn after each piece
