"""Learners with several roles: roles share one model, bytes are counted once, and invalid roles are refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from consilience.channels import EntryPool, MovingMean
from consilience.config.config import make_config
from consilience.data import Dataset, load
from consilience.errors import ConfigurationError
from consilience.exchanges import Similarity, Weights
from consilience.functional.similarity import unit_rows
from consilience.learner.passes import compute_features
from consilience.method import Method, Role
from consilience.methods import build_method
from consilience.objectives import Augmented, CrossEntropy, build_objective
from consilience.simulation.engines.loop.engine import LoopEngine
from consilience.simulation.round.round import Rounds
from consilience.simulation.setup.setup import build_setup
from consilience.simulation.simulate import simulate
from consilience.wire import codec

ROWS = Similarity(form="pool", down=3)
WITNESS = Role(Augmented(), (ROWS,), downloads=(), data="public", epochs=0)
ALONE = Role(build_objective("simclr"))
WATCHED = Method("watched", {"learner": ALONE, "witness": WITNESS}, {0: "witness"}, ("learner", "witness"), host=0)
"""Everybody learns alone, and shows after it what the public set looks like."""
FLESD: dict[str, Any] = {"distill_epochs": 2, "distill_batch": 16, "queue": 20, "form": "pool", "down": 3}

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def data() -> Dataset:
    return load("digits", train=80, test=40)


@contextmanager
def open_rounds(data: Dataset, method: Method, **settings: Any) -> Iterator[Rounds]:
    common: dict[str, Any] = {"learners": 4, "batch_size": 10, "probe": "knn", "workers": 0, "precision": "float64"}
    setup = build_setup(make_config(common | settings), method, data, ["mlp"])
    with LoopEngine(list(setup.cohorts.plans), data, 0) as engine:
        yield Rounds(setup, engine)


def model_of(rounds: Rounds, who: int, role: str | None = None, federation: int = 0) -> dict[str, Tensor]:
    """A learner's model in the cohort of its first role, or of the given role."""
    home = rounds.setup.cohorts.main[federation, who]
    cohorts = [i for i, plan in enumerate(rounds.engine.plans) if plan.role == role] if role else [home]
    (cohort,) = [i for i in cohorts if rounds.setup.cohorts.rows[i, federation, who] >= 0]
    learner, row = rounds.learners[cohort], int(rounds.setup.cohorts.rows[cohort, federation, who])
    parameters = learner.binding.parameters.views(rounds.engine.read(cohort).parameters[row])
    return {name: parameters[name].clone() for name in learner.binding.model_parameters}


def same_parameters(one: Mapping[str, Tensor], other: Mapping[str, Tensor], part: str = "") -> bool:
    """Whether models agree in their common parameters; a projection head belongs to one role."""
    names = [name for name in one.keys() & other.keys() if name.startswith(part)]
    assert names
    return all(torch.equal(one[name], other[name]) for name in names)


def public_features(rounds: Rounds, who: int) -> Tensor:
    """Features of the public set from a learner's current model, normalized to length 1."""
    cohort = int(rounds.setup.cohorts.main[0, who])
    learner = rounds.learners[cohort]
    learner.bind(rounds.engine.read(cohort).row(int(rounds.setup.cohorts.rows[cohort, 0, who])))
    public = np.sort(rounds.setup.data.local_datasets[0].parts[0])
    return unit_rows(compute_features(learner, torch.from_numpy(rounds.setup.data.train.inputs[public]).double()))


def pool_entries(rounds: Rounds) -> Tensor:
    """The entries of the pool, (learners, samples, width)."""
    pool = rounds.federations[0].channels["similarity"]
    assert isinstance(pool, EntryPool)
    return torch.as_tensor(pool.values["rows"])[:, 0].clone()


# Roles of learners


def test_roles_follow_the_order_of_the_method() -> None:
    method = Method("m", {"a": Role(), "b": Role(), "c": Role()}, {1: "b", 2: ("c", "a")}, usual=("c", "b"))
    assert [method.roles_of(who) for who in range(4)] == [("b", "c"), ("b",), ("a", "c"), ("b", "c")]
    assert [method.role_of(who) for who in range(4)] == ["b", "b", "a", "b"]
    assert Method("m", {"a": Role(), "b": Role()}).roles_of(5) == ("a",)


