"""Calls the endpoints of answers and uploads directly: nearly all requests are for one of them.

The routes of the application lead to the same endpoints, for other methods and for paths in another form; a request
takes a tenth longer that way.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

ANSWERS, ROUNDS = "/v1/answers", "/v1/rounds/"
Endpoint = Callable[[Request], Awaitable[Response]]


class DirectRoutes:
    """A middleware with two routes of its own.

    known: the answer to a request for answers that was made before, if any; looked for first.
    """

    def __init__(
        self, app: ASGIApp, answers: Endpoint, upload: Endpoint, known: Callable[[Scope], Response | None]
    ) -> None:
        self._app, self._answers, self._upload, self._known = app, answers, upload, known

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        if scope["type"] == "http" and scope["method"] == "GET" and scope["path"] == ANSWERS:
            response = self._known(scope) or await self._call(self._answers, scope, receive, send)
        elif scope["type"] == "http" and scope["method"] == "PUT" and (round_ := _round(scope["path"])):
            scope["path_params"] = {"round": round_}
            response = await self._call(self._upload, scope, receive, send)
        else:
            await self._app(scope, receive, send)
            return
        await response(scope, receive, send)

    async def _call(self, endpoint: Endpoint, scope: Scope, receive: Receive, send: Send) -> Response:
        scope["endpoint"] = endpoint
        return await endpoint(Request(scope, receive, send))


def _round(path: str) -> str:
    """The round in the path of an upload; empty if it is another path."""
    round_ = path.removeprefix(ROUNDS)
    return "" if round_ == path or "/" in round_ else round_
