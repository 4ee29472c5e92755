"""A relay as tests use it: a federation in a folder, served by a process of its own, with members' uploads known.

`CONSILIENCE_ROBUSTNESS=1` (`make robustness`) makes the counts large; without it they fit in every test run.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from consilience.channels import MovingMean
from consilience.relay import admin
from consilience.relay.app import Relay
from consilience.relay.federation import FederationService
from consilience.relay.recount import recount
from consilience.relay.server import ServerSettings, bind_server
from consilience.relay.store import Store
from consilience.relay.table import Row
from consilience.relay.timeouts import Timeouts
from consilience.relay.upload_queue import QueuedUpload
from consilience.relay.writer import Writer
from consilience.wire import schema
from consilience.wire.charter import Charter, build_charter, encode_start_values, start_values_file
from consilience.wire.codec import Codec
from consilience.wire.common_values import common_values_message
from consilience.wire.encodings import BIT, FLOAT16, FLOAT32
from consilience.wire.headers import UPLOAD_HEADER, Part, format_parts, upload_sha256
from consilience.wire.rules import Rules

FULL = os.environ.get("CONSILIENCE_ROBUSTNESS") == "1"
SOURCE = Path(__file__).parents[1] / "src"
PATIENT = Rules(deadline=3600.0)
Tensors = dict[str, np.ndarray]
Contents = dict[str, list[Row]]


def often(short: int, full: int) -> int:
    """How many times: few in every test run, many where robustness itself is tested."""
    return full if FULL else short


def channels(
    quorum: int | None = None, max_staleness: int = 8, by_row: bool = False, width: int = 5
) -> dict[str, schema.Channel]:
    """One of each kind, small: a standing mean, a pool, a moving mean of two tensors in several encodings."""
    rows = {"mean": schema.Tensor((3, 4), FLOAT32, FLOAT32, -1, 1)}
    moved = {"a": schema.Tensor((3, 2), BIT, BIT), "b": schema.Tensor((width,), FLOAT32, FLOAT16)}
    return {
        "prototypes": schema.Mean("prototypes", rows, rows=(3,)),
        "observations": schema.Pool(
            "observations", rows, rows=(3,), keep=2, draw=2, by="row" if by_row else "member", include_self=False
        ),
        "weights": schema.Mean("weights", moved, moving=True, quorum=quorum, max_staleness=max_staleness),
    }


def wide() -> dict[str, schema.Channel]:
    """A standing mean and a pool of 10 classes and 250 features: bodies of 20 KiB."""
    rows = {"mean": schema.Tensor((10, 250))}
    return {
        "prototypes": schema.Mean("prototypes", rows, rows=(10,)),
        "observations": schema.Pool("observations", rows, rows=(10,)),
    }


@dataclass(frozen=True)
class Upload:
    """A body, its header, and what it decodes to."""

    header: str
    body: bytes
    tensors: Tensors

    @property
    def sha256(self) -> str:
        return upload_sha256(self.header, self.body)

    def of(self, channel: str) -> Tensors:
        """A channel's tensors by their own names."""
        return {k.split(".", 1)[1]: t for k, t in self.tensors.items() if k.split(".", 1)[0] == channel}


@dataclass(frozen=True)
class Federation:
    """A federation in a store, and its members' tokens, in the order of their numbers."""

    store: Path
    charter: Charter
    starts: Mapping[str, Tensors]
    tokens: list[str]

    def invite(self, name: str) -> None:
        self.tokens.append(str(admin.invite(self.store, name)))

    def head(self, member: int, **more: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.tokens[member]}", **more}

    def upload(self, member: int, round_: int, version: int = 0, names: Sequence[str] | None = None) -> Upload:
        """A member's upload in a round: it depends on both, and is the same each time."""
        rng = np.random.default_rng([member, round_])
        parts: dict[str, Part] = {}
        for name, channel in self.charter.channels.items():
            if names is not None and name not in names:
                continue
            if isinstance(channel, schema.Pool):
                parts[name] = Part(entries=channel.keep)
            elif isinstance(channel, schema.Mean) and channel.moving:
                parts[name] = Part(version=version, weight=10 * member + 3.5)
            else:
                parts[name] = Part()
        message = {k: f for name in parts for k, f in self.charter.channels[name].message("up").items()}
        drawn = {k: _drawn(rng, f) for k, f in message.items()}
        codec = Codec(message)
        body = codec.encode(drawn)
        return Upload(format_parts(parts), body, codec.decode(body))

    def moving(self) -> MovingMean:
        """The moving mean at its start, for as many members as there are."""
        channel = self.charter.channels["weights"]
        assert isinstance(channel, schema.Mean)
        return MovingMean(channel, len(self.tokens), self.starts["weights"])

    def receipts(self) -> list[tuple[int, int, str]]:
        """Member, round and SHA-256 of all that was acknowledged, by the store."""
        with contextlib.closing(Store(self.store)) as store:
            rows = store.sql.execute(
                "SELECT m.number, r.round, r.sha256 FROM receipts r JOIN members m ON m.id = r.member ORDER BY 1, 2"
            )
            return rows.fetchall()

    def sums_are_right(self) -> None:
        """A recount finds nothing wrong, and every stored upload is undamaged and needed."""
        with contextlib.closing(Store(self.store)) as store:
            assert recount(FederationService(store, 1), store) == {}
            assert store.sql.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            needed = "SELECT count(*) FROM uploads WHERE id NOT IN (SELECT upload FROM contributions)"
            assert store.sql.execute(needed).fetchone() == (0,)

    def state(self, channel: str) -> Tensors:
        with contextlib.closing(Store(self.store)) as store:
            kept = store.channel_states.get(1, channel)
        assert kept is not None
        return kept


