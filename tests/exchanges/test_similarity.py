"""Similarity distillation: every number by hand on three samples, and no tensor of all pairs of a large set."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.utils._python_dispatch import TorchDispatchMode

from consilience.errors import ConfigurationError
from consilience.exchanges import BatchView, Contribution, Received, Similarity, State, View
from consilience.functional.augmentation import Views
from consilience.functional.similarity import unit_rows
from consilience.learner.initial_state import template_state
from consilience.learner.learner import Batch, Learner
from consilience.learner.passes import represent
from consilience.learner.spec import LearnerSpec
from consilience.method import Role
from consilience.models import SplitModel
from consilience.objectives import Augmented
from consilience.optimizers import SGD
from consilience.task import Public, Task
from consilience.wire import schema
from consilience.wire.agreement import describe_difference, without_local_choices
from consilience.wire.charter import build_charter, read_charter
from consilience.wire.encodings import BIT, ENCODINGS, FLOAT16, INT4, INT8, Encoding
from tests.relay_tools import FULL

DOUBLE = torch.float64
E = math.exp
AS_IT_IS = Views(
    scale=(1.0, 1.0), ratio=(2.0, 2.0), jitter=(0.0, 0.0, 0.0, 0.0), jitter_chance=0.0, gray_chance=0.0, flip_chance=0.0
)
TASK = Task(3, 2, (1, 1, 2), public=Public(3, "a" * 64))
POOL = Similarity(distills=True, temperature=0.5, student_temperature=0.5, queue=2, form="pool", down=2, views=AS_IT_IS)
MEAN = replace(POOL, form="mean")
each_form = pytest.mark.parametrize("exchange", [POOL, MEAN], ids=["pool", "mean"])

# Two teachers' features of three public samples. Similarities of the first: 0-1 0.6, 0-2 0, 1-2 0.8; of the second: 0,
# -1, 0. At temperature 0.5, (similarity - 1) / 0.5 of these pairs: -0.8, -2, -0.4 and -2, -4, -2.
TEACHERS = torch.tensor([[[3, 0], [0.6, 0.8], [0, 0.1]], [[1, 0], [0, 7], [-1, 0]]], dtype=DOUBLE)
TO_THE_FIRST = (E(-0.8) + E(-2)) / 2  # of sample 1, equations 5 and 6
TO_THE_LAST = (E(-0.4) + E(-2)) / 2


def tensor(*values: Any) -> Tensor:
    return torch.tensor(values, dtype=DOUBLE)


def view(features: Tensor, positions: Sequence[int] | Tensor = (), task: Task = TASK, **seen: Any) -> View:
    """A view whose encoder multiplies pixels with the parameter `scale`."""
    rows = len(features)
    filled: dict[str, Any] = {
        "task": replace(task, width=features.shape[-1]),
        "parameters": {"scale": tensor(1.0, 1.0)},
        "buffers": {},
        "inputs": torch.empty(rows, 0),
        "features": features,
        "logits": features,
        "targets": torch.zeros(rows, dtype=torch.int64),
        "valid": torch.ones(rows, dtype=DOUBLE),
        "classify": lambda t: t,
        "samples": tensor(rows)[0],
    }
    batch: dict[str, Any] = {
        "positions": torch.as_tensor(positions, dtype=torch.int64),
        "encode": lambda parameters, inputs: inputs.flatten(1) * parameters["scale"],
    } | {key: seen.pop(key) for key in ("source", "encode") if key in seen}
    return View(**(filled | seen), batch=BatchView(**batch))


def teacher_contribution(exchange: Similarity, features: Tensor, task: Task = TASK) -> Contribution:
    nothing = Received({}, torch.zeros(()), torch.tensor(True))
    return exchange.contribute({}, view(features, task=task), nothing)


def answer(exchange: Similarity, teachers: Tensor = TEACHERS, task: Task = TASK) -> Received:
    """The channel's answer for these teachers: all entries of a pool, or the mean."""
    given = [teacher_contribution(exchange, teacher, task) for teacher in teachers]
    tensors = {k: torch.stack([g.tensors[k] for g in given]) for k in given[0].tensors}
    if exchange.form == "pool":
        entries = {k: t[:, 0] for k, t in tensors.items()}
        return Received(entries, torch.ones(len(teachers), dtype=DOUBLE), torch.tensor(True))
    count = torch.full((), float(len(teachers)), dtype=DOUBLE)
    return Received({k: t.mean(0) for k, t in tensors.items()}, count, torch.tensor(True))


