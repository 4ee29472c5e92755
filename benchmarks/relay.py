"""Uploads and answers per second of a relay on this machine, for several numbers of members.

    python benchmarks/relay.py [--quick] [--members 10 1000 100000] [--seconds 10]

The federation has a standing mean and a pool of float32 (10, 250) with class counts; bodies are 20 KiB. All members
have uploaded once, which is written directly into the store. Each relay is started with the command; another process
sends uploads and requests of random members over 10 open connections. Each upload is new, is on disk before it is
acknowledged, and replaces the member's last; each request for answers has a new random draw. The sizes are measured in
turn, five times, and rates are medians over the turns, so that other load on the machine affects all sizes equally.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import os
import random
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from multiprocessing.pool import Pool
from pathlib import Path

import numpy as np

from consilience.relay import admin
from consilience.relay.store import Store
from consilience.wire import schema
from consilience.wire.charter import Rules, build_charter
from consilience.wire.codec import Codec
from consilience.wire.headers import UPLOAD_HEADER, upload_sha256

PARTS = "prototypes, observations;entries=1"
BODIES = 64  # different bodies, each used by many members, so that their sums are computed quickly
CONNECTIONS = 10
TURNS = 5


@dataclass(frozen=True)
class Prefilled:
    """A store whose members have all uploaded once, and their tokens."""

    store: Path
    tokens: list[str]


def channels() -> dict[str, schema.Channel]:
    rows = {"mean": schema.Tensor((10, 250))}
    return {
        "prototypes": schema.Mean("prototypes", rows, rows=(10,)),
        "observations": schema.Pool("observations", rows, rows=(10,)),
    }


def bodies(count: int, seed: int = 0) -> list[tuple[bytes, np.ndarray, np.ndarray]]:
    """Bodies to upload, each with the values, (classes, width), and counts, (classes,), of its mean."""
    rng = np.random.default_rng(seed)
    codec = Codec({k: f for channel in channels().values() for k, f in channel.message("up").items()})
    made = []
    for _ in range(count):
        values = rng.uniform(-1, 1, (2, 10, 250)).astype(np.float32)
        counts = rng.integers(0, 100, (2, 10), dtype=np.int32)
        body = codec.encode(
            {
                "prototypes.mean": values[0],
                "prototypes.count": counts[0],
                "observations.mean": values[1:],
                "observations.count": counts[1:],
            }
        )
        made.append((body, values[0], counts[0]))
    return made


def prefill(folder: Path, members: int) -> Prefilled:
    """Create a federation with this many members, each with an upload in round 0, in one transaction."""
    charter = build_charter("many", {"name": "consilience"}, 10, channels(), {}, rules=Rules())
    file, path = folder / "many.toml", folder / "relay.db"
    file.write_text(charter.to_toml())
    admin.create(path, file)
    made = bodies(BODIES)
    hashes = [upload_sha256(PARTS, body) for body, *_ in made]
    keys = [secrets.token_urlsafe(32) for _ in range(members)]
    with closing(Store(path)) as store:
        store.sql.execute("PRAGMA synchronous = OFF")
        with store.writing():
            many, numbers = store.sql.executemany, range(members)
            many(
                "INSERT INTO members(id, federation, number, name, token_hash, round) VALUES (?, 1, ?, ?, ?, 0)",
                ((i + 1, i, f"m{i}", hashlib.sha256(keys[i].encode()).digest()) for i in numbers),
            )
            many(
                "INSERT INTO uploads(id, member, header, body) VALUES (?, ?, ?, ?)",
                ((i + 1, i + 1, PARTS, made[i % BODIES][0]) for i in numbers),
            )
            many(
                "INSERT INTO receipts VALUES (?, 0, ?, ?, '{}')",
                ((i + 1, hashes[i % BODIES], len(made[0][0])) for i in numbers),
            )
            for channel, entries in (("observations", 1), ("prototypes", 0)):
                many(
                    "INSERT INTO contributions VALUES (1, ?, ?, ?, 0, ?, 0.0, 0)",
                    ((channel, i, i + 1, entries) for i in numbers),
                )
            store.channel_states.save(1, "prototypes", _sums(made, members))
        store.sql.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with path.open("rb") as written:
        os.fsync(written.fileno())
    return Prefilled(path, [f"cs1_{i + 1:x}_{key}" for i, key in enumerate(keys)])


def _sums(made: list[tuple[bytes, np.ndarray, np.ndarray]], members: int) -> dict[str, np.ndarray]:
    times = np.array([len(range(i, members, BODIES)) for i in range(BODIES)])  # (bodies,)
    values = np.stack([values for _, values, _ in made]).astype(np.float64)  # (bodies, classes, width)
    counts = np.stack([counts for *_, counts in made]).astype(np.float64)  # (bodies, classes)
    weights = times[:, None] * counts
    return {
        "sums.mean": (weights[:, :, None] * values).sum(axis=0),
        "count": weights.sum(axis=0),
        "holders": (times[:, None] * (counts > 0)).sum(axis=0).astype(np.int64),
    }


# The relay


@contextmanager
def relay(store: Path) -> Iterator[tuple[int, int]]:
    """Serve with the command; yield its process id and its port."""
    command = [
        sys.executable,
        "-m",
        "consilience",
        "relay",
        "serve",
        "--store",
        str(store),
        "--port",
        "0",
        "--rate",
        "0",
    ]
    with (
        store.with_suffix(".log").open("a") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            yield process.pid, int(process.stdout.readline().strip().rsplit(":", 1)[1])
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=30)


def memory(process: int) -> tuple[float, float]:
    """The resident memory of a process, now and at its peak, in MB."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    said = dict(line.split(":", 1) for line in lines)
    now, most = (int(said[key].split()[0]) / 1000 for key in ("VmRSS", "VmHWM"))
    return now, most


