"""What a request says, read and checked: its headers and the parameters of its query."""

from __future__ import annotations

from starlette.requests import Request

from consilience.relay.answers import AnswerRequest
from consilience.relay.federation import FederationService
from consilience.relay.rejections import Rejection
from consilience.wire.headers import LATEST_ROUND


def one_header(request: Request, name: str) -> str | None:
    """A header that may be sent once: of two, the relay and a proxy before it might each use a different one."""
    values = request.headers.getlist(name)
    if len(values) > 1:
        raise Rejection("malformed-query", f"the header {name} was sent {len(values)} times; send it once", field=name)
    return values[0] if values else None


def answer_request(request: Request, service: FederationService) -> AnswerRequest:
    """The request in `?round=3&channel=NAME&have=NAME:VERSION&draw=NAME:N&turn=0&partner=2`; without channels, all."""
    query = request.query_params
    for key in query:
        if key not in ("round", "channel", "have", "draw", "turn", "partner"):
            raise Rejection("malformed-query", f"unknown parameter {key[:80]!r}", field=key[:80])
    for key in ("round", "turn"):
        if len(query.getlist(key)) > 1:
            times = len(query.getlist(key))
            raise Rejection("malformed-query", f"{key} was sent {times} times; send it once", field=key)
    return AnswerRequest(
        tuple(query.getlist("channel")) or tuple(service.channels),
        parse_number("round", query.get("round", "0")),
        _pairs("have", query.getlist("have")),
        _pairs("draw", query.getlist("draw")),
        parse_number("turn", query.get("turn", "0")),
        _partners(query.getlist("partner")),
    )


def _partners(texts: list[str]) -> tuple[int, ...]:
    """Numbers of members, sorted; none where everybody's uploads are asked for."""
    numbers = sorted(parse_number("partner", text) for text in texts)
    if len(set(numbers)) < len(numbers):
        raise Rejection("malformed-query", "a partner is named twice; name each once", field="partner")
    return tuple(numbers)


def parse_number(what: str, text: str) -> int:
    """A whole number in a path or a query."""
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= LATEST_ROUND):
        raise Rejection("malformed-query", f"{what} is {text[:80]!r}; a whole number, 0 to 2^53, is needed", field=what)
    return int(text)


def _pairs(what: str, texts: list[str]) -> dict[str, int]:
    pairs: dict[str, int] = {}
    for text in texts:
        name, _, number = text.partition(":")
        if name in pairs:
            raise Rejection("malformed-query", f"{what} names {name[:80]!r} twice", field=what)
        pairs[name] = parse_number(what, number)
    return pairs