def state(queue: Tensor, index: list[int]) -> State:
    return {"queue": queue, "index": torch.tensor(index), "momentum/scale": tensor(1.0, 1.0)}


def close(one: Tensor, other: Tensor | float, within: float = 1e-12) -> None:
    torch.testing.assert_close(one, torch.as_tensor(other, dtype=one.dtype), rtol=0, atol=within)


# --- the penalty


@each_form
def test_penalty_of_one_sample_by_hand(exchange: Similarity) -> None:
    """Sample 1 is the query, the anchors are samples 2 and 0; the momentum encoder has them at (0, 1) and (1, 0)."""
    features = tensor([2.0, 0.0])  # of length 1: (1, 0)
    wanted = [share / (TO_THE_LAST + TO_THE_FIRST) for share in (TO_THE_LAST, TO_THE_FIRST)]  # equation 8
    said = [1 / (1 + E(2)), E(2) / (1 + E(2))]  # equation 7: the products are 0 and 1, at temperature 0.5
    divergence = sum(p * math.log(p / q) for p, q in zip(wanted, said, strict=True))  # equation 9
    anchors = state(tensor([0.0, 1.0], [1.0, 0.0]), [2, 0])
    close(exchange.penalty(anchors, view(features, [1]), answer(exchange)), divergence)
    assert divergence == pytest.approx(0.605417, abs=1e-6)


@each_form
def test_similarity_of_a_sample_to_itself_is_one(exchange: Similarity) -> None:
    """Sample 0 is both query and anchor: its similarity is 1 for every teacher."""
    wanted = [1 / (1 + TO_THE_FIRST), TO_THE_FIRST / (1 + TO_THE_FIRST)]
    anchors = state(tensor([1.0, 0.0], [1.0, 0.0]), [0, 1])  # the student does not distinguish them: one half each
    divergence = sum(p * math.log(p / 0.5) for p in wanted)
    close(exchange.penalty(anchors, view(tensor([0.0, 5.0]), [0]), answer(exchange)), divergence)


@each_form
def test_penalty_is_the_mean_over_the_batch(exchange: Similarity) -> None:
    anchors, heard = state(tensor([0.0, 1.0], [1.0, 0.0]), [2, 0]), answer(exchange)
    features = tensor([2.0, 0.0], [1.0, 1.0], [0.0, 3.0])
    each = [exchange.penalty(anchors, view(features[i : i + 1], [p]), heard) for i, p in enumerate([1, 0, 1])]
    close(exchange.penalty(anchors, view(features, [1, 0, 1]), heard), torch.stack(each).mean())


@each_form
def test_penalty_is_zero_before_the_first_answer(exchange: Similarity) -> None:
    full = answer(exchange)
    heard = Received({k: 0 * t for k, t in full.tensors.items()}, 0 * full.count, torch.tensor(True))
    features = tensor([2.0, 0.0], [1.0, 1.0]).requires_grad_()
    penalty = exchange.penalty(state(tensor([0.0, 1.0], [1.0, 0.0]), [2, 0]), view(features, [1, 0]), heard)
    penalty.backward()  # type: ignore[no-untyped-call]
    assert penalty.item() == 0 and features.grad is not None and not features.grad.any()


