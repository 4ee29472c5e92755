"""Federations in which votes move a part of the model, one round at a time, and their parts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from consilience.channels import MovingMean
from consilience.config.config import Config, make_config
from consilience.data import Dataset
from consilience.method import Method
from consilience.methods import build_method
from consilience.simulation.engines.loop.engine import LoopEngine
from consilience.simulation.engines.stack.engine import StackEngine
from consilience.simulation.round.round import Rounds
from consilience.simulation.setup.setup import build_setup


def settings(**others: Any) -> Config:
    small = {"learners": 3, "batch_size": 16, "workers": 0, "method": {"name": "two-stage"}}
    return make_config({**small, **others})


@contextmanager
def stage(
    config: Config, data: Dataset, engine: str = "loop", method: Method | None = None, model: Any = "mlp"
) -> Iterator[Rounds]:
    """A federation before its first round."""
    chosen = method or build_method(config.method.name, config.method.settings)
    setup = build_setup(config, chosen, data, [model])
    plans = list(setup.cohorts.plans)
    with LoopEngine(plans, setup.data.train, 0) if engine == "loop" else StackEngine(plans, setup.data.train) as opened:
        rounds = Rounds(setup, opened)
        rounds.start()
        yield rounds


def flat(rounds: Rounds, part: str) -> Tensor:
    """A part of every learner's model, (learners, size)."""
    learner = rounds.learners[0]
    mask = learner.binding.parameters.mask(set(learner.task.covered(part, learner.task.parameters)))
    return rounds.engine.read(0).parameters[:, mask].clone()


def common_of(rounds: Rounds) -> dict[str, Tensor]:
    channel = rounds.federations[0].channels["gradients"]
    assert isinstance(channel, MovingMean)
    return channel.common


def served(rounds: Rounds, row: int) -> dict[str, Tensor]:
    """The server's part of one learner's model, by name."""
    learner = rounds.learners[0]
    views = learner.binding.parameters.views(rounds.engine.read(0).parameters[row])
    return {name: views[name].clone() for name in common_of(rounds)}
