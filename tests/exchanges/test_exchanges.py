"""Every exchange by hand on tiny tensors, and the same results stacked as one by one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap

from consilience.errors import ConfigurationError, UnknownName
from consilience.exchanges import Contribution, Exchange, Logits, Observations, Prototypes, Received, View, Weights
from consilience.task import Task, names_in_part
from consilience.wire import schema
from consilience.wire.encodings import BIT, FLOAT16, FLOAT32, INT4, INT8, Encoding
from consilience.wire.robustness import Robustness

DOUBLE = torch.float64
PARAMETERS = {
    "features.0.weight": (2, 3),
    "features.0.bias": (2,),
    "classifier.weight": (3, 2),
    "classifier.bias": (3,),
}
BUFFERS = {"features.1.running_mean": (2,), "features.1.running_var": (2,)}
TASK = Task(3, 2, (3,), 1.0, PARAMETERS, BUFFERS)


def tensor(*values: Any) -> Tensor:
    return torch.tensor(values, dtype=DOUBLE)


def view(
    features: Tensor | None = None,
    targets: list[int] | Tensor = (),  # type: ignore[assignment]
    logits: Tensor | None = None,
    classes: int = 3,
    **seen: Any,
) -> View:
    """A view whose classifier leaves features as they are; logits are the features where none are given."""
    targets = torch.as_tensor(targets, dtype=torch.int64)
    features = torch.zeros(len(targets), 2, dtype=DOUBLE) if features is None else features
    filled: dict[str, Any] = {
        "task": replace(TASK, classes=classes, width=features.shape[-1]),
        "parameters": {},
        "buffers": {},
        "inputs": torch.empty(len(targets), 0),
        "features": features,
        "logits": features if logits is None else logits,
        "targets": targets,
        "valid": torch.ones(len(targets), dtype=DOUBLE),
        "classify": lambda t: t,
        "samples": tensor(len(targets))[0],
    }
    return View(**(filled | seen))


def received(mean: Tensor, count: Tensor) -> Received:
    return Received({"mean": mean}, count, torch.tensor(True))


def close(one: Tensor, other: Tensor | float) -> None:
    torch.testing.assert_close(one, torch.as_tensor(other, dtype=DOUBLE), rtol=1e-12, atol=1e-12)


# --- prototypes and logits


@pytest.mark.parametrize("exchange", [Prototypes(), Logits()], ids=lambda e: e.name)
def test_prototype_penalty_is_a_mean_over_batch_and_dimensions(exchange: Exchange) -> None:
    """No learner has the second row's class 2: it is left out, and the mean runs over the other two."""
    mine = tensor([1.0, 0.0, 2.0], [7.0, 7.0, 7.0], [0.0, 0.0, 3.0])
    goal = tensor([0.0, 0.0, 0.0], [3.0, 0.0, 0.0], [0.0, 0.0, 0.0])
    seen = view(mine, [0, 2, 1]) if exchange.name == "prototypes" else view(None, [0, 2, 1], logits=mine)
    penalty = exchange.penalty({}, seen, received(goal, tensor(4, 1, 0)))
    close(penalty, ((1 + 0 + 4) / 3 + (9 + 0 + 9) / 3) / 2)


@pytest.mark.parametrize("exchange", [Prototypes(), Logits()], ids=lambda e: e.name)
def test_prototype_penalty_is_zero_when_no_learner_has_samples(exchange: Exchange) -> None:
    mine = tensor([1.0, 0.0, 2.0], [7.0, 7.0, 7.0]).requires_grad_()
    penalty = exchange.penalty({}, view(mine, [0, 2]), received(torch.zeros(3, 3, dtype=DOUBLE), tensor(0, 0, 0)))
    assert penalty.item() == 0.0
    penalty.backward()  # type: ignore[no-untyped-call]
    assert mine.grad is not None and not mine.grad.any()


