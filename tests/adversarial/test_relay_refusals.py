"""Invalid requests: each refused by its own code and field, over a real socket, and none of it stored."""

from __future__ import annotations

import atexit
import json
import socket
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np
import pytest

from consilience.relay import admin
from consilience.relay.app import Limits, Relay
from consilience.relay.rate_limit import RateLimit
from consilience.relay.timeouts import Timeouts
from consilience.wire import charter as charters
from consilience.wire import codec, schema
from consilience.wire.encodings import BIT, FLOAT16, INT8
from consilience.wire.headers import UPLOAD_HEADER
from consilience.wire.layout import names_in_body
from consilience.wire.rules import Rules
from tests.relay_tools import in_a_thread

MEAN = schema.Mean("mean", {"value": schema.Tensor((3, 2), low=-1, high=1)}, rows=(3,))
HALF = schema.Mean("half", {"value": schema.Tensor((2, 2), FLOAT16, FLOAT16)})
POOL = schema.Pool("pool", {"value": schema.Tensor((3, 2), INT8, INT8, -1, 1)}, rows=(3,), keep=2, draw=1)
MOVING = schema.Mean("moving", {"value": schema.Tensor((3, 3), BIT, BIT)}, moving=True, max_staleness=1)
CHANNELS: dict[str, schema.Channel] = {c.name: c for c in (MEAN, HALF, POOL, MOVING)}
STARTS = {"moving": {"value": np.zeros((3, 3), dtype=np.float32)}}
SAMPLES = 1000
HEADER = "mean, half;weight=2, pool;entries=2, moving;version=0;weight=3"
MESSAGE = {k: f for c in CHANNELS.values() for k, f in c.message("up").items()}
VALUES = {
    name: np.ones(field.shape, dtype=np.int32) if name.endswith("count") else np.full(field.shape, 0.5, np.float32)
    for name, field in MESSAGE.items()
}
BODY = codec.encode(MESSAGE, VALUES)
HTTP = httpx.Client(verify=False, limits=httpx.Limits(max_keepalive_connections=0))
atexit.register(HTTP.close)  # not with a fixture: a process may take up this module more than once
START = 8 + int.from_bytes(BODY[:8], "little")
LAYOUT: dict[str, dict[str, Any]] = json.loads(BODY[8:START])
NAMES = names_in_body(MESSAGE)
"""By its name in the message, the name of a tensor in `LAYOUT`."""


# --- a relay with two federations, on a port


