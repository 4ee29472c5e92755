"""Shadow federations: a run again and again, each time on another random half of every learner's samples.

All of them are federations of one run: they have the split of its first seed, and each its own seed for everything
else. Their uploads are watched round by round, and their models at the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from consilience.config.config import Config
from consilience.data import Dataset
from consilience.errors import ConfigurationError
from consilience.leakage.upload_statistics import (
    LabeledSamples,
    Uploaded,
    confidence,
    is_attacked,
    statistics_per_upload,
    upload_statistics,
)
from consilience.learner.learner import Learner
from consilience.learner.passes import compute_logits
from consilience.method import Method
from consilience.randomness import random_bits
from consilience.simulation.engines.answers import received
from consilience.simulation.in_memory import running
from consilience.simulation.result import Result
from consilience.simulation.round.round import Rounds
from consilience.simulation.round.seen_upload import SeenUpload
from consilience.simulation.run import OnRound
from consilience.simulation.setup.assign_data import split_for_seed
from consilience.simulation.setup.inputs import models_of
from consilience.simulation.setup.setup import Setup, build_setup

MIN_SAMPLES = 8
"""Training samples of a learner, at least: half of them are trained on."""
MODEL = "model"
"""Among what is attacked, the models after the last round."""


@dataclass(frozen=True, eq=False)
class ShadowStatistics:
    """What the attacker saw in the shadow federations.

    member: (federations, samples) whether a federation's owner of the sample trained on it. owner: (samples,).
    by_target: (federations, samples, statistics) of every channel, and of the models. not_attacked: channels whose
    uploads no attack here can use.
    """

    member: np.ndarray
    owner: np.ndarray
    by_target: Mapping[str, np.ndarray]
    not_attacked: tuple[str, ...]
    result: Result


def draw_members(config: Config, parts: list[np.ndarray], samples: int, host: int | None) -> np.ndarray:
    """Which samples each shadow federation has, (federations, samples): half of every learner's, at random.

    Every federation draws by itself. The host of a public set keeps all of its samples.
    """
    kept = np.zeros((config.federation.seeds, samples), dtype=bool)
    for f, mine in enumerate(kept):
        for who, part in enumerate(parts):
            order = np.argsort(random_bits("audit members", config.federation.seed + f, part), kind="stable")
            mine[part[order[: len(part) if who == host else len(part) // 2]]] = True
    return kept


def run_shadows(config: Config, method: Method, data: Dataset, on_round: OnRound | None = None) -> ShadowStatistics:
    """Run the shadow federations of a configuration, one for each of its seeds, and watch them."""
    parts = learners_samples(config, method, data)
    _check(data, parts, method.host)
    kept = draw_members(config, parts, len(data.targets), method.host)
    setup = build_setup(config, method, data, models_of(None, config), kept=kept)
    with running(config, setup, on_round) as run:
        observer = _Observer(run.rounds, parts)
        run.rounds.on_upload = observer.see
        result = run.run()
        observer.see_models()
    return observer.statistics(result)


def learners_samples(config: Config, method: Method, data: Dataset) -> list[np.ndarray]:
    """Positions of each learner's samples in the split of the first seed, sorted."""
    split = split_for_seed(config, method, data, config.federation.seed)
    return [np.sort(np.concatenate(split.parts))] if method.pooled else [np.sort(part) for part in split.parts]


def _check(data: Dataset, parts: list[np.ndarray], host: int | None) -> None:
    """Refuse data that cannot be attacked."""
    if data.classes < 2 or len(np.unique(data.targets)) < 2:
        raise ConfigurationError(
            f"all training samples of {data.name!r} have one class; an audit needs samples of two classes or more"
        )
    fewest = min(len(part) for who, part in enumerate(parts) if who != host)
    if fewest < MIN_SAMPLES:
        raise ConfigurationError(
            f"a learner has {fewest} training samples; an audit trains shadow federations on half of them and needs "
            f"{MIN_SAMPLES} or more: use fewer learners or more data"
        )


