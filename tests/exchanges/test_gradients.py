"""Gradients: a part of the model that moves by vote only; equation 9 by hand, ties, and absent voters."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from consilience.channels import MovingMean
from consilience.data import Dataset, load
from consilience.errors import ChannelError, ConfigurationError, TrainingError
from consilience.exchanges import Contribution, Exchange, Gradients, Received, View
from consilience.exchanges.gradients import VOTE
from consilience.learner.initial_state import template_state
from consilience.learner.learner import Learner
from consilience.learner.local_training import zero_gradient
from consilience.learner.spec import LearnerSpec
from consilience.method import Method, Role
from consilience.methods import build_method
from consilience.models import SplitModel, build_model, cut
from consilience.objectives import TwoStage
from consilience.optimizers import SGD
from consilience.randomness import coin_flips
from consilience.relay.rejections import Rejection
from consilience.relay.upload_queue import QueuedUpload
from consilience.simulation.records.run_folder import RunFolder
from consilience.simulation.round import round as rounds_module
from consilience.simulation.round.participation import Presence
from consilience.simulation.simulate import simulate
from consilience.task import Task
from consilience.wire import codec, schema
from consilience.wire.encodings import BIT, FLOAT32, Bit, is_vote
from consilience.wire.headers import Part, format_parts
from tests.relay_tools import create_federation, manual_writer
from tests.voting_tools import common_of, flat, served, settings, stage

Command = Callable[..., tuple[int, str, str]]
each_engine = pytest.mark.parametrize("engine", ["loop", "stack"])
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def data() -> Dataset:
    return load("digits", train=120, test=40)


# By hand


def task(size: int) -> Task:
    return Task(
        2, 1, parameters={"server.w": (size,)}, parts={"device": frozenset(), "server": frozenset({"server.w"})}
    )


def seen(gradient: Tensor, samples: float = 3.0) -> View:
    """The exchange's view of a learner with this gradient."""
    none = torch.empty(0, dtype=gradient.dtype)
    return View(
        task=task(len(gradient)),
        parameters={"server.w": torch.zeros_like(gradient)},
        buffers={},
        inputs=none,
        features=none,
        logits=none,
        targets=none.long(),
        valid=none,
        classify=lambda features: features,
        samples=torch.tensor(samples, dtype=gradient.dtype),
        gradients={"server.w": gradient},
    )


def empty_received(version: float = 0.0) -> Received:
    return Received({}, torch.tensor(version, dtype=torch.float64), torch.tensor(True))


def quantized_vote(
    exchange: Gradients, gradient: Tensor, version: float = 0.0, samples: float = 3.0
) -> tuple[Tensor, float]:
    """A learner's upload, quantized as on the wire, and its weight."""
    put = exchange.contribute({}, seen(gradient, samples), empty_received(version))
    encoding = exchange.channel(task(len(gradient))).tensors["server.w"].up
    return torch.as_tensor(encoding.quantize(put.tensors["server.w"])), float(put.weight)


def aggregated(exchange: Gradients, start: Any, put: Sequence[tuple[Tensor, float]], version: int = 0) -> MovingMean:
    """A channel after these uploads are aggregated, in the array library of `start`."""
    made = exchange.channel(task(len(start)))
    mean = MovingMean(made, len(put), {"server.w": start})
    mean.version = version
    values = torch.stack([value for value, _ in put])
    weights = torch.tensor([weight for _, weight in put], dtype=torch.float64)
    if isinstance(start, np.ndarray):
        mean.upload(range(len(put)), {"server.w": values.numpy()}, weights.numpy(), [version] * len(put))
    else:
        mean.upload(range(len(put)), {"server.w": values}, weights, [version] * len(put))
    mean.aggregate()
    return mean


def test_equation_9_by_hand() -> None:
    """w <- w - delta x sign(sum of signs), with three voters, four weights and a delta of a quarter."""
    gradients = torch.tensor(
        [
            [0.5, -2.0, 1e-9, -3.0],  # signs + - + -
            [-0.1, -1.0, -5.0, -1.0],  #      - - - -
            [9.0, -0.5, -1e-3, 2.0],  #       + - - +
        ]
    )  # sums                               1 -3 -1 -1
    exchange = Gradients(delta=0.25)
    put = [quantized_vote(exchange, gradient) for gradient in gradients]
    # An upload is the direction in which a weight should move, against its gradient.
    assert [value.tolist() for value, _ in put] == [[-1, 1, -1, 1], [1, 1, 1, 1], [-1, 1, 1, -1]]
    for start in (torch.tensor([1.0, 1.0, 1.0, -2.0]), np.array([1, 1, 1, -2], dtype=np.float32)):
        mean = aggregated(exchange, start, put)
        assert mean.common["server.w"].tolist() == [0.75, 1.25, 1.25, -1.75]
        assert mean.reply["server.w"].tolist() == [-0.25, 0.25, 0.25, 0.25]
        assert mean.version == 1 and float(mean.answer().count) == 1.0


