"""A peer in a custom training loop: results of the simulator's learner, bit-identical common weights, any loader."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from consilience import split
from consilience.config.schedules import Schedule, value_at
from consilience.errors import ConfigurationError, TrainingError
from consilience.exchanges.base import Received
from consilience.learner.initial_state import template_state
from consilience.learner.learner import Batch, Learner
from consilience.learner.passes import represent
from consilience.learner.spec import LearnerSpec
from consilience.models import SplitModel
from consilience.optimizers import build_optimizer
from consilience.peer.peer import Peer
from consilience.randomness import uniform
from consilience.wire.headers import Parts
from consilience.wire.rules import Rules
from tests.peer_tools import (
    CLASSES,
    SHAPE,
    SHARING,
    batches,
    decoded,
    federation,
    net,
    residuals_of,
    same,
    seeded,
    train,
)
from tests.relay_tools import serving, wait_until

AT_ONCE = Rules(min_contributions=1, deadline=0.2)
pytestmark = pytest.mark.usefixtures("one_thread")


def learner_of(peer: Peer, model: SplitModel) -> Learner:
    """The simulator's learner equivalent to a peer: the same weights and the peer's modules."""
    optimizer = build_optimizer("sgd", 0.1, 0.0, 0.0)
    role = deepcopy(peer.role)
    for e in (e for e in role.exchanges if isinstance(e.weight, Schedule)):
        object.__setattr__(e, "weight", value_at(e.weight, peer.round + 1))
    role = replace(role, objective=role.objective.for_held_out(False))  # as a member without held-out samples
    learner = Learner(LearnerSpec(lambda: deepcopy(model), role, optimizer, SHAPE))
    learner.bind(template_state(learner))
    learner.binding.assign(dict(model.named_parameters()))
    for name, module in peer.modules.items():
        learner.binding.assign({f"{name}/{k}": p for k, p in module.named_parameters()})
    return learner


def received(peer: Peer) -> dict[str, Received]:
    fresh = torch.ones((), dtype=torch.bool)
    return {
        name: Received(
            {k: torch.tensor(t) for k, t in held.tensors.items()}, torch.tensor(held.count, dtype=torch.float64), fresh
        )
        for name, held in peer.connection.state.answers.items()
    }


def draws(peer: Peer, name: str, wanted: int, rows: int, round_: int, step: int) -> Tensor:
    where = peer.charter.seed, round_, peer.connection.number, step
    return torch.from_numpy(uniform(f"draws {name}", *where, np.arange(wanted)[:, None], np.arange(rows)[None, :]))


def record_uploads(peer: Peer) -> list[tuple[int, Parts, bytes]]:
    """Record round, parts and body of every further upload."""
    recorded: list[tuple[int, Parts, bytes]] = []
    put = peer.connection.client.upload

    def tell(round_: int, parts: Parts, body: bytes, seconds: float) -> Any:
        recorded.append((round_, parts, body))
        return put(round_, parts, body, seconds)

    peer.connection.client.upload = tell  # type: ignore[method-assign]
    return recorded


# --- join, penalty, share


@pytest.mark.parametrize(
    "method",
    [
        {**SHARING, "kd": "ramp(0, 8, 4)", "up": 2, "down": 3},
        {**SHARING, "discriminator": "exponential"},
        {"name": "federated-distillation", "encoding": "float16"},
        {"name": "federated-distillation", "weighting": "equal"},
        {"name": "consilience"},
        {"name": "consilience", "up": "int4", "down": "int4"},
        {"name": "fedprox", "mu": 0.5},
        {"name": "fedavg", "objective": "calibrated"},
    ],
    ids=lambda method: "-".join(map(str, method.values())),
)
def test_penalties_and_contributions_equal_the_simulator_s_learner(tmp_path: Path, method: dict[str, Any]) -> None:
    weights = method["name"] in ("consilience", "fedprox", "fedavg")
    second = 8 if weights else 13
    builds = [net, lambda: net(hidden=second)]
    with federation(tmp_path, method, models=builds) as made, serving(made.store) as running:
        models = [seeded(build, i) for i, build in enumerate(builds)]
        loaders = [batches(i) for i in range(2)]
        peers = [made.join(running.url, i, model) for i, model in enumerate(models)]
        everything = zip(peers, models, loaders, strict=True)
        assert all([peer.introduce(model, loader) for peer, model, loader in everything])
        for peer, loader in zip(peers, loaders, strict=True):
            peer.count_classes(loader)  # as many of each class, as a learner's first state has
        for round_ in (1, 2):
            for peer, model, loader in zip(peers, models, loaders, strict=True):
                peer.refresh()
                for step, (inputs, targets) in enumerate(loader):
                    learner, answers = learner_of(peer, model), received(peer)
                    wanted = {
                        e.name: draws(peer, e.name, e.batch_draws, len(targets), round_, step)
                        for e in peer.exchanges
                        if e.batch_draws
                    }
                    loss, _ = learner.losses(Batch(inputs, targets, wanted), torch.tensor(24.0), answers)
                    learner.binding.gradient.zero_()
                    loss.backward()  # type: ignore[no-untyped-call]
                    features = model.features(inputs)
                    logits = model.classifier(features)
                    mine = peer.loss(features, logits, targets) + peer.penalty(
                        features, logits, targets, model.classifier
                    )
                    model.zero_grad()
                    mine.backward()  # type: ignore[no-untyped-call]
                    torch.testing.assert_close(mine, loss, rtol=1e-5, atol=1e-6)
                    gradients = learner.binding.parameters.views(learner.binding.gradient)
                    for name, parameter in model.named_parameters():
                        torch.testing.assert_close(parameter.grad, gradients[name], rtol=1e-4, atol=1e-6)
                train(peer, model, loader)
            for peer, model, loader in zip(peers, models, loaders, strict=True):
                learner, answers, recorded = learner_of(peer, model), received(peer), record_uploads(peer)
                for name, error in residuals_of(peer).items():
                    exchange, _, key = name.partition(".")
                    learner.state.residuals[exchange][key].copy_(torch.tensor(error))
                wanted = {e.name: draws(peer, e.name, e.sample_draws, 24, round_, -1) for e in peer.exchanges}
                inputs, targets = (torch.cat(parts) for parts in zip(*loader, strict=True))
                put = learner.contribute(represent(learner, inputs, targets), torch.tensor(24.0), wanted, answers)
                assert peer.share(model, loader)
                ((number, parts, body),) = recorded
                sent = decoded(peer, parts, body)
                assert number == round_ and set(parts) == set(put)
                for name, contribution in put.items():
                    for key, tensor in contribution.tensors.items():
                        np.testing.assert_allclose(sent[f"{name}.{key}"], tensor.numpy(), rtol=1e-3, atol=1e-6)


def test_penalty_is_0_before_the_first_answer_and_then_has_gradients(tmp_path: Path) -> None:
    with federation(tmp_path, SHARING) as made, serving(made.store) as running:
        model, loader = seeded(net, 1), batches(1)
        state = torch.random.get_rng_state()
        peer = made.join(running.url, 0)
        assert torch.equal(torch.random.get_rng_state(), state)
        inputs, targets = loader[0]
        for recorded in (False, True):
            features = model.features(inputs)
            loss = peer.penalty(features, model.classifier(features), targets, model.classifier)
            model.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            assert all(bool(p.grad.abs().sum() > 0) == recorded for p in model.parameters() if p.grad is not None)
            assert (loss.item() > 0) == recorded
            assert peer.share(model, loader) and peer.refresh()


def test_modules_of_exchanges_exist_from_the_start_and_persist(tmp_path: Path) -> None:
    method = {**SHARING, "discriminator": "exponential"}
    with federation(tmp_path, method) as made, serving(made.store) as running:
        peer = made.join(running.url, 0)
        own = peer.parameters()
        assert [tuple(p.shape) for p in own] == [(4, 4), (4,)]
        before, model = [p.detach().clone() for p in own], seeded(net, 1)
        assert peer.share(model, batches(1)) and peer.refresh()
        train(peer, model, batches(1))
        assert not any(torch.equal(a, b) for a, b in zip(before, own, strict=True))
        assert peer.share(seeded(lambda: net(hidden=5), 2), batches(1))
        assert all(a is b for a, b in zip(own, peer.parameters(), strict=True))


class Own(nn.Module):
    """A user's network with BatchNorm, dropout, and a scalar parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 4), nn.Tanh())
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.fc = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.fc(self.scale * self.body(x))
        return logits


