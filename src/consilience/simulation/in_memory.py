"""A run of a setup that saves nothing: an audit's shadow federations, the methods of a trial."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from consilience.config.config import Config
from consilience.simulation.engines.choose import choose_engine, open_engine, torch_configured_for
from consilience.simulation.run import OnRound, Run
from consilience.simulation.setup.setup import Setup


@contextmanager
def running(
    config: Config, setup: Setup, on_round: OnRound | None, *, keep_models: bool = False, together: bool = False
) -> Iterator[Run]:
    """The run, with its engine open.

    keep_models: whether its result has the learners' models. together: whether its federations are never run apart, so
    that the learners of all of them decide which engine is faster.
    """
    with torch_configured_for(config):
        name = choose_engine(config, setup, together=together)
    with torch_configured_for(config), open_engine(config, setup, name) as engine:
        yield Run(config, setup, engine, None, on_round, {}, keep_models)
