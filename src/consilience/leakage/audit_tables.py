"""Audits of runs as rows of tables, for a terminal and for a page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from consilience.evaluation.roc import FALSE_POSITIVE_RATES, Roc
from consilience.leakage.audit_results import AuditResult
from consilience.leakage.tables import format_statistics

AuditByRun = Mapping[str, AuditResult]
"""The results by the label of the run."""
Rows = list[dict[str, Any]]

ATTACKS = (
    "Membership inference by likelihood ratio (LiRA): was a sample among those that its learner trained on? AUC and "
    "balanced accuracy: 0.5 is chance. TPR: the share of members found where the false alarms are no more than 0.1 % "
    "or 1 % of the others; chance finds as many. Online: with shadow models of both kinds; offline: with those that "
    "were trained without the sample."
)
EPSILON = (
    "A lower bound of epsilon: what differential privacy of all uploads can be at best, from runs with one of two "
    "neighboring data sets, at 95 % confidence. It must be below the epsilon that is claimed. General: for every "
    "mechanism; Gaussian: tighter, if its noise is Gaussian."
)
_FORMS = ("online", "offline")


def attack_rows(found: AuditByRun) -> Rows:
    """One row per run, target and form of the attack."""
    return [
        {
            **({"run": label} if len(found) > 1 else {}),
            "attacked": attack.target,
            "form": form,
            "AUC": format_statistics(attack.auc) if form == "online" else f"{roc.auc:.2f}",
            "balanced accuracy": f"{roc.balanced_accuracy:.2f}",
            **{f"TPR at {100 * rate:g} % FPR": _rate(roc, i) for i, rate in enumerate(FALSE_POSITIVE_RATES)},
            "members": roc.members,
            "others": roc.others,
        }
        for label, audit in found.items()
        for attack in audit.attacks
        for form, roc in zip(_FORMS, (attack.online, attack.offline), strict=True)
    ]


def epsilon_rows(found: AuditByRun) -> Rows:
    """One row per run with a lower bound of epsilon."""
    return [
        {
            **({"run": label} if len(found) > 1 else {}),
            "claimed": "none" if audit.epsilon.claimed is None else f"{audit.epsilon.claimed:.3g}",
            "general": f"{audit.epsilon.general.epsilon:.2f}",
            "Gaussian": f"{audit.epsilon.gaussian.epsilon:.2f}",
            "delta": f"{audit.epsilon.general.delta:g}",
            "neighbors": audit.epsilon.neighbors,
            "trials of each": audit.epsilon.general.trials,
            "errors": f"{audit.epsilon.gaussian.false_positives} + {audit.epsilon.gaussian.false_negatives}",
        }
        for label, audit in found.items()
        if audit.epsilon is not None
    ]


def audit_text(found: AuditByRun) -> str:
    """What was run, and what could not be attacked."""
    sentences = [ATTACKS]
    for audit in found.values():
        accuracy = "" if audit.accuracy is None else f", accuracy {audit.accuracy:.1f} %"
        sentences.append(
            f"{audit.method} on {audit.data}: {audit.shadows} shadow federations of {audit.learners} learners, "
            f"{audit.rounds} rounds, seeds {audit.seed} to {audit.seed + audit.shadows - 1}, {audit.samples:,} samples"
            f"{accuracy}."
        )
        if audit.not_attacked:
            sentences.append(f"Not attacked: {', '.join(audit.not_attacked)}.")
    return " ".join(sentences)


def _rate(roc: Roc, number: int) -> str:
    rate = roc.tpr_at_fpr[number]
    return "–" if rate is None else f"{100 * rate:.1f} %"