def test_mean_gradient_by_hand() -> None:
    """Without a vote: the mean over samples, of 1 and of 3, times delta."""
    exchange = Gradients(delta=0.5, vote=False)
    put = [
        quantized_vote(exchange, torch.tensor([4.0, 0.0]), samples=1.0),
        quantized_vote(exchange, torch.tensor([0.0, -2.0]), samples=3.0),
    ]
    assert [weight for _, weight in put] == [1.0, 3.0]
    mean = aggregated(exchange, torch.zeros(2), put)
    # (4 x 1 + 0 x 3) / 4 = 1, (0 x 1 - 2 x 3) / 4 = -1.5
    assert mean.common["server.w"].tolist() == [-0.5, 0.75]


@pytest.mark.parametrize("samples", [1.0, 30.0, 1e6])
def test_every_vote_has_weight_one(samples: float) -> None:
    assert quantized_vote(Gradients(), torch.tensor([1.0, -1.0]), samples=samples)[1] == 1.0


def test_votes_use_one_bit_each_way_with_a_fixed_scale() -> None:
    channel = Gradients(delta=0.02).channel(task(4))
    assert isinstance(channel, schema.Mean) and channel.moving and channel.rows == ()
    (tensor,) = channel.tensors.values()
    assert (tensor.up, tensor.down) == (VOTE, Bit(unit=0.02)) and is_vote(tensor.up) and is_vote(tensor.down)
    assert not is_vote(BIT) and not is_vote(FLOAT32)
    plain = Gradients(vote=False).channel(task(4)).tensors["server.w"]
    assert (plain.up, plain.down) == (FLOAT32, FLOAT32)


# Ties

MANY = 4000


def tied(version: int, like: str = "torch") -> np.ndarray:
    """The reply to two voters that disagree on every weight."""
    up = torch.ones(MANY), 1.0
    start = torch.zeros(MANY) if like == "torch" else np.zeros(MANY, np.float32)
    return np.asarray(aggregated(Gradients(delta=1.0), start, [up, (-up[0], 1.0)], version).reply["server.w"])


def test_ties_are_broken_by_a_reproducible_coin_flip() -> None:
    first = tied(0)
    assert set(first.tolist()) == {-1.0, 1.0}
    np.testing.assert_array_equal(first, tied(0, "numpy"))  # a relay computes the same as a simulation
    np.testing.assert_array_equal(first, coin_flips("gradients.server.w", 0, np.zeros(MANY, np.float32)))
    assert abs(first.mean()) < 4 / math.sqrt(MANY)  # about half of them are +1
    second = tied(1)
    assert abs((first * second).mean()) < 4 / math.sqrt(MANY), "and another time another half"
    assert abs(second.mean()) < 4 / math.sqrt(MANY)


@pytest.mark.parametrize("shape", [(), (7,), (3, 5), (2, 3, 4)])
def test_coin_flips_are_equal_in_numpy_and_torch_and_under_vmap(shape: tuple[int, ...]) -> None:
    mine = coin_flips("w", 5, np.zeros(shape, np.float32))
    assert mine.shape == shape and mine.dtype == np.float32 and set(mine.reshape(-1).tolist()) <= {-1.0, 1.0}
    theirs = coin_flips("w", torch.tensor(5.0, dtype=torch.float64), torch.zeros(shape, dtype=torch.float64))
    assert theirs.dtype == torch.float64
    np.testing.assert_array_equal(mine, theirs.numpy())
    turns = torch.tensor([4.0, 5.0, 6.0], dtype=torch.float64)
    stacked = torch.func.vmap(lambda turn, x: coin_flips("w", turn, x))(turns, torch.zeros(3, *shape))
    for turn, drawn in zip((4, 5, 6), stacked, strict=True):
        np.testing.assert_array_equal(drawn.numpy(), coin_flips("w", turn, np.zeros(shape, np.float32)))


