"""Learners of several roles: the model is taken along, everything is counted once, and who cannot be is refused."""

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
def stage(data: Dataset, method: Method, **settings: Any) -> Iterator[Rounds]:
    common: dict[str, Any] = {"learners": 4, "batch_size": 10, "probe": "knn", "workers": 0, "precision": "float64"}
    setup = build_setup(make_config(common | settings), method, data, ["mlp"])
    with LoopEngine(list(setup.cohorts.plans), data, 0) as engine:
        yield Rounds(setup, engine)


def model(rounds: Rounds, who: int, role: str | None = None, federation: int = 0) -> dict[str, Tensor]:
    """A learner's model as it lies in its first role's cohort, or in another's."""
    home = rounds.setup.cohorts.main[federation, who]
    cohorts = [i for i, plan in enumerate(rounds.engine.plans) if plan.role == role] if role else [home]
    (cohort,) = [i for i in cohorts if rounds.setup.cohorts.rows[i, federation, who] >= 0]
    learner, row = rounds.learners[cohort], int(rounds.setup.cohorts.rows[cohort, federation, who])
    parameters = learner.binding.parameters.views(rounds.engine.read(cohort).parameters[row])
    return {name: parameters[name].clone() for name in learner.binding.model_parameters}


def same(one: Mapping[str, Tensor], other: Mapping[str, Tensor], part: str = "") -> bool:
    """Whether models agree in all they both have; a projection head is of its role alone."""
    names = [name for name in one.keys() & other.keys() if name.startswith(part)]
    assert names
    return all(torch.equal(one[name], other[name]) for name in names)


def features(rounds: Rounds, who: int) -> Tensor:
    """The public set as a learner's model has it now, of length 1."""
    cohort = int(rounds.setup.cohorts.main[0, who])
    learner = rounds.learners[cohort]
    learner.bind(rounds.engine.read(cohort).row(int(rounds.setup.cohorts.rows[cohort, 0, who])))
    public = np.sort(rounds.setup.data.local_datasets[0].parts[0])
    return unit_rows(compute_features(learner, torch.from_numpy(rounds.setup.data.train.inputs[public]).double()))


def shown(rounds: Rounds) -> Tensor:
    """What lies in the pool, (learners, samples, width)."""
    pool = rounds.federations[0].channels["similarity"]
    assert isinstance(pool, EntryPool)
    return torch.as_tensor(pool.values["rows"])[:, 0].clone()


# Who has which roles


def test_roles_are_played_in_the_order_of_the_method() -> None:
    method = Method("m", {"a": Role(), "b": Role(), "c": Role()}, {1: "b", 2: ("c", "a")}, usual=("c", "b"))
    assert [method.roles_of(who) for who in range(4)] == [("b", "c"), ("b",), ("a", "c"), ("b", "c")]
    assert [method.role_of(who) for who in range(4)] == ["b", "b", "a", "b"]
    assert Method("m", {"a": Role(), "b": Role()}).roles_of(5) == ("a",)


def test_flesd_has_a_distiller_or_everybody_distills() -> None:
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
def test_a_method_that_cannot_be_is_refused_when_it_is_made(make: Any, words: str) -> None:
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
def test_a_cast_that_cannot_be_is_refused(method: Method, learners: int, words: str, data: Dataset) -> None:
    with pytest.raises(ConfigurationError, match=words), stage(data, method, learners=learners):
        pass


def test_anybody_may_be_the_host(data: Dataset) -> None:
    last = replace(WATCHED, members={3: "witness"}, host=3)
    with stage(data, last) as rounds:
        rounds.start()
        rounds.run(evaluate=False)
        public = rounds.setup.data.local_datasets[0].parts[3]
        assert np.array_equal(rounds.engine.plans[1].members.samples(0), np.sort(public))
        assert rounds.setup.public_bytes[0].tolist() == [64 * len(public)] * 3 + [0]


# The model is taken along


def test_a_role_that_trains_nothing_shows_what_the_first_one_learned(data: Dataset) -> None:
    with stage(data, WATCHED) as rounds:
        rounds.start()
        for _ in range(2):
            untrained = [features(rounds, who) for who in range(4)]
            rounds.run(evaluate=False)
            for who in range(1, 4):
                assert same(model(rounds, who), model(rounds, who, "witness"))
                assert torch.equal(shown(rounds)[who], features(rounds, who))
                assert not torch.allclose(shown(rounds)[who], untrained[who])
            assert torch.equal(shown(rounds)[0], untrained[0]), "who only looks stays as it was"


