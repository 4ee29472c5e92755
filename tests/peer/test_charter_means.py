"""Means of a new charter: what its creator asks for, and defaults from the creator's own samples."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from consilience.cli.main import main
from consilience.errors import ConfigurationError
from consilience.peer.charter_means import MeanRules
from consilience.peer.create_charter import TaskShape, create_charter
from consilience.peer.member_method import check_exchanges, member_method
from consilience.wire import schema
from consilience.wire.charter import read_charter
from consilience.wire.encodings import Bit
from consilience.wire.robustness import PLAIN, Robustness

COUNTS = (5, 20, 15)
BOUNDED, OPEN = schema.Tensor((3, 2), low=-1, high=1), schema.Tensor((3, 2))


def applied(channel: schema.Channel, rules: MeanRules | None = None, counts: tuple[int, ...] = COUNTS) -> Robustness:
    found = (rules or MeanRules()).apply(channel, counts)
    assert isinstance(found, schema.Mean)
    return found.robustness


def test_weight_cap_is_three_times_the_creators_samples() -> None:
    moving = schema.Mean("w", {"x": OPEN}, moving=True)
    assert applied(moving) == Robustness(clip_ratio=3.0, weight_cap=120.0)
    by_class = schema.Mean("p", {"x": BOUNDED}, rows=(3,))
    assert applied(by_class) == Robustness(weight_cap=60.0)  # of its largest class; bounds limit the values
    assert applied(by_class, counts=()) == PLAIN


def test_mean_without_bounds_is_clipped() -> None:
    assert applied(schema.Mean("p", {"x": OPEN}, rows=(3,))).clip_ratio == 3.0
    half = schema.Tensor((3, 2), low=0.0)
    assert applied(schema.Mean("p", {"x": half}, rows=(3,))).clip_ratio == 3.0


def test_what_is_asked_for_is_taken_and_the_rest_is_the_default() -> None:
    moving = schema.Mean("w", {"x": OPEN}, moving=True)
    asked = MeanRules(Robustness("median", weight_cap=7.0))
    assert applied(moving, asked) == Robustness("median", weight_cap=7.0)
    assert applied(moving, MeanRules(Robustness(clip_norm=2.0))) == Robustness(clip_norm=2.0, weight_cap=120.0)
    assert applied(moving, MeanRules(defaults=False)) == PLAIN
    own = schema.Mean("w", {"x": OPEN}, moving=True, robustness=Robustness(clip_norm=9.0))
    assert applied(own, MeanRules(Robustness(clip_norm=2.0))).clip_norm == 9.0  # the exchange's own setting


def test_a_cap_of_the_exchange_stays_and_the_rest_is_as_asked_for() -> None:
    """Means in which every member counts once: no rule of the creator lets one count for more."""
    once = schema.Mean("p", {"x": BOUNDED}, rows=(3,), robustness=Robustness(weight_cap=1))
    assert applied(once) == Robustness(weight_cap=1)
    assert applied(once, MeanRules(defaults=False)) == Robustness(weight_cap=1)
    assert applied(once, MeanRules(Robustness("median", weight_cap=50))) == Robustness("median", weight_cap=1)


def test_votes_and_pools_need_neither_a_cap_nor_a_clip() -> None:
    votes = schema.Mean("w", {"x": schema.Tensor((3,), Bit(unit=0.1))}, moving=True)
    assert applied(votes) == PLAIN
    assert applied(votes, MeanRules(Robustness("median", clip_norm=1.0, weight_cap=2.0))) == Robustness("median")
    pool = schema.Pool("p", {"x": OPEN})
    assert MeanRules().apply(pool, COUNTS) is pool


def test_charter_written_in_python_has_the_defaults() -> None:
    task = TaskShape((1, 8, 8), 3, counts=COUNTS)
    charter, _ = create_charter("some", {"name": "fedavg"}, task, ["mlp"])
    weights = charter.channels["weights"]
    assert isinstance(weights, schema.Mean) and weights.robustness == Robustness(clip_ratio=3.0, weight_cap=120.0)
    plain, _ = create_charter("some", {"name": "fedavg"}, task, ["mlp"], means=MeanRules(defaults=False))
    assert isinstance(found := plain.channels["weights"], schema.Mean) and found.robustness == PLAIN


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ([], Robustness(clip_ratio=3.0, weight_cap=180.0)),
        (["--plain-means"], PLAIN),
        (["--aggregation", "trimmed(0.2)", "--weight-cap", "50"], Robustness("trimmed", 0.2, weight_cap=50.0)),
        (["--clip-norm", "4", "--plain-means"], Robustness(clip_norm=4.0)),
    ],
)
def test_command_writes_how_means_resist(options: list[str], found: Robustness, tmp_path: Path) -> None:
    file = tmp_path / "federation.toml"
    with pytest.raises(SystemExit) as ended:
        main(["federation", "fedavg", "--train", "60", "--test", "20", "--out", str(file), *options])
    assert not ended.value.code
    weights = read_charter(file.read_text()).channels["weights"]
    assert isinstance(weights, schema.Mean) and weights.robustness == found
    assert math.isinf(weights.tensors["classifier.weight"].high)


def test_features_of_single_samples_do_not_travel_over_a_relay() -> None:
    method = {"name": "representation-sharing", "n_avg": 1, "min_count": 1}
    with pytest.raises(ConfigurationError, match="features of single samples would leave the members"):
        create_charter("some", method, TaskShape((4,), 3), ["mlp"])


def test_a_member_refuses_a_charter_that_asks_for_single_samples() -> None:
    """Whoever wrote the charter by hand: a member does not rely on its creator."""
    charter, _ = create_charter("some", {"name": "representation-sharing"}, TaskShape((4,), 3), ["mlp"])
    check_exchanges(member_method(charter), charter)
    other = charter.model_copy(update={"method": {**charter.method, "n_avg": 1, "min_count": 1}})
    with pytest.raises(ConfigurationError, match="features of single samples would leave the members"):
        check_exchanges(member_method(other), other)
