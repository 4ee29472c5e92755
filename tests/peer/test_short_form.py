"""The three lines of a loop of one's own: the same bits as with features, logits and classifier given by hand."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from consilience.models import split
from consilience.peer.peer import Peer
from tests.peer_tools import CLASSES, SHAPE, SHARING, WIDTH, batches, federation
from tests.relay_tools import serving

pytestmark = pytest.mark.usefixtures("one_thread")


class Net(nn.Module):
    """A user's network: dropout in training, a softmax after the classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(SHAPE[0], 8), nn.ReLU(), nn.Linear(8, WIDTH), nn.Tanh())
        self.drop, self.fc = nn.Dropout(0.2), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.drop(self.body(x))).log_softmax(1)


def made_net(seed: int) -> Net:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Net()


def by_hand(peer: Peer, model: Net, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    features = model.drop(model.body(inputs))
    logits = model.fc(features)
    return peer.loss(features, logits, targets), peer.penalty(features, logits, targets, model.fc)


def by_record(peer: Peer, model: Net, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    model(inputs)
    return peer.loss(targets), peer.penalty(targets)


METHODS: list[dict[str, Any]] = [
    {**SHARING, "up": 2, "down": 3},
    {**SHARING, "discriminator": "exponential"},
    {"name": "federated-distillation"},
    {"name": "consilience", "up": "int4"},
    {"name": "fedavg", "objective": "calibrated", "own_head": True},
]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: "-".join(map(str, method.values())))
def test_bits_and_bytes_are_those_of_the_explicit_form(tmp_path: Path, method: dict[str, Any]) -> None:
    found = []
    for short in (False, True):
        with (
            federation(tmp_path / str(short), method, 1, [lambda: split(Net())]) as made,
            serving(made.store) as running,
        ):
            model = made_net(1)
            torch.manual_seed(7)  # of dropout
            peer, loader = made.join(running.url, 0, model), batches(1)
            assert peer.model is model and peer.classifier is model.fc
            peer.count_classes(loader)
            assert peer.introduce(loader) if short else peer.introduce(split(model), loader)
            optimizer, seen = torch.optim.SGD([*model.parameters(), *peer.parameters()], lr=0.1), list[Tensor]()
            for _ in range(3):
                peer.refresh()
                for inputs, targets in loader:
                    parts = (by_record if short else by_hand)(peer, model, inputs, targets)
                    optimizer.zero_grad()
                    (parts[0] + parts[1]).backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
                    seen += [part.detach() for part in parts]
                assert peer.share(loader) if short else peer.share(split(model), loader)
            values = [p.detach() for p in (*model.parameters(), *peer.parameters())]
            answers = {k: a.tensors for k, a in peer.connection.state.answers.items()}
            sent = peer.bytes_sent, peer.connection.client.bytes_received
            found.append((seen + values, answers, sent))
    (tensors, answers, sent), (others, other_answers, other_sent) = found
    assert sent == other_sent and sent[0] > 0
    assert all(torch.equal(a, b) for a, b in zip(tensors, others, strict=True))
    assert any(float(t) > 0 for t in tensors[1:18:2]) or method["name"] == "fedavg"  # penalties
    for name, arrays in answers.items():
        assert all((arrays[k] == other_answers[name][k]).all() for k in arrays)


def test_a_copy_of_the_model_is_not_recorded(tmp_path: Path) -> None:
    with federation(tmp_path, SHARING, 1) as made, serving(made.store) as running:
        model = made_net(1)
        before = {k: v.clone() for k, v in model.state_dict().items()}
        peer = made.join(running.url, 0, model)
        assert model.state_dict().keys() == before.keys()
        (inputs, targets), *_ = batches(1)
        model(inputs)
        copied = copy.deepcopy(model)
        copied(inputs[:3])
        assert peer.penalty(targets).item() == 0  # of eight rows: the copy's three were not recorded
        peer.close()
        assert not model.fc._forward_hooks