@pytest.mark.parametrize("name", ["representation-sharing", "consilience"])
def test_sharing_does_not_change_a_split_model(tmp_path: Path, name: str) -> None:
    with federation(tmp_path, {"name": name}, models=[lambda: split(Own())]) as made, serving(made.store) as running:
        own = Own()
        model = split(own)
        peer = made.join(running.url, 0, model)
        peer.refresh()
        own.train()
        own.body[2].eval()
        before = {k: v.clone() for k, v in own.state_dict().items()}
        modes = [module.training for module in model.modules()]
        assert peer.share(model, batches(1))
        assert [module.training for module in model.modules()] == modes
        assert all(torch.equal(v, before[k]) for k, v in own.state_dict().items())
        peer.close()
        again = made.join(running.url, 0, split(Own()))
        shapes = [
            {f"{n}.{k}": t.shape for n, a in p.connection.state.answers.items() for k, t in a.tensors.items()}
            for p in (peer, again)
        ]
        assert shapes[0] == shapes[1] and (name != "consilience" or shapes[1]["weights.features.model.scale"] == ())


INPUTS, TARGETS = (torch.cat(parts) for parts in zip(*batches(3), strict=True))
LOADERS: dict[str, Any] = {
    "a DataLoader": DataLoader(TensorDataset(INPUTS, TARGETS), batch_size=5),
    "a list": [(INPUTS, TARGETS)],
    "lists in a list": [[INPUTS, TARGETS]],
    "NumPy": [(INPUTS.numpy(), TARGETS.numpy())],
    "float64": [(INPUTS.double(), TARGETS)],
    "small targets": [(INPUTS, TARGETS.to(torch.uint8))],
}
WRONG: dict[str, tuple[Any, str]] = {
    "targets that are not last": ([(INPUTS, TARGETS, "names")], r"last item of its batches.*unpack=\.\.\."),
    "nothing": ([], "no batches"),
    "no loader": (5, "the loader is int, which yields no batches; give the DataLoader that you train on"),
    "inputs alone": ([INPUTS], r"\(inputs, targets\)"),
    "whole inputs": ([((INPUTS * 10).long(), TARGETS)], "inputs of torch.int64"),
    "a class too many": ([(INPUTS, TARGETS + 1)], "from 0 to 2"),
    "shares of classes": ([(INPUTS, torch.rand(24, 3))], "integers from 0 to 2"),
}


