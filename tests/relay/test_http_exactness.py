"""Trailers are never headers, a request has one Host, and a body is the one that its Content-Digest names."""

from __future__ import annotations

import base64
import hashlib
import socket
from collections.abc import Iterator

import pytest

from consilience.errors import WireError
from consilience.relay.app import Limits, Relay
from consilience.wire.digests import check_digests, content_digest, parse_digests
from tests.relay_tools import Federation, create_federation, in_a_thread


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Federation, int]]:
    federation = create_federation(tmp_path_factory.mktemp("relay"), 2)
    with in_a_thread(Relay(federation.store, Limits(rate=0))) as url:
        yield federation, int(url.rsplit(":", 1)[1])


def ask(port: int, *lines: str, body: bytes = b"") -> bytes:
    """The response to one request, byte by byte as given."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as line:
        line.sendall("\r\n".join([*lines, "Connection: close", "", ""]).encode() + body)
        received = b""
        while piece := line.recv(65536):
            received += piece
    return received


def chunked(body: bytes, *trailers: str) -> bytes:
    ending = "\r\n".join(["0", *trailers, "", ""]).encode()
    return b"%x\r\n%b\r\n" % (len(body), body) + ending


@pytest.mark.parametrize("hosts", [0, 2, 3])
def test_request_without_exactly_one_host_is_refused(served: tuple[Federation, int], hosts: int) -> None:
    received = ask(served[1], "GET /health HTTP/1.1", *["Host: relay"] * hosts)
    assert received.startswith(b"HTTP/1.1 400 ") and b'"not-http"' in received
    assert f"{hosts} Host headers were sent; send exactly one".encode() in received
    assert ask(served[1], "GET /health HTTP/1.1", "hOST: relay").startswith(b"HTTP/1.1 200 ")


def test_token_in_a_trailer_is_no_token(served: tuple[Federation, int]) -> None:
    federation, port = served
    upload, token = federation.upload(0, 0), f"Authorization: Bearer {federation.tokens[0]}"
    head = ["PUT /v1/rounds/0 HTTP/1.1", "Host: relay", f"Consilience-Upload: {upload.header}"]
    received = ask(port, *head, "Transfer-Encoding: chunked", body=chunked(upload.body, token))
    assert received.startswith(b"HTTP/1.1 401 ") and b'"no-token"' in received
    again = ask(
        port, "GET /v1/federation HTTP/1.1", "Host: relay", "Transfer-Encoding: chunked", body=chunked(b"", token)
    )
    assert again.startswith(b"HTTP/1.1 401 ")


def test_trailers_do_not_change_an_upload(served: tuple[Federation, int]) -> None:
    federation, port = served
    upload = federation.upload(1, 0)
    head = ["PUT /v1/rounds/0 HTTP/1.1", "Host: relay", f"Authorization: Bearer {federation.tokens[1]}"]
    named, wrong = f"Consilience-Upload: {upload.header}", content_digest(b"another body")
    chunks = chunked(upload.body, named, f"Content-Digest: {wrong}")
    received = ask(port, *head, "Transfer-Encoding: chunked", body=chunks)
    assert received.startswith(b"HTTP/1.1 400 ") and b"the header Consilience-Upload is missing" in received
    trailers = [f"Content-Digest: {wrong}", "Host: other", "Authorization: Bearer x", "Consilience-Upload: x"]
    received = ask(port, *head, named, "Transfer-Encoding: chunked", body=chunked(upload.body, *trailers))
    assert received.startswith(b"HTTP/1.1 200 "), received


SHA512 = base64.b64encode(hashlib.sha512(b"body").digest()).decode()


@pytest.mark.parametrize(
    "header",
    [
        content_digest(b"body"),
        f"sha-512=:{SHA512}:",
        f"md5=:AAAA:, {content_digest(b'body')};note=1,unixsum=:MzA2Ng==:",
        f"sha-256=:{'A' * 43}=:, {content_digest(b'body')}",  # of two, the last one counts
        "md5=:AAAA:",
        "crc32c",
    ],
)
def test_digest_of_the_body_and_unknown_ones_are_accepted(header: str) -> None:
    check_digests(parse_digests(header), b"body")


@pytest.mark.parametrize(
    "header",
    [
        content_digest(b"other"),
        f"{content_digest(b'body')}, sha-512=:{'A' * 86}==:",
        *("", "sha-256", "sha-256=AAAA", "sha-256=:AAAA:", f"sha-256={content_digest(b'body')[8:-1]}", "=", "a b"),
        f"SHA-256{content_digest(b'body')[7:]}",
        "md5=:AAAA:," * 500,
    ],
)
def test_wrong_or_malformed_digest_is_refused(header: str) -> None:
    with pytest.raises(WireError) as refused:
        check_digests(parse_digests(header), b"body")
    assert refused.value.code == "wrong-digest"


def test_relay_refuses_an_upload_with_the_wrong_digest(served: tuple[Federation, int]) -> None:
    federation, port = served
    upload = federation.upload(1, 7, names=("prototypes",))
    head = ["PUT /v1/rounds/7 HTTP/1.1", "Host: relay", f"Authorization: Bearer {federation.tokens[1]}"]
    head += [f"Consilience-Upload: {upload.header}", f"Content-Length: {len(upload.body)}"]
    spoiled = bytes([upload.body[-1] ^ 1])
    digest = f"Content-Digest: {content_digest(upload.body)}"
    received = ask(port, *head, digest, body=upload.body[:-1] + spoiled)
    assert received.startswith(b"HTTP/1.1 400 ") and b'"wrong-digest"' in received
    assert b'"wrong-digest"' in ask(port, *head, "Content-Digest: nonsense!", body=upload.body)
    assert ask(port, *head, digest, body=upload.body).startswith(b"HTTP/1.1 200 ")