def test_taking_it_along_changes_nothing_of_what_is_learned(data: Dataset) -> None:
    """The learners go on from their own model in the next round, as if they had no other role."""
    only = Method("only", {"learner": ALONE, "witness": WITNESS}, {0: "witness"}, ("learner",), host=0)
    found = []
    for method in (WATCHED, only):
        with stage(data, method) as rounds:
            rounds.start()
            for _ in range(3):
                rounds.run(evaluate=False)
            found.append([model(rounds, who) for who in range(1, 4)])
    assert all(same(one, other) for one, other in zip(*found, strict=True))


def test_weights_that_are_received_win_over_what_another_role_had(data: Dataset) -> None:
    """The distiller's features go to the learners, whose newest model lay with the witnesses."""
    with stage(data, build_method("flesd", FLESD)) as rounds:
        rounds.start()
        for _ in range(2):
            rounds.run(evaluate=False)
            channel = rounds.federations[0].channels["weights"]
            assert isinstance(channel, MovingMean)
            for who in range(4):
                assert same(channel.common, model(rounds, who), "features")
            for who in range(1, 4):
                assert not same(model(rounds, who), model(rounds, who, "witness"), "features"), "still as it was shown"
                assert same(model(rounds, who), model(rounds, who, "witness"), "classifier")


def test_everybody_ends_a_round_with_the_model_of_the_last_role(data: Dataset) -> None:
    """Where everybody distills: what is tested, and trained on in the next round, is what came of distilling."""
    with stage(data, build_method("flesd", FLESD | {"distill": "learner"})) as rounds:
        rounds.start()
        for _ in range(2):
            record = rounds.run(evaluate=True)
            for who in range(1, 4):
                assert same(model(rounds, who), model(rounds, who, "distiller"))
                assert not same(model(rounds, who), model(rounds, who, "witness"), "features")
                assert not torch.allclose(shown(rounds)[who], features(rounds, who))
    told = record["accuracy"].copy()
    with stage(data, build_method("flesd", FLESD | {"distill": "learner", "distill_lr": 1e-9})) as rounds:
        rounds.start()
        for _ in range(2):
            record = rounds.run(evaluate=True)
    assert (record["accuracy"] != told).any(), "or it would not matter which model is tested"


def test_who_does_not_take_part_keeps_its_model_wherever_it_lay(data: Dataset) -> None:
    with stage(data, build_method("flesd", FLESD | {"distill": "learner"}), participation=0.4) as rounds:
        rounds.start()
        for _ in range(4):
            before = [model(rounds, who) for who in range(4)]
            there = rounds.run(evaluate=False)["participated"][0].astype(bool)
            assert there[0] and there.sum() == 2
            assert [same(before[who], model(rounds, who)) for who in range(4)] == (~there).tolist()


# What is written down


def test_the_host_takes_part_in_every_round(data: Dataset) -> None:
    with stage(data, WATCHED, learners=5, participation=0.5) as rounds:
        rounds.start()
        there = np.stack([rounds.run(evaluate=False)["participated"][0] for _ in range(8)])
    assert there[:, 0].all() and (there[:, 1:].sum(1) == 2).all(), "half of the other four"
    assert there[:, 1:].any(0).sum() > 2


def test_the_losses_of_all_roles_are_recorded(data: Dataset) -> None:
    with stage(data, build_method("flesd", FLESD | {"distill": "learner"})) as rounds:
        rounds.start()
        record = rounds.run(evaluate=False)
    assert np.isnan(record["loss.simclr"][0, 0]) and (record["loss.simclr"][0, 1:] > 0).all()
    assert (record["loss.similarity"][0] > 0).all()


def encoded(rounds: Rounds, role: str, direction: str, names: list[str]) -> int:
    """The length of a body with these exchanges of a role, written out."""
    (cohort,) = [i for i, plan in enumerate(rounds.engine.plans) if plan.role == role]
    message = rounds.byte_counts[cohort].message(direction, names)  # type: ignore[arg-type]
    return len(codec.encode(message, {k: np.zeros(f.shape, dtype=np.float32) for k, f in message.items()}))