def test_empty_entry_in_the_answer_does_not_count() -> None:
    """The last of three entries in the answer is empty, as with `repeat` false."""
    heard, anchors, seen = answer(POOL), state(tensor([0.0, 1.0], [1.0, 0.0]), [2, 0]), view(tensor([2.0, 1.0]), [1])
    rows = torch.cat([heard.tensors["rows"], torch.zeros(1, 3, 2, dtype=DOUBLE)])
    more = Received({"rows": rows}, torch.cat([heard.count, tensor(0.0)]), torch.tensor(True))
    close(POOL.penalty(anchors, seen, more), POOL.penalty(anchors, seen, heard))


@each_form
@pytest.mark.parametrize("zero", ["the student's", "the anchors'", "a teacher's"])
def test_all_zero_representations_give_finite_penalties(zero: str, exchange: Similarity) -> None:
    features = (tensor([0.0, 0.0]) if zero == "the student's" else tensor([1.0, 2.0])).requires_grad_()
    queue = 0 * torch.eye(2, dtype=DOUBLE) if zero == "the anchors'" else torch.eye(2, dtype=DOUBLE)
    teachers = TEACHERS * (0 if zero == "a teacher's" else 1)
    penalty = exchange.penalty(state(queue, [2, 0]), view(features, [1]), answer(exchange, teachers))
    penalty.backward()  # type: ignore[no-untyped-call]
    assert penalty.isfinite() and features.grad is not None and features.grad.isfinite().all()
    if zero == "a teacher's":  # a zero row is equally dissimilar to all: one half each
        said = tensor(1 / math.sqrt(5), 2 / math.sqrt(5)).div(0.5).softmax(0)
        close(penalty.detach(), -0.5 * (2 * said).log().sum())


def test_mean_slightly_below_zero_counts_as_zero() -> None:
    """A standing mean can have such values after old contributions are subtracted."""
    heard, anchors, seen = answer(MEAN), state(torch.eye(2, dtype=DOUBLE), [2, 0]), view(tensor([1.0, 2.0]), [1])
    zero, below = (Received({"similar": tensor(0.3, 0.2, v)}, heard.count, heard.fresh) for v in (0.0, -1e-17))
    assert torch.equal(MEAN.penalty(anchors, seen, below), MEAN.penalty(anchors, seen, zero))
    channel = MEAN.channel(TASK)
    assert channel.tensors["similar"].low < 0, "or the wire would refuse it"


# --- pool and mean form, and the width of features


@pytest.mark.parametrize("keep", [1.0, 0.6, 0.3])
def test_both_forms_give_the_same_penalty(keep: float) -> None:
    task = replace(TASK, width=5, public=Public(9, "a" * 64))
    teachers, features = torch.randn(3, 9, 5, dtype=DOUBLE), torch.randn(4, 5, dtype=DOUBLE)
    anchors = state(unit_rows(torch.randn(6, 5, dtype=DOUBLE)), [0, 3, 8, 3, 1, 2])
    found = []
    for form in (POOL, MEAN):
        exchange = replace(form, keep=keep, temperature=0.3)
        seen = view(features, [3, 0, 5, 8], task)
        found.append(exchange.penalty(anchors, seen, answer(exchange, teachers, task)))
    close(found[0], found[1])
    assert found[0] > 0


def test_padding_the_width_changes_nothing() -> None:
    wide = replace(POOL, width=7)
    assert wide.channel(TASK).tensors["rows"].shape == (3, 7)
    rows = teacher_contribution(wide, TEACHERS[0]).tensors["rows"]
    assert rows.shape == (1, 3, 7) and not rows[..., 2:].any()
    anchors, seen = state(torch.eye(2, dtype=DOUBLE), [2, 0]), view(tensor([1.0, 2.0]), [1])
    close(wide.penalty(anchors, seen, answer(wide)), POOL.penalty(anchors, seen, answer(POOL)))
    assert teacher_contribution(replace(MEAN, width=7), TEACHERS[0]).tensors["similar"].shape == (3,)


