"""A member's HTTP client for its relay: requests that end by their deadline, and two kinds of failures.

`RelayUnreachable`: no answer now, and another attempt may succeed. `RelayError`: the relay refuses the request.
"""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from consilience.errors import ConfigurationError, RelayError, RelayUnreachable
from consilience.extras import install_command

try:
    import httpcore
except ModuleNotFoundError as error:
    raise ConfigurationError(f"members of a relay need httpcore: {install_command('join')}") from error

from consilience.peer.deadline import DeadlineBackend
from consilience.peer.http_address import check_url, host_header, is_loopback, proxy_for, trusted_certificates
from consilience.peer.link import AnswersMessage
from consilience.peer.trust import RelayTrust
from consilience.wire.digests import DIGEST_HEADER, content_digest
from consilience.wire.headers import ANSWER_HEADER, UPLOAD_HEADER, Parts, format_parts, parse_parts, upload_sha256
from consilience.wire.signatures import SIGNATURE_HEADER

_BODY = "application/octet-stream"
_LONGEST_LINE = 2**16  # bytes of a server-sent event
_LARGEST_JSON = 2**20  # bytes of an answer in JSON
_STEP_TIMEOUT = 10.0  # seconds without progress after which an attempt is given up; the next one may do better
_EVENTS_TIMEOUT = 40.0  # the same for events: a relay sends a sign of life four times a minute
_KEEPALIVE = 5.0  # seconds that an idle connection stays open
_LONGEST_MESSAGE = 300  # characters shown of what a relay says
_RETRIED = (408, 425, 429, 500, 502, 503, 504, 507)
"""Statuses after which another attempt may succeed."""
_GATEWAY = (500, 502, 504)
"""Of these, the ones a gateway may answer with although the relay has accepted the request."""
_FAILURES = (httpcore.TimeoutException, httpcore.NetworkError, httpcore.ProtocolError, httpcore.ProxyError)
_NEVER_SENT = (httpcore.ConnectError, httpcore.ConnectTimeout, httpcore.PoolTimeout, httpcore.ProxyError)
EXPIRED = "expired"
"""The error code where the member's token has expired or was replaced: a person must get the new one."""
_EXPIRED_WAIT = 60.0  # seconds until such a token is tried again; the relay's clock may have been wrong
CERTIFICATE = "certificate"
"""The error code where the relay's certificate is not trusted: another attempt fails too, until a person acts."""


@dataclass(frozen=True)
class _Response:
    status: int
    headers: Mapping[str, str]
    body: bytes


class _TooLarge(Exception):
    """More bytes than any answer of a relay has."""


