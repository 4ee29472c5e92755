"""One learner: its state, the views of its exchanges, and the uploads that the relay receives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from consilience.errors import ConfigurationError
from consilience.exchanges import (
    Contribution,
    Exchange,
    Logits,
    Observations,
    Prototypes,
    Received,
    State,
    Update,
    View,
    Weights,
)
from consilience.learner.initial_state import drawn_state
from consilience.learner.learner import Batch, Learner
from consilience.learner.local_training import reset_optimizer, train, zero_gradient
from consilience.learner.passes import PASS_ROWS, needs_representations, represent, score_sums
from consilience.learner.spec import LearnerSpec
from consilience.learner.state import LearnerState
from consilience.method import Role
from consilience.models import SplitModel
from consilience.optimizers import SGD, Adam, Optimizer
from consilience.task import Task
from consilience.wire import codec, schema
from consilience.wire.encodings import BIT, FLOAT16, FLOAT32, INT4, INT8, Encoding

CLASSES = 3
STEEP = SGD(0.5)


class Normalized(nn.Module):
    """Features with everything a state must hold: parameters, floating-point buffers, integers."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 2), nn.BatchNorm1d(2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.norm(self.linear(x)))


def build() -> SplitModel:
    return SplitModel(Normalized(), nn.Linear(2, CLASSES), bound=1.0)


pytestmark = pytest.mark.usefixtures("one_thread")


def made(*exchanges: Exchange, optimizer: Optimizer = STEEP, dtype: torch.dtype = torch.float64) -> Learner:
    return Learner(LearnerSpec(build, Role(exchanges=exchanges), optimizer, (4,), "normalized", dtype))


def bound(learner: Learner, seed: int = 0) -> LearnerState:
    """A new state, bound, with the exchanges' first states."""
    state = drawn_state(learner, seed)
    learner.bind(state)
    state.exchange_state = {e.name: e.init_state(learner.model_view(e)) for e in learner.exchanges}
    return state


def common_of(learner: Learner, exchange: Exchange) -> dict[str, Tensor]:
    """The start values of a moving mean if the bound model is the common one."""
    return {k: v.detach().clone() for k, v in exchange.common_values(learner.model_view(exchange)).items()}


def same(one: LearnerState, other: LearnerState) -> bool:
    theirs = other.flatten()
    return all(torch.equal(tensor, theirs[path]) for path, tensor in one.flatten().items())


def samples(n: int = 6, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, 4, generator=generator, dtype=torch.float64), torch.arange(n) % CLASSES


def nothing_received(learner: Learner) -> dict[str, Received]:
    """The received values before the first answer: zeros with count 0, or the learner's weights as the common ones."""
    held = {}
    for exchange in learner.exchanges:
        channel = learner.channels[exchange.name]
        lead = (channel.draw,) if isinstance(channel, schema.Pool) else ()
        zeros = {k: torch.zeros((*lead, *t.shape), dtype=learner.dtype) for k, t in channel.tensors.items()}
        start = common_of(learner, exchange)
        held[exchange.name] = Received(start or zeros, torch.zeros((*lead, *channel.rows)), torch.tensor(True))
    return held


def uploads(
    learner: Learner, received: Mapping[str, Received] | None = None, n: int = 6, gradient: Tensor | None = None
) -> dict[str, Contribution]:
    inputs, targets = samples(n)
    wanted = {e.name: e.sample_draws for e in learner.exchanges if e.sample_draws}
    draws = {name: torch.linspace(0, 0.9, k * n, dtype=torch.float64).reshape(k, n) for name, k in wanted.items()}
    held = nothing_received(learner) if received is None else received
    seen = represent(learner, inputs, targets) if needs_representations(learner, held) else learner.no_samples()
    gradient = zero_gradient(learner) if gradient is None else gradient
    return learner.contribute(seen, learner.count(n), draws, held, gradient)


# --- states