def test_coin_flips_depend_on_the_tensor_name() -> None:
    zeros = np.zeros(MANY, np.float32)
    assert abs((coin_flips("gradients.a", 0, zeros) * coin_flips("gradients.b", 0, zeros)).mean()) < 4 / math.sqrt(MANY)


def test_zero_gradient_votes_by_the_common_coin_flip() -> None:
    """A weight with a gradient votes by its sign, one without by the coin flip of the common values' version."""
    gradient = torch.zeros(MANY)
    gradient[:2] = torch.tensor([3.0, -3.0])
    for version in (0, 4):
        put, weight = quantized_vote(Gradients(), gradient, version)
        thrown = coin_flips("gradients.server.w", version, np.zeros(MANY, np.float32))
        assert put[:2].tolist() == [-1.0, 1.0] and weight == 1.0
        np.testing.assert_array_equal(put[2:].numpy(), thrown[2:])
    # If no learner has a gradient, all flip the same coin as a tie would.
    silent = quantized_vote(Gradients(delta=1.0), torch.zeros(MANY))
    mean = aggregated(Gradients(delta=1.0), torch.zeros(MANY), [silent] * 3)
    np.testing.assert_array_equal(mean.reply["server.w"].numpy(), tied(0))


def test_negative_zero_gradient_votes_by_coin_flip() -> None:
    assert (
        quantized_vote(Gradients(), torch.tensor([0.0, -0.0] * 50))[0].tolist()
        == coin_flips("gradients.server.w", 0, np.zeros(100, np.float32)).tolist()
    )


# Who may vote, and votes without voters


def test_vote_without_voters_moves_nothing() -> None:
    made, start = Gradients(delta=1.0).channel(task(3)), torch.tensor([1.0, 2.0, 3.0])
    mean = MovingMean(made, 2, {"server.w": start})
    assert mean.aggregate() is False
    mean.upload([0, 1], {"server.w": torch.ones(2, 3)}, torch.zeros(2), [0, 0])  # present, but with weight 0
    assert mean.aggregate() is False
    assert mean.version == 0 and torch.equal(mean.common["server.w"], start)
    mean.upload([1], {"server.w": torch.ones(1, 3)}, torch.ones(1), [0])
    assert mean.aggregate() is True and mean.common["server.w"].tolist() == [2.0, 3.0, 4.0]


@pytest.mark.parametrize("weight", [2.0, 0.5, 30.0])
def test_channel_refuses_a_vote_of_another_weight(weight: float) -> None:
    mean = MovingMean(Gradients().channel(task(3)), 2, {"server.w": torch.zeros(3)})
    with pytest.raises(ChannelError, match=f"gradients: member 1 has weight {weight}; the weight of a vote is 1 or 0"):
        mean.upload([0, 1], {"server.w": torch.ones(2, 3)}, torch.tensor([1.0, weight]), [0, 0])
    assert mean.aggregate() is False, "nothing of the put was taken"


def test_stale_vote_counts_fully_and_too_stale_vote_not_at_all() -> None:
    exchange = Gradients(delta=1.0, max_staleness=2)
    mean = MovingMean(exchange.channel(task(MANY)), 3, {"server.w": torch.zeros(MANY)})
    mean.version = 3
    put = torch.tensor([1.0, -1.0, -1.0])[:, None].expand(3, MANY)
    assert mean.upload([0, 1, 2], {"server.w": put}, torch.ones(3), [3, 1, 0]) == [2]
    assert mean.aggregate()
    # One for, one against: a stale vote that counted less would have left no ties.
    np.testing.assert_array_equal(mean.reply["server.w"].numpy(), tied(3))


def test_relay_refuses_a_vote_of_another_weight(tmp_path: Path) -> None:
    channel = schema.Mean("weights", {"w": schema.Tensor((9,), VOTE, Bit(unit=0.25))}, moving=True)
    federation = create_federation(tmp_path, 2, {"weights": channel})
    with manual_writer(federation) as relay:
        upload = federation.upload(0, 1)

        def put(member: int, weight: float) -> BaseException | None:
            said = format_parts({"weights": Part(version=0, weight=weight)})
            (receipt,) = relay.write(QueuedUpload(member + 1, 1, said, upload.body))
            return receipt.exception(timeout=5)

        for weight in (3.5, 0.5):
            refused = put(0, weight)
            assert isinstance(refused, Rejection) and refused.code == "wrong-weight"
            assert f"weight={weight:g}; the weight of a vote is 1 or 0" in str(refused)
        assert put(0, 0.0) is None and put(1, 1.0) is None
        wishes = upload.of("weights")["w"]
        assert relay.version == 1
        moved = relay.service.snapshot.moving["weights"].common["w"]
        np.testing.assert_array_equal(moved, np.float32(1) + np.float32(0.25) * wishes)


