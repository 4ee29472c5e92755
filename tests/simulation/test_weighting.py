"""Class means in which every sample, or every learner, counts equally."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from consilience.channels import StandingMean
from consilience.config.config import make_config
from consilience.data import Dataset, load
from consilience.errors import ConfigurationError
from consilience.methods import build_method
from consilience.papers.cells import Cell
from consilience.simulation.engines.loop.engine import LoopEngine
from consilience.simulation.round.round import Rounds
from consilience.simulation.setup.setup import build_setup
from consilience.simulation.simulate import check_run

pytestmark = pytest.mark.usefixtures("one_thread")
UNEVEN = {"partition": "dirichlet(0.3)", "learners": 3, "workers": 0}


@pytest.fixture(scope="module")
def data() -> Dataset:
    return load("digits", train=180, test=20)


def channel_after_a_round(data: Dataset, method: dict[str, Any], name: str, **settings: Any) -> StandingMean:
    config = make_config({**UNEVEN, "method": method, **settings})
    setup = build_setup(config, build_method(config.method.name, config.method.settings), data, ["mlp"])
    with LoopEngine(list(setup.cohorts.plans), setup.data.train, 0) as engine:
        rounds = Rounds(setup, engine)
        rounds.start()
        rounds.run(evaluate=False)
        channel = rounds.federations[0].channels[name]
    assert isinstance(channel, StandingMean)
    return channel


@pytest.mark.parametrize(
    ("method", "name"),
    [("fedproto", "prototypes"), ("federated-distillation", "logits"), ("consilience", "prototypes")],
)
def test_mean_is_over_learners_that_have_the_class(method: str, name: str, data: Dataset) -> None:
    channel = channel_after_a_round(data, {"name": method, "weighting": "equal"}, name)
    values, has = channel.values["mean"].double().numpy(), channel.weights.numpy()
    assert set(np.unique(has)) == {0.0, 1.0}, "some learner has fewer than two samples of some class"
    answer = channel.answer()
    assert np.array_equal(answer.count.numpy(), has.sum(0))
    for label in range(10):
        expected = values[has[:, label] > 0, label].mean(0)
        np.testing.assert_allclose(answer.tensors["mean"][label].numpy(), expected, rtol=1e-5, atol=1e-6)
    by_samples = channel_after_a_round(data, {"name": method}, name)
    assert by_samples.weights.max() > 1, "where samples count equally, their numbers are uploaded"


def test_learner_that_claims_more_counts_once(data: Dataset) -> None:
    method = {"name": "fedproto", "weighting": "equal"}
    honest = channel_after_a_round(data, method, "prototypes")
    liar = {"bad": {"learners": 0, "attack": "claim(1000)"}}
    for asked in ({}, {"clip_norm": 1e9}, {"weight_cap": 50}):  # with and without settings of the run for its means
        claimed = channel_after_a_round(data, method, "prototypes", groups=liar, **asked)
        assert claimed.weights.max() == 1000
        found, expected = (c.answer().tensors["mean"].numpy() for c in (claimed, honest))
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)


def test_group_with_another_weighting_is_refused(data: Dataset) -> None:
    groups = {"few": {"learners": 0, "method": {"weighting": "equal"}}}
    with pytest.raises(ConfigurationError, match=r"cannot share 'prototypes': .*the same weighting"):
        check_run(make_config({**UNEVEN, "method": {"name": "fedproto"}, "groups": groups}), data)


def test_default_weighting_leaves_names_of_finished_cells() -> None:
    named = [
        Cell({"row": "x"}, {"method": {"name": "fedproto", **own}}).name
        for own in ({}, {"weighting": "samples"}, {"weighting": "equal"})
    ]
    assert named[0] == named[1] != named[2]