@pytest.mark.parametrize("exchange", [Prototypes(), Logits()], ids=lambda e: e.name)
def test_class_means_and_their_counts(exchange: Exchange) -> None:
    """Class 1 has a single sample, class 2 two rows of which one is padding: neither is shared."""
    mine = tensor([1.0, 2.0], [9.0, 9.0], [3.0, 6.0], [5.0, 5.0], [8.0, 8.0])
    seen = view(mine, [0, 1, 0, 2, 2], valid=tensor(1, 1, 1, 1, 0))
    put = exchange.contribute({}, seen, received(mine, mine))
    close(put.tensors["mean"], tensor([2.0, 4.0], [0.0, 0.0], [0.0, 0.0]))
    assert put.weight.tolist() == [2.0, 0.0, 0.0]
    put = replace(exchange, min_count=1).contribute({}, seen, received(mine, mine))  # type: ignore[type-var]
    close(put.tensors["mean"], tensor([2.0, 4.0], [9.0, 9.0], [5.0, 5.0]))
    assert put.weight.tolist() == [2.0, 1.0, 1.0]


@pytest.mark.parametrize("exchange", [Prototypes(weighting="equal"), Logits(weighting="equal")], ids=lambda e: e.name)
def test_equal_weighting_uploads_one_for_each_class(exchange: Exchange) -> None:
    """Class 0 has three samples, class 1 two, class 2 a single one: means are as before, counts are not sent."""
    mine = tensor([1.0, 2.0], [3.0, 6.0], [5.0, 1.0], [8.0, 8.0], [9.0, 9.0], [7.0, 7.0])
    seen = view(mine, [0, 0, 0, 1, 1, 2])
    put = exchange.contribute({}, seen, received(mine, mine))
    close(put.tensors["mean"], tensor([3.0, 3.0], [8.5, 8.5], [0.0, 0.0]))
    assert put.weight.tolist() == [1.0, 1.0, 0.0] and put.weight.dtype == DOUBLE
    channel = exchange.channel(TASK)
    assert isinstance(channel, schema.Mean) and channel.robustness == Robustness(weight_cap=1)
    assert "count" not in exchange.describe_upload()
    assert "sample count" in replace(exchange, weighting="samples").describe_upload()  # type: ignore[type-var]


def test_equal_weighting_of_observations_does_not_upload_how_many_samples_they_average() -> None:
    features = tensor([1.0], [2.0], [4.0], [9.0])
    seen = view(features, [0, 0, 0, 1], draws=tensor([0.1, 0.2, 0.3, 0.4], [0.3, 0.2, 0.1, 0.4]))
    put = Observations(n_avg=2, up=2, weighting="equal").contribute({}, seen, received(features, features))
    assert put.tensors["mean"][:, 0, 0].tolist() == [1.5, 3.0]
    assert put.weight.tolist() == [[1.0, 0.0, 0.0]] * 2


def test_unknown_weighting_is_refused() -> None:
    for exchange in (Prototypes, Logits, Observations):
        with pytest.raises(ConfigurationError, match=r"weighting.*'sample'.*samples"):
            exchange(weighting="sample")  # type: ignore[arg-type]


def test_prototypes_average_features_and_logits_average_logits() -> None:
    seen = view(tensor([1.0, 2.0], [3.0, 4.0]), [1, 1], logits=tensor([1.0, 0.0, 5.0], [3.0, 0.0, 7.0]))
    nothing = received(torch.zeros(3, 2), torch.zeros(3))
    assert Prototypes().contribute({}, seen, nothing).tensors["mean"][1].tolist() == [2.0, 3.0]
    assert Logits().contribute({}, seen, nothing).tensors["mean"][1].tolist() == [2.0, 0.0, 6.0]


def test_channels_of_prototypes_and_logits() -> None:
    prototypes = Prototypes(encoding=FLOAT16).channel(TASK)
    assert prototypes == schema.Mean("prototypes", {"mean": schema.Tensor((3, 2), FLOAT16, FLOAT16, -1, 1)}, (3,))
    logits = Logits(scope="oneself").channel(TASK)
    assert logits == schema.Mean("logits", {"mean": schema.Tensor((3, 3), low=-1e4, high=1e4)}, (3,), "oneself")
    assert logits.message("up") == {}


# --- observations: the penalty


def logits_of(*rows: list[float]) -> Tensor:
    """Logits whose softmax gives these probabilities."""
    return tensor(*rows).log()