def test_state_holds_the_whole_learner() -> None:
    learner = made(Weights(up=BIT), optimizer=Adam())
    state = bound(learner)
    parameters = {"features.linear.weight": (2, 4), "features.linear.bias": (2,), "features.norm.weight": (2,)}
    parameters |= {"features.norm.bias": (2,), "classifier.weight": (3, 2), "classifier.bias": (3,)}
    assert learner.task == Task(
        3,
        2,
        (4,),
        1.0,
        parameters,
        {"features.norm.running_mean": (2,), "features.norm.running_var": (2,)},
        "normalized",
    )
    residuals: dict[tuple[str, ...], tuple[int, ...]] = {("residuals", "weights", n): s for n, s in parameters.items()}
    assert {path: tuple(t.shape) for path, t in state.flatten().items()} == {
        ("parameters",): (23,),
        ("buffers",): (4,),
        ("other_buffers", "int64"): (1,),
        ("step",): (),
        ("optimizer", "first"): (23,),
        ("optimizer", "second"): (23,),
        **residuals,  # of parameters only: buffers are means and have no residual
    }
    assert state.parameters.dtype == torch.float64 and state.other_buffers["int64"].dtype == torch.int64


def test_num_batches_tracked_is_not_uploaded() -> None:
    learner = made(Weights())
    bound(learner)
    assert "features.norm.num_batches_tracked" not in learner.channels["weights"].tensors
    assert "features.norm.num_batches_tracked" not in uploads(learner)["weights"].tensors
    assert "features.norm.running_mean" in learner.channels["weights"].tensors


def test_same_seed_gives_same_weights_and_leaves_the_global_generator() -> None:
    learner = made()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    one, again, other = (drawn_state(learner, seed) for seed in (1, 1, 2))
    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(one.parameters, again.parameters)
    assert not torch.equal(one.parameters, other.parameters)
    torch.manual_seed(1)
    plain = build()  # as plain torch builds it
    learner.bind(one)
    for name, parameter in plain.named_parameters():
        assert torch.equal(dict(learner.model.named_parameters())[name].float(), parameter), name


def test_extra_modules_do_not_change_the_initial_weights() -> None:
    plain, extended = drawn_state(made(), 3), drawn_state(made(Observations(discriminator="exponential")), 3)
    assert torch.equal(plain.parameters, extended.parameters[:23])
    assert len(extended.parameters) == 23 + 2 * 2 + 2


def test_bound_model_is_a_view_of_the_state() -> None:
    learner = made()
    one, other = drawn_state(learner, 1), drawn_state(learner, 2)
    learner.bind(one)
    with torch.no_grad():
        learner.model.classifier.bias.fill_(7.0)
        learner.model.get_buffer("features.norm.running_mean").fill_(8.0)
        learner.model.get_buffer("features.norm.num_batches_tracked").fill_(9)
    assert one.parameters[-3:].tolist() == [7.0] * 3
    assert one.buffers.tolist() == [8.0, 8.0, 1.0, 1.0] and one.other_buffers["int64"].tolist() == [9]
    learner.bind(other)
    assert torch.equal(learner.model.classifier.bias, other.parameters[-3:])
    other.parameters.zero_()
    assert not learner.model.classifier.bias.any()
    assert one.parameters[-3:].tolist() == [7.0] * 3


def test_training_one_learner_does_not_change_others() -> None:
    learner = made(optimizer=SGD(0.1, momentum=0.9))
    stacked = drawn_state(learner, 1).map(lambda tensor: torch.stack([tensor, tensor, tensor]))
    learner.bind(stacked.row(1))
    train(learner, [Batch(*samples())], 6, {})
    for path, rows in stacked.flatten().items():
        assert torch.equal(rows[0], rows[2]), path
        assert not torch.equal(rows[0], rows[1]), path  # parameters, buffers, steps and velocity moved


# --- training


@pytest.mark.parametrize("optimizer", [SGD(0.3, momentum=0.5), Adam(0.02)], ids=["sgd", "adam"])
def test_training_equals_torch(optimizer: Optimizer) -> None:
    learner = made(optimizer=optimizer)
    state = bound(learner, seed=4)
    torch.manual_seed(4)
    model = build().double()
    theirs = (
        torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.5)
        if isinstance(optimizer, SGD)
        else torch.optim.Adam(model.parameters(), lr=0.02)
    )
    batches = [samples(4, seed) for seed in range(5)]
    expected, right = [], []
    for inputs, targets in batches:
        theirs.zero_grad()
        logits = model(inputs)
        loss = nn.functional.cross_entropy(logits, targets)
        right.append((logits.argmax(1) == targets).double().mean().item())
        loss.backward()  # type: ignore[no-untyped-call]
        theirs.step()
        expected.append(loss.item())
    losses, _ = train(learner, [Batch(*b) for b in batches], 4, {})
    assert losses.tolist() == pytest.approx([np.mean(expected), np.mean(right)], rel=1e-12)
    assert int(state.step) == 5
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        mine = learner.model.get_parameter(name) if isinstance(tensor, nn.Parameter) else learner.model.get_buffer(name)
        torch.testing.assert_close(mine, tensor.to(mine.dtype), rtol=1e-10, atol=1e-9)