def wait_until_idle(process: int) -> float:
    """Wait until a process is idle, and return the seconds; after a start, the relay recomputes all sums."""
    began = time.monotonic()
    ticks = [-1, _ticks(process)]
    while ticks[-1] - ticks[-2] > 5:
        time.sleep(0.5)
        ticks.append(_ticks(process))
    return time.monotonic() - began


def _ticks(process: int) -> int:
    said = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    return int(said[11]) + int(said[12])


# The members


def uploads(prefilled: Prefilled, mine: range, first: int) -> Iterator[bytes]:
    """Upload requests of these members in random order; a member's round increases with each upload."""
    rng, made = random.Random(mine.start), [body for body, *_ in bodies(BODIES, seed=1)]
    rounds = dict[int, int]()
    while True:
        member = mine[rng.randrange(len(mine))]
        rounds[member] = rounds.get(member, first - 1) + 1
        body = made[rng.randrange(BODIES)]
        head = f"PUT /v1/rounds/{rounds[member]} HTTP/1.1\r\nHost: relay\r\nContent-Length: {len(body)}\r\n"
        yield (
            f"{head}{UPLOAD_HEADER}: {PARTS}\r\nAuthorization: Bearer {prefilled.tokens[member]}\r\n\r\n".encode()
            + body
        )


def answers(prefilled: Prefilled, mine: range, first: int) -> Iterator[bytes]:
    """Requests for answers of these members, each in another round."""
    rng, round_ = random.Random(mine.start), first
    while True:
        token = prefilled.tokens[mine[rng.randrange(len(mine))]]
        round_ += 1
        head = f"GET /v1/answers?round={round_} HTTP/1.1\r\nHost: relay\r\n"
        yield f"{head}Authorization: Bearer {token}\r\n\r\n".encode()


Requests = Callable[[Prefilled, range, int], Iterator[bytes]]


def drive(prefilled: Prefilled, requests: Requests, port: int, seconds: float, first: int) -> list[float]:
    """Send requests for some seconds over parallel connections, and return the latency of each."""
    members = len(prefilled.tokens)
    took = list[float]()
    began = dict[socket.socket, float]()
    with selectors.DefaultSelector() as ready:
        for i in range(CONNECTIONS):
            connection = socket.create_connection(("127.0.0.1", port))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            ready.register(connection, selectors.EVENT_READ, requests(prefilled, range(i, members, CONNECTIONS), first))
        ends = time.perf_counter() + seconds
        for key in list(ready.get_map().values()):
            began[key.fileobj] = time.perf_counter()  # type: ignore[index]
            key.fileobj.sendall(next(key.data))  # type: ignore[union-attr]
        while ready.get_map():
            for key, _ in ready.select(timeout=30):
                connection = key.fileobj  # type: ignore[assignment]
                _answer(connection)
                now = time.perf_counter()
                took.append(now - began[connection])
                if now < ends:
                    began[connection] = time.perf_counter()
                    connection.sendall(next(key.data))
                else:
                    ready.unregister(connection)
                    connection.close()
    return took


