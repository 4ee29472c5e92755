"""The calibrated loss and the own answer in a training loop of one's own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from consilience.errors import ConfigurationError
from consilience.models import SplitModel
from consilience.objectives import SimCLR, TwoAnswers
from consilience.peer.loop_objective import LoopObjective
from consilience.peer.peer import Peer
from consilience.peer.state import PeerState
from tests.peer_tools import CLASSES, WIDTH, Batches, batches, federation
from tests.relay_tools import serving

PLAIN = {"name": "fedavg"}
BOTH = {"name": "fedavg", "objective": "calibrated", "own_head": True}


def skewed(seed: int) -> Batches:
    """Of the last class only one sample."""
    inputs, targets = (torch.cat(parts) for parts in zip(*batches(seed), strict=True))
    keep = (targets < CLASSES - 1) | (torch.arange(len(targets)) == CLASSES - 1)
    return [(inputs[keep], targets[keep])]


def train(peer: Peer, model: SplitModel, loader: Batches, steps: int = 3) -> None:
    optimizer = torch.optim.SGD([*model.parameters(), *peer.parameters()], lr=0.5)
    for inputs, targets in loader * steps:
        features = model.features(inputs)
        logits = model.classifier(features)
        loss = peer.loss(features, logits, targets) + peer.penalty(features, logits, targets, model.classifier)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def answers(peer: Peer, model: SplitModel, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Features, the common and the own answer."""
    with torch.no_grad():
        features = model.features(inputs)
        logits = model.classifier(features)
        return features, logits, peer.own_logits(features, logits)


def test_loss_and_own_answer_by_hand_and_after_a_restart_without_the_relay(tmp_path: Path) -> None:
    loader = skewed(0)
    inputs, targets = loader[0]
    counts = torch.bincount(targets, minlength=CLASSES) + 0.05
    log_shares = (counts / counts.sum()).log()
    with federation(tmp_path, BOTH) as made:
        with serving(made.store) as running:
            model = made.common()
            peer = made.join(running.url, 0, model)
            with pytest.raises(ConfigurationError, match=r"class shares of your samples.*peer.count_classes\(loader\)"):
                train(peer, model, loader)
            peer.count_classes(loader)
            features, logits, own = answers(peer, model, inputs)
            torch.testing.assert_close(own, logits + log_shares)  # the head starts at zero
            expected = 2 * cross_entropy(logits + log_shares, targets)
            torch.testing.assert_close(peer.loss(features, logits, targets), expected)

            train(peer, model, loader)
            features, logits, own = answers(peer, model, inputs)
            head = peer.modules["cross_entropy"]["own_head"]
            assert isinstance(head, torch.nn.Linear) and head.weight.shape == (CLASSES, WIDTH)
            assert head.weight.abs().sum() > 0
            torch.testing.assert_close(own, logits + log_shares + head(features))
            assert peer.share(model, loader)
            peer.close()
        before = [p.detach().clone() for p in model.parameters()]
        again = made.join(running.url, 0, model, timeout=0.2)  # out of reach: from its folder
        with torch.no_grad():
            for parameter, value in zip(model.parameters(), before, strict=True):
                parameter.copy_(value)
        assert torch.equal(answers(again, model, inputs)[2], own)


def test_nothing_of_the_own_answer_is_sent_and_without_one_both_answers_are_the_same(tmp_path: Path) -> None:
    sent = {}
    for name, method in (("plain", PLAIN), ("both", BOTH)):
        with federation(tmp_path / name, method) as made, serving(made.store) as running:
            model = made.common()
            peer = made.join(running.url, 0, model)
            peer.count_classes(skewed(0))
            train(peer, model, skewed(0), steps=1)
            peer.share(model, skewed(0))
            sent[name] = peer.bytes_sent, {k: c.tensors.keys() for k, c in peer.connection.channels.items()}
            if method is PLAIN:
                assert_both_answers_are_the_same(peer, model)
                assert_bad_input_is_refused(peer)
    assert sent["plain"] == sent["both"]


def assert_both_answers_are_the_same(peer: Peer, model: SplitModel) -> None:
    inputs, targets = batches(0)[0]
    features, logits, own = answers(peer, model, inputs)
    assert torch.equal(own, logits) and peer.parameters() == []
    assert torch.equal(peer.loss(features, logits, targets), cross_entropy(logits, targets))


def assert_bad_input_is_refused(peer: Peer) -> None:
    features, logits, targets = torch.zeros(2, WIDTH), torch.zeros(2, CLASSES), torch.zeros(2, dtype=torch.int64)
    with pytest.raises(ConfigurationError, match="loss was given features"):
        peer.loss(features, logits[:, :2], targets)
    with pytest.raises(ConfigurationError, match="there is nothing to count"):
        peer.count_classes([])
    with pytest.raises(ConfigurationError, match="this federation takes integers from 0 to 2"):
        peer.count_classes([(features, np.array([7]))])
    context = peer._context
    with pytest.raises(ConfigurationError, match="objective 'simclr' of federation 'small' needs more than features"):
        LoopObjective(SimCLR(), context, PeerState()).loss(features, logits, targets)
    context.task = replace(context.task, width=0)  # as where no model was given, and no features are shared
    with pytest.raises(ConfigurationError, match=r"private head on your model's features: give your model"):
        LoopObjective(TwoAnswers(own_head=True), context, PeerState())
