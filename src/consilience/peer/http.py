"""The line to a relay: requests that end in time, and failures told apart: out of reach, or refused."""

from __future__ import annotations

import ipaddress
import json
import random
import ssl
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx

from consilience.errors import ConfigurationError, RelayError, RelayUnreachable
from consilience.peer.deadline import Deadline
from consilience.wire.headers import ANSWER_HEADER, UPLOAD_HEADER, Parts, format_parts, parse_parts

_CHUNK = 2**16
_JSON = 2**20  # bytes, at most, of an answer in words
_IDLE = 10.0  # seconds of silence after which a try is given up, and the next may do better
_SILENCE = 40.0  # the same for news: a relay gives a sign of life four times a minute
_LONGEST_WAIT = 60.0
_LONGEST = 300  # characters of what a relay says
_LONGEST_ASKED = 600.0  # whoever asks to be left alone for longer is asked again after so many seconds
_AGAIN = (408, 425, 429, 500, 502, 503, 504, 507)
"""What may be different next time."""
_PERHAPS = (500, 502, 504)
"""Of these, what somebody on the way may say when the relay has taken it."""
CERTIFICATE = "certificate"
"""The code of a relay whose certificate is not to be trusted: until somebody does something, trying is in vain."""


@dataclass(frozen=True)
class News:
    """Answers as they came: what the body holds, the body, and by what they are known."""

    parts: dict[str, Any]
    body: bytes
    etag: str


class Backoff:
    """How long to leave a relay alone that does not answer: twice as long each time, give or take half of it."""

    def __init__(self, first: float = 0.5, longest: float = _LONGEST_WAIT) -> None:
        self.first, self.longest = first, longest
        self.failures, self.until = 0, 0.0
        self._random = random.Random()  # of its own: the caller's numbers go on as if nobody had drawn

    def failed(self, at_least: float = 0.0) -> None:
        """It did not answer, or asked to be left alone for so long."""
        wait = min(self.first * 2**self.failures, self.longest) * self._random.uniform(0.5, 1.5)
        asked = min(at_least, _LONGEST_ASKED)
        self.failures, self.until = min(self.failures + 1, 30), time.monotonic() + max(wait, asked)

    def worked(self) -> None:
        """It did."""
        self.failures, self.until = 0, 0.0

    @property
    def left(self) -> float:
        """Seconds until it is worth another try."""
        return max(self.until - time.monotonic(), 0.0)


class RelayClient:
    """One member's requests. Each takes the seconds it may last, and is over by then.

    ca_file: certificates to trust, as a PEM file, where no public authority has signed the relay's.
    """

    def __init__(self, url: str, token: str, ca_file: str | None = None) -> None:
        self.url = _checked(url)
        self.sent = self.received = 0
        """Bytes of bodies, up and down."""
        self.largest = _JSON
        """The most bytes an answer may have; whoever knows the channels says how much that is."""
        headers = {"Authorization": f"Bearer {token}", "User-Agent": "consilience", "Accept-Encoding": "identity"}
        self._client = httpx.Client(
            base_url=self.url, headers=headers, verify=_trusted(ca_file), trust_env=not _is_loopback(self.url)
        )
        self._deadline = Deadline()
        self._deadline.rule(self._client)

    def close(self) -> None:
        """Hang up."""
        self._client.close()

    # -- what a member asks ----------------------------------------------------------------------------------------

    def federation(self, seconds: float) -> dict[str, Any]:
        """The charter, who this member is, and how things stand."""
        found = self._object(self._ask("GET", "/v1/federation", seconds)[1])
        if not (isinstance(found.get("charter"), str) and isinstance(found.get("member"), dict)):
            raise self._strange()
        return found

    def put(self, round_: int, parts: Parts, body: bytes, seconds: float) -> dict[str, Any]:
        """Put up a body; the receipt says that it is on the relay's disk."""
        headers = {UPLOAD_HEADER: format_parts(parts), "Content-Type": "application/octet-stream"}
        receipt = self._object(self._ask("PUT", f"/v1/rounds/{round_}", seconds, headers, body)[1])
        self.sent += len(body)
        return receipt

    def answers(
        self,
        round_: int,
        channels: Sequence[str],
        have: Mapping[str, int],
        draw: Mapping[str, int],
        etag: str,
        seconds: float,
        turn: int = 0,
    ) -> News | None:
        """Answers of some channels, or None where nothing has changed since those known as `etag`."""
        query = [("round", str(round_)), ("turn", str(turn)), *(("channel", name) for name in channels)]
        query += [("have", f"{name}:{version}") for name, version in have.items()]
        query += [("draw", f"{name}:{entries}") for name, entries in draw.items()]
        headers = {"If-None-Match": etag} if etag else {}
        response, body = self._ask("GET", "/v1/answers", seconds, headers, query=query)
        if response.status_code == 304:
            return None
        self.received += len(body)
        said = response.headers.get(ANSWER_HEADER, "")
        return News(parse_parts(said) if said else {}, body, response.headers.get("etag", ""))

    def reply(self, channel: str, version: int, seconds: float) -> bytes:
        """By how much a moving mean's common values moved once."""
        _, body = self._ask("GET", f"/v1/channels/{channel}/replies/{version}", seconds)
        self.received += len(body)
        return body

    def wait(self, revision: int, seconds: float) -> int:
        """Wait until something is newer than `revision`, at most so long; the newest revision."""
        began = time.monotonic()
        self._deadline.end = end = began + seconds
        timeouts = httpx.Timeout(min(seconds, _IDLE), read=min(seconds, _SILENCE))
        try:
            with self._client.stream("GET", "/v1/events", timeout=timeouts) as response:
                if response.status_code != 200:
                    raise _refusal(response, b"".join(_until(response.iter_raw(), end, _JSON)))
                for line in _lines(response.iter_raw()):
                    if line.startswith("data: "):
                        newest = self._object(line[6:].encode()).get("revision")
                        if isinstance(newest, int) and newest != revision:  # lower where the relay went back
                            return newest
        except OverflowError:
            raise self._strange() from None
        except httpx.RequestError as error:
            if not (isinstance(error, httpx.ReadTimeout) and time.monotonic() >= end):
                raise self._unreachable(error) from error
        else:
            if time.monotonic() - began < min(seconds, 1.0):
                raise RelayUnreachable(f"{self.url} ended its news")
        return revision

    # -- how ---------------------------------------------------------------------------------------------------------

    def _ask(
        self,
        method: str,
        path: str,
        seconds: float,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        query: Sequence[tuple[str, str]] = (),
    ) -> tuple[httpx.Response, bytes]:
        self._deadline.end = end = time.monotonic() + seconds
        given = dict(headers or {})
        if body is not None:
            given["Content-Length"] = str(len(body))
        request = self._client.build_request(
            method,
            path,
            headers=given,
            params=list(query) or None,
            content=None if body is None else _in_time(body, end),
            timeout=httpx.Timeout(min(seconds, _IDLE)),
        )
        try:
            response = self._client.send(request, stream=True)
            try:
                found = b"".join(_until(response.iter_raw(), end, max(self.largest, _JSON)))
            finally:
                response.close()
        except (httpx.RequestError, TimeoutError) as error:
            raise self._unreachable(error) from error
        except OverflowError:
            raise self._strange() from None
        if response.status_code not in (200, 304):
            raise _refusal(response, found)
        return response, found

    def _unreachable(self, error: Exception) -> RelayUnreachable:
        refused = _certificate(error)
        if refused is not None:
            found = RelayUnreachable(
                f"{self.url}: its certificate is not to be trusted ({refused}); where that is the relay, give the file "
                f"of its authority (ca_file=, --ca-file), or ask whoever runs it"
            )
            found.code = CERTIFICATE
            return found
        said = str(error) or type(error).__name__
        never_left = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout | httpx.ProxyError)
        hint = "; is the relay served, and is that its address?" if isinstance(error, httpx.ConnectError) else ""
        hint = "; does it speak http, and not https?" if "WRONG_VERSION_NUMBER" in said else hint
        return RelayUnreachable(f"{self.url} cannot be reached: {said}{hint}", may_have_arrived=not never_left)

    def _object(self, body: bytes) -> dict[str, Any]:
        """The JSON object that a relay's answer is; whoever says something else is none, but stands in its way."""
        try:
            found = json.loads(body)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise self._strange()
        return found

    def _strange(self) -> RelayUnreachable:
        return RelayUnreachable(f"{self.url} answers, and not as a relay does", may_have_arrived=True)