def test_penalties_are_weighted_and_reported_separately() -> None:
    """One step with prox only: the loss reports the unweighted penalty, the gradient includes the weight."""
    plain, held = made(), made(Weights(prox=0.25))
    bound(plain)
    state = bound(held)
    start = state.parameters.clone()
    elsewhere = {n: t - 2.0 for n, t in common_of(held, held.exchanges[0]).items()}
    received = {"weights": Received(elsewhere, torch.ones(()), torch.tensor(True))}
    alone, _ = train(plain, [Batch(*samples())], 6, {})
    losses, _ = train(held, [Batch(*samples())], 6, received)
    assert losses[0] == alone[0]
    assert losses[1].item() == pytest.approx(23 * 2.0**2 / 2)
    moved = start - plain.state.parameters
    torch.testing.assert_close(start - state.parameters, moved + 0.5 * 0.25 * 2.0)


def test_reset_optimizer_clears_only_the_optimizer_state() -> None:
    learner = made(optimizer=Adam())
    state = bound(learner)
    train(learner, [Batch(*samples())], 6, {})
    kept = state.clone()
    assert state.step == 1 and state.optimizer["first"].any() and state.optimizer["second"].any()
    reset_optimizer(learner)
    assert state.step == 0 and not state.optimizer["first"].any() and not state.optimizer["second"].any()
    assert torch.equal(state.parameters, kept.parameters) and torch.equal(state.buffers, kept.buffers)
    assert torch.equal(state.other_buffers["int64"], kept.other_buffers["int64"])


# --- the pass over the samples before an upload


def test_one_pass_over_the_samples_serves_every_exchange() -> None:
    learner = made(Prototypes(), Observations(up=2), Logits(), Weights())
    bound(learner)
    seen: list[int] = []
    learner.model.features.register_forward_hook(lambda m, i, o: seen.append(len(o)))
    put = uploads(learner)
    assert set(put) == {"prototypes", "observations", "logits", "weights"}
    assert seen == [6]


def test_no_pass_is_made_if_no_exchange_uses_samples() -> None:
    learner = made(Weights())
    bound(learner)
    seen: list[int] = []
    learner.model.features.register_forward_hook(lambda m, i, o: seen.append(len(o)))
    assert uploads(learner)["weights"].weight.item() == 6.0
    assert seen == []


def test_large_pass_is_split_and_in_evaluation_mode() -> None:
    learner = made(Prototypes())
    state = bound(learner)
    buffers = state.buffers.clone()
    seen: list[int] = []
    learner.model.features.register_forward_hook(lambda m, i, o: seen.append(len(o)))
    n = PASS_ROWS + 5
    put = uploads(learner, n=n)["prototypes"]
    assert seen == [PASS_ROWS, 5]
    assert torch.equal(state.buffers, buffers)
    inputs, targets = samples(n)
    with torch.no_grad():
        features = learner.model.eval().features(inputs)
    for label in range(CLASSES):
        torch.testing.assert_close(put.tensors["mean"][label], features[targets == label].mean(0))
    assert put.weight.sum() == n


def test_only_requested_exchanges_contribute() -> None:
    learner = made(Prototypes(), Logits())
    bound(learner)
    assert [*uploads(learner, {"logits": nothing_received(learner)["logits"]})] == ["logits"]


# --- uploads as the relay receives them


