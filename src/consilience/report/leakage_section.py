"""What a page shows of leakage: wherever `consilience leakage` has looked at a run, what it found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from consilience.errors import ConsilienceError
from consilience.leakage import tables
from consilience.leakage.findings import PICTURES, Leakage, OfLearners, read
from consilience.presentation import leakage_charts
from consilience.report.runs import Run
from consilience.report.section import Picture, Section

_LINES = 8  # runs that can be told apart in a chart
_LIMITS = (
    "An attack that fails proves nothing: another, with more data or time, may succeed. All of it is measured on the "
    "learners named, of the first seed."
)


def leaks(runs: Sequence[Run], prefix: str) -> Iterator[Section]:
    """The sections of runs that were examined; none where nobody has."""
    folders: dict[Path, Run] = {}
    for run in runs:  # variants lie in one folder
        folders.setdefault(run.folder, run)
    notes: list[str] = []
    found = {run.label: seen for run in folders.values() if (seen := _read(run, notes)) is not None}
    if not found:
        if notes:
            yield Section("What leaks", notes=notes, name=f"{prefix}leaks")
        return
    text = f"{tables.layers_text(found)}\n\n{_examined(found)} {_LIMITS}"
    chart = leakage_charts.by_run(_by_run(found))
    rows = tables.layers_rows(found)
    yield Section("What leaks", text=text, table=rows, figure=chart, name=f"{prefix}leaks", notes=notes)
    if pictures := list(_pictures(folders.values(), found, "layers")):
        text = "Above a learner's own images, of each class where it has them; below what a decoder makes of outputs."
        yield Section("Rebuilt from outputs", text=text, pictures=pictures, name=f"{prefix}leaks-rebuilt")
    if rows := tables.means_rows(found):
        chart = leakage_charts.by_number(_by_number(found), "SSIM")
        pictures = list(_pictures(folders.values(), found, "means"))
        name = f"{prefix}leaks-means"
        yield Section("Rebuilt from means", text=tables.MEANS, table=rows, figure=chart, pictures=pictures, name=name)
    if rows := tables.members_rows(found):
        chart = leakage_charts.by_number(_members(found), "AUC", level=0.5)
        yield Section("Who was in a mean", text=tables.MEMBERS, table=rows, figure=chart, name=f"{prefix}leaks-members")


def _read(run: Run, notes: list[str]) -> Leakage | None:
    try:
        found = read(run.folder)
    except ConsilienceError as error:
        notes.append(f"{error}.")
        return None
    if found is not None and found.round < int(run.summary.get("rounds") or 0):
        notes.append(
            f"{run.label}: what leaks was looked for after round {found.round}, and the run has gone on since; look "
            f"again with: consilience leakage {run.folder}"
        )
    return found


def _examined(found: Mapping[str, Leakage]) -> str:
    """How it was looked for, in words, for runs that may not all have been looked at alike."""
    said = dict.fromkeys(
        f"{_listed(seen.learners)} after round {seen.round}, with {seen.auxiliary:,} test samples for an attacker that "
        f"trains {seen.epochs} epochs"
        for seen in found.values()
    )
    return f"Looked at: {'; '.join(said)}."


def _listed(learners: Sequence[int]) -> str:
    return f"learner{'s' * (len(learners) != 1)} {', '.join(map(str, learners))}"


def _by_run(found: Mapping[str, Leakage]) -> list[dict[str, Any]]:
    rows = []
    for label, seen in list(found.items())[:_LINES]:
        for layer in seen.layers:
            name = f"{label}, {layer.name}" if len(seen.layers) > 1 else label
            told: list[tuple[str, str, OfLearners]] = [
                ("distance correlation", "test samples", layer.tests.plain),
                ("distance correlation", "own samples", layer.own.plain),
                ("corrected", "test samples", layer.tests.corrected),
                ("corrected", "own samples", layer.own.corrected),
            ]
            if layer.rebuilt is not None:
                told += [
                    ("SSIM of rebuilt images", "own samples", layer.rebuilt.ssim),
                    ("SSIM of rebuilt images", "guess", layer.rebuilt.guess_ssim),
                    ("PSNR of rebuilt images, dB", "own samples", layer.rebuilt.psnr),
                    ("PSNR of rebuilt images, dB", "guess", layer.rebuilt.guess_psnr),
                ]
            rows += [
                {"run": name, "measure": measure, "kind": kind, "value": value.mean, "spread": value.std_learners}
                for measure, kind, value in told
                if value.mean is not None
            ]
    return rows


def _by_number(found: Mapping[str, Leakage]) -> list[dict[str, Any]]:
    return [
        {"run": label, "kind": kind, "samples": tables.number(shared.n_avg), "value": value.mean}
        for label, seen in list(found.items())[:_LINES]
        for shared in seen.shared
        if shared.rebuilt is not None
        for kind, value in (
            ("rebuilt, to the nearest sample", shared.rebuilt.ssim_nearest),
            ("rebuilt, to the mean image", shared.rebuilt.ssim_mean),
            ("guess, to the nearest sample", shared.rebuilt.guess_ssim),
        )
        if value.mean is not None
    ]


def _members(found: Mapping[str, Leakage]) -> list[dict[str, Any]]:
    return [
        {"run": label, "kind": "AUC", "samples": tables.number(shared.n_avg), "value": shared.members.auc.mean}
        for label, seen in list(found.items())[:_LINES]
        for shared in seen.shared
        if shared.members is not None and shared.members.auc.mean is not None
    ]


def _pictures(runs: Sequence[Run] | Any, found: Mapping[str, Leakage], which: str) -> Iterator[Picture]:
    """Grids as they were kept; one that is gone is left out."""
    for run in runs:
        seen = found.get(run.label)
        if seen is None or which not in seen.pictures:
            continue
        try:
            content = (run.folder / PICTURES / Path(seen.pictures[which]).name).read_bytes()
        except OSError:
            continue
        yield Picture(content, f"{run.label}, learner {seen.learners[0]}")