def test_any_loader_and_dtype_give_the_same_upload_and_bad_ones_fail(tmp_path: Path) -> None:
    with federation(tmp_path, {**SHARING, "n_avg": 24}) as made, serving(made.store) as running:
        peer, model = made.join(running.url, 0), seeded(net, 1)
        recorded = record_uploads(peer)
        for loader in LOADERS.values():
            assert peer.share(model, loader)
        for dtype in (torch.float64, torch.bfloat16):
            exact = deepcopy(model).to(dtype)
            assert peer.share(exact, [(INPUTS, TARGETS)]) and (peer.refresh() or True)
            features = exact.features(INPUTS.to(dtype))
            loss = peer.penalty(features, exact.classifier(features), TARGETS, exact.classifier)
            loss.backward()  # type: ignore[no-untyped-call]
            assert loss.item() > 0 and all(p.grad is not None for p in exact.parameters())
        first = decoded(peer, recorded[0][1], recorded[0][2])
        for _, parts, body in recorded:
            for key, tensor in decoded(peer, parts, body).items():
                atol = 0.02 if body == recorded[-1][2] else 1e-6
                np.testing.assert_allclose(tensor, first[key], rtol=0.05, atol=atol)
        assert peer.round == len(recorded) == len(LOADERS) + 2
        for loader, said in WRONG.values():
            with pytest.raises(ConfigurationError, match=said):
                peer.share(model, loader)
        diverged = deepcopy(model)
        diverged.classifier.weight.data.fill_(0)
        next(diverged.features.parameters()).data.fill_(torch.nan)
        with pytest.raises(TrainingError, match="exchange 'prototypes' is NaN or infinite"):
            peer.share(diverged, [(INPUTS, TARGETS)])
        wild = SplitModel(nn.Sequential(nn.Linear(6, 4)), nn.Linear(4, CLASSES))
        wild.features[0].weight.data.mul_(100)  # type: ignore[index]
        with pytest.raises(ConfigurationError, match=r"cannot accept your upload.*prototypes"):
            peer.share(wild, [(INPUTS, TARGETS)])
        assert peer.round == len(recorded) + 1 and not peer.waiting
        with torch.autocast("cpu", torch.bfloat16):
            features = model.features(INPUTS)
            logits = model.classifier(features)
            half = peer.penalty(features, logits, TARGETS, model.classifier)
        features = model.features(INPUTS)
        exact_loss = peer.penalty(features, model.classifier(features), TARGETS, model.classifier)
        assert half.dtype == torch.float32
        torch.testing.assert_close(half, exact_loss, rtol=0.02, atol=0.01)


# --- weights