@dataclass
class Place:
    """A relay's address and the tokens of its members."""

    store: Path
    url: str
    relay: Relay
    mine: str
    yours: str
    elsewhere: str
    gone: str

    @property
    def kept(self) -> dict[str, list[Any]]:
        """The entire content of the store."""
        with closing(sqlite3.connect(self.store)) as sql:
            names = [name for (name,) in sql.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            return {name: sql.execute(f"SELECT * FROM {name}").fetchall() for name in sorted(names)}

    def put(self, round_: object = 5, header: str = HEADER, body: bytes = BODY, **headers: str) -> httpx.Response:
        said = {"Authorization": f"Bearer {self.mine}", UPLOAD_HEADER: header, **headers}
        return HTTP.put(f"{self.url}/v1/rounds/{round_}", content=body, headers=latin(said))

    def get(self, path: str, token: str | None = None) -> httpx.Response:
        return HTTP.get(self.url + path, headers={"Authorization": f"Bearer {token or self.mine}"})

    def connect(self) -> socket.socket:
        made = socket.create_connection(("127.0.0.1", urlsplit(self.url).port or 0), timeout=10)
        return made

    def raw(self, request: bytes) -> tuple[int, dict[str, Any]]:
        """The answer on a new connection: its status and its JSON."""
        with self.connect() as connection:
            with suppress(ConnectionError):
                connection.sendall(request)
                connection.shutdown(socket.SHUT_WR)
            return parsed(rest(connection))

    def head(self, line: str, *headers: str) -> bytes:
        """The head of a request with a token."""
        lines = [line, "host: relay", f"authorization: Bearer {self.mine}", *headers, "", ""]
        return "\r\n".join(lines).encode("latin-1")


def latin(headers: dict[str, str]) -> dict[bytes, bytes]:
    return {name.encode(): value.encode("latin-1") for name, value in headers.items()}


def rest(connection: socket.socket) -> bytes:
    got = bytearray()
    with suppress(ConnectionError):
        while piece := connection.recv(2**16):
            got += piece
    return bytes(got)


def parsed(answer: bytes) -> tuple[int, dict[str, Any]]:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 "), answer
    return int(head.split()[1]), json.loads(body) if body else {}


def create_federation(store: Path, name: str) -> None:
    rules = Rules(min_contributions=1, samples=SAMPLES)
    charter = charters.build_charter(name, {"name": "some"}, 3, CHANNELS, STARTS, rules=rules)
    file = store.parent / f"{name}.toml"
    file.write_text(charter.to_toml())
    charters.start_values_file(file).write_bytes(charters.encode_start_values(charter, STARTS))
    admin.create(store, file)


@contextmanager
def serving(store: Path, limits: Limits) -> Iterator[tuple[str, Relay]]:
    relay = Relay(store, limits)
    with in_a_thread(relay, Timeouts(head=3, idle=1, body=3)) as url:
        yield url, relay


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    store = tmp_path_factory.mktemp("relay") / "relay.db"
    create_federation(store, "digits")
    create_federation(store, "letters")
    mine, yours, gone = (str(admin.invite(store, name, "digits")) for name in ("mine", "yours", "gone"))
    elsewhere = str(admin.invite(store, "mine", "letters"))
    admin.revoke(store, "gone", "digits")
    with serving(store, Limits(rate=0, failed_logins=0)) as (url, relay):
        made = Place(store, url, relay, mine, yours, elsewhere, gone)
        assert made.put(3).status_code == 200  # content that a refused request could damage
        yield made


@pytest.fixture(autouse=True)
def nothing_is_stored(place: Place) -> Iterator[None]:
    """After every test: nothing was stored, and valid requests are served."""
    before, answer = place.kept, place.get("/v1/answers").content
    yield
    assert place.kept == before
    assert place.get("/v1/answers").content == answer


@dataclass(frozen=True)
class Case:
    """A request and its expected refusal."""

    what: str
    send: Callable[[Place], httpx.Response]
    status: int
    code: str
    field: str = field(default="")


def refused(response: httpx.Response, status: int, code: str, at: str = "") -> None:
    said = response.json()
    assert (response.status_code, said["code"], said.get("field", "")) == (status, code, at), said
    assert said["message"]
    assert at.split(".scale")[0] in said["message"]
    assert "Traceback" not in said["message"]
    assert len(response.content) < 2000


def table(*cases: Case) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", cases, ids=[case.what for case in cases])


# --- bodies


def with_layout(change: Callable[[dict[str, Any]], Any]) -> bytes:
    """The body under another header of the same length, where it can be made so."""
    layout = json.loads(json.dumps(LAYOUT))
    text = change(layout) or json.dumps(layout, separators=(",", ":"))
    content = text if isinstance(text, bytes) else text.encode()
    return BODY[:8] + content.ljust(START - 8)[: START - 8] + BODY[START:]


def with_value(name: str, index: int, value: bytes) -> bytes:
    at = START + LAYOUT[NAMES[name]]["data_offsets"][0] + index * len(value)
    return BODY[:at] + value + BODY[at + len(value) :]


def sends(body: bytes) -> Callable[[Place], httpx.Response]:
    return lambda place: place.put(body=body)


def swap(name: str, key: str, value: Any) -> bytes:
    return with_layout(lambda layout: layout[NAMES[name]].update({key: value}))


def renamed(name: str, other: str) -> bytes:
    """The header with another name in a body for a tensor."""
    return BODY[8:START].replace(f'"{NAMES[name]}"'.encode(), f'"{other}"'.encode(), 1)


TWICE = renamed("half.value", NAMES["mean.value"])
F32, I32 = np.float32, np.int32


@table(
    Case("empty", sends(b""), 400, "wrong-length"),
    Case("cut short", sends(BODY[:-1]), 400, "wrong-length"),
    Case("a header longer than all", sends(b"\xff" * 8 + BODY[8:]), 400, "malformed-header"),
    Case("a header of no length", sends(bytes(8) + BODY[8:]), 400, "malformed-header"),
    Case("no JSON", sends(with_layout(lambda layout: b"{" * (START - 8))), 400, "malformed-header"),
    Case("no object", sends(with_layout(lambda layout: "[]")), 400, "malformed-header"),
    Case("no UTF-8", sends(with_layout(lambda layout: b'{"\xff": 1}')), 400, "malformed-header"),
    Case("a name twice", sends(with_layout(lambda layout: TWICE)), 400, "duplicate-name", "mean.value"),
    Case(
        "a name that nobody declared",
        sends(with_layout(lambda layout: renamed("half.value", "9"))),
        400,
        "undeclared-name",
        "half.value",
    ),
    Case("all names missing", sends(with_layout(lambda layout: "{}")), 400, "undeclared-name", "bits"),
    Case(
        "tensors over each other",
        sends(swap("half.value", "data_offsets", LAYOUT[NAMES["pool.value"]]["data_offsets"])),
        400,
        "wrong-layout",
        "half.value",
    ),
    Case("offsets below nothing", sends(swap("bits", "data_offsets", [-2, 0])), 400, "wrong-layout", "bits"),
    Case("another shape", sends(swap("mean.value", "shape", [2, 3])), 400, "wrong-layout", "mean.value"),
    Case("another rank", sends(swap("mean.value", "shape", [6])), 400, "wrong-layout", "mean.value"),
    Case("a shape of fractions", sends(swap("mean.value", "shape", [3.0, 2])), 400, "malformed-header"),
    Case("another type", sends(swap("mean.value", "dtype", "I32")), 400, "wrong-layout", "mean.value"),
    Case("a type nobody knows", sends(swap("mean.value", "dtype", "X9")), 400, "wrong-layout", "mean.value"),
    *(
        Case(f"{value} in {name}", sends(with_value(name, 0, np.array(value, dtype).tobytes())), 400, code, name)
        for value in (np.nan, np.inf, -np.inf)
        for name, dtype, code in [
            ("mean.value", "f4", "not-finite"),
            ("half.value", "f2", "not-finite"),
            ("pool.value.scale", "f4", "bad-scale"),
            ("scales", "f4", "bad-scale"),
        ]
    ),
    Case(
        "above the bounds", sends(with_value("mean.value", 3, F32(1.001).tobytes())), 400, "out-of-bounds", "mean.value"
    ),
    Case("below the bounds", sends(with_value("mean.value", 3, F32(-2).tobytes())), 400, "out-of-bounds", "mean.value"),
    Case(
        "levels above", sends(with_value("pool.value.scale", 0, F32(1).tobytes())), 400, "out-of-bounds", "pool.value"
    ),
    Case("no such level", sends(with_value("pool.value", 0, b"\x80")), 400, "out-of-bounds", "pool.value"),
    Case("a negative scale", sends(with_value("scales", 0, F32(-1).tobytes())), 400, "bad-scale", "scales"),
    Case("bits after the end", sends(with_value("bits", 1, b"\xff")), 400, "padding", "bits"),
    Case("a negative count", sends(with_value("mean.count", 0, I32(-1).tobytes())), 400, "out-of-bounds", "mean.count"),
    Case(
        "more samples than there can be",
        sends(with_value("mean.count", 0, I32(SAMPLES).tobytes())),  # with one each of two other classes
        400,
        "absurd-count",
        "mean.count",
    ),
    Case(
        "counts whose sum is beyond 32 bits",
        sends(with_value("pool.count", 0, np.full(3, 2**31 - 1, I32).tobytes())),
        400,
        "absurd-count",
        "pool.count",
    ),
)
def test_invalid_upload_bodies_are_refused(place: Place, case: Case) -> None:
    refused(case.send(place), case.status, case.code, case.field)


# --- the header of an upload


def says(header: str) -> Callable[[Place], httpx.Response]:
    return lambda place: place.put(header=header)


REST = ", half;weight=2, pool;entries=2, moving;version=0;weight=3"


@table(
    Case("nothing", says(""), 400, "malformed-upload"),
    Case("commas", says(",,"), 400, "malformed-upload"),
    Case("no such channel", says("other"), 400, "unknown-channel", "other"),
    Case("a channel twice", says("mean, mean" + REST), 400, "malformed-upload", "mean"),
    Case("something twice", says("half;weight=1;weight=2"), 400, "malformed-upload", "half"),
    Case("a word nobody knows", says("mean;color=1" + REST), 400, "malformed-upload", "mean"),
    Case("upper case", says("Mean"), 400, "malformed-upload"),
    Case("a dot", says("mean.value"), 400, "malformed-upload"),
    Case("dots and slashes", says("../mean"), 400, "malformed-upload"),
    Case("long", says("mean;" + "a" * 9000), 400, "malformed-upload"),
    Case("10 kB of one name", says("a" * 10_000), 400, "malformed-upload"),
    Case("a negative weight", says("half;weight=-1"), 400, "malformed-upload", "half"),
    Case("a weight that is no number", says("half;weight=nan"), 400, "malformed-upload"),
    Case("a weight without digits", says("half;weight=e"), 400, "malformed-upload", "half"),
    Case("an infinite weight", says("half;weight=1e999"), 400, "malformed-upload", "half"),
    Case("an absurd weight", says(f"half;weight={SAMPLES + 1}"), 400, "absurd-count", "half"),
    Case("an absurd weight of a change", says("moving;version=0;weight=1e9"), 400, "absurd-count", "moving"),
    Case("no weight", says("half"), 400, "wrong-weight", "half"),
    Case("no weight of a change", says("moving;version=0"), 400, "wrong-weight", "moving"),
    Case("a weight where counts are", says("mean;weight=3" + REST), 400, "wrong-weight", "mean"),
    Case("a weight where entries have counts", says("pool;entries=2;weight=3"), 400, "wrong-weight", "pool"),
    Case("no version", says("moving;weight=3"), 400, "malformed-upload", "moving"),
    Case("a version of what never moves", says("half;version=0;weight=1"), 400, "malformed-upload", "half"),
    Case("a version below 0", says("moving;version=-1;weight=3"), 400, "malformed-upload", "moving"),
    Case("half a version", says("moving;version=0.5;weight=3"), 400, "malformed-upload", "moving"),
    Case("a version to come", says("mean" + REST.replace("version=0", "version=9")), 409, "version-ahead", "moving"),
    Case("common values themselves", says("moving;version=0;weight=3;full=1"), 400, "malformed-upload", "moving"),
    Case("no entries", says("pool"), 400, "entries", "pool"),
    Case("0 entries", says("pool;entries=0"), 400, "entries", "pool"),
    Case("3 entries", says("pool;entries=3"), 400, "entries", "pool"),
    Case("10^15 entries", says("pool;entries=1000000000000000"), 400, "entries", "pool"),
    Case("entries of what is no pool", says("half;entries=1;weight=1"), 400, "entries", "half"),
    Case("another body's header", says("mean"), 400, "wrong-length"),
    Case("control characters", says("mean\x01"), 400, "not-http"),
    Case("letters of other scripts", says("m\xe9an"), 400, "malformed-upload"),
)
def test_invalid_upload_headers_are_refused(place: Place, case: Case) -> None:
    try:
        response = case.send(place)
    except httpx.LocalProtocolError:  # headers that the HTTP client refuses to send are written by hand
        head = place.head("PUT /v1/rounds/5 HTTP/1.1", f"{UPLOAD_HEADER}: mean\x01", "content-length: 0")
        status, said = place.raw(head)
        assert (status, said["code"]) in [(case.status, case.code), (400, "malformed-upload")]
        return
    refused(response, case.status, case.code, case.field)


def test_upload_without_header_is_refused(place: Place) -> None:
    token = {"Authorization": f"Bearer {place.mine}"}
    refused(HTTP.put(f"{place.url}/v1/rounds/5", content=BODY, headers=token), 400, "malformed-upload", UPLOAD_HEADER)


@pytest.mark.parametrize("name", [UPLOAD_HEADER, "authorization"])
def test_repeated_headers_are_refused(place: Place, name: str) -> None:
    again = f"{UPLOAD_HEADER}: mean" if name == UPLOAD_HEADER else f"authorization: Bearer {place.yours}"
    length = f"content-length: {len(BODY)}"
    status, said = place.raw(
        place.head("PUT /v1/rounds/5 HTTP/1.1", f"{UPLOAD_HEADER}: {HEADER}", again, length) + BODY
    )
    assert (status, said["code"], said["field"].lower()) == (400, "malformed-query", name.lower())


# --- tokens


def asks(token: Callable[[Place], str | None]) -> Callable[[Place], httpx.Response]:
    def send(place: Place) -> httpx.Response:
        said = token(place)
        headers = {UPLOAD_HEADER: HEADER} | ({} if said is None else {"Authorization": said})
        return HTTP.put(f"{place.url}/v1/rounds/5", content=BODY, headers=latin(headers))

    return send


def other_last(place: Place) -> str:
    return "A" if place.mine[-1] != "A" else "B"


@table(
    Case("none", asks(lambda place: None), 401, "no-token"),
    Case("empty", asks(lambda place: ""), 401, "no-token"),
    Case("no token", asks(lambda place: "Bearer"), 401, "wrong-token"),
    Case("another scheme", asks(lambda place: f"Basic {place.mine}"), 401, "wrong-token"),
    Case("cut short", asks(lambda place: f"Bearer {place.mine[:-1]}"), 401, "wrong-token"),
    Case("too long", asks(lambda place: f"Bearer {place.mine}A"), 401, "wrong-token"),
    Case("two", asks(lambda place: f"Bearer {place.mine} {place.mine}"), 401, "wrong-token"),
    Case("10 kB", asks(lambda place: "Bearer cs1_1_" + "a" * 10_000), 401, "wrong-token"),
    Case("a huge number", asks(lambda place: f"Bearer cs1_{'f' * 15}_{place.mine[-43:]}"), 401, "wrong-token"),
    Case("a number beyond", asks(lambda place: f"Bearer cs1_{'f' * 16}_{place.mine[-43:]}"), 401, "wrong-token"),
    Case("another's number", asks(lambda place: f"Bearer cs1_2_{place.mine[-43:]}"), 401, "wrong-token"),
    Case("another secret", asks(lambda place: f"Bearer {place.mine[:-1]}{other_last(place)}"), 401, "wrong-token"),
    Case("nobody's", asks(lambda place: f"Bearer cs1_63_{place.mine[-43:]}"), 401, "wrong-token"),
    Case("revoked", asks(lambda place: f"Bearer {place.gone}"), 403, "revoked"),
    Case("letters of other scripts", asks(lambda place: f"Bearer {place.mine[:-1]}\xe9"), 401, "wrong-token"),
)
def test_invalid_tokens_are_refused(place: Place, case: Case) -> None:
    response = case.send(place)
    refused(response, case.status, case.code)
    assert ("www-authenticate" in response.headers) == (case.status == 401)
    assert place.mine[-43:] not in response.text


def test_only_the_token_identifies_the_member(place: Place) -> None:
    """Other headers, cookies and query parameters do not change which member's round is checked."""
    tricks = {
        "Consilience-Member": "yours",
        "X-Forwarded-User": "yours",
        "X-Original-URL": "/v1/rounds/9",
        "X-HTTP-Method-Override": "DELETE",
        "Cookie": f"token={place.yours}; member=1",
        "Proxy-Authorization": f"Bearer {place.yours}",
    }
    for query in ("", f"?token={place.yours}", "?member=1", "?access_token=" + place.yours):
        # the same bytes as uploaded before: the member's own receipt of round 3 is returned, and none is added
        headers = {"Authorization": f"Bearer {place.mine}", UPLOAD_HEADER: HEADER, **tricks}
        response = HTTP.put(f"{place.url}/v1/rounds/3{query}", content=BODY, headers=headers)
        assert response.json()["round"] == 3
    alone = HTTP.get(f"{place.url}/v1/federation?token={place.mine}", headers={"Cookie": f"token={place.mine}"})
    refused(alone, 401, "no-token")
    said = place.get("/v1/federation", place.elsewhere).json()
    assert 'name = "letters"' in said["charter"]
    assert said["member"]["round"] == -1


@pytest.mark.parametrize(
    ("header", "body"),
    [
        (HEADER, with_value("mean.value", 0, F32(0.25).tobytes())),
        (HEADER.replace("weight=3", "weight=4"), BODY),
        (HEADER.replace("weight=2", "weight=2.5"), BODY),
        (HEADER.replace("version=0", "version=1"), BODY),
    ],
    ids=["body", "weight", "fraction", "version"],
)
def test_other_bytes_for_an_uploaded_round_are_refused(place: Place, header: str, body: bytes) -> None:
    refused(place.put(3, header, body), 409, "other-bytes")
    refused(place.put(2, header, body), 409, "older-round")


# --- paths and queries

LONG = "a" * 10_000


@pytest.mark.parametrize(
    "round_",
    ["-1", "+1", "1.0", "1e3", "0x10", "%20", "1%20", "%00", "1%00", "%D9%A3", "%C2%B2", "½", "9007199254740993",
     "9" * 30, "9" * 5000, "null", "1;2", "latest", "%2e%2e", "1%0d%0aX:1"],
    ids=lambda text: text[:20],
)  # fmt: skip
def test_non_numeric_rounds_are_refused(place: Place, round_: str) -> None:
    refused(place.put(round_), 400, "malformed-query", "round")


@pytest.mark.parametrize(
    "target",
    ["/", "//", "/v1", "/v1/", "/v1/rounds", "/v1/rounds/", "/v1/rounds/5/", "/v1/rounds/5/6", "/v1/../v1/answers",
     "/v1/%2e%2e/answers", "/v1/rounds/..%2fanswers", "/v1/answers/", "/V1/ANSWERS", "/v1//answers", "/v1/answers%00",
     "/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/v1/channels/moving/replies", "/v1/channels//replies/1",
     "/v1/channels/a%2fb/replies/1", f"/{LONG}", "/v1/answers;x=1", "/health/", "/docs", "/relay.db"],
    ids=lambda text: text[:24],
)  # fmt: skip
def test_unknown_paths_are_not_found(place: Place, target: str) -> None:
    for method in ("GET", "PUT"):
        status, said = place.raw(
            place.head(f"{method} {target} HTTP/1.1", f"{UPLOAD_HEADER}: {HEADER}", "content-length: 0")
        )
        assert (status, said["code"]) == (404, "not-found")


@pytest.mark.parametrize("channel", ["..", "%2e%2e", "%00", LONG, "other", "mean", "pool", "%F0%9F%98%80", "'%20OR"])
def test_replies_of_channels_without_replies_are_not_found(place: Place, channel: str) -> None:
    status, said = place.raw(place.head(f"GET /v1/channels/{channel}/replies/1 HTTP/1.1", "connection: close"))
    assert (status, said["code"]) == (404, "no-such-reply")
    assert len(said["message"]) < 300


@pytest.mark.parametrize("version", ["-1", "x", "%D9%A3", "9" * 40, "1.5"])
def test_non_numeric_versions_are_refused(place: Place, version: str) -> None:
    refused(place.get(f"/v1/channels/moving/replies/{version}"), 400, "malformed-query", "version")


def test_absolute_and_connect_targets_are_not_proxied(place: Place) -> None:
    status, said = place.raw(place.head("GET http://example.org/v1/nothing HTTP/1.1"))
    assert (status, said["code"]) == (404, "not-found")
    with place.connect() as connection:
        connection.sendall(place.head("CONNECT example.org:443 HTTP/1.1"))
        assert rest(connection)[:12] in (b"", b"HTTP/1.1 400", b"HTTP/1.1 404", b"HTTP/1.1 405")


@pytest.mark.parametrize(
    ("query", "code", "at"),
    [
        ("round=-1", "malformed-query", "round"),
        ("round=", "malformed-query", "round"),
        ("round=1&round=2", "malformed-query", "round"),
        ("round=%D9%A3", "malformed-query", "round"),
        ("turn=1e3", "malformed-query", "turn"),
        ("turn=9007199254740993", "malformed-query", "turn"),
        ("color=1", "malformed-query", "color"),
        ("Round=1", "malformed-query", "Round"),
        ("have=moving", "malformed-query", "have"),
        ("have=moving:x", "malformed-query", "have"),
        ("have=moving:-1", "malformed-query", "have"),
        ("have=moving:0&have=moving:1", "malformed-query", "have"),
        ("have=other:1", "unknown-channel", "other"),
        ("channel=other", "unknown-channel", "other"),
        ("channel=", "unknown-channel", ""),
        ("channel=..%2f..", "unknown-channel", "../.."),
        ("draw=pool:0", "entries", "pool"),
        ("draw=pool:2", "entries", "pool"),
        ("draw=mean:1", "entries", "mean"),
        ("draw=other:1", "unknown-channel", "other"),
        ("draw=pool:1&draw=pool:1", "malformed-query", "draw"),
    ],
)
def test_invalid_answer_queries_are_refused(place: Place, query: str, code: str, at: str) -> None:
    refused(place.get(f"/v1/answers?{query}"), 400, code, at)


@pytest.mark.parametrize("path", ["/health", "/openapi.json", "/v1/federation", "/v1/answers", "/v1/events"])
@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"])
def test_unsupported_http_methods_are_refused(place: Place, path: str, method: str) -> None:
    response = HTTP.request(method, place.url + path, headers={"Authorization": f"Bearer {place.mine}"})
    assert (response.status_code, response.json()["code"]) == (405, "method-not-allowed")
    assert set(response.headers["allow"].split(", ")) == {"GET", "HEAD"}


def test_rounds_allow_only_the_put_method(place: Place) -> None:
    for method in ("GET", "POST", "DELETE", "HEAD"):
        response = HTTP.request(method, f"{place.url}/v1/rounds/3", headers={"Authorization": f"Bearer {place.mine}"})
        assert response.status_code == 405
        assert response.headers["allow"] == "PUT"


@pytest.mark.parametrize("path", ["/health", "/openapi.json", "/v1/federation", "/v1/answers"])
def test_head_request_returns_headers_without_body(place: Place, path: str) -> None:
    token = {"Authorization": f"Bearer {place.mine}"}
    head, whole = HTTP.head(place.url + path, headers=token), place.get(path)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == whole.headers["content-length"]
    if path.startswith("/v1"):
        assert HTTP.head(place.url + path).status_code == 401


# --- body sizes


def test_body_declared_too_large_is_refused_before_it_is_sent(place: Place) -> None:
    for size in (len(BODY) + 1, 10**12):
        head = place.head("PUT /v1/rounds/5 HTTP/1.1", f"{UPLOAD_HEADER}: {HEADER}", f"content-length: {size}")
        with place.connect() as connection:
            connection.sendall(head)  # and nothing more
            status, said = parsed(rest(connection))
        assert (status, said["code"]) == (413, "too-large")


@pytest.mark.parametrize("length", ["-1", "1e3", "0x10", "9" * 30, "9" * 5000, "\xb2", ""])
def test_non_numeric_content_lengths_are_refused(place: Place, length: str) -> None:
    head = place.head("PUT /v1/rounds/5 HTTP/1.1", f"{UPLOAD_HEADER}: {HEADER}", f"content-length: {length}")
    status, said = place.raw(head + BODY)
    assert (status, said["code"]) in [(400, "not-http"), (413, "too-large"), (400, "wrong-length")]


def test_oversized_chunked_body_is_cut_within_one_chunk_of_the_limit(place: Place) -> None:
    head = place.head("PUT /v1/rounds/5 HTTP/1.1", f"{UPLOAD_HEADER}: {HEADER}", "transfer-encoding: chunked")
    sent, chunk = 0, bytes(2**16)
    with place.connect() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**14)
        connection.sendall(head)
        with suppress(ConnectionError):
            for _ in range(2000):  # 130 MB if all were accepted
                connection.sendall(b"%x\r\n%b\r\n" % (len(chunk), chunk))
                sent += len(chunk)
        answer = rest(connection)
    assert sent < 16 * 2**20
    assert not answer or parsed(answer)[0] == 413