class RelayClient:
    """One member's requests to its relay. Each is given the seconds it may take, and ends by then.

    ca_file: certificates to trust, as a PEM file, where no public authority has signed the relay's.
    """

    def __init__(self, url: str, token: str, ca_file: str | None = None) -> None:
        self.url = check_url(url)
        self.trust = RelayTrust(self.url)
        """What the relay's answers are checked with."""
        self.epoch = 0
        """The relay's epoch, as its last status said; 0 where that is not known."""
        self.bytes_sent = self.bytes_received = 0
        """Bytes of bodies, uploaded and downloaded."""
        self.largest_answer = _LARGEST_JSON
        """The most bytes that an answer may have; set where the channels are known."""
        self._headers = {
            "Host": host_header(self.url),
            "Authorization": f"Bearer {token}",
            "User-Agent": "consilience",
            "Accept": "*/*",
            "Accept-Encoding": "identity",
        }
        self._backend = DeadlineBackend()
        self._pool = httpcore.ConnectionPool(
            ssl_context=trusted_certificates(ca_file),
            proxy=None if is_loopback(self.url) else proxy_for(self.url),
            keepalive_expiry=_KEEPALIVE,
            network_backend=self._backend,
        )

    def close(self) -> None:
        """Close all connections."""
        self._pool.close()

    # -- requests ----------------------------------------------------------------------------------------------------

    def federation(self, seconds: float) -> dict[str, Any]:
        """The charter, this member's name, number and newest round, and the state of the channels."""
        response = self._request("GET", "/v1/federation", seconds)
        found = self._json_object(response.body)
        if not (isinstance(found.get("charter"), str) and isinstance(found.get("member"), dict)):
            raise self._not_a_relay()
        self.epoch = self.trust.check_status(found, response.headers, response.body)
        return found

    def upload(self, round_: int, parts: Parts, body: bytes, seconds: float) -> dict[str, Any]:
        """Upload a body; the receipt says that it is on the relay's disk, and has its signature in `signature`."""
        end, header = time.monotonic() + seconds, format_parts(parts)
        headers = {UPLOAD_HEADER: header, DIGEST_HEADER: content_digest(body), "Content-Type": _BODY}
        response = self._request("PUT", f"/v1/rounds/{round_}", seconds, headers, body)
        receipt, sha256 = self._json_object(response.body), upload_sha256(header, body)
        epoch = self.trust.check_receipt(round_, response.headers, response.body)
        if (receipt.get("round"), receipt.get("sha256"), receipt.get("epoch", epoch)) != (round_, sha256, epoch):
            raise self._wrong_receipt(f"of round {receipt.get('round')}, SHA-256 {receipt.get('sha256')}")
        if epoch != self.epoch:  # of before a restore, or of after one: what the relay has now decides
            member = self.federation(max(end - time.monotonic(), 0.05))["member"]
            if epoch != self.epoch and (member.get("round"), member.get("sha256")) != (round_, sha256):
                raise self._wrong_receipt(f"of epoch {epoch}, and the relay is in epoch {self.epoch} without it")
        self.bytes_sent += len(body)
        return {**receipt, "epoch": epoch, "signature": response.headers[SIGNATURE_HEADER.lower()]}

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
        """Answers of some channels; None where they are those of `etag`."""
        query = [("round", str(round_)), *(("channel", name) for name in channels)]
        query += [("have", f"{name}:{version}") for name, version in have.items()]
        query += [("draw", f"{name}:{entries}") for name, entries in draw.items()]
        query += [("partner", str(number)) for number in partners]
        headers = {"If-None-Match": etag} if etag else {}
        response = self._request("GET", f"/v1/answers?{urlencode(query)}", seconds, headers)
        if response.status == 304:
            return None
        self._check_epoch(self.trust.check_answer(response.headers, response.body), seconds)
        self.bytes_received += len(response.body)
        header = response.headers.get(ANSWER_HEADER.lower(), "")
        return AnswersMessage(parse_parts(header) if header else {}, response.body, response.headers.get("etag", ""))

    def reply(self, channel: str, version: int, seconds: float) -> bytes:
        """By how much the common values of a moving mean moved to become this version."""
        response = self._request("GET", f"/v1/channels/{channel}/replies/{version}", seconds)
        self._check_epoch(self.trust.check_reply(channel, version, response.headers, response.body), seconds)
        self.bytes_received += len(response.body)
        return response.body

    def public_set(self, seconds: float) -> bytes:
        """The federation's public set, as the relay has it; the charter says whether it is the right one."""
        body = self._request("GET", "/v1/public-set", seconds).body
        self.bytes_received += len(body)
        return body

    def upload_public_set(self, body: bytes, seconds: float) -> None:
        """Upload the federation's public set; when this returns it is on the relay's disk."""
        headers = {DIGEST_HEADER: content_digest(body), "Content-Type": _BODY}
        self._request("PUT", "/v1/public-set", seconds, headers, body)
        self.bytes_sent += len(body)

    def wait_for_change(self, revision: int, seconds: float) -> int:
        """Wait until the relay has another revision than this one, or until the time is over; its newest revision."""
        started = time.monotonic()
        self._backend.end = end = started + seconds
        try:
            with self._stream("GET", "/v1/events", seconds, {}, None, _EVENTS_TIMEOUT) as response:
                chunks = response.iter_stream()
                if response.status != 200:
                    raise self._refusal(_read_response(response, chunks, _LARGEST_JSON))
                for line in _lines(chunks):
                    if line.startswith("data: "):
                        newest = self._json_object(line[6:].encode()).get("revision")
                        if isinstance(newest, int) and newest != revision:  # lower where a backup was restored
                            return newest
        except _TooLarge:
            raise self._not_a_relay() from None
        except _FAILURES as error:
            if not (isinstance(error, httpcore.ReadTimeout) and time.monotonic() >= end):
                raise self._unreachable(error) from error
        else:
            if time.monotonic() - started < min(seconds, 1.0):
                raise RelayUnreachable(f"{self.url} ended its stream of events")
        return revision

    # -- sending and reading -----------------------------------------------------------------------------------------

    def _request(
        self,
        method: str,
        path: str,
        seconds: float,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> _Response:
        self._backend.end = time.monotonic() + seconds
        try:
            with self._stream(method, path, seconds, headers or {}, body, _STEP_TIMEOUT) as answer:
                most = max(self.largest_answer, _LARGEST_JSON)
                response = _read_response(answer, answer.iter_stream(), most)
        except _FAILURES as error:
            raise self._unreachable(error) from error
        except _TooLarge:
            raise self._not_a_relay() from None
        if response.status not in (200, 304):
            raise self._refusal(response)
        return response

    def _stream(
        self,
        method: str,
        path: str,
        seconds: float,
        headers: Mapping[str, str],
        body: bytes | None,
        read_timeout: float,
    ) -> AbstractContextManager[httpcore.Response]:
        step = min(seconds, _STEP_TIMEOUT)
        timeout = {"connect": step, "write": step, "pool": step, "read": min(seconds, read_timeout)}
        fields = [*self._headers.items(), *headers.items()]
        return self._pool.stream(method, self.url + path, headers=fields, content=body, extensions={"timeout": timeout})

    def _json_object(self, body: bytes) -> dict[str, Any]:
        """The JSON object that a relay answers with; anything else comes from another server in between."""
        try:
            found = json.loads(body)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise self._not_a_relay()
        return found

    def _check_epoch(self, epoch: int, seconds: float) -> None:
        """Refuse an answer of another epoch than the relay is in now: of another history."""
        if epoch != self.epoch:
            self.federation(seconds)
        if epoch != self.epoch:
            raise RelayUnreachable(f"{self.url} answers of epoch {epoch}, and is in epoch {self.epoch}")

    # -- failures ----------------------------------------------------------------------------------------------------

    def _not_a_relay(self) -> RelayUnreachable:
        return RelayUnreachable(f"{self.url} answers, and not as a relay does", may_have_arrived=True)

    def _wrong_receipt(self, which: str) -> RelayUnreachable:
        message = f"{self.url} acknowledges another upload than was sent: its receipt is {which}"
        return RelayUnreachable(message, may_have_arrived=True)

    def _unreachable(self, error: Exception) -> RelayUnreachable:
        reason = _certificate_error(error)
        if reason is not None:
            found = RelayUnreachable(
                f"{self.url}: its certificate is not trusted ({reason}); where that is the relay, name the file of its "
                f"certificate authority (ca_file=, --ca-file), or ask the relay's operator",
                was_sent=False,
            )
            found.code = CERTIFICATE
            return found
        text = str(error) or type(error).__name__
        hint = "; is the relay running, and is that its address?" if isinstance(error, httpcore.ConnectError) else ""
        hint = "; does it speak http, and not https?" if "WRONG_VERSION_NUMBER" in text else hint
        sent = not isinstance(error, _NEVER_SENT)
        return RelayUnreachable(f"{self.url} cannot be reached: {text}{hint}", may_have_arrived=sent, was_sent=sent)

    def _refusal(self, response: _Response) -> RelayError:
        """The error for a status other than success: `RelayUnreachable` where another attempt may succeed."""
        try:
            content = json.loads(response.body)
            code, message = str(content["code"]), str(content["message"])[:_LONGEST_MESSAGE]
        except (ValueError, KeyError, TypeError, RecursionError):
            code, message = "", f"status {response.status}, and not as a relay does"
        retried = response.status in _RETRIED
        if code == EXPIRED:
            return _expired(message)
        if code and not retried:
            return RelayError(f"the relay refuses ({code}): {message}", code=code)
        after = response.headers.get("retry-after", "")
        return RelayUnreachable(
            f"{self.url} answers: {message}",
            retry_after=float(after) if after.isascii() and after.isdigit() else 0.0,
            may_have_arrived=response.status in _GATEWAY or not retried,
        )


def _expired(message: str) -> RelayUnreachable:
    """The error for a token that has expired: training continues without the relay, as with one out of reach."""
    found = RelayUnreachable(
        f"the relay refuses (expired): {message}. Join again with the new token, in the same folder; until then "
        f"training continues without the relay",
        retry_after=_EXPIRED_WAIT,
    )
    found.code = EXPIRED
    return found


def _read_response(response: httpcore.Response, chunks: Iterator[bytes], most: int) -> _Response:
    """The whole response, where its body has at most this many bytes."""
    body = bytearray()
    for chunk in chunks:
        body += chunk
        if len(body) > most:
            raise _TooLarge
    headers = {key.decode("latin-1").lower(): value.decode("latin-1") for key, value in response.headers}
    return _Response(response.status, headers, bytes(body))


def _lines(chunks: Iterator[bytes]) -> Iterator[str]:
    """Lines as they arrive, each of a bounded length."""
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > _LONGEST_LINE:
            raise _TooLarge
        yield from (line.decode(errors="replace") for line in lines)


def _certificate_error(error: BaseException | None) -> str | None:
    """What is wrong with the certificate, where that is the cause of an error."""
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return str(error.verify_message)
        error = error.__cause__ or error.__context__
    return None
