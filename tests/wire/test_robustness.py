"""Settings of means that resist: how they are written, what contradicts itself, and a charter that has them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from consilience.errors import ConfigurationError
from consilience.wire import schema
from consilience.wire.agreement import merge_channels, without_local_choices
from consilience.wire.charter import build_charter, read_charter
from consilience.wire.encodings import BIT, Bit
from consilience.wire.robustness import PLAIN, Robustness, build_robustness, parse_aggregation

START = {"w": {"x": np.zeros(3, dtype=np.float32)}}


@pytest.mark.parametrize(
    ("text", "found"),
    [("mean", ("mean", 0.0)), ("median", ("median", 0.0)), (" trimmed (0.2) ", ("trimmed", 0.2))],
)
def test_aggregation_is_a_word_and_a_share(text: str, found: tuple[str, float]) -> None:
    assert parse_aggregation(text) == found


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("trimmed", "trimmed"),
        ("trimmed(0.5)", "leaves nobody"),
        ("trimmed(0)", "leaves nobody"),
        ("trimmed(nan)", "leaves nobody"),
        ("trimmed(x)", "not a number"),
        ("medain", "Did you mean 'median'"),
    ],
)
def test_aggregation_that_means_nothing_is_refused(text: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match="aggregation") as error:
        parse_aggregation(text)
    assert why in str(error.value)


@pytest.mark.parametrize(
    "wrong",
    [{"clip_norm": 0.0}, {"clip_norm": math.nan}, {"clip_ratio": 0.9}, {"weight_cap": -1.0}, {"trim": 0.2}],
)
def test_limits_that_let_nothing_pass_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        Robustness(**wrong)  # type: ignore[arg-type]


def test_votes_cannot_be_clipped_since_all_have_the_same_norm() -> None:
    votes = {"x": schema.Tensor((3,), Bit(unit=0.1), BIT)}
    with pytest.raises(ConfigurationError, match="votes"):
        schema.Mean("w", votes, moving=True, robustness=Robustness(clip_norm=1.0))
    assert schema.Mean("w", votes, moving=True, robustness=Robustness("median")).takes_votes
    assert not schema.Mean("w", {"x": schema.Tensor((3,), BIT)}, robustness=Robustness(clip_ratio=2.0)).takes_votes


@pytest.mark.parametrize("moving", [False, True])
def test_charter_keeps_how_means_resist(moving: bool) -> None:
    robustness = build_robustness("trimmed(0.2)", 5.5, 3.0, 120)
    channel = schema.Mean("w", {"x": schema.Tensor((3,))}, moving=moving, robustness=robustness)
    text = build_charter("some", {"name": "some"}, 3, {"w": channel}, START).to_toml()
    read = read_charter(text).channels["w"]
    assert isinstance(read, schema.Mean) and read.robustness == robustness
    assert 'aggregation = "trimmed(0.2)"' in text and "weight_cap = 120" in text


def test_charter_of_a_plain_mean_does_not_name_it() -> None:
    plain = schema.Mean("w", {"x": schema.Tensor((3,))})
    text = build_charter("some", {"name": "some"}, 3, {"w": plain}, {}).to_toml()
    assert not any(word in text for word in ("aggregation", "clip", "weight_cap"))
    read = read_charter(text).channels["w"]
    assert isinstance(read, schema.Mean) and read.robustness == PLAIN


@pytest.mark.parametrize("line", ['aggregation = "median"', "clip_norm = 1.0", "clip_ratio = 2.0", "weight_cap = 5"])
def test_charter_with_a_pool_that_should_resist_is_refused(line: str) -> None:
    text = (
        'protocol = 2\nname = "some"\nclasses = 3\nmethod = {name = "some"}\n'
        f'[channels.seen]\nkind = "pool"\n{line}\n[channels.seen.tensors.x]\nshape = [3]\n'
    )
    with pytest.raises(ConfigurationError, match="is a pool"):
        read_charter(text)
    read_charter(text.replace('"pool"', '"standing"'))


def test_learners_share_a_channel_however_the_relay_aggregates_it() -> None:
    plain = schema.Mean("w", {"x": schema.Tensor((3,))})
    robust = schema.Mean("w", {"x": schema.Tensor((3,))}, robustness=Robustness("median"))
    assert without_local_choices(plain) == without_local_choices(robust)
    (merged,) = merge_channels([{"w": robust}, {"w": robust}]).values()
    assert isinstance(merged, schema.Mean) and merged.robustness == Robustness("median")