def test_only_the_nearest_share_of_samples_counts() -> None:
    """The nearest two of three samples, including itself: for the first teacher the pair 0-2 counts for neither."""
    exchange = replace(MEAN, keep=0.5)
    close(teacher_contribution(exchange, TEACHERS[0]).tensors["similar"], tensor(E(-0.8), 0.0, E(-0.4)))
    close(teacher_contribution(MEAN, TEACHERS[0]).tensors["similar"], tensor(E(-0.8), E(-2), E(-0.4)))
    floors = teacher_contribution(replace(POOL, keep=0.5), TEACHERS[0]).tensors["floor"]
    close(floors, tensor([0.6, 0.8, 0.8]))
    assert "floor" not in teacher_contribution(POOL, TEACHERS[0]).tensors
    # The target of sample 0 is 0 for anchor 2 and 1 for itself.
    anchors = state(torch.eye(2, dtype=DOUBLE), [2, 0])
    for form in (POOL, MEAN):
        chosen = replace(form, keep=0.5)
        penalty = chosen.penalty(anchors, view(tensor([1.0, 1.0]), [0]), answer(chosen, TEACHERS[:1]))
        close(penalty, math.log(2))  # the target is certain, the student gives each one half


@pytest.mark.parametrize("encoding", [FLOAT16, INT8, INT4], ids=lambda e: e.name)
@each_form
def test_quantized_answers_change_the_penalty_slightly(exchange: Similarity, encoding: Encoding) -> None:
    exact, coarse = answer(exchange), replace(exchange, encoding=encoding)
    (name,) = exact.tensors
    channel = coarse.channel(TASK)
    assert channel.encoding(name, "up") == channel.encoding(name, "down")
    rounded = Received({name: channel.encoding(name, "up").quantize(exact.tensors[name])}, exact.count, exact.fresh)
    anchors, seen = state(torch.eye(2, dtype=DOUBLE), [2, 0]), view(tensor([1.0, 2.0]), [1])
    close(coarse.penalty(anchors, seen, rounded), exchange.penalty(anchors, seen, exact), 0.02)
    assert not torch.equal(rounded.tensors[name], exact.tensors[name])
    up = coarse.channel(TASK).message("up")[f"similarity.{name}"]
    assert up.encoding.name == encoding.name


def test_auto_chooses_the_form_with_fewer_bytes_in_both_directions() -> None:
    """Rows: samples x width up, five times that down. Pairs: samples x (samples - 1) / 2 both ways."""
    exchange = Similarity(down=5)
    for samples, form in ((13, schema.Pool), (12, schema.Mean)):  # 13 x 2 x 6 = 156 = 13 x 12; 144 > 132
        assert isinstance(exchange.channel(replace(TASK, public=Public(samples))), form)
    assert isinstance(Similarity(down=1).channel(replace(TASK, public=Public(5))), schema.Pool)
    assert isinstance(Similarity(width=40).channel(replace(TASK, public=Public(13))), schema.Mean)


# --- the queue


def test_step_updates_the_momentum_encoder_and_then_the_queue() -> None:
    exchange = replace(POOL, momentum=0.75, queue=4)
    before = state(tensor([0.0, 1.0], [1.0, 0.0], [0.6, 0.8], [0.8, 0.6]), [2, 0, 1, 1])
    before["momentum/scale"] = tensor(1.0, 1.0)
    pixels = tensor([0.5, 0.25], [0.0, 1.0]).reshape(2, 1, 1, 2)
    seen = view(
        tensor([9.0, 9.0], [9.0, 9.0]),
        [1, 2],
        parameters={"scale": tensor(5.0, 0.0)},
        source=pixels,
        draws=torch.full((AS_IT_IS.draws, 2), 0.5, dtype=DOUBLE),
    )
    after = exchange.on_batch(before, seen)
    close(after["momentum/scale"], tensor(2.0, 0.75))  # 0.75 x (1, 1) + 0.25 x (5, 0)
    # The batch as the updated encoder has it, (1, 0.1875) and (0, 0.75), of length 1; the oldest two are gone.
    close(after["queue"], torch.cat([unit_rows(tensor([1.0, 0.1875], [0.0, 0.75])), before["queue"][:2]]), 1e-7)
    assert after["index"].tolist() == [1, 2, 2, 0]
    frozen = replace(exchange, momentum=1.0).on_batch(before, seen)
    close(frozen["momentum/scale"], tensor(1.0, 1.0))
    gone = replace(exchange, momentum=0.0).on_batch(before, seen)
    close(gone["momentum/scale"], tensor(5.0, 0.0))