def test_classifier_discriminator_by_hand() -> None:
    """The first sample shares its class with 3/4 9/10 + 1/4 1/10 = 7/10, and 3/4 1/5 + 1/4 4/5 = 7/20."""
    seen = view(logits_of([0.75, 0.25], [0.5, 0.5]), [0, 1], classes=2)
    theirs = logits_of([0.9, 0.1], [0.2, 0.8])[None]
    penalty = Observations().penalty({}, seen, received(theirs, tensor([3, 3])))
    first, second = -math.log(0.7) - math.log(1 - 0.35), -math.log(1 - 0.5) - math.log(0.5)
    close(penalty, (first + second) / 4)  # two samples, two classes


def test_class_missing_in_the_observation_is_left_out_of_the_penalty() -> None:
    seen = view(logits_of([0.75, 0.25], [0.5, 0.5]), [0, 1], classes=2)
    theirs = logits_of([0.9, 0.1], [0.2, 0.8])[None]
    penalty = Observations().penalty({}, seen, received(theirs, tensor([3, 0])))
    close(penalty, (-math.log(0.7) - math.log(0.5)) / 2)
    assert Observations().penalty({}, seen, received(theirs, tensor([0, 0]))).item() == 0.0


def test_exponential_discriminator_by_hand() -> None:
    """Cosines 1, 0 and -1 over temperature 1/2: ratios e^2, 1 and e^-2 against two other classes."""
    seen = view(tensor([5.0, 0.0]), [0], modules={"discriminator": lambda t: t})
    theirs = tensor([[3.0, 0.0], [0.0, 2.0], [-1.0, 0.0]])
    exchange = Observations(discriminator="exponential", temperature=0.5)
    penalty = exchange.penalty({}, seen, received(theirs, tensor([1, 1, 1])))
    same = math.exp(2) / (math.exp(2) + 2)
    apart = [1 - 1 / (1 + 2), 1 - math.exp(-2) / (math.exp(-2) + 2)]
    close(penalty, -(math.log(same) + math.log(apart[0]) + math.log(apart[1])) / 3)


def test_discriminator_with_a_hidden_layer_by_hand() -> None:
    """Two layers of width 2 that swap and add: the same penalty as their output's in the exponential one."""
    exchange = Observations(discriminator="exponential-mlp", temperature=0.5)
    (layers,) = exchange.modules(TASK).values()
    first, relu, second = layers.to(DOUBLE).children()
    assert isinstance(relu, torch.nn.ReLU)
    assert isinstance(first, torch.nn.Linear) and isinstance(second, torch.nn.Linear)
    with torch.no_grad():
        first.weight.copy_(tensor([1.0, 0.0], [0.0, 1.0])), first.bias.zero_()
        second.weight.copy_(tensor([0.0, 1.0], [1.0, 0.0])), second.bias.zero_()
    theirs = tensor([[3.0, 0.0], [0.0, 2.0], [-1.0, 4.0]])  # ReLU makes [0, 4] of the last
    seen = view(tensor([5.0, 0.0]), [0], modules={"discriminator": layers})
    penalty = exchange.penalty({}, seen, received(theirs, tensor([1, 1, 1])))
    same, apart = math.exp(2) / (math.exp(2) + 2), 1 - 1 / (1 + 2)  # cosines 1, 0 and 0
    close(penalty, -(math.log(same) + 2 * math.log(apart)) / 3)


def test_each_sample_draws_one_of_several_observations() -> None:
    seen = view(
        logits_of([0.75, 0.25], [0.75, 0.25], [0.75, 0.25]), [0, 0, 0], classes=2, draws=tensor([0.49, 0.5, 0.999])
    )
    theirs = torch.stack([logits_of([0.9, 0.1], [0.2, 0.8]), logits_of([0.6, 0.4], [0.4, 0.6])])
    penalty = Observations(down=2).penalty({}, seen, received(theirs, tensor([1, 1], [1, 0])))
    one = -math.log(0.7) - math.log(1 - 0.35)
    other = -math.log(0.75 * 0.6 + 0.25 * 0.4)  # it lacks the second class
    close(penalty, (one + 2 * other) / 4)


def test_penalty_of_a_confident_wrong_classifier_is_finite() -> None:
    """A confident but wrong classifier has a large, finite penalty."""
    sure = tensor([1e4, 0.0]).requires_grad_()
    penalty = Observations().penalty(
        {}, view(sure, [1], classes=2), received(sure.detach()[None].repeat(1, 2, 1), tensor([1, 1]))
    )
    assert penalty.item() == pytest.approx(-math.log(1e-7) / 2, rel=1e-6)  # of two classes
    penalty.backward()  # type: ignore[no-untyped-call]
    assert sure.grad is not None and sure.grad.isfinite().all()


