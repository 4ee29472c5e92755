"""The sections of a page about audits, for runs that `consilience audit` has attacked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from consilience.errors import ConsilienceError
from consilience.leakage import audit_tables as tables
from consilience.leakage.audit_results import AuditResult, read_audit
from consilience.presentation.audit_charts import log_roc
from consilience.report.runs import ReportedRun
from consilience.report.section import Section

_MAX_RUNS = 8  # in a chart
_LIMITS = "An attack that fails proves nothing: another may succeed. One that succeeds is proof."


def audit_sections(runs: Sequence[ReportedRun], prefix: str) -> Iterator[Section]:
    """The sections of runs that were audited; none if there are no such runs."""
    folders: dict[Path, ReportedRun] = {}
    for run in runs:  # variants share a folder
        folders.setdefault(run.folder, run)
    notes: list[str] = []
    found = {run.label: audit for run in folders.values() if (audit := _read(run, notes)) is not None}
    if not found and notes:
        yield Section("Audit", notes=notes, name=f"{prefix}audit")
    if any(audit.attacks for audit in found.values()):
        yield Section(
            "Audit: membership inference",
            text=f"{tables.audit_text(found)}\n\n{_LIMITS} Curves are of the online form; dashes: chance.",
            table=tables.attack_rows(found),
            figure=log_roc(_curve_points(found), _lowest(found)),
            name=f"{prefix}audit",
            notes=notes,
        )
    if rows := tables.epsilon_rows(found):
        name = f"{prefix}audit-epsilon"
        yield Section("Audit: lower bound of epsilon", text=tables.EPSILON, table=rows, name=name)


def _read(run: ReportedRun, notes: list[str]) -> AuditResult | None:
    try:
        return read_audit(run.folder)
    except ConsilienceError as error:
        notes.append(f"{error}.")
        return None


def _curve_points(found: Mapping[str, AuditResult]) -> list[dict[str, Any]]:
    return [
        {"run": label, "target": attack.target, "false": false, "true": true}
        for label, audit in list(found.items())[:_MAX_RUNS]
        for attack in audit.attacks
        for false, true in attack.online.curve
    ]


def _lowest(found: Mapping[str, AuditResult]) -> float:
    """The smallest false positive rate that all curves resolve: a few of the others."""
    fewest = min(attack.online.others for audit in found.values() for attack in audit.attacks)
    return max(1e-4, min(0.1, 4 / fewest))