@dataclass(frozen=True)
class Uploading(Exchange):
    """Uploads given values to a moving mean."""

    name: str = "telling"
    values: tuple[float, ...] = (1.0, -3.0)
    encoding: Encoding = BIT
    moving: bool = True

    def channel(self, task: Task) -> schema.Mean:
        tensor = schema.Tensor((len(self.values),), self.encoding, FLOAT32)
        return schema.Mean(self.name, {"x": tensor}, moving=self.moving)

    def common_values(self, view: View) -> dict[str, Tensor]:
        return {"x": torch.zeros(len(self.values), dtype=torch.float64)}

    def contribute(self, state: State, view: View, received: Received) -> Contribution:
        return Contribution({"x": received.tensors["x"] + torch.tensor(self.values, dtype=torch.float64)}, view.samples)


def uploaded_values(learner: Learner, *values: float) -> list[float]:
    """The quantized upload when the exchange contributes its own values plus these."""
    extra = {"x": torch.tensor(values, dtype=torch.float64)}
    found: list[float] = (
        uploads(learner, {"telling": Received(extra, torch.ones(()), torch.tensor(True))})["telling"]
        .tensors["x"]
        .tolist()
    )
    return found


def test_rounding_errors_are_added_to_later_uploads() -> None:
    """Two rounds at one bit, by hand; the sign of 0 is +."""
    learner = made(Uploading())
    state = bound(learner)
    assert state.residuals["telling"]["x"].tolist() == [0.0, 0.0]
    assert uploaded_values(learner, 0.0, 0.0) == [2.0, -2.0]  # of (1, -3)
    assert state.residuals["telling"]["x"].tolist() == [-1.0, -1.0]
    assert uploaded_values(learner, 0.0, -2.0) == [3.0, -3.0]  # of (1, -5) + (-1, -1) = (0, -6)
    assert state.residuals["telling"]["x"].tolist() == [-3.0, -3.0]


def test_every_learner_has_its_own_residual() -> None:
    learner = made(Uploading())
    one, other = (drawn_state(learner, s) for s in (0, 1))
    learner.bind(one)
    uploaded_values(learner, 0.0, 0.0)
    learner.bind(other)
    assert uploaded_values(learner, 0.0, 0.0) == [2.0, -2.0]
    assert one.residuals["telling"]["x"].tolist() == other.residuals["telling"]["x"].tolist() == [-1.0, -1.0]


@pytest.mark.parametrize(
    ("exchange", "kept"),
    [
        (Uploading(encoding=BIT), True),
        (Uploading(encoding=INT8), True),
        (Uploading(encoding=INT4), True),
        (Uploading(encoding=FLOAT16), False),
        (Uploading(encoding=FLOAT32), False),
        (
            Uploading(encoding=BIT, moving=False),
            False,
        ),  # a mean is uploaded completely each time, so it has no residual
    ],
    ids=lambda x: f"{x.encoding.name} {x.moving}" if isinstance(x, Uploading) else "",
)
def test_only_quantized_changes_have_a_residual(exchange: Uploading, kept: bool) -> None:
    assert ("x" in drawn_state(made(exchange), 0).residuals.get("telling", {})) == kept


@pytest.mark.parametrize("encoding", [FLOAT32, FLOAT16, INT8, INT4, BIT], ids=lambda e: e.name)
def test_uploads_equal_those_decoded_from_the_wire(encoding: Encoding) -> None:
    exchanges = (
        Prototypes(encoding=encoding),
        Observations(up=2, encoding=encoding),
        Weights(up=encoding, start="different"),
    )
    exact, coded = (
        made(*e, dtype=torch.float32)
        for e in ((Prototypes(), Observations(up=2), Weights(start="different")), exchanges)
    )
    for learner in (exact, coded):
        bound(learner)
    away = {
        n: t + 0.3 * torch.arange(t.numel()).reshape(t.shape) for n, t in common_of(exact, exact.exchanges[2]).items()
    }
    held = nothing_received(exact) | {"weights": Received(away, torch.ones(()), torch.tensor(True))}
    inputs, targets = samples(12)
    draws = {"observations": torch.rand(2, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)}
    wanted, shown = (
        m.contribute(represent(m, inputs.float(), targets), m.count(12), draws, held) for m in (exact, coded)
    )
    for name, channel in coded.channels.items():
        message = channel.message("up")
        tensors = {f"{name}.{k}": t.numpy() for k, t in wanted[name].tensors.items()}
        counts = {f"{name}.count": wanted[name].weight.numpy()} if channel.rows else {}
        arrived = codec.decode(message, codec.encode(message, tensors | counts))
        for key, tensor in shown[name].tensors.items():
            tolerance = 1e-6 if encoding == BIT else 0  # its scale is a sum, and torch adds in another order
            np.testing.assert_allclose(tensor.numpy(), arrived[f"{name}.{key}"], rtol=tolerance, atol=0)
        if channel.rows:
            assert shown[name].weight.tolist() == arrived[f"{name}.count"].tolist()


