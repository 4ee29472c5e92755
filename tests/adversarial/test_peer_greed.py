"""A false relay cannot exhaust a peer's memory, and two processes cannot share a state folder."""

from __future__ import annotations

import gzip
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from consilience.errors import ConfigurationError, RelayUnreachable
from consilience.files import lock_file
from consilience.peer.http import RelayClient

TOKEN = f"cs1_1_{'a' * 43}"


@contextmanager
def false_relay(head: bytes, chunk: bytes, times: int) -> Iterator[tuple[str, list[int]]]:
    """Answer one request with `times` chunks while the client reads; yields the URL and the sizes sent."""
    taken: list[int] = []

    def answer() -> None:
        line, _ = server.accept()
        with line:
            line.recv(65536)
            try:
                line.sendall(head)
                for _ in range(times):
                    line.sendall(chunk)
                    taken.append(len(chunk))
            except OSError:
                pass

    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        thread = threading.Thread(target=answer)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}", taken
        thread.join(timeout=10)


def test_endless_answer_is_aborted(tmp_path: Path) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"
    with false_relay(head, b" " * 2**20, times=200) as (url, taken):
        client = RelayClient(url, TOKEN)
        with pytest.raises(RelayUnreachable, match="not as a relay does"):
            client.federation(5.0)
        client.close()
    assert sum(taken) < 20 * 2**20, "a limit, and what lies in buffers"


def test_compressed_answer_is_not_decompressed() -> None:
    body = gzip.compress(b" " * 2**28)
    head = f"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with false_relay(head, body, times=1) as (url, _):
        client = RelayClient(url, TOKEN)
        with pytest.raises(RelayUnreachable, match="not as a relay does"):
            client.federation(5.0)
        client.close()


def test_endless_event_line_is_aborted() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
    with false_relay(head, b"x" * 2**16, times=2000) as (url, taken):
        client = RelayClient(url, TOKEN)
        with pytest.raises(RelayUnreachable, match="not as a relay does"):
            client.wait_for_change(0, 5.0)
        client.close()
    assert sum(taken) < 20 * 2**20


def test_lock_file_is_exclusive(tmp_path: Path) -> None:
    with lock_file(tmp_path / "lock", "choose another"), pytest.raises(ConfigurationError, match="choose another"):
        lock_file(tmp_path / "lock", "choose another")
    lock_file(tmp_path / "lock", "choose another").close()