def test_batch_larger_than_the_queue_keeps_its_first_samples() -> None:
    seen = view(
        torch.zeros(3, 2, dtype=DOUBLE),
        [2, 0, 1],
        source=tensor([0.5, 0.0], [0.0, 0.5], [0.3, 0.4]).reshape(3, 1, 1, 2),
        draws=torch.full((AS_IT_IS.draws, 3), 0.5, dtype=DOUBLE),
    )
    after = POOL.on_batch(state(tensor([0.6, 0.8], [0.8, 0.6]), [1, 1]), seen)
    close(after["queue"], tensor([1.0, 0.0], [0.0, 1.0]), 1e-7)
    assert after["index"].tolist() == [2, 0]


def opened(queue: int, draws: list[float], valid: list[int]) -> State:
    exchange = replace(POOL, queue=queue)
    features = torch.arange(1.0, 2 * len(draws) + 1, dtype=DOUBLE).reshape(-1, 2)
    task = replace(TASK, public=Public(len(draws)))
    seen = view(features, task=task, valid=tensor(*valid), samples=tensor(sum(valid))[0], draws=tensor(draws))
    begun = exchange.on_round_start(exchange.init_state(seen), seen, Received({}, tensor(0), torch.tensor(True)))
    close(begun["queue"], unit_rows(features)[begun["index"]])
    close(begun["momentum/scale"], seen.parameters["scale"])
    return begun


@pytest.mark.parametrize(
    ("queue", "valid", "index"),
    [
        (2, [1, 1, 1, 1], [1, 2]),  # the smallest draws
        (4, [1, 1, 1, 1], [1, 2, 0, 3]),
        (9, [1, 1, 1, 1], [1, 2, 0, 3]),  # at most the size of the public set
        (4, [1, 1, 1, 0], [1, 2, 0, 1]),  # repeated in turn if there are fewer
        (4, [0, 0, 1, 1], [2, 3, 2, 3]),
    ],
)
def test_queue_starts_with_distinct_samples(queue: int, valid: list[int], index: list[int]) -> None:
    assert opened(queue, [0.3, 0.1, 0.2, 0.9], valid)["index"].tolist() == index


def test_only_distilling_learners_have_a_queue() -> None:
    witness = replace(POOL, distills=False)
    assert not witness.has_round_start and not witness.has_batch_hook and witness.init_state(view(TEACHERS[0])) == {}
    assert not witness.batch_draws and not witness.sample_draws
    assert (
        POOL.has_round_start
        and POOL.has_batch_hook
        and set(POOL.init_state(view(TEACHERS[0]))) == {"momentum/scale", "queue", "index"}
    )


# --- inside a learner


def tiny() -> SplitModel:
    features = nn.Sequential(nn.Flatten(), nn.Linear(4, 3, bias=False))
    return SplitModel(features, nn.Linear(3, 2))


def student(**settings: Any) -> Learner:
    exchange = Similarity(distills=True, form="pool", queue=5, momentum=0.5, **settings)
    role = Role(Augmented(), (exchange,), data="public")
    learner = Learner(LearnerSpec(tiny, role, SGD(lr=0.1), (1, 2, 2), dtype=DOUBLE, public=Public(6, "b" * 64)))
    learner.bind(template_state(learner))
    return learner


