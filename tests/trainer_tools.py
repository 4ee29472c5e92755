"""What tests of trainers share: a small network, its federation, and the same training in a loop written by hand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from consilience import split
from consilience.models import SplitModel
from consilience.models.cut import cut
from consilience.peer.peer import Peer
from consilience.wire.rules import Rules
from tests.peer_tools import CLASSES, SHAPE, WIDTH, Batches, Founded, federation
from tests.relay_tools import RelayProcess, serving

AT_ONCE = Rules(min_contributions=1, deadline=0.2)
ALONE = Rules(min_contributions=1)
LR = 0.1


class Net(nn.Module):
    """A network with a classifier named fc."""

    def __init__(self, seed: int = 0, dropout: float = 0.0) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.body = nn.Sequential(nn.Linear(SHAPE[0], 8), nn.ReLU(), nn.Linear(8, WIDTH), nn.Tanh())
            self.dropout, self.fc = nn.Dropout(dropout), nn.Linear(WIDTH, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        """(n, 6) -> (n, 3)."""
        logits: Tensor = self.fc(self.dropout(self.body(inputs)))
        return logits


def divided() -> SplitModel:
    """A model whose server part only votes move; its device part is the first layer."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = [nn.Linear(SHAPE[0], 8), nn.ReLU(), nn.Linear(8, WIDTH), nn.Tanh(), nn.Linear(WIDTH, CLASSES)]
        return cut(nn.Sequential(*layers), at="0")


class Served(NamedTuple):
    """A federation and its relay, which runs."""

    made: Founded
    relay: RelayProcess

    def join(self, member: int, model: nn.Module | None, **more: Any) -> Peer:
        return self.made.join(self.relay.url, member, model, **more)


@contextmanager
def served(folder: Path, method: Mapping[str, Any], build: Any = None, **more: Any) -> Iterator[Served]:
    builds = (build or (lambda: split(Net(), at="fc")),)
    with federation(folder, method, models=builds, **more) as made, serving(made.store) as relay:
        yield Served(made, relay)


def flat(model: nn.Module) -> Tensor:
    """All parameters, copied."""
    return torch.cat([p.detach().clone().flatten() for p in model.parameters()])


def train_by_hand(
    peer: Peer, model: nn.Module, loader: Batches, epochs: int, accumulate: int = 1, method_loss: bool = False
) -> list[float]:
    """Three lines in a loop of one's own; the mean penalty of each epoch."""
    optimizer = torch.optim.SGD([*model.parameters(), *peer.parameters()], lr=LR, momentum=0.9)
    if method_loss:
        peer.count_classes(loader)
    peer.introduce(loader)
    means = []
    for _ in range(epochs):
        peer.refresh()
        penalties = []
        for step, (inputs, targets) in enumerate(loader, 1):
            own = cross_entropy(model(inputs), targets)
            penalties.append(peer.penalty(targets))
            loss = (peer.loss(targets) if method_loss else own) + penalties[-1]
            (loss / accumulate).backward()  # type: ignore[no-untyped-call]
            if any(e.owned_part for e in peer.exchanges):
                peer.take_gradients()
            if step % accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()
        means.append(float(torch.stack(penalties).mean().detach()))
        peer.share(loader)
    return means
