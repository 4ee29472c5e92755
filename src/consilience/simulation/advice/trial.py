"""A trial: every method on every repetition's samples, and the answers of its learners to what they held out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np
import torch
from torch import nn

from consilience.config.config import Config
from consilience.data import Dataset
from consilience.data.local_datasets import LocalDatasets
from consilience.kinds import kind_of
from consilience.method import Method
from consilience.methods import build_method
from consilience.presentation.gains import ALONE
from consilience.presentation.trial import TrialAnswers, score
from consilience.simulation.advice.candidates import Candidate, Candidates, SetUp, find_candidates
from consilience.simulation.advice.folds import Folds, draw_folds, without_tests
from consilience.simulation.advice.sample_scores import sample_scores
from consilience.simulation.in_memory import running
from consilience.simulation.records.history import History
from consilience.simulation.result import Result
from consilience.simulation.run import OnRound
from consilience.simulation.setup.assign_data import split_for_seed
from consilience.simulation.setup.participants import Model
from consilience.simulation.setup.setup import Setup, build_setup

OnProgress = Callable[[str, int, int], None]
"""Called after each round with the method's name, the rounds done, and the rounds of all methods."""
_ROWS = 256  # samples in one forward pass


@dataclass(frozen=True, eq=False)  # comparing by value would compare whole arrays
class Trial:
    """The methods of a trial, the data without its test part, and what is held out in each repetition."""

    config: Config
    data: Dataset
    split: LocalDatasets
    folds: Folds
    candidates: Candidates
    replan: Callable[[Config], Trial]

    def with_rounds(self, rounds: int) -> Trial:
        """The same trial with another number of rounds."""
        return self.replan(self.config.replace(rounds=rounds, total_epochs=None))  # as many epochs in a round

    def seconds_per_round(self) -> float:
        """How long one round of all methods takes: each is run for one round, or more where it trains longer."""
        started = perf_counter()
        for candidate in self.candidates.all:
            rounds = candidate.config.training.rounds // self.config.training.rounds
            config = candidate.config.replace(rounds=rounds, eval_every=rounds)
            with running(config, candidate.setup, None, together=True) as run:
                run.run()
        return perf_counter() - started

    def run(self, on_progress: OnProgress | None = None) -> dict[str, TrialAnswers]:
        """The answers of every method, by its name."""
        found: dict[str, TrialAnswers] = {}
        done, total = 0, sum(each.config.training.rounds for each in self.candidates.all)
        for candidate in self.candidates.all:
            on_round = _reporting(on_progress, candidate.name, done, total)
            with running(candidate.config, candidate.setup, on_round, keep_models=True, together=True) as run:
                found[candidate.name] = self._answers(candidate, run.run())
            done += candidate.config.training.rounds
        return found

    def _answers(self, candidate: Candidate, result: Result) -> TrialAnswers:
        train, first = candidate.setup.data.train, self.config.federation.seed
        own, common = [], np.zeros((len(self.folds.held), len(self.split.parts)))
        for repetition, held in enumerate(self.folds.held):
            everybodys, row = np.concatenate(held), []
            for who, mine in enumerate(held):
                model = result.model(who, first + repetition)
                common[repetition, who] = score(_sample_scores(model, train, everybodys))
                if candidate.has_own_answer:
                    model = result.model(who, first + repetition, answer="own")
                row.append(_sample_scores(model, train, mine))
            own.append(row)
        return TrialAnswers(candidate.name, own, common, candidate.up, candidate.down)


def plan_trial(config: Config, asked: str, data: Dataset, models: Sequence[Model], budget: int | None = None) -> Trial:
    """Hold samples out and set all methods up; what cannot work is refused here.

    All repetitions have the split of the first seed, so that a learner is the same one in all of them. From here on the
    test part of the data is not there.
    """
    data = without_tests(data)
    split = split_for_seed(config, build_method(ALONE), data, config.federation.seed)
    folds = draw_folds(split.parts, len(data.targets), config.federation.seeds, config.federation.seed)

    def build(own: Config, method: Method) -> Setup:
        return build_setup(own, method, data, models, kept=folds.kept)

    def replan(other: Config) -> Trial:
        return plan_trial(other, asked, data, models, budget)

    set_up = SetUp(build, kind_of(data.target).name)
    return Trial(config, data, split, folds, find_candidates(config, asked, set_up, budget), replan)


def _reporting(on_progress: OnProgress | None, name: str, before: int, total: int) -> OnRound | None:
    if on_progress is None:
        return None

    def on_round(method: str, round_: int, rounds: int, history: History) -> None:
        on_progress(name, before + round_, total)

    return on_round


def _sample_scores(model: nn.Module, data: Dataset, positions: np.ndarray) -> np.ndarray:
    """What samples at these positions add to a model's score."""
    logits = [_logits(model, data, positions[i : i + _ROWS]) for i in range(0, len(positions), _ROWS)]
    found = np.concatenate([*logits, np.zeros((0, data.classes))])
    return sample_scores(found, data.targets[positions], data.kind, float(np.var(data.targets)))


@torch.no_grad()
def _logits(model: nn.Module, data: Dataset, positions: np.ndarray) -> np.ndarray:
    """A model's outputs for a few samples, (positions, classes)."""
    rows = data.inputs[positions]
    if data.stream is not None:  # the rows are samples' numbers
        rows = np.stack([data.stream.read(int(number)) for (number,) in rows])
    given = torch.from_numpy(rows).to(next(model.parameters()).dtype)
    inputs, named = ((given,), {}) if data.fields is None else data.fields.unpack(given)
    found: np.ndarray = model(*inputs, **named).double().numpy()
    return found