def test_bytes_beyond_content_length_are_not_a_second_request(place: Place) -> None:
    head = place.head("PUT /v1/rounds/3 HTTP/1.1", f"{UPLOAD_HEADER}: {HEADER}", f"content-length: {len(BODY)}")
    with place.connect() as connection:
        connection.sendall(head + BODY + b"x" * 1000)
        answer = rest(connection)
    assert answer[:12] in (b"", b"HTTP/1.1 200", b"HTTP/1.1 400")
    assert answer.count(b"HTTP/1.1 2") <= 1


def test_body_shorter_than_content_length_is_not_stored(place: Place) -> None:
    head = place.head("PUT /v1/rounds/5 HTTP/1.1", f"{UPLOAD_HEADER}: {HEADER}", f"content-length: {len(BODY)}")
    with place.connect() as connection:
        connection.sendall(head + BODY[:-1])
        status, said = parsed(rest(connection))  # after the timeout
    assert (status, said["code"]) == (408, "too-slow")
    with place.connect() as connection:
        connection.sendall(head + BODY[:-1])  # and gone


def test_content_length_with_chunked_encoding_cannot_smuggle_a_request(place: Place) -> None:
    both = [f"content-length: {len(BODY)}", "transfer-encoding: chunked"]
    inner = place.head("GET /v1/federation HTTP/1.1")
    head = place.head("PUT /v1/rounds/5 HTTP/1.1", f"{UPLOAD_HEADER}: {HEADER}", *both)
    with place.connect() as connection:
        connection.sendall(head + b"0\r\n\r\n" + inner)
        connection.shutdown(socket.SHUT_WR)
        answer = rest(connection)
    assert b"charter" not in answer
    assert answer.startswith(b"HTTP/1.1 400")


def test_request_succeeds_again_after_retry_after(place: Place) -> None:
    now = [0.0]
    before, place.relay.admission.rate_limit = (
        place.relay.admission.rate_limit,
        RateLimit(rate=0.5, burst=3, clock=lambda: now[0]),
    )
    try:
        for _ in range(3):
            assert place.get("/v1/federation").status_code == 200
        response = place.get("/v1/federation")
        refused(response, 429, "over-quota")
        wait = int(response.headers["retry-after"])
        assert wait == 2
        refused(place.put(5), 429, "over-quota")
        assert place.get("/v1/federation", place.yours).status_code == 200  # each member has its own quota
        now[0] += wait - 0.1
        refused(place.get("/v1/federation"), 429, "over-quota")
        now[0] += 0.1
        assert place.get("/v1/federation").status_code == 200
        refused(place.get("/v1/federation"), 429, "over-quota")
        now[0] += 1e6
        for _ in range(3):
            assert place.get("/v1/federation").status_code == 200
        refused(place.get("/v1/federation"), 429, "over-quota")
    finally:
        place.relay.admission.rate_limit = before