# In a federation


def voted(**exchange: Any) -> Method:
    """Batches are never padded, because individual samples matter."""
    return Method("voted", {"learner": Role(TwoStage(alpha_1=0.1, alpha_2=0.5), (Gradients(**exchange),))})


@each_engine
@pytest.mark.parametrize("vote", [True, False])
def test_round_equals_plain_torch(vote: bool, engine: str, data: Dataset) -> None:
    """One step per round on 90, 20 and 10 samples: signs are counted, or gradients are weighted by samples."""
    config = settings(partition="shares(0.75, 0.17, 0.08)", batch_size=120, precision="float64")
    method = voted(delta=0.01, vote=vote)
    with stage(config, data, engine, method) as rounds:
        start = {name: value.clone() for name, value in common_of(rounds).items()}
        sizes = rounds.engine.plans[0].members.sizes
        assert len(set(sizes.tolist())) == 3 and sizes.max() > 4 * sizes.min()
        expected = {name: torch.zeros_like(value) for name, value in start.items()}
        loud = {name: torch.ones_like(value, dtype=torch.bool) for name, value in start.items()}
        for row in range(3):
            learner = rounds.learners[0]
            learner.bind(rounds.engine.read(0).row(row).clone())
            chosen = rounds.engine.plans[0].members.samples(row)
            inputs = torch.from_numpy(data.inputs[chosen]).double()
            loss = F.cross_entropy(learner.model(inputs), torch.from_numpy(data.targets[chosen]))
            named = dict(learner.model.named_parameters())
            gradients = torch.autograd.grad(loss, [named[name] for name in start])
            for name, gradient in zip(start, gradients, strict=True):
                expected[name] -= gradient.sign() if vote else gradient * (sizes[row] / sizes.sum())
                loud[name] &= gradient != 0
        rounds.run(evaluate=False)
        for name, value in common_of(rounds).items():
            step = expected[name].sign() if vote else expected[name]
            sure = loud[name] if vote else torch.ones_like(loud[name])  # no coin flip if all have a gradient
            assert sure.float().mean() > 0.5
            torch.testing.assert_close(value[sure], (start[name] + 0.01 * step)[sure], rtol=0, atol=1e-9)


@each_engine
@pytest.mark.parametrize(
    "trained",
    [
        {"optimizer": "adam", "weight_decay": 0.1},
        {"optimizer": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 0.1},
    ],
    ids=["adam", "sgd"],
)
def test_local_training_changes_the_device_part_only(trained: dict[str, Any], engine: str, data: Dataset) -> None:
    """All learners are offline, so there is no vote."""
    with stage(settings(offline=1.0, epochs=2, **trained), data, engine) as rounds:
        device, server = flat(rounds, "device"), flat(rounds, "server")
        for _ in range(2):
            record = rounds.run(evaluate=False)
        assert torch.equal(flat(rounds, "server"), server)
        assert rounds.federations[0].version("gradients") == 0
        assert record["bytes.up"].sum() == record["bytes.down"].sum() == 0
        assert (flat(rounds, "device") != device).any(dim=1).all()