def taught(learner: Learner) -> tuple[Mapping[str, Received], Tensor]:
    """One teacher's answer, and the public samples."""
    generator = torch.Generator().manual_seed(3)
    inputs = torch.rand(6, 1, 2, 2, generator=generator, dtype=DOUBLE)
    rows = unit_rows(torch.randn(1, 6, 3, generator=generator, dtype=DOUBLE))
    return {"similarity": Received({"rows": rows}, torch.ones(1, dtype=DOUBLE), torch.tensor(True))}, inputs


def test_momentum_encoder_and_queue_update_before_the_loss() -> None:
    learner = student()
    heard, inputs = taught(learner)
    exchange = learner.exchanges[0]
    assert isinstance(exchange, Similarity)
    begun = represent(learner, inputs, torch.zeros(6, dtype=torch.int64))
    learner.start_round(begun, learner.count(6), {"similarity": torch.rand(1, 6, dtype=DOUBLE)}, heard)
    state = learner.state.exchange_state["similarity"]
    before = {k: v.clone() for k, v in state.items()}
    weight = learner.binding.model_parameters["features.1.weight"]
    with torch.no_grad():
        weight += 1.0  # as if it had been trained
    generator = torch.Generator().manual_seed(4)
    own, other = (torch.rand(exchange.views.draws, 2, generator=generator, dtype=DOUBLE) for _ in range(2))
    chosen = torch.tensor([4, 2])
    batch = Batch(inputs[chosen], torch.zeros(2, dtype=torch.int64), {"augmented": own, "similarity": other}, chosen)
    loss, terms = learner.losses(batch, learner.count(6), heard)
    slow = before["momentum/features.1.weight"] * 0.5 + weight.detach() * 0.5
    anchors = unit_rows(exchange.views.of(learner.task, inputs[chosen], other).flatten(1) @ slow.T)
    queue = torch.cat([anchors, before["queue"]])[:5]
    close(state["momentum/features.1.weight"], slow)
    close(state["queue"], queue)
    assert state["index"].tolist()[:2] == [4, 2]
    shown = exchange.views.of(learner.task, inputs[chosen], own).flatten(1) @ weight.T  # another view than the anchors'
    after = {"queue": queue, "index": state["index"]}
    asked = exchange.penalty(after, view(shown, [4, 2], learner.task), heard["similarity"])
    close(loss.detach(), asked.detach())
    assert terms[:2].tolist() == [0.0, loss.item()] and loss > 0
    loss.backward()  # type: ignore[no-untyped-call]
    assert weight.grad is not None and weight.grad.abs().sum() > 0


def test_stacked_students_equal_single_students() -> None:
    """The hooks under vmap, with a separate answer for each student."""
    exchange = replace(POOL, queue=3, momentum=0.5, keep=0.5)
    teachers = unit_rows(torch.randn(4, 2, 3, 2, dtype=DOUBLE))
    features, pixels = torch.randn(4, 2, 2, dtype=DOUBLE), torch.rand(4, 2, 1, 1, 2, dtype=DOUBLE)
    positions = torch.tensor([[0, 1], [2, 2], [1, 0], [2, 1]])
    scale = torch.rand(4, 2, dtype=DOUBLE)

    def one(teachers: Tensor, features: Tensor, pixels: Tensor, positions: Tensor, scale: Tensor) -> Tensor:
        draws = torch.full((AS_IT_IS.draws, 2), 0.5, dtype=DOUBLE)
        seen = view(features, positions, source=pixels)
        now = replace(seen, draws=draws, parameters={"scale": scale})
        begun = {"queue": unit_rows(teachers[0]), "index": torch.arange(3), "momentum/scale": 0 * scale + 1}
        floors = torch.full((2, 3), 0.2, dtype=DOUBLE)
        heard = Received({"rows": teachers, "floor": floors}, torch.ones(2, dtype=DOUBLE), torch.tensor(True))
        return exchange.penalty(exchange.on_batch(begun, now), now, heard)

    batches = (teachers, features, pixels, positions, scale)
    close(vmap(one)(*batches), torch.stack([one(*each) for each in zip(*batches, strict=True)]))