def _answer(connection: socket.socket) -> None:
    """Read one complete response."""
    came = connection.recv(2**17)
    while (end := came.find(b"\r\n\r\n")) < 0:
        came += connection.recv(2**17)
    head = came[:end].lower()
    if not head.startswith(b"http/1.1 200"):
        raise RuntimeError(f"the relay answered {came[:500]!r}")
    at = head.index(b"content-length:") + 15
    missing = end + 4 + int(head[at:].split(b"\r\n", 1)[0]) - len(came)
    while missing > 0:
        missing -= len(connection.recv(2**17))


@dataclass
class Case:
    """One size of federation, its relay, and the latencies of uploads and answers, by turn."""

    prefilled: Prefilled
    process: int
    port: int
    recounted: float = 0.0
    took: dict[Requests, list[list[float]]] = field(default_factory=lambda: {uploads: [], answers: []})

    def turn(self, pool: Pool, seconds: float, number: int) -> None:
        """Measure uploads for some seconds, then answers."""
        for requests, took in self.took.items():
            first = 1 + number * 10**6  # rounds must increase
            took.append(pool.apply(drive, (self.prefilled, requests, self.port, seconds, first)))

    def rate(self, requests: Requests) -> float:
        """Requests per second of the median turn, counting only the time in which connections were busy."""
        return float(np.median([len(took) / (sum(took) / CONNECTIONS) for took in self.took[requests]]))

    def cells(self) -> list[float]:
        """The cells of its row in the table."""
        cells = list[float]()
        for requests, took in self.took.items():
            middle, late = np.quantile(np.concatenate(took), [0.5, 0.99]) * 1000
            cells += [self.rate(requests), float(middle), float(late)]
        return [*cells, *memory(self.process), size(self.prefilled.store), self.recounted]


def size(store: Path) -> float:
    """Size of the store and its log, in MB."""
    return sum(path.stat().st_size for path in store.parent.glob(store.name + "*")) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer members, 2 seconds per size")
    parser.add_argument("--members", type=int, nargs="+", default=None)
    parser.add_argument("--seconds", type=float, default=None)
    arguments = parser.parse_args()
    sizes = arguments.members or ([10, 1000, 10_000] if arguments.quick else [10, 1000, 100_000])
    seconds = arguments.seconds or (2.0 if arguments.quick else 10.0)
    with ExitStack() as stack:
        cases = list[Case]()
        for members in sizes:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            prefilled = prefill(Path(folder), members)
            case = Case(prefilled, *stack.enter_context(relay(prefilled.store)))
            case.recounted = wait_until_idle(case.process)
            cases.append(case)
        pool = stack.enter_context(multiprocessing.get_context("spawn").Pool(1))
        for number in range(TURNS + 1):
            for case in cases:
                case.turn(pool, seconds / TURNS, number)
        for case in cases:
            for took in case.took.values():
                del took[0]  # the warm-up turn
        columns = ["members", *["{}/s", "p50 ms", "p99 ms"] * 2, "memory MB", "peak MB", "store MB", "recount s"]
        print("| " + " | ".join(columns).format("uploads", "answers") + " |")
        print("|---" * len(columns) + "|")
        for members, case in zip(sizes, cases, strict=True):
            print(f"| {members:,} | " + " | ".join(f"{cell:,.1f}" for cell in case.cells()) + " |")
        up, down = (cases[-1].rate(requests) / cases[0].rate(requests) for requests in (uploads, answers))
    print(f"\n{sizes[-1]:,} members against {sizes[0]:,}: rate of uploads {up:.2f}, of answers {down:.2f}")


if __name__ == "__main__":
    main()
