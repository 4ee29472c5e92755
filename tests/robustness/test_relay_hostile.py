"""One hostile member, under the limits that a relay has by default: memory stays small, and others are served.

With `CONSILIENCE_ROBUSTNESS=1` the attack lasts longer, and the others' latencies are printed (`pytest -s`).
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np

from consilience.wire import schema
from tests.relay_tools import Federation, RelayProcess, create_federation, often, serving, upload_headers

MOST_MEMORY = 300_000  # kB
UNREAD = 172  # connections that ask for 16 MB and never read


def wide_and_small() -> dict[str, schema.Channel]:
    """A mean whose answer has 16 MB, and one for the others."""
    return {
        "small": schema.Mean("small", {"mean": schema.Tensor((3, 4))}, rows=(3,)),
        "wide": schema.Mean("wide", {"mean": schema.Tensor((2048, 2048))}),
    }


def send(relay: RelayProcess, *lines: str) -> socket.socket:
    """A connection over which the head of a request was sent, and which nobody reads."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    made.settimeout(10)
    made.connect(("127.0.0.1", relay.port))
    made.sendall("\r\n".join([*lines, "Host: relay", "", ""]).encode())
    return made


def wrong_tokens(relay: RelayProcess, ends: threading.Event, statuses: list[int]) -> None:
    """Guess tokens until the end."""
    while not ends.is_set():
        with contextlib.suppress(httpx.HTTPError):
            head = {"Authorization": f"Bearer cs1_2_{'A' * 43}"}
            statuses.append(httpx.get(f"{relay.url}/v1/answers", headers=head, timeout=20).status_code)


@contextlib.contextmanager
def under_attack(federation: Federation, relay: RelayProcess) -> Iterator[list[int]]:
    """Everything that member 0 can do at once; the statuses that wrong tokens have got."""
    token = f"Authorization: Bearer {federation.tokens[0]}"
    size = 2048 * 2048 * 4 + 88
    with contextlib.ExitStack() as held:
        for number in range(UNREAD):
            query = f"channel=wide&round={number}"
            held.enter_context(send(relay, f"GET /v1/answers?{query} HTTP/1.1", token))
        for _ in range(10):
            held.enter_context(send(relay, "GET /v1/events HTTP/1.1", token))
        upload = [f"Content-Length: {size}", "Consilience-Upload: wide;weight=1", token]
        for round_ in range(5):
            slow = held.enter_context(send(relay, f"PUT /v1/rounds/{round_} HTTP/1.1", *upload))
            with contextlib.suppress(OSError):  # only one is accepted
                slow.sendall(bytes(2**20))
        ends, statuses = threading.Event(), list[int]()
        guessing = [threading.Thread(target=wrong_tokens, args=(relay, ends, statuses)) for _ in range(4)]
        for thread in guessing:
            thread.start()
        try:
            yield statuses
        finally:
            ends.set()
            for thread in guessing:
                thread.join()


def use(federation: Federation, relay: RelayProcess, requests: range) -> list[float]:
    """What the other members do meanwhile, all of it successful; the seconds that each request took."""
    took = list[float]()
    with httpx.Client(base_url=relay.url, timeout=30) as client:
        for number in requests:
            member, round_ = 1 + number % 3, number // 3
            upload = federation.upload(member, round_, names=["small"])
            began = time.perf_counter()
            if number % 2:
                answer = client.get(f"/v1/answers?channel=small&round={round_}", headers=federation.head(member))
            else:
                head = upload_headers(federation, member, upload)
                answer = client.put(f"/v1/rounds/{round_}", content=upload.body, headers=head)
            took.append(time.perf_counter() - began)
            assert answer.status_code == 200, answer.text
            time.sleep(0.02)  # within the rate that a member may have
    return took


def peak_memory(relay: RelayProcess) -> int:
    """In kB."""
    lines = Path(f"/proc/{relay.process.pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


def test_one_hostile_member_leaves_room_for_others(tmp_path: Path) -> None:
    federation = create_federation(tmp_path, 4, wide_and_small())
    with serving(federation.store, options=()) as relay:
        alone = use(federation, relay, range(30))
        with under_attack(federation, relay) as statuses:
            took = use(federation, relay, range(30, often(90, 1530)))
            read = httpx.get(f"{relay.url}/v1/answers?channel=wide", headers=federation.head(1), timeout=30)
        assert len(read.content) > 16 * 10**6, "another member gets the large answer"
        assert 429 in statuses, "wrong tokens are limited"
        peak = peak_memory(relay)
        assert peak < MOST_MEMORY
    print(f"\npeak memory {peak / 1000:.0f} MB; wrong tokens: {statuses.count(401)} x 401, {statuses.count(429)} x 429")
    for what, seconds in (("alone", alone), ("under attack", took)):
        p50, p99 = np.quantile(seconds, [0.5, 0.99]) * 1000
        print(f"{what}: {len(seconds)} requests of others, p50 {p50:.1f} ms, p99 {p99:.1f} ms")