# --- refusals


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"keep": 0.0}, "keep is 0.0; it must be a share, above 0 and at most 1"),
        ({"keep": 1.5}, "keep is 1.5"),
        ({"momentum": 1.01}, "momentum is 1.01"),
        ({"temperature": 0.0}, "temperature is 0"),
        ({"student_temperature": -1.0}, "student_temperature is -1"),
        ({"queue": 1}, "queue is 1"),
        ({"down": -1}, "down is -1"),
        ({"width": -1}, "width is -1"),
        ({"form": "sum"}, "Known: auto, mean, pool"),
        ({"encoding": BIT}, "representations of one bit have no similarities"),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        Similarity(**settings)


def test_public_set_needs_at_least_two_samples() -> None:
    with pytest.raises(ConfigurationError, match="a role with data='public'"):
        Similarity().channel(replace(TASK, public=None))
    with pytest.raises(ConfigurationError, match="the public set has 1 sample; similarities need at least two"):
        Similarity().channel(replace(TASK, public=Public(1)))
    with pytest.raises(ConfigurationError, match="width is 1, and model has representations of width 2; set it to"):
        Similarity(width=1).channel(TASK)


# --- identity of the public set


@each_form
def test_channels_of_different_public_sets_do_not_match(exchange: Similarity) -> None:
    one, other = (exchange.channel(replace(TASK, public=Public(3, 64 * mark))) for mark in "ab")
    assert without_local_choices(one) != without_local_choices(other)
    assert (
        describe_difference(one, other)
        == "their public sets differ (SHA-256 aaaaaaaaaaaa... at one and bbbbbbbbbbbb... at the other)"
    )
    assert without_local_choices(one) == without_local_choices(exchange.channel(TASK))


@each_form
@pytest.mark.parametrize("encoding", ["float32", "float16", "int8", "int4"])
def test_charter_keeps_the_hash_of_the_public_set(exchange: Similarity, encoding: str) -> None:
    channel = replace(exchange, encoding=ENCODINGS[encoding]).channel(TASK)
    written = build_charter("alike", {"name": "flesd"}, 3, {"similarity": channel}, {}).to_toml()
    assert f'public_set = "{"a" * 64}"' in written
    read = read_charter(written).channels["similarity"]
    assert read == channel
    stranger = replace(exchange, encoding=ENCODINGS[encoding]).channel(replace(TASK, public=Public(3, "c" * 64)))
    assert without_local_choices(read) != without_local_choices(
        stranger
    ) and "public sets differ" in describe_difference(stranger, read)


# --- a large public set