def test_flesd_distills_at_one_distiller_or_at_every_learner() -> None:
    one, all_ = build_method("flesd"), build_method("flesd", {"distill": "learner"})
    assert [one.roles_of(who) for who in (0, 1)] == [("distiller",), ("learner", "witness")]
    assert [all_.roles_of(who) for who in (0, 1)] == [("distiller",), ("learner", "witness", "distiller")]
    assert one.host == all_.host == 0 and build_method("flesd-cc").once
    assert "weights" not in {e.name for e in all_.exchanges}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Method("m", {}), "method 'm' has no role"),
        (lambda: Method("m", {"a": Role()}, {0: "b"}), "gives members the role 'b', which it does not have"),
        (lambda: Method("m", {"a": Role()}, {0: ("a", "b")}), "gives members the role 'b', which it does not have"),
        (lambda: Method("m", {"a": Role()}, usual=("a", "z")), "gives members the role 'z', which it does not have"),
        (lambda: Method("m", {"a": WITNESS}), "works on the public set; say whose samples these are, such as host=0"),
    ],
)
def test_invalid_method_is_refused_when_created(make: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        make()


@pytest.mark.parametrize(
    ("method", "learners", "words"),
    [
        (replace(WATCHED, members={7: "witness"}), 4, "gives learner 7 a role; there are learners 0 to 3"),
        (replace(WATCHED, members={}, usual=("learner",)), 4, "none of 4 learners has the role 'witness'"),
        (replace(WATCHED, members={}, host=4), 4, "uses the samples of learner 4 .* there are learners 0 to 3"),
        (replace(WATCHED, members={}, host=-1), 4, "uses the samples of learner -1"),
        (build_method("flesd"), 1, "needs at least two learners"),
    ],
)
def test_invalid_participants_are_refused(method: Method, learners: int, words: str, data: Dataset) -> None:
    with pytest.raises(ConfigurationError, match=words), open_rounds(data, method, learners=learners):
        pass


def test_any_learner_may_be_the_host(data: Dataset) -> None:
    last = replace(WATCHED, members={3: "witness"}, host=3)
    with open_rounds(data, last) as rounds:
        rounds.start()
        rounds.run(evaluate=False)
        public = rounds.setup.data.local_datasets[0].parts[3]
        assert np.array_equal(rounds.engine.plans[1].members.samples(0), np.sort(public))
        assert rounds.setup.public_bytes[0].tolist() == [64 * len(public)] * 3 + [0]


# Roles share one model


def test_role_without_training_uploads_the_model_of_the_first_role(data: Dataset) -> None:
    with open_rounds(data, WATCHED) as rounds:
        rounds.start()
        for _ in range(2):
            untrained = [public_features(rounds, who) for who in range(4)]
            rounds.run(evaluate=False)
            for who in range(1, 4):
                assert same_parameters(model_of(rounds, who), model_of(rounds, who, "witness"))
                assert torch.equal(pool_entries(rounds)[who], public_features(rounds, who))
                assert not torch.allclose(pool_entries(rounds)[who], untrained[who])
            assert torch.equal(pool_entries(rounds)[0], untrained[0]), "who only looks stays as it was"


def test_second_role_without_training_does_not_change_learning(data: Dataset) -> None:
    """The learners continue from their own model in the next round, as without the second role."""
    only = Method("only", {"learner": ALONE, "witness": WITNESS}, {0: "witness"}, ("learner",), host=0)
    found = []
    for method in (WATCHED, only):
        with open_rounds(data, method) as rounds:
            rounds.start()
            for _ in range(3):
                rounds.run(evaluate=False)
            found.append([model_of(rounds, who) for who in range(1, 4)])
    assert all(same_parameters(one, other) for one, other in zip(*found, strict=True))


def test_received_weights_replace_those_of_another_role(data: Dataset) -> None:
    """The distiller's features go to the learners, whose newest model is in the witness role."""
    with open_rounds(data, build_method("flesd", FLESD)) as rounds:
        rounds.start()
        for _ in range(2):
            rounds.run(evaluate=False)
            channel = rounds.federations[0].channels["weights"]
            assert isinstance(channel, MovingMean)
            for who in range(4):
                assert same_parameters(channel.common, model_of(rounds, who), "features")
            for who in range(1, 4):
                assert not same_parameters(model_of(rounds, who), model_of(rounds, who, "witness"), "features"), (
                    "still as it was shown"
                )
                assert same_parameters(model_of(rounds, who), model_of(rounds, who, "witness"), "classifier")


def test_round_ends_with_the_model_of_the_last_role(data: Dataset) -> None:
    """If every learner distills, the distilled model is tested, and trained further in the next round."""
    with open_rounds(data, build_method("flesd", FLESD | {"distill": "learner"})) as rounds:
        rounds.start()
        for _ in range(2):
            record = rounds.run(evaluate=True)
            for who in range(1, 4):
                assert same_parameters(model_of(rounds, who), model_of(rounds, who, "distiller"))
                assert not same_parameters(model_of(rounds, who), model_of(rounds, who, "witness"), "features")
                assert not torch.allclose(pool_entries(rounds)[who], public_features(rounds, who))
    told = record["accuracy"].copy()
    with open_rounds(data, build_method("flesd", FLESD | {"distill": "learner", "distill_lr": 1e-9})) as rounds:
        rounds.start()
        for _ in range(2):
            record = rounds.run(evaluate=True)
    assert (record["accuracy"] != told).any(), "or it would not matter which model is tested"


def test_absent_learner_keeps_its_model_in_every_role(data: Dataset) -> None:
    with open_rounds(data, build_method("flesd", FLESD | {"distill": "learner"}), participation=0.4) as rounds:
        rounds.start()
        for _ in range(4):
            before = [model_of(rounds, who) for who in range(4)]
            there = rounds.run(evaluate=False)["participated"][0].astype(bool)
            assert there[0] and there.sum() == 2
            assert [same_parameters(before[who], model_of(rounds, who)) for who in range(4)] == (~there).tolist()


# Records


def test_host_participates_in_every_round(data: Dataset) -> None:
    with open_rounds(data, WATCHED, learners=5, participation=0.5) as rounds:
        rounds.start()
        there = np.stack([rounds.run(evaluate=False)["participated"][0] for _ in range(8)])
    assert there[:, 0].all() and (there[:, 1:].sum(1) == 2).all(), "half of the other four"
    assert there[:, 1:].any(0).sum() > 2


def test_losses_of_all_roles_are_recorded(data: Dataset) -> None:
    with open_rounds(data, build_method("flesd", FLESD | {"distill": "learner"})) as rounds:
        rounds.start()
        record = rounds.run(evaluate=False)
    assert np.isnan(record["loss.simclr"][0, 0]) and (record["loss.simclr"][0, 1:] > 0).all()
    assert (record["loss.similarity"][0] > 0).all()


def encoded_length(rounds: Rounds, role: str, direction: str, names: list[str]) -> int:
    """The encoded length of a message body with these exchanges of a role."""
    (cohort,) = [i for i, plan in enumerate(rounds.engine.plans) if plan.role == role]
    message = rounds.byte_counts[cohort].message(direction, names)  # type: ignore[arg-type]
    return len(codec.encode(message, {k: np.zeros(f.shape, dtype=np.float32) for k, f in message.items()}))


def test_bytes_of_all_roles_are_summed(data: Dataset) -> None:
    """Learners that share weights and representations upload two bodies and download one: witnesses do not download."""
    sharing = Role(build_objective("simclr"), (Weights(part="features"),))
    pupil = Role(Augmented(), (replace(ROWS, distills=True, queue=5),), uploads=(), data="public", epochs=1)
    roles = {"learner": sharing, "witness": WITNESS, "pupil": pupil}
    both = Method("both", roles, {0: ("witness", "pupil")}, ("learner", "witness"), host=0)
    with open_rounds(data, both) as rounds:
        start = rounds.start()
        record = rounds.run(evaluate=False)
        weights = [encoded_length(rounds, "learner", way, ["weights"]) for way in ("up", "down")]
        rows = (
            encoded_length(rounds, "witness", "up", ["similarity"]),
            encoded_length(rounds, "pupil", "down", ["similarity"]),
        )
    assert record["bytes.up"][0].tolist() == [rows[0]] + [rows[0] + weights[0]] * 3
    assert record["bytes.down"][0].tolist() == [rows[1]] + [weights[1]] * 3
    public = 64 * 20  # pixels of twenty samples
    assert start["bytes.public"][0].tolist() == start["bytes.down"][0].tolist() == [0, public, public, public]
    assert not start["bytes.up"].any() and not record["bytes.public"].any()
    assert rows[0] - 20 * 32 * 4 < 200 and rows[1] - 3 * 20 * 32 * 4 < 200, "the rest is names"


@pytest.mark.parametrize("distill", ["distiller", "learner"])
@pytest.mark.parametrize("encoding", ["float32", "float16", "int8", "int4"])
def test_counted_bytes_equal_encoded_bytes(distill: str, encoding: str, data: Dataset) -> None:
    method = build_method("flesd", FLESD | {"distill": distill, "encoding": encoding, "keep": 0.5})
    with open_rounds(data, method) as rounds:
        rounds.start()
        record = rounds.run(evaluate=False)
        up, down = (
            encoded_length(rounds, role, way, ["similarity"])
            for role, way in (("witness", "up"), ("distiller", "down"))
        )
        weights = encoded_length(rounds, "distiller", "up", ["weights"]) if distill == "distiller" else 0
    assert record["bytes.up"][0].tolist() == [weights, up, up, up]
    assert record["bytes.down"][0].tolist() == [down + weights] + [weights or down] * 3


def test_public_set_is_sent_once_and_counted(data: Dataset) -> None:
    result = simulate(
        data=data, method="flesd:distill_epochs=1", learners=4, public=17, rounds=2, workers=0, probe="none"
    )
    summary = result.summary()
    assert summary["public_bytes"] == 3 * 17 * 64
    rounds = sum(result.history[f"bytes.{way}"].sum() for way in ("up", "down"))
    assert summary["bytes_total"] == rounds + summary["public_bytes"]


def test_public_tables_count_four_bytes_per_value(data: Dataset) -> None:
    flat = {k: getattr(data, k).reshape(len(getattr(data, k)), 64) for k in ("inputs", "test_inputs")}
    plain = Role(CrossEntropy(), (ROWS,), downloads=(), data="public", epochs=0)
    method = Method("plain", {"learner": Role(), "witness": plain}, {0: "witness"}, ("learner", "witness"), host=0)
    with open_rounds(replace(data, **flat), method) as rounds:
        assert rounds.setup.public_bytes[0].tolist() == [0] + [4 * 64 * 20] * 3
        rounds.start()
        assert np.isfinite(rounds.run(evaluate=True)[f"loss.{CrossEntropy.name}"][0, 1:]).all()


# Groups


def test_group_training_settings_do_not_apply_to_the_public_set(data: Dataset) -> None:
    """Epochs and batch size on the public set are settings of the method."""
    groups = {"eager": {"learners": [1], "epochs": 3, "batch_size": 5, "lr": 0.01}}
    with open_rounds(data, build_method("flesd", FLESD | {"distill": "learner"}), groups=groups) as rounds:
        rounds.start()
        rounds.run(evaluate=False)
        steps = {
            (plan.role, int(who)): int(rounds.engine.read(i).step[row])
            for i, plan in enumerate(rounds.engine.plans)
            for row, who in enumerate(plan.members.learner)
        }
    assert steps["learner", 1] == 12 and steps["learner", 2] == 2  # twenty samples: 3 epochs by 5, 1 epoch by 10
    assert steps["distiller", 1] == steps["distiller", 2] == steps["distiller", 0] == 4  # batches of 16 for two epochs


def test_group_without_uploads_adds_nothing_to_the_pool(data: Dataset) -> None:
    groups = {"quiet": {"learners": [2], "uploads": False}}
    with open_rounds(data, build_method("flesd", FLESD), groups=groups) as rounds:
        rounds.start()
        record = rounds.run(evaluate=False)
        assert not pool_entries(rounds)[2].any() and pool_entries(rounds)[1].any() and pool_entries(rounds)[3].any()
    assert (record["bytes.up"][0] > 0).tolist() == [True, True, False, True]
    assert (record["bytes.down"][0] > 0).all()