# --- receiving, and the exchanges' own states


def test_only_exchanges_that_change_the_model_receive() -> None:
    learner = made(Prototypes(), Weights(part="classifier"))
    state = bound(learner)
    before = state.parameters.clone()
    held = nothing_received(learner)
    moved = {n: t + 1.0 for n, t in held["weights"].tensors.items()}
    learner.receive({"prototypes": held["prototypes"], "weights": Received(moved, torch.ones(()), torch.tensor(True))})
    assert torch.equal(state.parameters[:14], before[:14])
    torch.testing.assert_close(state.parameters[14:], before[14:] + 1.0)
    learner.receive({"prototypes": held["prototypes"]})
    torch.testing.assert_close(state.parameters[14:], before[14:] + 1.0)


@dataclass(frozen=True)
class Remembering(Uploading):
    """Keeps the mean targets of this and the last batch; `newest_first` is the order in which it returns them."""

    name: str = "remembering"
    newest_first: bool = True

    def init_state(self, view: View) -> State:
        return {"now": torch.full((), -1.0), "before": torch.full((), -2.0), "received": torch.zeros(())}

    def on_batch(self, state: State, view: View) -> State:
        now, before = view.targets.double().mean(), state["now"]
        fresh = {"now": now, "before": before} if self.newest_first else {"before": before, "now": now}
        return state | fresh

    def receive(self, state: State, view: View, received: Received) -> Update:
        return Update(state=state | {"received": state["received"] + received.tensors["x"].sum()})


@pytest.mark.parametrize("newest_first", [True, False])
def test_on_batch_may_return_old_values_in_any_order(newest_first: bool) -> None:
    """A hook may return one of its old values under another name, in any order."""
    learner = made(Remembering(newest_first=newest_first))
    state = bound(learner)
    inputs, _ = samples(2)
    batches = [Batch(inputs, torch.tensor(t)) for t in ([0, 0], [1, 1], [2, 2])]
    train(learner, batches, 2, nothing_received(learner))
    assert {k: v.item() for k, v in state.exchange_state["remembering"].items()} == {
        "now": 2.0,
        "before": 1.0,
        "received": 0.0,
    }


def test_answer_that_is_not_fresh_changes_nothing() -> None:
    learner = made(Weights())
    state = bound(learner)
    before = state.parameters.clone()
    away = {name: value + 1 for name, value in common_of(learner, learner.exchanges[0]).items()}
    for fresh, moved in ((False, 0.0), (True, 1.0)):
        learner.receive({"weights": Received(away, torch.ones(()), torch.tensor(fresh))})
        torch.testing.assert_close(state.parameters, before + moved)


def test_receive_updates_the_exchange_state() -> None:
    learner = made(Remembering())
    state = bound(learner)
    answer = Received({"x": torch.tensor([2.0, 3.0])}, torch.ones(()), torch.tensor(True))
    for total in (5.0, 10.0):
        learner.receive({"remembering": answer})
        assert state.exchange_state["remembering"]["received"].item() == total


# --- layers, modules, owned parts


@dataclass(frozen=True)
class Watching(Uploading):
    """Reads a layer inside the features."""

    name: str = "watching"
    layers: tuple[str, ...] = ("features.linear",)
    weight: float = 1.0

    def penalty(self, state: State, view: View, received: Received) -> Tensor:
        return view.outputs["features.linear"].square().mean()

    def contribute(self, state: State, view: View, received: Received) -> Contribution:
        (watched,) = view.outputs.values()
        assert watched.shape == view.features.shape
        return Contribution({"x": watched.mean(0)}, view.samples)


