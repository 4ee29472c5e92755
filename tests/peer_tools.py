"""Peers as tests use them: small models and data, a federation for them, and a line that can be spoiled."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from consilience.models import SplitModel
from consilience.peer.create_charter import TaskShape, create_charter, write_charter
from consilience.peer.member import FederationMember
from consilience.peer.peer import Peer, join
from consilience.peer.trainer import FederatedTrainer
from consilience.randomness import seed_of
from consilience.relay import admin
from consilience.wire.charter import Charter, message_of
from consilience.wire.codec import Codec
from consilience.wire.headers import Parts
from consilience.wire.privacy import PrivacySettings
from consilience.wire.rules import Rules
from tests.relay_tools import PATIENT

SHAPE, CLASSES, WIDTH = (6,), 3, 4
Batches = list[tuple[Tensor, Tensor]]
SHARING = {"name": "representation-sharing"}


def net(hidden: int = 8, width: int = WIDTH, classes: int = CLASSES) -> SplitModel:
    features = nn.Sequential(nn.Linear(SHAPE[0], hidden), nn.ReLU(), nn.Linear(hidden, width), nn.Tanh())
    return SplitModel(features, nn.Linear(width, classes), bound=1.0)


def seeded(build: Callable[[], SplitModel], seed: int) -> SplitModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()


def batches(seed: int, samples: int = 24, size: int = 8) -> Batches:
    """Every class is there."""
    chance = torch.Generator().manual_seed(seed)
    inputs, targets = torch.randn(samples, *SHAPE, generator=chance), torch.arange(samples) % CLASSES
    return list(zip(torch.split(inputs, size), torch.split(targets, size), strict=True))


@dataclass
class Founded:
    """A federation in a store, and its members' tokens."""

    folder: Path
    charter: Charter
    tokens: list[str]
    peers: list[FederationMember] = field(default_factory=list)

    @property
    def store(self) -> Path:
        return self.folder / "relay.db"

    def invite(self, name: str) -> None:
        self.tokens.append(str(admin.invite(self.store, name)))

    def join(self, url: str, member: int, model: nn.Module | None = None, **more: Any) -> Peer:
        """A peer in a folder of its own; hung up at the end."""
        place = more.pop("folder", self.folder / f"peer-{member}")
        peer = join(url, self.tokens[member], model, folder=place, **more)
        self.peers.append(peer)
        return peer

    def common(self, build: Callable[[], SplitModel] = net) -> SplitModel:
        """A model with the weights that the charter names."""
        return seeded(build, seed_of("common weights", self.charter.seed))

    def round_of(self, member: int) -> int:
        """As the relay has it."""
        return int(admin.status(self.store)[0]["members"][member]["round"])


@contextlib.contextmanager
def federation(
    folder: Path,
    method: Mapping[str, Any],
    members: int = 2,
    models: Sequence[Callable[[], nn.Module]] = (net,),
    rules: Rules = PATIENT,
    privacy: PrivacySettings | None = None,
) -> Iterator[Founded]:
    folder.mkdir(exist_ok=True)
    shape = TaskShape(SHAPE, CLASSES)
    charter, starts = create_charter("small", method, shape, models, seed=5, rules=rules, privacy=privacy)
    write_charter(folder / "small.toml", charter, starts)
    made = Founded(folder, charter, [])
    admin.create(made.store, folder / "small.toml")
    for number in range(members):
        made.invite(f"m{number}")
    try:
        yield made
    finally:
        for peer in made.peers:
            peer.connection.disconnect()


def residuals_of(peer: Peer) -> dict[str, np.ndarray]:
    """By channel and tensor."""
    return flat(peer.connection.state.residuals)


def flat(residuals: Mapping[str, Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {f"{name}.{k}": residual for name, several in residuals.items() for k, residual in several.items()}


def same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[k], other[k]) for k in one)


def decoded(peer: FederationMember | FederatedTrainer, parts: Parts, body: bytes) -> dict[str, np.ndarray]:
    """What the relay reads in an upload."""
    return Codec(message_of(peer.connection.channels, "up", parts)).decode(body)


def train(peer: Peer, model: SplitModel, loader: Batches, lr: float = 0.1) -> None:
    """A loop of one's own."""
    model.train()
    optimizer = torch.optim.SGD([*model.parameters(), *peer.parameters()], lr=lr)
    for inputs, targets in loader:
        features = model.features(inputs)
        logits = model.classifier(features)
        loss = nn.functional.cross_entropy(logits, targets) + peer.penalty(features, logits, targets, model.classifier)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def answered(status: int, *headers: str, body: bytes = b"") -> bytes:
    """An answer of whoever stands in the way."""
    lines = [f"HTTP/1.1 {status} So", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


class Line:
    """A TCP line to a relay that passes everything on, or does as its mode says."""

    def __init__(self, port: int) -> None:
        self.to, self.mode, self.canned = port, "pass", b""
        self._server = socket.create_server(("127.0.0.1", 0))
        self._open: set[socket.socket] = set()
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.getsockname()[1]}"

    def now(self, mode: str, canned: bytes = b"") -> None:
        """From now on so: connections that are open end."""
        self.mode, self.canned = mode, canned
        for one in list(self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while not self._ended.is_set():
            if select.select([self._server], [], [], 0.05)[0]:
                client = self._server.accept()[0]
                self._open.add(client)
                self._threads.append(threading.Thread(target=self._serve, args=(client,), daemon=True))
                self._threads[-1].start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            {"pass": self._pass, "drop": self._pass}.get(self.mode, self._spoil)(client)
        self._open.discard(client)

    def _pass(self, client: socket.socket) -> None:
        with socket.create_connection(("127.0.0.1", self.to), timeout=5) as relay:
            self._open.add(relay)
            while not self._ended.is_set():
                for one in select.select([client, relay], [], [], 0.05)[0]:
                    got = one.recv(65536)
                    if not got or (one is relay and self.mode == "drop"):
                        self._open.discard(relay)
                        return
                    (relay if one is client else client).sendall(got)

    def _spoil(self, client: socket.socket) -> None:
        if not select.select([client], [], [], 5)[0]:
            return
        client.recv(65536)
        if self.mode == "drip":
            client.sendall(b"HTTP/1.1 200 OK\r\nX-Long: ")
        while self.mode in ("drip", "silent") and not self._ended.wait(0.05):
            if self.mode == "drip":
                client.sendall(b"x")
        client.sendall(self.canned)
        time.sleep(0.05)  # what came in meanwhile is read no more

    def close(self) -> None:
        self._ended.set()
        self.now("pass")
        for thread in self._threads:
            thread.join(timeout=5)
        self._server.close()


@contextlib.contextmanager
def line(port: int) -> Iterator[Line]:
    made = Line(port)
    try:
        yield made
    finally:
        made.close()