def test_bytes_of_all_roles_are_summed(data: Dataset) -> None:
    """Learners that share weights and representations put up two bodies, and hear one: witnesses do not listen."""
    sharing = Role(build_objective("simclr"), (Weights(part="features"),))
    pupil = Role(Augmented(), (replace(ROWS, distills=True, queue=5),), uploads=(), data="public", epochs=1)
    roles = {"learner": sharing, "witness": WITNESS, "pupil": pupil}
    both = Method("both", roles, {0: ("witness", "pupil")}, ("learner", "witness"), host=0)
    with stage(data, both) as rounds:
        start = rounds.start()
        record = rounds.run(evaluate=False)
        weights = [encoded(rounds, "learner", way, ["weights"]) for way in ("up", "down")]
        rows = encoded(rounds, "witness", "up", ["similarity"]), encoded(rounds, "pupil", "down", ["similarity"])
    assert record["bytes.up"][0].tolist() == [rows[0]] + [rows[0] + weights[0]] * 3
    assert record["bytes.down"][0].tolist() == [rows[1]] + [weights[1]] * 3
    public = 64 * 20  # pixels of twenty samples
    assert start["bytes.public"][0].tolist() == start["bytes.down"][0].tolist() == [0, public, public, public]
    assert not start["bytes.up"].any() and not record["bytes.public"].any()
    assert rows[0] - 20 * 32 * 4 < 200 and rows[1] - 3 * 20 * 32 * 4 < 200, "the rest is names"


@pytest.mark.parametrize("distill", ["distiller", "learner"])
@pytest.mark.parametrize("encoding", ["float32", "float16", "int8"])
def test_counted_bytes_are_encoded_bytes(distill: str, encoding: str, data: Dataset) -> None:
    method = build_method("flesd", FLESD | {"distill": distill, "encoding": encoding, "keep": 0.5})
    with stage(data, method) as rounds:
        rounds.start()
        record = rounds.run(evaluate=False)
        up, down = (
            encoded(rounds, role, way, ["similarity"]) for role, way in (("witness", "up"), ("distiller", "down"))
        )
        weights = encoded(rounds, "distiller", "up", ["weights"]) if distill == "distiller" else 0
    assert record["bytes.up"][0].tolist() == [weights, up, up, up]
    assert record["bytes.down"][0].tolist() == [down + weights] + [weights or down] * 3


def test_the_public_set_is_sent_once_and_counted(data: Dataset) -> None:
    result = simulate(
        data=data, method="flesd:distill_epochs=1", learners=4, public=17, rounds=2, workers=0, probe="none"
    )
    summary = result.summary()
    assert summary["public_bytes"] == 3 * 17 * 64
    rounds = sum(result.history[f"bytes.{way}"].sum() for way in ("up", "down"))
    assert summary["bytes_total"] == rounds + summary["public_bytes"]


def test_numbers_of_a_table_are_four_bytes_each(data: Dataset) -> None:
    flat = {k: getattr(data, k).reshape(len(getattr(data, k)), 64) for k in ("inputs", "test_inputs")}
    plain = Role(CrossEntropy(), (ROWS,), downloads=(), data="public", epochs=0)
    method = Method("plain", {"learner": Role(), "witness": plain}, {0: "witness"}, ("learner", "witness"), host=0)
    with stage(replace(data, **flat), method) as rounds:
        assert rounds.setup.public_bytes[0].tolist() == [0] + [4 * 64 * 20] * 3
        rounds.start()
        assert np.isfinite(rounds.run(evaluate=True)[f"loss.{CrossEntropy.name}"][0, 1:]).all()


# Groups


def test_a_group_s_terms_are_for_its_own_data(data: Dataset) -> None:
    """How the public set is gone through is the method's to say."""
    groups = {"eager": {"learners": [1], "epochs": 3, "batch_size": 5, "lr": 0.01}}
    with stage(data, build_method("flesd", FLESD | {"distill": "learner"}), groups=groups) as rounds:
        rounds.start()
        rounds.run(evaluate=False)
        steps = {
            (plan.role, int(who)): int(rounds.engine.read(i).step[row])
            for i, plan in enumerate(rounds.engine.plans)
            for row, who in enumerate(plan.members.learner)
        }
    assert steps["learner", 1] == 12 and steps["learner", 2] == 2  # twenty samples, by 5 three times, by 10 once
    assert steps["distiller", 1] == steps["distiller", 2] == steps["distiller", 0] == 4  # by 16, twice


def test_a_group_that_gives_nothing_shows_nothing(data: Dataset) -> None:
    groups = {"quiet": {"learners": [2], "uploads": False}}
    with stage(data, build_method("flesd", FLESD), groups=groups) as rounds:
        rounds.start()
        record = rounds.run(evaluate=False)
        assert not shown(rounds)[2].any() and shown(rounds)[1].any() and shown(rounds)[3].any()
    assert (record["bytes.up"][0] > 0).tolist() == [True, True, False, True]
    assert (record["bytes.down"][0] > 0).all()
