"""Uploads and answers per second of a relay on this machine, for several numbers of members.

    python benchmarks/relay.py [--quick] [--members 10 1000 100000] [--seconds 10] [--against CHECKOUT]

The federation has a standing mean and a pool of float32 (10, 250) with class counts; bodies are 20 KiB. All members
have uploaded once, which is written directly into the store. Each relay is started with the command; another process
sends uploads and requests of random members over 10 open connections. Each upload is new, is on disk before it is
acknowledged, and replaces the member's last. "pools" are answers of both channels, each with a new random draw; "means"
are answers of the mean alone, the same for all members while nobody uploads. The sizes are measured in turn, five
times, and rates are medians over the turns, so that other load on the machine affects all sizes equally.

With `--against CHECKOUT`, a folder with another commit (`git worktree add --detach CHECKOUT COMMIT`), its relay serves
a store of its own for each size, measured in the same turns, and ratios are medians of the ratios within each turn.
"CPU ms" is the relay's processor time per request.
"start s" is the time from starting the command to its first answer, "recount s" until all sums were computed again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
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
from consilience.relay.tables import MemberRecord
from consilience.wire import schema
from consilience.wire.charter import build_charter
from consilience.wire.codec import Codec
from consilience.wire.headers import UPLOAD_HEADER, upload_sha256
from consilience.wire.rules import Rules

PARTS = "prototypes, observations;entries=1"
BODIES = 64  # different bodies, each used by many members, so that their sums are computed quickly
CONNECTIONS = 10
TURNS = 5
HERE = Path(__file__).resolve().parents[1]


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
            numbers, size = range(members), len(made[0][0])
            token_hashes = (hashlib.sha256(key.encode()).digest() for key in keys)
            store.members.write_many(
                MemberRecord(i + 1, 1, i, f"m{i}", hashed, revoked=0, away=0, round=0, uploads=1, bytes=size)
                for i, hashed in zip(numbers, token_hashes, strict=True)
            )
            store.uploads.write_many((i + 1, i + 1, PARTS, made[i % BODIES][0]) for i in numbers)
            store.receipts.write_many((i + 1, 0, hashes[i % BODIES], size, "{}") for i in numbers)
            for channel, entries in (("observations", 1), ("prototypes", 0)):
                store.contributions.write_many((1, channel, i, i + 1, 0, entries, 0.0, 0) for i in numbers)
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


def prefill_with(checkout: Path, folder: Path, members: int) -> Prefilled:
    """The same, written by another commit: its tables may be others."""
    script = (
        "import json, sys, pathlib, relay; made = relay.prefill(pathlib.Path(sys.argv[1]), int(sys.argv[2])); "
        "print(json.dumps(made.tokens))"
    )
    command = [sys.executable, "-c", script, str(folder), str(members)]
    done = subprocess.run(command, env=environment(checkout), check=True, stdout=subprocess.PIPE)
    return Prefilled(folder / "relay.db", json.loads(done.stdout))


def environment(checkout: Path) -> dict[str, str]:
    """The environment of a process that runs another commit."""
    return os.environ | {"PYTHONPATH": f"{checkout / 'src'}:{checkout / 'benchmarks'}"}


# The relay


@contextmanager
def relay(store: Path, checkout: Path = HERE) -> Iterator[tuple[int, int]]:
    """Serve with the command of a checkout; yield its process id and its port."""
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
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment(checkout)
        ) as process,
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


def means(prefilled: Prefilled, mine: range, first: int) -> Iterator[bytes]:
    """Requests for the mean alone, as `pools`."""
    return pools(prefilled, mine, first, "&channel=prototypes")


def pools(prefilled: Prefilled, mine: range, first: int, channels: str = "") -> Iterator[bytes]:
    """Requests for answers of these members, each in another round."""
    rng, round_ = random.Random(mine.start), first
    while True:
        token = prefilled.tokens[mine[rng.randrange(len(mine))]]
        round_ += 1
        head = f"GET /v1/answers?round={round_}{channels} HTTP/1.1\r\nHost: relay\r\n"
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
    """One size of federation, its relay, and the latencies of uploads, pools and means, by turn."""

    name: str
    prefilled: Prefilled
    process: int
    port: int
    started: float = 0.0
    recounted: float = 0.0
    busy: dict[Requests, list[float]] = field(default_factory=lambda: {uploads: [], pools: [], means: []})
    took: dict[Requests, list[list[float]]] = field(default_factory=lambda: {uploads: [], pools: [], means: []})

    def turn(self, pool: Pool, seconds: float, number: int) -> None:
        """Measure each kind of request for some seconds."""
        for requests, took in self.took.items():
            first, before = 1 + number * 10**6, _ticks(self.process)  # rounds must increase
            took.append(pool.apply(drive, (self.prefilled, requests, self.port, seconds, first)))
            self.busy[requests].append((_ticks(self.process) - before) / os.sysconf("SC_CLK_TCK"))

    def rates(self, requests: Requests) -> np.ndarray:
        """Requests per second of each turn, counting only the time in which connections were busy."""
        return np.array([len(took) / (sum(took) / CONNECTIONS) for took in self.took[requests]])

    def cost(self, requests: Requests) -> float:
        """Seconds of processor time that the relay uses per request; other load on the machine changes it little."""
        return sum(self.busy[requests]) / sum(len(took) for took in self.took[requests])

    def cells(self) -> list[float]:
        """The cells of its row in the table."""
        cells = list[float]()
        for requests, took in self.took.items():
            middle, late = np.quantile(np.concatenate(took), [0.5, 0.99]) * 1000
            cells += [float(np.median(self.rates(requests))), float(middle), float(late), self.cost(requests) * 1000]
        return [*cells, *memory(self.process), size(self.prefilled.store), self.started, self.recounted]


def size(store: Path) -> float:
    """Size of the store and its log, in MB."""
    return sum(path.stat().st_size for path in store.parent.glob(store.name + "*")) / 1e6


def start(stack: ExitStack, checkout: Path, members: int) -> Case:
    """Fill a store, serve it, and wait until its relay is idle."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    here = checkout == HERE
    prefilled = prefill(folder, members) if here else prefill_with(checkout, folder, members)
    began = time.monotonic()
    name = f"{members:,}" if here else f"{members:,}, against"
    case = Case(name, prefilled, *stack.enter_context(relay(prefilled.store, checkout)))
    with socket.create_connection(("127.0.0.1", case.port)) as connection:
        connection.sendall(next(pools(prefilled, range(1), 0)))
        _answer(connection)
    case.started = time.monotonic() - began
    case.recounted = wait_until_idle(case.process)
    return case