@dataclass
class _Observer:
    """Watches the rounds of shadow federations and keeps statistics of every sample."""

    rounds: Rounds
    parts: list[np.ndarray]
    seen: dict[str, dict[int, np.ndarray]] = field(default_factory=dict)  # by channel and round, (f, samples, several)

    def __post_init__(self) -> None:
        setup = self.rounds.setup
        host = setup.method.host
        self.attacked = [who for who in range(len(self.parts)) if who != host]
        stops = np.cumsum([len(self.parts[who]) for who in self.attacked])
        self.places = {who: slice(b - len(self.parts[who]), b) for who, b in zip(self.attacked, stops, strict=True)}
        self.shape = (setup.federations.count, int(stops[-1]))
        self.learners = [Learner(plan.spec) for plan in self.rounds.engine.plans]  # the engine's own are at work
        self.not_attacked: dict[str, None] = {}
        self._samples: dict[tuple[int, int], LabeledSamples] = {}

    def see(self, upload: SeenUpload) -> None:
        """The statistics of an upload, for the samples of the learners that made it."""
        learner = self.learners[upload.cohort]
        exchange = next(e for e in learner.role.exchanges if e.name == upload.channel)
        if exchange.scope == "oneself":
            return
        if not is_attacked(exchange):
            self.not_attacked[upload.channel] = None
            return
        attacked = [who for who in upload.learners.tolist() if who in self.places]
        if not attacked:  # the host of a public set, whose samples everybody has
            return
        empty = np.full((*self.shape, statistics_per_upload(exchange)), np.nan)
        into = self.seen.setdefault(upload.channel, {}).setdefault(upload.round, empty)
        states = self.rounds.engine.read(upload.cohort, upload.rows)
        for i, who in enumerate(upload.learners.tolist()):
            if who not in self.places:
                continue
            answer = received(self.rounds.answers.batches, int(upload.held[i]))
            one = Uploaded(exchange, {k: t[i] for k, t in upload.tensors.items()}, upload.weights[i], answer)
            mine, tests = self._own(upload.cohort, who), self._tests(upload.cohort)
            found = upload_statistics(learner, states.row(i).to(learner.device), one, mine, tests)
            into[upload.federation, self.places[who]] = found.numpy(force=True)

    def see_models(self) -> None:
        """The confidence of every learner's model after the last round in its own samples."""
        setup = self.rounds.setup
        if not setup.variants.labeled:
            self.not_attacked[MODEL] = None
            return
        into = np.full((*self.shape, 1), np.nan)
        for who in self.attacked:
            for f in range(setup.federations.count):
                cohort = int(self.rounds.model_location[f, who])
                row = np.array([setup.cohorts.rows[cohort, f, who]])
                learner, mine = self.learners[cohort], self._own(cohort, who)
                learner.bind(self.rounds.engine.read(cohort, row).row(0).to(learner.device))
                logits = compute_logits(learner, mine.inputs).mean(0).double()
                into[f, self.places[who], 0] = confidence(logits, mine.targets).numpy(force=True)
        self.seen[MODEL] = {self.rounds.round: into}

    def statistics(self, result: Result) -> ShadowStatistics:
        """All that was seen; a learner that was away in a round gives no evidence there."""
        setup: Setup = self.rounds.setup
        member = np.zeros(self.shape, dtype=bool)
        for f in range(self.shape[0]):
            for who in self.attacked:
                member[f, self.places[who]] = np.isin(self.parts[who], setup.data.parts[f][who])
        owner = np.concatenate([np.full(len(self.parts[who]), who) for who in self.attacked])
        found = {
            name: _comparable(np.concatenate([by_round[r] for r in sorted(by_round)], axis=2), owner)
            for name, by_round in self.seen.items()
        }
        return ShadowStatistics(member, owner, found, tuple(self.not_attacked), result)

    def _own(self, cohort: int, who: int) -> LabeledSamples:
        """All samples that a learner may have, trained on or not."""
        if (cohort, who) not in self._samples:
            train, part = self.rounds.setup.data.train, self.parts[who]
            self._samples[cohort, who] = self._tensors(cohort, train.inputs[part], train.targets[part])
        return self._samples[cohort, who]

    def _tests(self, cohort: int) -> LabeledSamples:
        """The attacker's own samples."""
        if (cohort, -1) not in self._samples:
            data = self.rounds.setup.data.train
            self._samples[cohort, -1] = self._tensors(cohort, data.test_inputs, data.test_targets)
        return self._samples[cohort, -1]

    def _tensors(self, cohort: int, inputs: np.ndarray, targets: np.ndarray) -> LabeledSamples:
        learner = self.learners[cohort]
        given: Tensor = torch.from_numpy(np.ascontiguousarray(inputs)).to(learner.device, learner.dtype)
        return LabeledSamples(given, torch.from_numpy(np.ascontiguousarray(targets)).to(learner.device))


def _comparable(values: np.ndarray, owner: np.ndarray) -> np.ndarray:
    """Statistics relative to the mean over all samples that a learner may have, (federations, samples, several).

    How good or how far trained a model is changes all of its statistics alike, and says nothing about one sample. Where
    there is none, it is a sample's mean over federations.
    """
    values = values.copy()
    for who in np.unique(owner):
        values[:, owner == who] -= values[:, owner == who].mean(1, keepdims=True)
    there = np.isfinite(values)
    mean = np.where(there, values, 0.0).sum(0) / np.maximum(there.sum(0), 1)
    filled: np.ndarray = np.where(np.isnan(values), mean, values)
    return filled