def test_gradients_reach_the_classifier_from_both_sides() -> None:
    """Against central differences: the classifier reads the sample and the teacher, whose features are constants."""
    generator = torch.Generator().manual_seed(0)
    mine, theirs = (torch.randn(n, 2, generator=generator, dtype=DOUBLE) for n in (4, 3))
    weight = torch.randn(3, 2, generator=generator, dtype=DOUBLE)

    def penalty(w: Tensor, features: Tensor, teacher: Tensor) -> Tensor:
        seen = view(features, [0, 1, 2, 0], logits=features @ w.T, classify=lambda t: t @ w.T)
        return Observations().penalty({}, seen, received(teacher[None], tensor([1, 1, 1])))

    own_weight, own_mine = weight.clone().requires_grad_(), mine.clone().requires_grad_()
    penalty(own_weight, own_mine, theirs).backward()  # type: ignore[no-untyped-call]
    assert not theirs.requires_grad
    for value, gradient, at in ((weight, own_weight.grad, 0), (mine, own_mine.grad, 1)):
        assert gradient is not None
        for place in [(0, 0), (1, 1), (2, 0)]:
            nudge = torch.zeros_like(value)
            nudge[place] = 1e-6
            up, down = ([weight, mine, theirs] for _ in range(2))
            up[at], down[at] = value + nudge, value - nudge
            slope = (penalty(up[0], up[1], up[2]) - penalty(down[0], down[1], down[2])) / 2e-6
            assert gradient[place].item() == pytest.approx(slope.item(), rel=1e-6, abs=1e-9)


def test_mutual_information_bound() -> None:
    """log(C - 1) - C times the class mean that training uses; with two classes it is not informative."""
    penalty, counts, samples = np.array([0.1, 0.1]), np.array([[[10, 4, 10]], [[10, 0, 10]]]), np.full((2, 3), 7)
    (found,) = Observations().metrics(TASK, penalty, counts, samples).values()
    assert found == pytest.approx([math.log(2) - 0.3, 0 - 2 * 0.1 * 21 / 14])  # the second lacks a class
    assert Observations().metrics(replace(TASK, classes=2), penalty, counts[..., :2], samples[:, :2]) == {}


# --- observations: uploads


def test_observation_uses_the_smallest_draws_of_each_class() -> None:
    features = tensor([1.0], [2.0], [4.0], [8.0], [16.0], [32.0])
    seen = view(features, [0, 1, 0, 0, 1, 2], draws=tensor([0.9, 0.1, 0.2, 0.3, 0.5, 0.4]))
    put = Observations(n_avg=2).contribute({}, seen, received(features, features))
    close(put.tensors["mean"], tensor([[(4.0 + 8.0) / 2], [(2.0 + 16.0) / 2], [0.0]]))  # class 2 has a single sample
    assert put.weight.tolist() == [[2.0, 2.0, 0.0]]


def test_min_count_counts_samples_not_the_averaged_ones() -> None:
    features = tensor([1.0], [2.0], [6.0], [4.0], [4.0])
    seen = view(features, [0, 0, 0, 1, 1], draws=tensor([0.9, 0.1, 0.2, 0.5, 0.6]))
    put = Observations(n_avg=2, min_count=3).contribute({}, seen, received(features, features))
    assert put.tensors["mean"].flatten().tolist() == [4.0, 0.0, 0.0]
    assert put.weight.tolist() == [[2.0, 0.0, 0.0]]


def test_observation_of_single_samples_requires_min_count_1() -> None:
    with pytest.raises(ConfigurationError, match=r"n_avg is 1; .* set min_count=1"):
        Observations(n_avg=1)
    assert Observations(n_avg=1, min_count=1).n_avg == 1


def test_several_observations_are_drawn_independently() -> None:
    features = tensor([1.0], [2.0], [4.0])
    seen = view(features, [0, 0, 0], draws=tensor([0.1, 0.2, 0.3], [0.3, 0.2, 0.1]))
    put = Observations(n_avg=2, up=2).contribute({}, seen, received(features, features))
    assert put.tensors["mean"][:, 0, 0].tolist() == [1.5, 3.0]
    assert put.weight.tolist() == [[2.0, 0.0, 0.0]] * 2


