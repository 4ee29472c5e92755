"""What is measured when models are evaluated."""

from __future__ import annotations

from dataclasses import dataclass

from consilience.config.config import Config
from consilience.simulation.engines.probing import PROBES
from consilience.simulation.setup.variants import Variants


@dataclass(frozen=True)
class EvaluationPlan:
    """What an evaluation measures of every learner."""

    labeled: bool  # whether every learner's classifier is trained: otherwise its predictions mean nothing
    headed: bool  # whether every learner has a private head that predicts classes
    probes: tuple[str, ...]  # classifiers trained on representations
    ensemble: bool  # whether the mean of all learners' logits is evaluated
    metrics: tuple[str, ...]  # further measures of every learner's classifier
    watched_layer: str | None  # a layer whose dependence on the inputs is measured

    @property
    def accuracy_source(self) -> str:
        """What predicts the classes in `accuracy`: the learners' classifier, or else the first probe."""
        return "classifier" if self.labeled else next(iter(self.probes), "nothing")


def plan_evaluation(config: Config, variants: Variants) -> EvaluationPlan:
    """What the configuration asks for; what is left to `auto` depends on the method."""
    return EvaluationPlan(
        labeled=variants.labeled,
        headed=all(participant.role.objective.has_device_head for participant in variants.all),
        probes=() if config.evaluation.probe == "auto" and variants.labeled else PROBES[config.evaluation.probe],
        ensemble=config.evaluation.ensemble == "on"
        or (config.evaluation.ensemble == "auto" and _has_private_parts(variants) and variants.labeled),
        metrics=config.evaluation.metrics,
        watched_layer=config.evaluation.watch,
    )


def _has_private_parts(variants: Variants) -> bool:
    """Whether an exchange owns a part of the model that learners have in common; the rest is private."""
    return any(e.owned_part is not None for participant in variants.all for e in participant.role.exchanges)
