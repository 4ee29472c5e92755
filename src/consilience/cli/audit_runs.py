"""The command `consilience audit`: audit runs one after the other, and save the results in their folders."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from consilience.cli.options import gather_config
from consilience.cli.terminal import Screen
from consilience.errors import ConfigurationError
from consilience.leakage import audit_tables as tables
from consilience.leakage.audit import AuditSettings, audit_run, prepare_audit
from consilience.leakage.audit_results import FILE, AuditResult, audit_as_json, write_audit
from consilience.report.page import check_page, write_report


def audit_runs(
    screen: Screen, runs: Sequence[Path], settings: AuditSettings, changes: Sequence[str] = (), page: Path | None = None
) -> None:
    """Audit runs in folders, or the settings in files, show the results, and write the page."""
    folders = [path for path in runs if path.is_dir()]
    if page is not None:
        check_page(page)
        if len(folders) < len(runs):
            raise ConfigurationError("--out writes a page about runs in folders; give no files with settings beside it")
    prepared = {path: prepare_audit(gather_config(_settings_file(path), changes, {}, None), settings) for path in runs}
    found: dict[str, AuditResult] = {}
    for path, run in prepared.items():
        audit = audit_run(run, settings, screen.on_round)
        found[str(path)] = audit
        if path in folders:
            write_audit(path, audit)
            screen.say(f"saved in {path / FILE}")
        if screen.json:
            print(json.dumps({"run": str(path), **audit_as_json(audit)}), flush=True)
    if not screen.json:
        _show(screen, found)
    if page is not None:
        screen.say(f"the page is {write_report(folders, page)}")


def _settings_file(path: Path) -> Path:
    """The file with the settings of a run."""
    file = path / "config.toml" if path.is_dir() else path
    if not file.is_file():
        raise ConfigurationError(
            f"{path} is neither a run's folder nor a file with settings; give the folder that `consilience run --out` "
            f"wrote, or a TOML file"
        )
    return file


def _show(screen: Screen, found: dict[str, AuditResult]) -> None:
    """Print the results as tables."""
    if rows := tables.attack_rows(found):
        screen.section("Membership inference", tables.audit_text(found), rows)
    if rows := tables.epsilon_rows(found):
        screen.section("Lower bound of epsilon", tables.EPSILON, rows)