def test_common_weights_are_loaded_at_start_and_downloaded_if_changed(tmp_path: Path) -> None:
    with federation(tmp_path, {"name": "fedavg"}) as made, serving(made.store) as running:
        models = [made.common(), seeded(net, 9)]
        peers = [made.join(running.url, i, model) for i, model in enumerate(models)]
        assert peers[0].connection.client.bytes_received == 0 < peers[1].connection.client.bytes_received
        held = [peer.connection.state.answers["weights"].tensors for peer in peers]
        start = {k: p.detach().numpy().copy() for k, p in made.common().named_parameters()}
        assert same(held[0], start) and same(held[1], start)
        for peer, model, loader in zip(peers, models, (batches(1), batches(2)), strict=True):
            assert all(torch.equal(p, torch.tensor(start[k])) for k, p in model.named_parameters())
            train(peer, model, loader)
            assert same(
                peer.connection.state.answers["weights"].tensors, start
            )  # training changes the model, not the common weights
        changed = [{k: p.detach().numpy() - start[k] for k, p in m.named_parameters()} for m in models]
        assert all([peer.share(model, batches(3)) for peer, model in zip(peers, models, strict=True)])
        assert all(peer.refresh(wait=5) for peer in peers)
        for key, value in start.items():
            np.testing.assert_allclose(
                dict(models[0].named_parameters())[key].detach().numpy(),
                value + (changed[0][key] + changed[1][key]) / 2,
                rtol=1e-5,
                atol=1e-6,
            )
        assert same(*(peer.connection.state.answers["weights"].tensors for peer in peers))


@pytest.mark.parametrize(("name", "one_by_one"), [("fedavg-1bit", True), ("fedavg", False)])
def test_member_that_missed_rounds_has_the_same_bits_or_keeps_its_change(
    tmp_path: Path, name: str, one_by_one: bool
) -> None:
    def large() -> SplitModel:
        return net(hidden=96)

    with federation(tmp_path, {"name": name}, models=[large], rules=AT_ONCE) as made, serving(made.store) as running:
        models = [seeded(large, i) for i in range(2)]
        here, away = (made.join(running.url, i, model) for i, model in enumerate(models))
        asked: list[int] = []
        reply = away.connection.client.reply
        away.connection.client.reply = lambda *a: (asked.append(a[1]), reply(*a))[1]  # type: ignore[method-assign, func-returns-value]

        def rounds(count: int) -> None:
            for _ in range(count):
                train(here, models[0], batches(1))
                assert here.share(models[0], batches(1)) and here.refresh(wait=10)

        rounds(4)
        assert (
            away.refresh()
            and away.connection.state.answers["weights"].version
            == here.connection.state.answers["weights"].version
            == 4
        )
        assert asked == ([1, 2, 3] if one_by_one else [])
        assert same(away.connection.state.answers["weights"].tensors, here.connection.state.answers["weights"].tensors)
        assert all(torch.equal(a, b) for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True))
        rounds(9)
        train(away, models[1], batches(2))
        held = away.connection.state.answers["weights"].tensors
        change = {f"weights.{k}": p.detach().numpy() - held[k] for k, p in models[1].named_parameters()}
        before = residuals_of(away)
        assert away.share(models[1], batches(2)) and "weights" not in away.connection.state.awaiting
        if one_by_one:
            assert not before and residuals_of(away).keys() == change.keys()
            for key, error in residuals_of(away).items():
                np.testing.assert_allclose(error, change[key], rtol=1e-5, atol=1e-7)
        else:
            assert not residuals_of(away)


def test_contribution_waits_for_aggregation_and_every_2_is_respected(tmp_path: Path) -> None:
    method = {"name": "consilience", "every": 2}
    with federation(tmp_path, method) as made, serving(made.store) as running:
        models = [seeded(net, i) for i in range(2)]
        peers = [made.join(running.url, i, model) for i, model in enumerate(models)]
        recorded, others = record_uploads(peers[0]), {"prototypes", "observations"}
        for _ in range(4):
            assert peers[0].share(models[0], batches(1))
        assert [set(parts) - others for _, parts, _ in recorded] == [set(), {"weights"}, set(), set()]
        assert peers[0].connection.state.awaiting == {"weights": 0}
        assert [peers[1].share(models[1], batches(2)) for _ in range(2)] == [True, True]
        wait_until(lambda: peers[0].refresh() and "weights" not in peers[0].connection.state.awaiting)
        assert peers[0].share(models[0], batches(1)) and peers[0].share(models[0], batches(1))
        assert [set(parts) - others for _, parts, _ in recorded[4:]] == [set(), {"weights"}]
        assert recorded[-1][1]["weights"].version == 1
