"""The result of an audit, and its file in a run's folder, `audit.json`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter

from consilience.evaluation.roc import Roc
from consilience.files import replace_file, report_write_errors
from consilience.leakage.result_file import parse_result, read_bytes
from consilience.leakage.results import LearnerStatistics
from consilience.privacy.epsilon_bound import EpsilonBound

FILE = "audit.json"
_HINT = "nothing of the run itself was changed"
Neighbors = Literal["upload", "sample"]
"""Which data sets of a learner are neighbors: any two, or two that differ in one sample."""


@dataclass(frozen=True)
class MembershipAttack:
    """Membership inference against one thing that an attacker sees: a channel, all of them together, or the models.

    online, offline: the two forms of the attack. auc: of the online form, by learner.
    """

    target: str
    online: Roc
    offline: Roc
    auc: LearnerStatistics


@dataclass(frozen=True)
class EpsilonAudit:
    """The epsilon that is claimed, None if none is, and lower bounds of it from runs with and without a canary."""

    claimed: float | None
    neighbors: Neighbors
    general: EpsilonBound
    gaussian: EpsilonBound


@dataclass(frozen=True)
class AuditResult:
    """The audit of a run's settings: what was run for it, every attack, and the lower bound of epsilon.

    samples: that were attacked, of all learners. accuracy: mean of the shadow federations' models, in percent.
    not_attacked: channels, and the models, for which there is no attack here.
    """

    method: str
    data: str
    rounds: int
    learners: int
    seed: int
    shadows: int
    samples: int
    accuracy: float | None
    attacks: tuple[MembershipAttack, ...]
    not_attacked: tuple[str, ...]
    epsilon: EpsilonAudit | None


_READER = TypeAdapter(AuditResult)


def audit_as_json(audit: AuditResult) -> dict[str, object]:
    """The result as a JSON object."""
    found: dict[str, object] = _READER.dump_python(audit, mode="json")
    return found


def write_audit(folder: Path, audit: AuditResult) -> None:
    """Write the result into a run's folder."""
    with report_write_errors(folder / FILE, _HINT):
        replace_file(folder / FILE, _READER.dump_json(audit, indent=1))


def read_audit(folder: Path) -> AuditResult | None:
    """The audit of a run, or None if there was none; a damaged file is an error."""
    file = folder / FILE
    content = read_bytes(file)
    if content is None:
        return None
    return parse_result(_READER, file, content, f"audit again with: consilience audit {folder}")