def print_table(cases: list[Case]) -> None:
    columns = [
        "members",
        *["{}/s", "p50 ms", "p99 ms", "CPU ms"] * 3,
        "memory MB",
        "peak MB",
        "store MB",
        "start s",
        "recount s",
    ]
    print("| " + " | ".join(columns).format("uploads", "pools", "means") + " |")
    print("|---" * len(columns) + "|")
    for case in cases:
        print(f"| {case.name} | " + " | ".join(f"{cell:,.1f}" for cell in case.cells()) + " |")
    print()


def print_ratio(what: str, case: Case, other: Case) -> None:
    """How many times the rate of the other case, in the median turn, and how many times its requests per CPU second."""
    rates = {kind.__name__: np.median(case.rates(kind) / other.rates(kind)) for kind in case.took}
    per_cpu = {kind.__name__: other.cost(kind) / case.cost(kind) for kind in case.took}
    for name, ratios in (("rate", rates), ("requests per CPU second", per_cpu)):
        print(f"{what}: {name} of " + ", ".join(f"{kind} {ratio:.2f}" for kind, ratio in ratios.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer members, 2 seconds per size")
    parser.add_argument("--members", type=int, nargs="+", default=None)
    parser.add_argument("--seconds", type=float, default=None)
    parser.add_argument("--against", type=Path, default=None, help="a checkout of another commit")
    arguments = parser.parse_args()
    sizes = arguments.members or ([10, 1000, 10_000] if arguments.quick else [10, 1000, 100_000])
    seconds = arguments.seconds or (2.0 if arguments.quick else 10.0)
    checkouts = [HERE] if arguments.against is None else [HERE, arguments.against.resolve()]
    with ExitStack() as stack:
        cases = [start(stack, checkout, members) for members in sizes for checkout in checkouts]
        pool = stack.enter_context(multiprocessing.get_context("spawn").Pool(1))
        for number in range(TURNS + 1):
            for case in cases:
                case.turn(pool, seconds / TURNS, number)
        for case in cases:
            for kind in case.took:  # without the warm-up turn
                del case.took[kind][0], case.busy[kind][0]
        print_table(cases)
    mine = cases[:: len(checkouts)]
    if len(sizes) > 1:
        print_ratio(f"{sizes[-1]:,} members against {sizes[0]:,}", mine[-1], mine[0])
    for case, other in zip(mine, cases[1::2], strict=True) if arguments.against else ():
        print_ratio(f"{case.name} members, here against {arguments.against}", case, other)


if __name__ == "__main__":
    main()
