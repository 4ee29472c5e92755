"""The files of the operators' page, and the headers that keep a browser from running or loading anything else.

The files hold no data: the page asks for it with the operator's token, which is why anybody may load them.
"""

from __future__ import annotations

from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from consilience.relay.rejections import Rejection

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
        "trusted-types 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-cache",
}
"""Trusted types forbid scripts to turn text into HTML: what members send can only be shown as text."""
_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


_PAGE = "operator.html"


def page_routes() -> list[Route]:
    """The page at /operator, and its other files below that path; they are read once."""
    folder = files("consilience.relay").joinpath("page")
    found = {each.name: each.read_bytes() for each in folder.iterdir() if each.name.rpartition(".")[2] in _TYPES}
    page = found.pop(_PAGE)

    async def serve_page(request: Request) -> Response:
        return _response(_PAGE, page)

    async def serve_file(request: Request) -> Response:
        name = request.path_params["file"]
        if name not in found:
            raise Rejection("not-found", "no such path; /openapi.json lists them")
        return _response(name, found[name])

    return [Route("/operator", serve_page), Route("/operator/{file}", serve_file)]


def _response(name: str, content: bytes) -> Response:
    return Response(content, media_type=_TYPES[name.rpartition(".")[2]], headers=HEADERS)