def test_layer_outputs_are_available_in_training_and_contribution() -> None:
    learner = made(Watching(encoding=FLOAT32))
    bound(learner)
    inputs, targets = samples()
    with torch.no_grad():
        watched = learner.model.get_submodule("features.linear")(inputs)
    before = learner.model.get_parameter("features.linear.weight").detach().clone()
    plain = made()
    bound(plain)
    train(plain, [Batch(inputs, targets)], 6, {})
    losses, _ = train(learner, [Batch(inputs, targets)], 6, nothing_received(learner))
    assert losses[1].item() == pytest.approx(watched.square().mean().item())
    # Behind BatchNorm the loss does not depend on the bias, so only the penalty moves it.
    assert not torch.equal(learner.model.get_parameter("features.linear.weight"), before)
    assert not torch.equal(learner.state.parameters, plain.state.parameters)


def test_layer_outputs_of_a_split_pass_are_complete() -> None:
    learner = made(Watching(encoding=FLOAT32))
    bound(learner)
    n = PASS_ROWS + 5
    put = uploads(learner, n=n)["watching"].tensors["x"]
    with torch.no_grad():
        whole = learner.model.get_submodule("features.linear")(samples(n)[0]).mean(0)
    torch.testing.assert_close(put, whole)


@dataclass(frozen=True)
class Peeking(Watching):
    """Reads a layer before any data has been processed."""

    name: str = "peeking"

    def init_state(self, view: View) -> State:
        return {"outputs": torch.tensor(len(view.outputs))}

    def receive(self, state: State, view: View, received: Received) -> Update:
        return Update(state={"outputs": torch.tensor(len(view.outputs))})


def test_layer_outputs_are_empty_without_data() -> None:
    """Outputs of the previously bound learner must not remain."""
    learner = made(Peeking(encoding=FLOAT32))
    state = bound(learner)
    train(learner, [Batch(*samples())], 6, nothing_received(learner))
    learner.receive(nothing_received(learner))
    assert state.exchange_state["peeking"]["outputs"] == 0
    assert bound(learner, seed=1).exchange_state["peeking"]["outputs"] == 0


@dataclass(frozen=True)
class Projecting(Uploading):
    """Has an extra module with everything a module can have."""

    name: str = "projecting"
    weight: float = 1.0

    def modules(self, task: Task) -> dict[str, nn.Module]:
        return {"head": nn.Sequential(nn.Linear(task.width, 2), nn.BatchNorm1d(2))}

    def penalty(self, state: State, view: View, received: Received) -> Tensor:
        return (view.modules["head"](view.features) - 1.0).square().mean()

    def contribute(self, state: State, view: View, received: Received) -> Contribution:
        return Contribution({"x": view.modules["head"](view.features).mean(0)}, view.samples)


def test_modules_are_trained_and_stay_with_their_learner() -> None:
    learner = made(Projecting(encoding=FLOAT32), Weights())
    one, other = (bound(learner, seed) for seed in (1, 2))
    assert len(one.parameters) == 23 + 6 + 4 and len(one.buffers) == 4 + 4 and len(one.other_buffers["int64"]) == 2
    start, untouched = one.parameters.clone(), other.clone()
    learner.bind(one)
    losses, _ = train(learner, [Batch(*samples())], 6, nothing_received(learner))
    assert losses[1].item() == pytest.approx(2.0, rel=1e-3)  # mean 0 and variance 1, at distance one from 1
    assert (one.parameters[-4:] != start[-4:]).all()  # scale and shift
    assert one.other_buffers["int64"].tolist() == [1, 1] and (one.buffers[4:] != torch.tensor([0.0, 0, 1, 1])).all()
    assert same(other, untouched)
    travels = set(learner.task.parameters) | set(learner.task.buffers)
    assert set(learner.channels["weights"].tensors) == set(common_of(learner, learner.exchanges[1])) == travels
    assert not any("/" in name for name in travels)


def test_modules_are_in_evaluation_mode_outside_training() -> None:
    """Statistics of another learner or of the batch would change the upload."""
    learner = made(Projecting(encoding=FLOAT32))
    one, other = (bound(learner, seed) for seed in (1, 2))
    learner.bind(one)
    train(learner, [Batch(*samples())], 6, nothing_received(learner))
    learner.bind(other)
    before = other.clone()
    put = uploads(learner)["projecting"].tensors["x"]
    assert same(other, before)
    linear = learner.modules.extra["projecting"].get_submodule("head.0")
    with torch.no_grad():
        means = linear(learner.model.features(samples()[0])).mean(0)
    torch.testing.assert_close(put, means / (1 + 1e-5) ** 0.5)  # with initial statistics: mean 0, variance 1


