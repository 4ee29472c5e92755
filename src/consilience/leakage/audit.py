"""Audit the settings of a run: membership inference against its uploads and models, and a lower bound of epsilon."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from consilience.config.config import Config
from consilience.data import Dataset
from consilience.errors import ConfigurationError
from consilience.evaluation.likelihood_ratio import MIN_MODELS, likelihood_ratio_scores
from consilience.evaluation.roc import Roc, roc_of
from consilience.leakage.audit_results import AuditResult, MembershipAttack
from consilience.leakage.epsilon_audit import audit_epsilon
from consilience.leakage.examined_learner import refuse_other_kinds
from consilience.leakage.results import LearnerStatistics
from consilience.leakage.shadow_federations import MODEL, ShadowStatistics, run_shadows
from consilience.method import Method
from consilience.methods import build_method
from consilience.simulation.engines.choose import check_device
from consilience.simulation.run import OnRound
from consilience.simulation.setup.inputs import load_data, with_absolute_paths, with_learners, with_model
from consilience.simulation.simulate import in_one_round
from consilience.validation import check_choice, check_integer

Of = Literal["both", "uploads", "model"]
"""What is attacked: the uploads of all rounds, the models after the last, or both."""
ALL_UPLOADS = "all uploads"


@dataclass(frozen=True)
class AuditSettings:
    """shadows: federations that are trained, each the target of the others once. of: what is attacked.

    trials: federations for the lower bound of epsilon, each run three times; 0 leaves it out.
    """

    shadows: int = 32
    of: Of = "both"
    trials: int = 64

    def __post_init__(self) -> None:
        check_integer("shadows", self.shadows)
        check_integer("trials", self.trials, low=0)
        if self.shadows < MIN_MODELS:
            raise ConfigurationError(
                f"shadows is {self.shadows}; an audit needs {MIN_MODELS} shadow federations or more, half of them with "
                f"each sample"
            )
        check_choice("of", self.of, get_args(Of))


@dataclass(frozen=True, eq=False)
class AuditedRun:
    """What an audit runs: settings of one federation, its method and its data."""

    config: Config
    method: Method
    data: Dataset


def prepare_audit(config: Config, settings: AuditSettings) -> AuditedRun:
    """The settings, method and data of the shadow federations; what cannot be audited is refused."""
    check_device(config.execution.device)
    first = config.variant(0) if config.variants else config
    method = build_method(first.method.name, first.method.settings)
    if settings.of == "uploads" and not _uploads(method):
        raise ConfigurationError(
            f"method {method.name!r} uploads nothing on a channel, so there are no uploads to attack; use --of model"
        )
    first = in_one_round(with_absolute_paths(first), method)
    data = load_data(first)
    refuse_other_kinds(data, "an audit")
    first = with_learners(with_model(first, data), data)
    return AuditedRun(first.replace(eval_every=first.training.rounds), method, data)


def audit_run(run: AuditedRun, settings: AuditSettings, on_round: OnRound | None = None) -> AuditResult:
    """Run the shadow federations of a run, and attack them."""
    config = run.config.replace(seeds=settings.shadows)
    found = run_shadows(config, run.method, run.data, on_round)
    accuracy, bound = found.result.accuracy, None
    if settings.trials and settings.of != "model" and _uploads(run.method):
        bound = audit_epsilon(run.config, run.method, run.data, settings.trials, on_round)
    return AuditResult(
        method=run.method.name,
        data=run.data.name,
        rounds=config.training.rounds,
        learners=len(np.unique(found.owner)),
        seed=config.federation.seed,
        shadows=settings.shadows,
        samples=found.member.shape[1],
        accuracy=None if np.isnan(accuracy).all() else float(np.nanmean(accuracy)),
        attacks=tuple(_attack(name, seen, found) for name, seen in _targets(found, settings.of).items()),
        not_attacked=found.not_attacked,
        epsilon=bound,
    )


def _uploads(method: Method) -> bool:
    """Whether anything travels on a channel."""
    exchanges = [e for role in method.roles.values() for e in role.exchanges if e.name in role.uploading]
    return any(e.scope == "everybody" for e in exchanges)


def _targets(found: ShadowStatistics, of: Of) -> dict[str, np.ndarray]:
    """What is attacked by name: every channel, all of them together where there are several, and the models."""
    uploads = {name: seen for name, seen in found.by_target.items() if name != MODEL}
    if len(uploads) > 1:
        uploads[ALL_UPLOADS] = np.concatenate(list(uploads.values()), axis=2)
    models = {MODEL: found.by_target[MODEL]} if MODEL in found.by_target else {}
    return {"both": uploads | models, "uploads": uploads, "model": models}[of]


def _attack(name: str, seen: np.ndarray, found: ShadowStatistics) -> MembershipAttack:
    """Both forms of the attack on one target."""
    with threadpool_limits(1):  # small matrices: threads only wait for each other
        online, offline = (likelihood_ratio_scores(seen, found.member, form) for form in ("online", "offline"))
    by_learner = [_roc(online, found, found.owner == who).auc for who in np.unique(found.owner)]
    everybody = np.ones_like(found.owner, dtype=bool)
    both = _roc(online, found, everybody), _roc(offline, found, everybody)
    return MembershipAttack(name, *both, LearnerStatistics.of(by_learner))


def _roc(scores: np.ndarray, found: ShadowStatistics, samples: np.ndarray) -> Roc:
    """The ROC over all federations and some samples; samples without enough shadow models are left out."""
    some, member = scores[:, samples], found.member[:, samples]
    known = np.isfinite(some)
    return roc_of(some[member & known], some[~member & known])