def _drawn(rng: np.random.Generator, what: schema.Field) -> np.ndarray:
    if what.encoding.name == "int32":
        return rng.integers(0, 5, what.shape, dtype=np.int32)
    return rng.uniform(-1, 1, what.shape).astype(np.float32)


def create_federation(
    folder: Path,
    members: int,
    declared: Mapping[str, schema.Channel] | None = None,
    rules: Rules = PATIENT,
) -> Federation:
    """A federation of N members in a new store."""
    declared = channels() if declared is None else declared
    moving = {name: channel for name, channel in declared.items() if name == "weights"}
    starts = {name: {k: np.ones(t.shape, np.float32) for k, t in c.tensors.items()} for name, c in moving.items()}
    charter = build_charter("digits", {"name": "consilience"}, 3, declared, starts, rules=rules)
    file, store = folder / "digits.toml", folder / "relay.db"
    file.write_text(charter.to_toml())
    start_values_file(file).write_bytes(encode_start_values(charter, starts))
    admin.create(store, file)
    federation = Federation(store, charter, starts, [])
    for number in range(members):
        federation.invite(f"m{number}")
    return federation


@dataclass
class RelayProcess:
    """A relay served by a process of its own."""

    process: subprocess.Popen[str]
    url: str

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])

    def kill(self) -> None:
        """End it at once (SIGKILL)."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> float:
        """Stop it with SIGTERM; the seconds that it took."""
        began = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(timeout=20) == 0
        return time.monotonic() - began


def serve(
    store: Path,
    port: int = 0,
    *,
    before: Sequence[str] = (),
    program: Sequence[str] = (),
    options: Sequence[str] = ("--rate", "0"),
) -> RelayProcess:
    """Start it as a user does, and wait until it accepts requests; members may make any number of requests."""
    given = ["relay", "serve", "--store", str(store), "--port", str(port), *options]
    command = [*before, sys.executable, *(program or ("-m", "consilience")), *given]
    environment = os.environ | {"PYTHONPATH": str(SOURCE)}
    log = store.with_suffix(".log")
    with log.open("a") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment)
    assert process.stdout is not None
    with process.stdout as out:
        line = out.readline()
    if not line.startswith("relay: "):
        process.kill()
        process.wait()
        raise AssertionError(f"it printed {line!r}\n{log.read_text()[-2000:]}")
    return RelayProcess(process, line.removeprefix("relay: ").strip())


@contextlib.contextmanager
def serving(
    store: Path,
    port: int = 0,
    *,
    before: Sequence[str] = (),
    program: Sequence[str] = (),
    options: Sequence[str] = ("--rate", "0"),
) -> Iterator[RelayProcess]:
    """The same, ended at the end of the block."""
    running = serve(store, port, before=before, program=program, options=options)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.kill()


@contextlib.contextmanager
def in_a_thread(relay: Relay, timeouts: Timeouts | None = None) -> Iterator[str]:
    """A relay served by a thread of this process, so that a test may inspect it; its URL."""
    ready = threading.Event()
    settings = ServerSettings(port=0, timeouts=timeouts or Timeouts())
    server = bind_server(relay.app(), settings, on_ready=lambda url: ready.set())
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        assert ready.wait(10)
        yield server.url
    finally:
        server.should_exit = True
        thread.join(12)
        assert not thread.is_alive()


def contents(path: Path) -> Contents:
    """All records of a store, by table."""
    with contextlib.closing(Store(path)) as store:
        return {table.name: sorted(table.select_raw()) for table in store.tables}


def upload_headers(federation: Federation, member: int, upload: Upload) -> dict[str, str]:
    return federation.head(member, **{UPLOAD_HEADER: upload.header})


def common_of(federation: Federation, body: bytes) -> Tensors:
    """The common values in an answer that holds nothing else."""
    values = Codec(common_values_message(federation.charter.channels["weights"])).decode(body)
    return {k.split(".", 1)[1]: t for k, t in values.items()}


def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, "it did not happen in time"
        time.sleep(0.01)


@dataclass
class ManualWriter:
    """A writer without its thread: the test chooses batches and time."""

    federation: Federation
    now: float = 1000.0
    writer: Writer = field(init=False)

    def __post_init__(self) -> None:
        self.writer = Writer(self.federation.store, clock=lambda: self.now)
        self.poll()

    def write(self, *uploads: QueuedUpload) -> list[Future[str]]:
        """One batch."""
        self.writer.write(list(uploads))
        return [upload.receipt for upload in uploads]

    def poll(self, later: float = 0.0) -> None:
        """What the writer does between uploads, some seconds later."""
        self.now += later
        self.write()

    def queued(self, member: int, round_: int, version: int = 0, names: Sequence[str] | None = None) -> QueuedUpload:
        upload = self.federation.upload(member, round_, version, names)
        return QueuedUpload(member + 1, round_, upload.header, upload.body)

    def upload(self, member: int, round_: int, version: int = 0, names: Sequence[str] | None = None) -> Future[str]:
        return self.write(self.queued(member, round_, version, names))[0]

    @property
    def service(self) -> FederationService:
        return self.writer.federations[1]

    @property
    def version(self) -> int:
        return self.service.snapshot.moving["weights"].version

    def close(self) -> None:
        self.writer.close()


@contextlib.contextmanager
def manual_writer(federation: Federation) -> Iterator[ManualWriter]:
    made = ManualWriter(federation)
    try:
        yield made
    finally:
        made.close()
