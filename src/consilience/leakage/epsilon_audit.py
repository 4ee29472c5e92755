"""A lower bound of the epsilon of real runs: learners have one of two neighboring data sets, and the attacker guesses.

The attacker knows everything but the noise: the method, the seeds, both data sets, and what learners download. It runs
every learner itself with both data sets, without noise and with the same downloads, and so knows between which two
points the uploads of every round lie. The score of a learner is how far its uploads lie from the one towards the other.
Every learner of every federation is one trial.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from consilience.config.config import Config
from consilience.data import Dataset
from consilience.errors import ConfigurationError
from consilience.leakage.audit_results import EpsilonAudit, Neighbors
from consilience.leakage.shadow_federations import learners_samples
from consilience.method import Method
from consilience.privacy.epsilon_bound import MIN_TRIALS, epsilon_lower_bound
from consilience.randomness import random_bits
from consilience.simulation.in_memory import running
from consilience.simulation.round.seen_upload import AnswerKey, OnAnswer, SeenUpload, SentAnswer
from consilience.simulation.run import OnRound
from consilience.simulation.setup.inputs import models_of
from consilience.simulation.setup.setup import Setup, build_setup

MAX_VALUES = 2e8
"""Values of all uploads that are kept at once, at most."""
_FLOOR = 1e-6  # of the variance of a value, relative to the mean


def audit_epsilon(
    config: Config, method: Method, data: Dataset, trials: int, on_round: OnRound | None = None
) -> EpsilonAudit:
    """Lower bounds of epsilon from `trials` federations, of which every learner is a trial."""
    config, parts = config.replace(seeds=trials), learners_samples(config, method, data)
    neighbors = neighbors_of(config)
    coins = _coins(config, len(parts))
    who = [learner for learner in range(len(parts)) if learner != method.host]
    _refuse_too_few(coins[:, who])
    pair = neighboring_samples(parts, data, neighbors, method.host)
    seen, first, second = _play(_Trials(config, method, data, on_round), pair, coins, parts)
    scores = _scores(seen, first, second, coins)[:, who].ravel()
    heads, delta = coins[:, who].ravel(), config.privacy.delta
    general, gaussian = (
        epsilon_lower_bound(scores[heads], scores[~heads], delta, bound=bound) for bound in ("general", "gaussian")
    )
    return EpsilonAudit(config.privacy.epsilon, neighbors, general, gaussian)


def neighbors_of(config: Config) -> Neighbors:
    """Between which data sets the guarantee of a run is: with "sample", the number of samples is public."""
    return "sample" if config.privacy.private in ("training", "fixed-encoder") else "upload"


def _play(
    trials: _Trials, pair: tuple[np.ndarray, np.ndarray], coins: np.ndarray, parts: list[np.ndarray]
) -> tuple[Uploads, Uploads, Uploads]:
    """What learners upload with the data sets of their coins, and without noise with the first and with the second."""
    everybody = [np.broadcast_to(side, (len(coins), len(side))) for side in pair]
    kept = np.where(_by_sample(coins, parts, len(pair[0])), *everybody[::-1])
    answers: dict[AnswerKey, SentAnswer] = {}
    seen = trials.uploads(kept, answers.setdefault)
    first, second = (trials.uploads(each, lambda key, sent: answers[key], noise=False) for each in everybody)
    return seen, first, second


def neighboring_samples(
    parts: list[np.ndarray], data: Dataset, neighbors: Neighbors, host: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """Which samples learners have in two neighboring data sets, (samples,) each.

    "upload": of the samples in the order of their classes, the first half and the second half, so that the two have
    hardly a class in common. "sample": all but one, of the rarest class, and all.
    """
    first, second = (np.zeros(len(data.targets), dtype=bool) for _ in range(2))
    for who, part in enumerate(parts):
        ordered = part[np.argsort(data.targets[part], kind="stable")]
        half = len(part) // 2
        if who == host:
            first[part] = second[part] = True
        elif neighbors == "upload":
            first[ordered[:half]], second[ordered[len(part) - half :]] = True, True
        else:
            counts = np.bincount(data.targets[part], minlength=data.classes)
            rarest = np.where(counts > 0, counts, len(part) + 1).argmin()
            canary = part[data.targets[part] == rarest][0]
            first[part] = second[part] = True
            first[canary] = False
    return first, second


Uploads = dict[tuple[int, str], np.ndarray]
"""By round and channel: all values that learners upload, (federations, learners, values)."""


@dataclass(frozen=True, eq=False)
class _Trials:
    """Runs federations on some of the samples, and keeps every upload of every learner."""

    config: Config
    method: Method
    data: Dataset
    on_round: OnRound | None

    def uploads(self, kept: np.ndarray, on_answer: OnAnswer, noise: bool = True) -> Uploads:
        """All uploads of each learner; 0 where there was none."""
        setup = build_setup(self.config, self.method, self.data, models_of(None, self.config), kept=kept)
        setup = setup if noise else _without_noise(setup)
        seen: Uploads = {}
        counts_are_public = neighbors_of(self.config) == "sample"
        shape = setup.federations.shape

        def see(upload: SeenUpload) -> None:
            public = counts_are_public and upload.weights.ndim == 1  # one number: how many samples a learner has
            vectors = [*upload.tensors.values(), *(() if public else (upload.weights,))]
            flat = np.concatenate([v.flatten(1).numpy(force=True) for v in map(_two_dimensional, vectors)], axis=1)
            if (upload.round, upload.channel) not in seen:
                seen[upload.round, upload.channel] = np.zeros((*shape, flat.shape[1]), dtype=np.float32)
                _refuse_too_many(sum(found.size for found in seen.values()), self.config)
            seen[upload.round, upload.channel][upload.federation, upload.learners] = flat

        with running(self.config, setup, self.on_round) as run:
            run.rounds.on_upload, run.rounds.on_answer = see, on_answer
            run.run()
        return seen


def _scores(seen: Uploads, first: Uploads, second: Uploads, coins: np.ndarray) -> np.ndarray:
    """How far uploads lie from the first towards the second, (federations, learners).

    Every upload counts by how well it separates the first third of the federations, of which the attacker knows the
    coins. Errors are counted on other trials.
    """
    total, pilots = np.zeros(coins.shape), len(coins) // 3
    known = coins[:pilots]
    for key in sorted(seen.keys() & first.keys() & second.keys()):
        along = _along(seen[key], first[key], second[key], coins, pilots)
        sides = along[:pilots][known], along[:pilots][~known]
        if min(map(len, sides)) < 2:
            continue
        gain = max(sides[0].mean() - sides[1].mean(), 0.0)
        total += along * gain / (sides[0].var(ddof=1) + sides[1].var(ddof=1) + 1e-12)
    return total


def _along(seen: np.ndarray, first: np.ndarray, second: np.ndarray, coins: np.ndarray, pilots: int) -> np.ndarray:
    """How far the uploads of one round lie from the first towards the second, (federations, learners).

    Every value counts by its variance in the first federations.
    """
    direction, expected = second - first, np.where(coins[..., None], second, first)
    variance = np.square(seen[:pilots] - expected[:pilots]).mean((0, 1), dtype=np.float64)  # (values,)
    weight = 1 / (variance + _FLOOR * variance.mean() + 1e-12)
    length = np.sqrt(np.einsum("flv,flv,v->fl", direction, direction, weight)) + 1e-12
    found: np.ndarray = np.einsum("flv,flv,v->fl", seen - (first + second) / 2, direction, weight) / length
    return found


def _without_noise(setup: Setup) -> Setup:
    """The setup with the same clipping and sampling, and no noise."""
    plans = []
    for plan in setup.cohorts.plans:
        privacy = plan.spec.privacy
        if privacy is not None:
            steps = {size: replace(step, noise=0.0) for size, step in privacy.steps.items()}
            plan = replace(plan, spec=replace(plan.spec, privacy=replace(privacy, noise=0.0, steps=steps)))
        plans.append(plan)
    return replace(setup, cohorts=replace(setup.cohorts, plans=tuple(plans)))


def _coins(config: Config, learners: int) -> np.ndarray:
    """Which of the two data sets each learner has, (federations, learners)."""
    seeds = config.federation.seed + np.arange(config.federation.seeds)[:, None]
    coins: np.ndarray = random_bits("audit canary", seeds, np.arange(learners)) & 1 == 1
    return coins


def _by_sample(coins: np.ndarray, parts: list[np.ndarray], samples: int) -> np.ndarray:
    """The coin of each sample's learner, (federations, samples)."""
    found = np.zeros((len(coins), samples), dtype=bool)
    for who, part in enumerate(parts):
        found[:, part] = coins[:, who, None]
    return found


def _two_dimensional(values: Tensor) -> Tensor:
    return values[:, None] if values.ndim == 1 else values


def _refuse_too_few(coins: np.ndarray) -> None:
    trials, learners = coins.shape
    if min(coins.sum(), (~coins).sum()) < MIN_TRIALS:
        raise ConfigurationError(
            f"trials is {trials} with {learners} learners each; a lower bound of epsilon needs {MIN_TRIALS} learners "
            f"or more with each data set: use more trials"
        )


def _refuse_too_many(values: int, config: Config) -> None:
    if values > MAX_VALUES:
        raise ConfigurationError(
            f"the uploads of {config.federation.seeds} federations have more than {MAX_VALUES:,.0f} values; use fewer "
            f"trials or rounds, or a smaller model"
        )