def _in_time(body: bytes, end: float) -> Iterator[bytes]:
    for i in range(0, len(body), _CHUNK):
        if time.monotonic() > end:
            raise TimeoutError("the upload took too long")
        yield body[i : i + _CHUNK]


def _until(chunks: Iterator[bytes], end: float, most: int) -> Iterator[bytes]:
    """What comes until then, and no more than may come."""
    size = 0
    for chunk in chunks:
        size += len(chunk)
        if size > most:
            raise OverflowError
        if time.monotonic() > end:
            raise TimeoutError("the answer took too long")
        yield chunk


def _lines(chunks: Iterator[bytes]) -> Iterator[str]:
    """Lines as they come, none of them without end."""
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > _CHUNK:
            raise OverflowError
        yield from (line.decode(errors="replace") for line in lines)


def _certificate(error: BaseException | None) -> str | None:
    """What is wrong with a certificate, where that is behind an error."""
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return str(error.verify_message)
        error = error.__cause__ or error.__context__
    return None


def _refusal(response: httpx.Response, body: bytes) -> Exception:
    """What a relay says no with; out of reach where another time it may say yes, or where it was not the relay."""
    try:
        said = json.loads(body)
        code, message = str(said["code"]), str(said["message"])[:_LONGEST]
    except (ValueError, KeyError, TypeError, RecursionError):
        code, message = "", f"status {response.status_code}, and not as a relay does"
    if code and response.status_code not in _AGAIN:
        return RelayError(f"the relay refuses ({code}): {message}", code=code)
    after = response.headers.get("retry-after", "")
    asked = float(after) if after.isascii() and after.isdigit() else 0.0
    again, perhaps = response.status_code in _AGAIN, response.status_code in _PERHAPS
    return RelayUnreachable(
        f"{response.url.host} says: {message}", retry_after=asked, may_have_arrived=perhaps or not again
    )


def _checked(url: str) -> str:
    try:
        parts, _ = urlsplit(url), httpx.URL(url)
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except (ValueError, httpx.InvalidURL):
        known = False
    if not known or parts.username or parts.query or parts.fragment:
        raise ConfigurationError(f"{url!r} is no relay's address; it looks like https://relay.example:8443")
    if parts.scheme == "http" and not _is_loopback(url):
        raise ConfigurationError(
            f"{url} is not encrypted, and your token would travel for all to read; use https, or a relay on this "
            f"machine"
        )
    return url.rstrip("/")


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _trusted(ca_file: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(f"{ca_file}: no certificates can be read there: {error}") from error
