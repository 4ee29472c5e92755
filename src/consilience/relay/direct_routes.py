"""Calls the endpoints of answers and uploads directly: nearly all requests are for one of them.

The routes of the application lead to the same endpoints, for other methods and for paths in another form, by a longer
way.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

ANSWERS_PATH, ROUNDS_PATH = "/v1/answers", "/v1/rounds/"
Endpoint = Callable[[Request], Awaitable[Response]]


class DirectRoutes:
    """A middleware with two routes of its own."""

    def __init__(self, app: ASGIApp, answers: Endpoint, upload: Endpoint) -> None:
        self._app, self._answers, self._upload = app, answers, upload

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        if scope["type"] == "http" and scope["method"] == "GET" and scope["path"] == ANSWERS_PATH:
            endpoint = self._answers
        elif scope["type"] == "http" and scope["method"] == "PUT" and (round_ := _round(scope["path"])):
            endpoint, scope["path_params"] = self._upload, {"round": round_}
        else:
            await self._app(scope, receive, send)
            return
        scope["endpoint"] = endpoint
        response = await endpoint(Request(scope, receive, send))
        await response(scope, receive, send)


def _round(path: str) -> str:
    """The round in the path of an upload; empty if it is another path."""
    round_ = path.removeprefix(ROUNDS_PATH)
    return "" if round_ == path or "/" in round_ else round_
