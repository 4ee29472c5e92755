"""A part that votes move, in a loop of one's own: what is uploaded, what the majority does, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from consilience.errors import ConfigurationError, TrainingError
from consilience.models import SplitModel
from consilience.models.cut import cut
from consilience.peer.peer import Peer
from tests.peer_tools import CLASSES, SHAPE, SHARING, Batches, Founded, batches, federation, net
from tests.relay_tools import serving

DELTA = 0.25  # steps that float32 adds exactly
TWO_STAGE = {"name": "two-stage", "delta": DELTA}


def divided() -> SplitModel:
    """The device part is the first layer."""
    layers = [nn.Linear(SHAPE[0], 8), nn.ReLU(), nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, CLASSES)]
    return cut(nn.Sequential(*layers), at="0")


def shared(model: SplitModel) -> dict[str, Tensor]:
    return {k: p for k, p in model.named_parameters() if k in model.parts["server"]}


def loss_of(model: SplitModel, inputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model.classifier(model.features(inputs)), targets)


def train(peer: Peer, model: SplitModel, loader: Batches, optimizer: torch.optim.Optimizer) -> None:
    """A loop of one's own."""
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss_of(model, inputs, targets).backward()  # type: ignore[no-untyped-call]
        peer.take_gradients()
        optimizer.step()


def mean_gradients(model: SplitModel, loader: Batches) -> dict[str, Tensor]:
    """Of the shared part, with a device part that does not move."""
    sums = {k: torch.zeros_like(p) for k, p in shared(model).items()}
    for inputs, targets in loader:
        found = torch.autograd.grad(loss_of(model, inputs, targets), list(shared(model).values()))
        sums = {k: total + g for (k, total), g in zip(sums.items(), found, strict=True)}
    return {k: total / len(loader) for k, total in sums.items()}


def joined(made: Founded, url: str, member: int) -> tuple[Peer, SplitModel]:
    torch.manual_seed(member)
    model = divided()
    return made.join(url, member, model), model


def test_the_majority_moves_the_shared_part(tmp_path: Path) -> None:
    with federation(tmp_path, TWO_STAGE, members=3, models=(divided,)) as made, serving(made.store) as relay:
        pairs = [joined(made, relay.url, i) for i in range(3)]
        first = {k: p.detach().clone() for k, p in shared(pairs[0][1]).items()}
        assert all(torch.equal(p, first[k]) for _, model in pairs for k, p in shared(model).items())
        votes = []
        for i, (peer, model) in enumerate(pairs):
            loader = batches(i)
            votes.append({k: -g.sign() for k, g in mean_gradients(model, loader).items()})
            own = peer.private_parameters()
            assert {id(p) for p in own} == {id(p) for p in model.parameters()} - {id(p) for p in shared(model).values()}
            train(peer, model, loader, torch.optim.SGD(own, lr=0.0))
            assert peer.share(model, loader)
            assert all(torch.equal(p, first[k]) for k, p in shared(model).items())  # until the answer is there
        for peer, model in pairs:
            assert peer.refresh(wait=20)
            for k, p in shared(model).items():
                decided = torch.stack([vote[k] for vote in votes]).sum(0)
                certain = (decided != 0) & torch.stack([vote[k] != 0 for vote in votes]).all(0)  # no coin was flipped
                assert bool(certain.any())
                moved = (first[k] + DELTA * decided.sign())[certain]
                torch.testing.assert_close(p.detach()[certain], moved, rtol=0, atol=0)
        private = [p.detach() for p in pairs[0][0].private_parameters()]
        assert not torch.equal(private[0], pairs[1][0].private_parameters()[0])  # it stays with its owner