@dataclass(frozen=True)
class Owning(Uploading):
    """Owns the classifier and uploads its gradient."""

    name: str = "owning"
    owned_part: str | None = "classifier"
    uploads_before_training: ClassVar[bool] = True

    def contribute(self, state: State, view: View, received: Received) -> Contribution:
        assert [*view.gradients] == ["classifier.weight", "classifier.bias"]
        return Contribution({"x": view.gradients["classifier.bias"][:2]}, view.samples)


@pytest.mark.parametrize(
    "optimizer", [SGD(0.5, momentum=0.9, weight_decay=0.1), Adam(weight_decay=0.1)], ids=["sgd", "adam"]
)
def test_optimizer_does_not_change_owned_parts(optimizer: Optimizer) -> None:
    learner = made(Owning(), optimizer=optimizer)
    state = bound(learner)
    before = state.parameters.clone()
    train(learner, [Batch(*samples(seed=s)) for s in range(3)], 6, nothing_received(learner))
    assert torch.equal(state.parameters[14:], before[14:])
    assert (state.parameters[:14] != before[:14]).all()


def test_gradients_of_owned_parts_are_the_mean_over_the_batches() -> None:
    learner = made(Owning(encoding=FLOAT32))
    state = bound(learner)
    expected, batches = [], [samples(6, seed) for seed in range(3)]
    twin = made()
    for inputs, targets in batches:  # by hand, at the learner's parameters before each batch
        twin.bind(state.clone())
        twin.model.train()
        loss = nn.functional.cross_entropy(twin.model(inputs), targets)
        expected.append(torch.autograd.grad(loss, twin.model.classifier.bias)[0])
        train(learner, [Batch(inputs, targets)], 6, nothing_received(learner))
    learner = made(Owning(encoding=FLOAT32))
    bound(learner)
    _, gradient = train(learner, [Batch(*b) for b in batches], 6, nothing_received(learner))
    put = uploads(learner, gradient=gradient)["owning"].tensors["x"]
    torch.testing.assert_close(put, torch.stack(expected).mean(0)[:2], rtol=1e-12, atol=1e-14)


def test_gradients_are_zero_before_training() -> None:
    """Eager exchanges upload before the first round."""
    learner = made(Owning(encoding=FLOAT32), Prototypes())
    bound(learner)
    put = uploads(learner)
    assert put["owning"].tensors["x"].tolist() == [0.0, 0.0]
    assert put["prototypes"].weight.tolist() == [2.0, 2.0, 2.0]


@pytest.mark.parametrize(
    ("exchange", "message"),
    [
        (Owning(owned_part="clasifier"), "part 'clasifier' covers nothing of normalized"),
        (Watching(layers=("features.linaer",)), "'features.linaer'"),
    ],
    ids=["owns", "layers"],
)
def test_unknown_parts_and_layers_are_refused(exchange: Exchange, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        made(exchange)


# --- testing


def test_evaluation_counts_correct_predictions_per_class() -> None:
    learner = made()
    bound(learner)
    with torch.no_grad():
        learner.model.classifier.weight.zero_()
        learner.model.classifier.bias.copy_(torch.tensor([0.0, 1.0, 0.5]))  # always the second class
    inputs, targets = samples(7)
    assert targets.tolist() == [0, 1, 2, 0, 1, 2, 0]
    right = score_sums(learner, inputs, targets)
    assert right.tolist() == [0, 2, 0]


def test_evaluation_uses_the_model_in_evaluation_mode() -> None:
    learner = made()
    state = bound(learner)
    train(learner, [Batch(*samples())], 6, {})
    inputs, targets = samples(600, seed=9)
    before = state.clone()
    right = score_sums(learner, inputs, targets)
    with torch.no_grad():
        told_right = targets[learner.model.eval()(inputs).argmax(1) == targets]
    assert right.tolist() == torch.bincount(told_right, minlength=CLASSES).tolist()
    assert 0 < right.sum() < 600
    assert same(state, before)