@settings(max_examples=100)
@given(
    targets=st.lists(st.integers(0, 2), min_size=1, max_size=12),
    size=st.integers(1, 5),
    least=st.integers(1, 3),
    seed=st.integers(0, 2**30),
)
def test_observation_uses_exactly_the_smallest_draws_for_any_padding(
    targets: list[int], size: int, least: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    n = len(targets)
    valid = (torch.rand(n, generator=generator) < 0.8).to(DOUBLE)
    chance = torch.rand(1, n, generator=generator, dtype=DOUBLE)
    features = 2.0 ** torch.arange(n, dtype=DOUBLE)[:, None]  # every subset has its own sum
    seen = view(features, targets, valid=valid, draws=chance)
    least = min(least, size)  # n_avg = 1 asks for min_count = 1
    put = Observations(n_avg=size, min_count=least).contribute({}, seen, received(features, features))
    for label in range(3):
        mine = sorted((chance[0, i].item(), i) for i in range(n) if targets[i] == label and valid[i])
        taken = [features[i].item() for _, i in mine[:size]] if len(mine) >= least else []
        assert put.weight[0, label].item() == len(taken)
        assert put.tensors["mean"][0, label, 0].item() == pytest.approx(sum(taken) / max(len(taken), 1))


def test_channel_of_observations() -> None:
    exchange = Observations(up=2, down=3, encoding=INT8, draw="row", include_self=False)
    expected = schema.Pool(
        "observations",
        {"mean": schema.Tensor((3, 2), INT8, INT8, -1, 1)},
        (3,),
        keep=2,
        draw=3,
        by="row",
        include_self=False,
    )
    assert exchange.channel(TASK) == expected
    assert (exchange.batch_draws, exchange.sample_draws) == (1, 2)
    assert (Observations().batch_draws, Observations().sample_draws) == (0, 1)
    assert exchange.modules(TASK) == {}
    (layer,) = Observations(discriminator="exponential").modules(TASK).values()
    assert [tuple(p.shape) for p in layer.parameters()] == [(2, 2), (2,)]
    (layers,) = Observations(discriminator="exponential-mlp").modules(TASK).values()
    assert [tuple(p.shape) for p in layers.parameters()] == [(2, 2), (2,)] * 2


# --- weights


def models(offset: float) -> dict[str, dict[str, Tensor]]:
    """Parameters and buffers in which each value is its index plus an offset."""
    return {
        kind: {n: torch.arange(math.prod(s), dtype=DOUBLE).reshape(s) + offset for n, s in shapes.items()}
        for kind, shapes in (("parameters", PARAMETERS), ("buffers", BUFFERS))
    }


def common(offset: float) -> Received:
    held = models(offset)
    return Received({**held["parameters"], **held["buffers"]}, tensor(1)[0], torch.tensor(True))


@pytest.mark.parametrize(
    ("part", "names"),
    [
        ("*", [*PARAMETERS]),
        ("classifier", ["classifier.weight", "classifier.bias"]),
        ("features.0", ["features.0.weight", "features.0.bias"]),
        ("*.bias", ["features.0.bias", "classifier.bias"]),
        ("classifier.weight", ["classifier.weight"]),
        ("[!c]*", ["features.0.weight", "features.0.bias"]),
        ("class", []),
    ],
)
def test_part_of_weights_is_a_module_or_a_glob(part: str, names: list[str]) -> None:
    assert names_in_part(part, PARAMETERS) == names


def test_part_that_matches_nothing_is_refused() -> None:
    with pytest.raises(
        ConfigurationError, match=r"part 'classifer' covers nothing of model; its parameters are features"
    ):
        Weights(part="classifer").channel(TASK)


@pytest.mark.parametrize(
    ("asked", "travels"),
    [(FLOAT32, FLOAT32), (FLOAT16, FLOAT16), (INT8, FLOAT16), (INT4, FLOAT16), (BIT, FLOAT16)],
    ids=lambda e: e.name,
)
def test_buffers_are_encoded_in_sixteen_bits_or_more(asked: Encoding, travels: Encoding) -> None:
    channel = Weights(up=asked, down=FLOAT32, max_staleness=3).channel(TASK)
    assert channel.moving and channel.rows == () and channel.max_staleness == 3
    assert {n: t.up for n, t in channel.tensors.items()} == dict.fromkeys(PARAMETERS, asked) | dict.fromkeys(
        BUFFERS, travels
    )
    assert {t.down for t in channel.tensors.values()} == {FLOAT32}
    assert {n: t.shape for n, t in channel.tensors.items()} == PARAMETERS | BUFFERS


def test_buffers_can_stay_private() -> None:
    exchange = Weights(buffers="local")
    assert [*exchange.channel(TASK).tensors] == [*PARAMETERS]
    seen = view(**models(5.0))  # type: ignore[arg-type]
    assert [*exchange.common_values(seen)] == [*exchange.contribute({}, seen, common(0.0)).tensors] == [*PARAMETERS]
    assert exchange.receive({}, seen, common(0.0)).buffers == {}


def test_part_of_weights_includes_its_buffers() -> None:
    assert [*Weights(part="features").channel(TASK).tensors] == [*list(PARAMETERS)[:2], *BUFFERS]
    assert [*Weights(part="classifier").channel(TASK).tensors] == ["classifier.weight", "classifier.bias"]


def test_weights_upload_their_change_and_number_of_samples() -> None:
    put = Weights().contribute({}, view(**models(5.0), samples=tensor(40)[0]), common(3.5))  # type: ignore[arg-type]
    assert put.weight.item() == 40
    assert [*put.tensors] == [*PARAMETERS, *BUFFERS]
    assert all((change == 1.5).all() for change in put.tensors.values())


def test_step_moves_parameters_beyond_the_mean_and_running_statistics_to_it() -> None:
    exchange, mine = Weights(step=1.5), view(**models(5.0), samples=tensor(40)[0])  # type: ignore[arg-type]
    put = exchange.contribute(exchange.init_state(mine), mine, common(3.5))
    assert all((put.tensors[name] == 1.5 * 1.5).all() for name in PARAMETERS)
    assert all((put.tensors[name] == 1.5).all() for name in BUFFERS)


def test_a_learner_that_misses_moves_of_the_common_weights_steps_less_far_beyond_the_mean() -> None:
    exchange, mine = Weights(step=1.5), view(**models(5.0), samples=tensor(40)[0])  # type: ignore[arg-type]

    def steps(versions: Iterable[int]) -> float:
        state = exchange.init_state(mine)
        for version in versions:
            state = exchange.receive(state, mine, replace(common(3.5), count=torch.tensor(float(version)))).state
        put = exchange.contribute(state, mine, common(3.5))
        return float(put.tensors["classifier.bias"][0]) / 1.5

    assert steps(range(1, 60)) == 1.5  # to the bit: it has every version
    assert steps([0, 1, 1, 2]) == 1.5  # the same version again says nothing
    assert steps([40, 41, 42]) == 1.5  # it has joined late
    assert steps([5, 6, 2**29 + 2**20 + 7, 2**29 + 2**20 + 8]) == 1.5  # the relay was restored from a backup
    assert steps([1, 2, 3, 7]) == pytest.approx(1 + 0.5 / 1.75)  # one absence
    assert steps(range(5, 300, 5)) == pytest.approx(1.1)  # every fifth version
    assert steps([*range(5, 300, 5), *range(300, 340)]) == pytest.approx(1.5, abs=1e-4)  # and present again


@pytest.mark.parametrize("step", [0, -1.0, float("nan"), float("inf")])
def test_step_that_is_not_positive_is_refused(step: float) -> None:
    with pytest.raises(ConfigurationError, match="step"):
        Weights(step=step)


def test_received_weights_replace_the_model_weights() -> None:
    update = Weights(part="classifier").receive({}, view(**models(5.0)), common(3.5))  # type: ignore[arg-type]
    assert update.buffers == {} and [*update.parameters] == ["classifier.weight", "classifier.bias"]
    for name, moved in update.parameters.items():
        close(moved, models(3.5)["parameters"][name])


def test_prox_is_half_the_squared_distance() -> None:
    held = models(5.0)
    for parameter in held["parameters"].values():
        parameter.requires_grad_()
    exchange = Weights(part="classifier", prox=0.1)
    assert exchange.weight == 0.1
    penalty = exchange.penalty({}, view(**held), common(3.0))  # type: ignore[arg-type]
    close(penalty, (6 + 3) * 2.0**2 / 2)  # six weights and three biases, each two away
    penalty.backward()  # type: ignore[no-untyped-call]
    gradients = {n: p.grad for n, p in held["parameters"].items()}
    assert gradients["features.0.weight"] is None
    assert gradients["classifier.weight"] is not None and (gradients["classifier.weight"] == 2.0).all()


# --- settings


@pytest.mark.parametrize(
    "make",
    [
        lambda: Prototypes(weight=-1.0),
        lambda: Prototypes(min_count=0),
        lambda: Logits(weight=math.nan),
        lambda: Observations(n_avg=0),
        lambda: Observations(up=0),
        lambda: Observations(down=True),
        lambda: Observations(temperature=0.0),
        lambda: Weights(prox=math.inf),
        lambda: Weights(every=0),
        lambda: Weights(max_staleness=-1),
    ],
)
def test_settings_out_of_range_are_refused(make: Callable[[], Exchange]) -> None:
    with pytest.raises(ConfigurationError, match="it must be a"):
        make()


@pytest.mark.parametrize("part", [3, "", None])
def test_a_part_is_a_name(part: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"part is .*; it must be the name of a part or a module"):
        Weights(part=part)


def test_unknown_options_are_refused_with_the_nearest_known_one() -> None:
    for make, near in (
        (lambda: Observations(discriminator="clasifier"), "classifier"),  # type: ignore[arg-type]
        (lambda: Weights(buffers="locale"), "local"),  # type: ignore[arg-type]
        (lambda: Weights(start="comon"), "common"),  # type: ignore[arg-type]
    ):
        with pytest.raises(UnknownName, match=f"Did you mean '{near}'"):
            make()


# --- stacked as one by one


@dataclass(frozen=True)
class Model:
    """Names and functions of a model with BatchNorm's buffers for any number of learners."""

    exchange: Exchange
    modules: dict[str, torch.nn.Module]
    learners: int = 3
    rows: int = 7

    def drawn(self, draws: int) -> dict[str, Any]:
        """Everything in which learners differ, stacked: (learners, ...)."""
        generator = torch.Generator().manual_seed(7)

        def normal(*shape: int) -> Tensor:
            return torch.randn(self.learners, *shape, generator=generator, dtype=DOUBLE)

        channel = self.exchange.channel(TASK)
        lead = (channel.draw,) if isinstance(channel, schema.Pool) else ()
        targets = torch.randint(0, 3, (self.learners, self.rows), generator=generator)
        valid = (torch.arange(self.rows) < torch.tensor([[7], [4], [1]])).to(DOUBLE)  # the last has one sample
        return {
            "parameters": {n: normal(*s) for n, s in PARAMETERS.items()},
            "buffers": {n: normal(*s) for n, s in BUFFERS.items()},
            "modules": {f"{k}.{n}": normal(*p.shape) for k, m in self.modules.items() for n, p in m.named_parameters()},
            "inputs": normal(self.rows, 3),
            "targets": targets,
            "valid": valid,
            "samples": valid.sum(1),
            "draws": torch.rand(self.learners, draws, self.rows, generator=generator, dtype=DOUBLE),
            "received": {k: normal(*lead, *t.shape) for k, t in channel.tensors.items()},
            "count": torch.randint(0, 2, (self.learners, *lead, *channel.rows), generator=generator).to(DOUBLE),
            "fresh": torch.tensor([True, False, True]),
        }

    def seen(self, one: dict[str, Any]) -> tuple[View, Received]:
        """One learner's view and what it has received."""
        weights = one["parameters"]

        def classify(features: Tensor) -> Tensor:
            logits: Tensor = features @ weights["classifier.weight"].T + weights["classifier.bias"]
            return logits

        def module(name: str) -> Callable[[Tensor], Tensor]:
            own = {k[len(name) + 1 :]: v for k, v in one["modules"].items()}
            return lambda x: functional_call(self.modules[name], own, (x,))

        features = torch.tanh(one["inputs"] @ weights["features.0.weight"].T + weights["features.0.bias"])
        names = ("inputs", "targets", "valid", "samples", "draws", "buffers")
        seen = View(
            task=TASK,
            parameters=weights,
            features=features,
            logits=classify(features),
            classify=classify,
            modules={name: module(name) for name in self.modules},
            **{name: one[name] for name in names},
        )
        return seen, Received(one["received"], one["count"], one["fresh"])

    def penalty(self, trained: dict[str, Any], rest: dict[str, Any]) -> Tensor:
        return self.exchange.penalty({}, *self.seen(rest | trained))

    def contribution(self, one: dict[str, Any]) -> tuple[dict[str, Tensor], Tensor]:
        put: Contribution = self.exchange.contribute({}, *self.seen(one))
        return dict(put.tensors), put.weight

    def update(self, one: dict[str, Any]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        update = self.exchange.receive({}, *self.seen(one))
        return dict(update.parameters), dict(update.buffers)


def learner(stacked: Any, number: int) -> Any:
    """One learner of nested stacked tensors."""
    if isinstance(stacked, dict):
        return {k: learner(v, number) for k, v in stacked.items()}
    if isinstance(stacked, tuple):
        return tuple(learner(v, number) for v in stacked)
    return stacked[number]


EXCHANGES = {
    "prototypes": Prototypes(),
    "logits": Logits(),
    "prototypes, equal": Prototypes(weighting="equal"),
    "observations": Observations(),
    "observations, several": Observations(up=2, down=3, n_avg=2),
    "observations, exponential": Observations(discriminator="exponential"),
    "observations, exponential-mlp": Observations(discriminator="exponential-mlp"),
    "weights": Weights(prox=0.1),
    "weights of a part": Weights(part="classifier", prox=0.1, buffers="local"),
}
every_exchange = pytest.mark.parametrize("exchange", EXCHANGES.values(), ids=EXCHANGES.keys())


@every_exchange
def test_stacked_penalties_and_gradients_equal_single_ones(exchange: Exchange) -> None:
    model = Model(exchange, exchange.modules(TASK))
    rest = model.drawn(exchange.batch_draws)
    trained = {k: rest.pop(k) for k in ("parameters", "modules")}
    step = grad_and_value(model.penalty)
    gradients, penalties = vmap(step)(trained, rest)
    for number in range(model.learners):
        gradient, penalty = step(learner(trained, number), learner(rest, number))
        torch.testing.assert_close(penalties[number], penalty, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(learner(gradients, number), gradient, rtol=1e-9, atol=1e-12)
    assert len(penalties.unique()) == model.learners  # they do differ
    separate = isinstance(exchange, Observations) and exchange.discriminator != "classifier"
    reached = gradients["modules"] if separate else gradients["parameters"]
    assert any(g.any() for g in reached.values())


@every_exchange
def test_stacked_contributions_equal_single_ones(exchange: Exchange) -> None:
    model = Model(exchange, exchange.modules(TASK))
    stacked = model.drawn(exchange.sample_draws)
    put = vmap(model.contribution)(stacked)
    for number in range(model.learners):
        alone = model.contribution(learner(stacked, number))
        torch.testing.assert_close(learner(put, number), alone, rtol=1e-9, atol=1e-12)
    shapes = {k: t.shape for k, t in exchange.channel(TASK).tensors.items()}
    lead = (exchange.up,) if isinstance(exchange, Observations) else ()
    assert {k: tuple(t.shape[1:]) for k, t in put[0].items()} == {k: (*lead, *s) for k, s in shapes.items()}


@pytest.mark.parametrize("exchange", [EXCHANGES["weights"], EXCHANGES["weights of a part"]], ids=["all", "part"])
def test_stacked_updates_equal_single_ones(exchange: Exchange) -> None:
    """Every learner receives its own answer; the learner checks whether it is fresh."""
    model = Model(exchange, exchange.modules(TASK))
    stacked = model.drawn(exchange.sample_draws)
    updates = vmap(model.update)(stacked)
    for number in range(model.learners):
        alone = model.update(learner(stacked, number))
        torch.testing.assert_close(learner(updates, number), alone, rtol=0, atol=0)
    name = "classifier.bias"
    assert torch.equal(updates[0][name], stacked["received"][name])


def test_only_weights_change_the_model_on_receive() -> None:
    """Engines skip `receive` where it does nothing."""
    changes = {e.name: e.changes_model for e in EXCHANGES.values()}
    assert changes == {"prototypes": False, "logits": False, "observations": False, "weights": True}
    assert {e.name: e.uploads_before_training for e in EXCHANGES.values()} == {
        "prototypes": True,
        "logits": True,
        "observations": True,
        "weights": False,
    }