@each_engine
def test_server_parts_have_the_same_bits_for_all_up_to_date_learners(
    engine: str, data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings(learners=10, participation=0.3, offline=0.3, batch_size=4, partition="dirichlet(0.5)")
    with stage(config, data, engine, method=build_method("two-stage", {"alpha_1": 0.0})) as rounds:
        by_version = {0: {name: value.clone() for name, value in common_of(rounds).items()}}
        behind = 0
        for _ in range(8):
            rounds.run(evaluate=False)
            newest = rounds.federations[0].version("gradients")
            by_version[newest] = {name: value.clone() for name, value in common_of(rounds).items()}
            held = rounds.answers.versions(rounds.answers.held[0]["gradients"])
            behind += int((held < newest).sum())
            for row in range(10):
                mine = served(rounds, row)
                assert all(torch.equal(mine[name], value) for name, value in by_version[int(held[row])].items())
        assert behind > 0 and newest > 2, "or the test shows nothing"
        everybody = np.ones((1, 10), dtype=bool)
        monkeypatch.setattr(rounds_module, "draw_presence", lambda *given: Presence(everybody, everybody))
        rounds.run(evaluate=False)
        for row in range(10):
            mine = served(rounds, row)
            assert all(torch.equal(mine[name], value) for name, value in common_of(rounds).items())
        assert not torch.equal(flat(rounds, "device")[0], flat(rounds, "device")[1])


def test_one_bit_per_weight_is_sent_each_way(data: Dataset) -> None:
    result = simulate(settings(rounds=1), data=data)
    names = build_model("mlp", data.shape, data.classes).parts["server"]
    own = {n: p for n, p in build_model("mlp", data.shape, data.classes).named_parameters() if n in names}
    count = sum(p.numel() for p in own.values())
    assert count == 64 * 32 + 32 + 32 * 10 + 10
    task_ = Task(10, 32, parameters={n: tuple(p.shape) for n, p in own.items()})
    channel = replace(Gradients(), part="*").channel(task_)
    for way, unit in (("up", 1.0), ("down", 1e-3)):
        message = channel.message("up" if way == "up" else "down")
        drawn = {
            k: np.where(np.arange(f.size) % 3, unit, -unit).reshape(f.shape).astype("f4") for k, f in message.items()
        }
        body = codec.encode(message, drawn)
        assert len(body) == codec.encoded_size(message) == result.message_bytes[way]
        # The bits and a header that describes them; nothing else grows with the number of weights.
        assert math.ceil(count / 8) <= len(body) <= math.ceil(count / 8) + 256
        assert all(np.array_equal(codec.decode(message, body)[k], v) for k, v in drawn.items())
    assert result.history["bytes.up"][0].tolist() == [[result.message_bytes["up"]] * 3]
    assert result.history["bytes.down"][0].tolist() == [[result.message_bytes["down"]] * 3]


# NaN and infinite values


class Rooted(nn.Module):
    """The server has a weight at 0 under a square root: the loss is finite, the weight's gradient is infinite."""

    def __init__(self) -> None:
        super().__init__()
        self.device, self.root, self.head = nn.Linear(64, 8), Root(), nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.root(torch.relu(self.device(x.flatten(1)))))
        return logits


class Root(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.weight.square().sqrt()


def rooted() -> SplitModel:
    return cut(Rooted(), at="device")


@each_engine
def test_non_finite_gradient_stops_the_run_and_names_the_learner(engine: str, data: Dataset) -> None:
    with pytest.raises(TrainingError) as stopped:
        simulate(settings(rounds=2, engine=engine), data=data, model=rooted)
    said = str(stopped.value)
    assert said.startswith(
        "two-stage: learner 0 (seed 0), round 1: the upload to exchange 'gradients' is NaN or infinite"
    )


def test_nan_remains_visible_in_one_bit_encoding() -> None:
    put, _ = quantized_vote(Gradients(), torch.tensor([1.0, math.nan, -1.0]))
    assert put[[0, 2]].tolist() == [-1.0, 1.0] and math.isnan(put[1])
    assert np.isnan(BIT.quantize(np.array([1.0, np.nan]))).any()


# Settings


@pytest.mark.parametrize(
    ("delta", "said"),
    [
        (0, "delta is 0; it must be a finite number, 1e-12 or more"),
        (-0.1, "delta is -0.1"),
        (math.nan, "delta is nan"),
        (math.inf, "delta is inf"),
        ("ramp(0.1, 0.01, 5)", r"delta is ramp\(0.1, 0.01, 5\), and cannot change with the rounds; give one number"),
        ("much", "delta"),
    ],
)
def test_invalid_delta_is_refused(delta: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        build_method("two-stage", {"delta": delta})


@pytest.mark.parametrize("field", [{"every": 0}, {"max_staleness": -1}, {"delta": True}, {"part": None}, {"part": ""}])
def test_other_invalid_settings_are_refused(field: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(field))):
        Gradients(**field)


def learner_with(model: Callable[[], nn.Module], exchange: Exchange) -> Learner:
    return Learner(LearnerSpec(model, Role(exchanges=(exchange,)), SGD(), (6,), "net"))


def plain() -> SplitModel:
    return SplitModel(nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4)), nn.Linear(4, 3))