class Largest(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the number of values of the largest tensor created."""

    values = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for each in made if isinstance(made, (tuple, list)) else [made]:
            if isinstance(each, Tensor):
                self.values = max(self.values, each.numel())
        return made


def largest_of(samples: int, exchange: Similarity, batch: int = 32, width: int = 16) -> dict[str, int]:
    """The largest number of values of a tensor in each hook, from shapes alone."""
    task, meta = Task(2, width, (1, 2, 2), public=Public(samples)), {"device": "meta", "dtype": torch.float32}
    whole, some = torch.empty(samples, width, **meta), torch.empty(batch, width, **meta)  # type: ignore[call-overload]
    common: dict[str, Any] = {
        "parameters": {"scale": torch.empty(width, **meta)},  # type: ignore[call-overload]
        "valid": torch.ones(samples, device="meta"),
        "samples": torch.tensor(samples, device="meta"),
        "encode": lambda parameters, inputs: inputs.flatten(1).repeat(1, 4) * parameters["scale"],
    }
    everything = view(whole, task=task, draws=torch.empty(1, samples, device="meta"), **common)
    pixels = torch.empty(batch, 1, 2, 2, device="meta")
    drawn = torch.empty(exchange.views.draws, batch, device="meta")
    positions = torch.empty(batch, dtype=torch.int64, device="meta")
    now = view(some, positions, task, **common, source=pixels, draws=drawn)
    entries = {"rows": torch.empty(exchange.down, samples, width, device="meta")}
    if exchange.keep < 1:
        entries["floor"] = torch.empty(exchange.down, samples, device="meta")
    heard = Received(entries, torch.ones(exchange.down, device="meta"), torch.tensor(True))
    found = {}
    with Largest() as largest:  # type: ignore[no-untyped-call]
        begun = exchange.on_round_start(exchange.init_state(everything), everything, heard)
        found["open"] = largest.values
    with Largest() as largest:  # type: ignore[no-untyped-call]
        moved = exchange.on_batch(begun, now)
        exchange.penalty(moved, now, heard)
        found["step"] = largest.values
    with Largest() as largest:  # type: ignore[no-untyped-call]
        exchange.contribute(begun, everything, heard)
        found["contribute"] = largest.values
    return found


@pytest.mark.parametrize("samples", [10_000, 50_000])
@pytest.mark.parametrize("keep", [1.0, 0.1])
def test_no_hook_creates_a_matrix_of_all_pairs(samples: int, keep: float) -> None:
    exchange = Similarity(distills=True, keep=keep)
    assert isinstance(exchange.channel(Task(2, 16, public=Public(samples))), schema.Pool)
    most = largest_of(samples, exchange)
    assert most["open"] <= 2048 * 16 + samples * 16
    assert most["step"] <= max(5 * 32 * 2048, 5 * 2048 * 16)  # teachers x batch x queue: independent of the public set
    assert most["contribute"] <= (1024 if keep < 1 else 16) * samples  # a block of rows at a time


def test_received_similarities_are_indexed_without_a_full_matrix() -> None:
    """In the mean form all pairs are sent; a step reads those of its batch and queue."""
    exchange = Similarity(distills=True, form="mean", queue=64)
    task, samples = Task(2, 4, public=Public(2000)), 2000
    heard = Received(
        {"similar": torch.empty(samples * (samples - 1) // 2, device="meta")}, torch.tensor(2), torch.tensor(True)
    )
    begun = {"queue": torch.empty(64, 4, device="meta"), "index": torch.empty(64, dtype=torch.int64, device="meta")}
    now = view(torch.empty(8, 4, device="meta"), begun["index"][:8], task)
    with Largest() as largest:  # type: ignore[no-untyped-call]
        exchange.penalty(begun, now, heard)
    assert largest.values <= samples * (samples - 1) // 2 + 1


only_in_robustness = pytest.mark.skipif(not FULL, reason="half a minute: make robustness")
LARGE = """
import numpy as np
from torch import nn
from consilience.data import Dataset
from consilience.models import SplitModel
from consilience.simulation.simulate import simulate

def tiny():
    return SplitModel(nn.Sequential(nn.Flatten(), nn.Linear(4, 16)), nn.Linear(16, 2))

inputs = np.random.default_rng(0).random((50_100, 1, 2, 2), dtype=np.float32)
targets = np.arange(len(inputs)) % 2
data = Dataset("many", inputs, targets, inputs[:50], targets[:50], 2)
result = simulate(
    data=data, model=tiny, method="flesd:distill_epochs=1:distill_batch=2000:queue=128", public=50_000, learners=3,
    rounds=1, batch_size=50, engine="ENGINE", workers=0, probe="none",
)
assert np.isfinite(result.history["loss.similarity"][-1, 0, 0])
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


@pytest.mark.parametrize("engine", ["loop", pytest.param("stack", marks=only_in_robustness)])
def test_public_set_of_fifty_thousand_fits_in_memory(engine: str) -> None:
    """All of its pairs would be 10 GB in float32."""
    done = subprocess.run(
        [sys.executable, "-c", LARGE.replace("ENGINE", engine)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 2_000_000, "in KiB"