def test_gradients_are_the_mean_over_batches_since_the_last_upload(tmp_path: Path) -> None:
    with federation(tmp_path, TWO_STAGE, models=(divided,)) as made, serving(made.store) as relay:
        peer, model = joined(made, relay.url, 0)
        loader = batches(4)
        train(peer, model, loader, torch.optim.SGD(peer.private_parameters(), lr=0.0))
        (exchange,) = peer.exchanges
        for name, gradient in peer._gradients.mean(exchange).items():
            torch.testing.assert_close(gradient, mean_gradients(model, loader)[name], rtol=1e-5, atol=1e-7)
        assert all(p.grad is None for p in shared(model).values())
        assert peer.share(model, loader)
        with pytest.raises(ConfigurationError, match="there is no gradient of 'server' to vote with"):
            peer._gradients.mean(exchange)


def test_batches_whose_gradients_overflow_do_not_count(tmp_path: Path) -> None:
    """As with float16, where the scaler of the loss skips such a step and goes on."""
    with federation(tmp_path, TWO_STAGE, models=(divided,)) as made, serving(made.store) as relay:
        peer, model = joined(made, relay.url, 0)
        loader = batches(4)
        for number, (inputs, targets) in enumerate(loader):
            loss_of(model, inputs, targets).backward()  # type: ignore[no-untyped-call]
            if number == 0:
                next(iter(shared(model).values())).grad[0] = torch.inf  # type: ignore[index]
            peer.take_gradients()
        (exchange,) = peer.exchanges
        for name, gradient in peer._gradients.mean(exchange).items():
            torch.testing.assert_close(gradient, mean_gradients(model, loader[1:])[name], rtol=1e-5, atol=1e-7)
        peer._gradients.forget()
        (torch.nan * loss_of(model, inputs, targets)).backward()  # type: ignore[no-untyped-call]
        peer.take_gradients()
        with pytest.raises(TrainingError, match=r"of 'server' are NaN or infinite in all 1 batches .*smaller learning"):
            peer._gradients.mean(exchange)


def test_an_optimizer_that_moves_the_shared_part_is_refused(tmp_path: Path) -> None:
    with federation(tmp_path, TWO_STAGE, models=(divided,)) as made, serving(made.store) as relay:
        peer, model = joined(made, relay.url, 0)
        everything = torch.optim.SGD(model.parameters(), lr=0.1)
        train(peer, model, batches(1), everything)  # gradients are taken first: nothing is left for the optimizer
        inputs, targets = batches(1)[0]
        loss_of(model, inputs, targets).backward()  # type: ignore[no-untyped-call]
        everything.step()
        with pytest.raises(ConfigurationError, match=r"was moved by your loop.*peer\.private_parameters\(\)"):
            peer.take_gradients()
        with pytest.raises(ConfigurationError, match="was moved by your loop"):
            peer.share(model, batches(1))


def test_calls_at_the_wrong_time_are_refused(tmp_path: Path) -> None:
    with federation(tmp_path, TWO_STAGE, models=(divided,)) as made, serving(made.store) as relay:
        peer, model = joined(made, relay.url, 0)
        with pytest.raises(ConfigurationError, match=r"has no gradient; call take_gradients\(\) after loss"):
            peer.take_gradients()
        with pytest.raises(ConfigurationError, match="there is no gradient of 'server'"):
            peer.share(model, batches(0))
        with pytest.raises(ConfigurationError, match="compute it in your loop"):
            peer.loss(torch.zeros(2, 4), torch.zeros(2, CLASSES), torch.zeros(2, dtype=torch.int64))
    other = tmp_path / "other"
    with federation(other, SHARING) as made, serving(made.store) as relay:
        member = made.join(relay.url, 0, net())
        with pytest.raises(ConfigurationError, match="moves no part of the model by gradients"):
            member.take_gradients()


def test_moves_before_every_batch_are_refused(tmp_path: Path) -> None:
    method = {**TWO_STAGE, "inner": "batch", "batches": 3}
    with (
        federation(tmp_path, method, models=[divided]) as made,
        serving(made.store) as running,
        pytest.raises(ConfigurationError, match=r"before every batch.*take part with `consilience join`"),
    ):
        joined(made, running.url, 0)