def test_part_that_matches_nothing_is_refused_with_the_existing_parts() -> None:
    for model, exchange, said in (
        (
            lambda: cut(plain(), at="1"),
            Gradients(part="tail"),
            "part 'tail' covers nothing of net; its parts are device, s",
        ),
        (plain, Gradients(part="tail"), "part 'tail' covers nothing of net; its parameters are fea"),
        (plain, Gradients(), "part 'server' needs a model in two parts, and net is not cut; use a model that is cut"),
    ):
        with pytest.raises(ConfigurationError, match=f"gradients: {said}"):
            learner_with(model, exchange)


def test_part_may_be_a_module_of_an_unsplit_model() -> None:
    learner = learner_with(plain, Gradients(part="classifier"))
    assert list(learner.channels["gradients"].tensors) == ["classifier.weight", "classifier.bias"]
    assert learner.optimized is not None and int(learner.optimized.sum()) == 6 * 5 + 5 + 5 * 4 + 4


def test_frozen_weight_is_no_member_of_the_part() -> None:
    """Coin flips would move it in every round."""

    def frozen() -> SplitModel:
        model = cut(plain(), at="1")
        model.classifier.bias.requires_grad_(False)
        return model

    whole = list(learner_with(lambda: cut(plain(), at="1"), Gradients()).channels["gradients"].tensors)
    found = list(learner_with(frozen, Gradients()).channels["gradients"].tensors)
    assert "classifier.bias" in whole and found == [name for name in whole if name != "classifier.bias"]


# Several values of delta

SMALL = ["--learners", "3", "--rounds", "1", "--train", "60", "--test", "40", "--engine", "loop", "--workers", "0"]


def test_sweep_uses_each_delta(command: Command) -> None:
    """From one start the first votes are equal, so all weights differ by the difference of the deltas."""
    given = ["sweep", "--method", "two-stage", "--set", "method.delta=0.01,0.5", *SMALL, "--out", "swept", "--json"]
    code, out, err = command(*given)
    assert code == 0, err
    folders = sorted(Path("swept").rglob("config.toml"))
    kept = {f.parent: RunFolder.open(f.parent).load() for f in folders if list(f.parent.glob("checkpoint-*"))}
    found = [checkpoint[0] for checkpoint in kept.values() if checkpoint is not None]
    assert len(found) == 2, out
    server = [key for key in found[0] if key.startswith("channels.0.gradients.common.")]
    assert server
    for key in server:
        far = np.abs(found[0][key].astype(np.float64) - found[1][key])
        np.testing.assert_allclose(far, 0.49, rtol=0, atol=1e-6)
    assert [json.loads(line) for line in out.splitlines()]


def test_variants_with_different_delta_cannot_share_a_run(data: Dataset) -> None:
    variants = [{"method.delta": 0.01}, {"method.delta": 0.5}]
    with pytest.raises(ConfigurationError, match=r"method\.delta=.* changes more than weights and rates"):
        simulate(settings(rounds=1, variants=variants), data=data)


def test_learners_of_one_federation_have_one_delta(data: Dataset) -> None:
    groups = {"hasty": {"learners": [1], "method": {"delta": 0.5}}}
    with pytest.raises(ConfigurationError, match="cannot share 'gradients'") as refused:
        simulate(settings(rounds=1, groups=groups), data=data)
    said = str(refused.value)
    assert re.search(r"is downloaded in bit\([\d.]+\) at one and bit\(0\.5\) at the other", said)
    assert "delta must be the same for all: it is a setting of the method and not of a group" in said


def test_contribution_has_a_vote_for_each_weight_of_the_part(data: Dataset) -> None:
    with stage(settings(), data) as rounds:
        learner = rounds.learners[0]
        learner.bind(template_state(learner))
        received = {"gradients": Received(common_of(rounds), torch.zeros((), dtype=torch.float64), torch.tensor(True))}
        gradient = zero_gradient(learner)
        uploads = learner.contribute(learner.no_samples(), learner.count(9), {}, received, gradient)
        put: Contribution = uploads["gradients"]
        assert set(put.tensors) == set(common_of(rounds)) and float(put.weight) == 1.0
        assert all(set(value.flatten().tolist()) <= {-1.0, 1.0} for value in put.tensors.values())
