"""The sections of a page about leakage, for runs that `consilience leakage` has measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from consilience.errors import ConsilienceError
from consilience.leakage import tables
from consilience.leakage.results import PICTURES, LeakageResult, LearnerStatistics, read_leakage
from consilience.presentation import leakage_charts
from consilience.report.runs import ReportedRun
from consilience.report.section import Picture, Section

_MAX_RUNS = 8  # in a chart
_LIMITS = (
    "An attack that fails proves nothing: another, with more data or time, may succeed. The numbers are of the "
    "examined learners in the first seed."
)


def leakage_sections(runs: Sequence[ReportedRun], prefix: str) -> Iterator[Section]:
    """The sections of runs whose leakage was measured; none if there are no such runs."""
    folders: dict[Path, ReportedRun] = {}
    for run in runs:  # variants share a folder
        folders.setdefault(run.folder, run)
    notes: list[str] = []
    found = {run.label: leakage for run in folders.values() if (leakage := _read(run, notes)) is not None}
    if not found:
        if notes:
            yield Section("Leakage", notes=notes, name=f"{prefix}leakage")
        return
    text = f"{tables.layers_text(found)}\n\n{_describe_attack(found)} {_LIMITS}"
    chart = leakage_charts.layers_by_run(_layer_points(found))
    rows = tables.layers_rows(found)
    yield Section("Leakage", text=text, table=rows, figure=chart, name=f"{prefix}leakage", notes=notes)
    if pictures := list(_pictures(folders.values(), found, "layers")):
        text = "Above: a learner's own images; below: the images that a decoder reconstructs from the layer's outputs."
        yield Section(
            "Images reconstructed from layer outputs",
            text=text,
            pictures=pictures,
            name=f"{prefix}leakage-reconstructed",
        )
    if rows := tables.means_rows(found):
        chart = leakage_charts.by_group_size(_mean_points(found), "SSIM")
        pictures = list(_pictures(folders.values(), found, "means"))
        name = f"{prefix}leakage-means"
        yield Section(
            "Images reconstructed from class means",
            text=tables.MEANS,
            table=rows,
            figure=chart,
            pictures=pictures,
            name=name,
        )
    if rows := tables.membership_rows(found):
        chart = leakage_charts.by_group_size(_membership_points(found), "AUC", level=0.5)
        name = f"{prefix}leakage-membership"
        yield Section("Membership inference", text=tables.MEMBERSHIP, table=rows, figure=chart, name=name)


def _read(run: ReportedRun, notes: list[str]) -> LeakageResult | None:
    try:
        found = read_leakage(run.folder)
    except ConsilienceError as error:
        notes.append(f"{error}.")
        return None
    if found is not None and found.round < int(run.summary.get("rounds") or 0):
        notes.append(
            f"{run.label}: the leakage was measured after round {found.round}, before the run continued; measure again "
            f"with: consilience leakage {run.folder}"
        )
    return found


def _describe_attack(found: Mapping[str, LeakageResult]) -> str:
    """The examined learners and the attacker's training, for runs that may differ in these."""
    descriptions = dict.fromkeys(
        f"{_list_learners(leakage.learners)} after round {leakage.round}, with {leakage.auxiliary_samples:,} test "
        f"samples for an attacker that trains {leakage.attack_epochs} epochs"
        for leakage in found.values()
    )
    return f"Examined: {'; '.join(descriptions)}."


def _list_learners(learners: Sequence[int]) -> str:
    return f"learner{'s' * (len(learners) != 1)} {', '.join(map(str, learners))}"


def _layer_points(found: Mapping[str, LeakageResult]) -> list[dict[str, Any]]:
    rows = []
    for label, leakage in list(found.items())[:_MAX_RUNS]:
        for layer in leakage.layers:
            name = f"{label}, {layer.name}" if len(leakage.layers) > 1 else label
            points: list[tuple[str, str, LearnerStatistics]] = [
                ("distance correlation", "test samples", layer.test_samples.correlation),
                ("distance correlation", "own samples", layer.own_samples.correlation),
                ("corrected", "test samples", layer.test_samples.corrected),
                ("corrected", "own samples", layer.own_samples.corrected),
            ]
            if layer.reconstruction is not None:
                points += [
                    ("SSIM of reconstructed images", "own samples", layer.reconstruction.ssim),
                    ("SSIM of reconstructed images", "baseline", layer.reconstruction.baseline_ssim),
                    ("PSNR of reconstructed images, dB", "own samples", layer.reconstruction.psnr),
                    ("PSNR of reconstructed images, dB", "baseline", layer.reconstruction.baseline_psnr),
                ]
            rows += [
                {"run": name, "measure": measure, "kind": kind, "value": value.mean, "spread": value.std_learners}
                for measure, kind, value in points
                if value.mean is not None
            ]
    return rows


def _mean_points(found: Mapping[str, LeakageResult]) -> list[dict[str, Any]]:
    return [
        {"run": label, "kind": kind, "samples": tables.format_group_size(means.samples_per_mean), "value": value.mean}
        for label, leakage in list(found.items())[:_MAX_RUNS]
        for means in leakage.class_means
        if means.reconstruction is not None
        for kind, value in (
            ("reconstructed, to the nearest sample", means.reconstruction.ssim_nearest),
            ("reconstructed, to the mean image", means.reconstruction.ssim_mean),
            ("baseline, to the nearest sample", means.reconstruction.baseline_ssim),
        )
        if value.mean is not None
    ]


def _membership_points(found: Mapping[str, LeakageResult]) -> list[dict[str, Any]]:
    return [
        {
            "run": label,
            "kind": "AUC",
            "samples": tables.format_group_size(means.samples_per_mean),
            "value": means.membership.auc.mean,
        }
        for label, leakage in list(found.items())[:_MAX_RUNS]
        for means in leakage.class_means
        if means.membership is not None and means.membership.auc.mean is not None
    ]


def _pictures(runs: Sequence[ReportedRun] | Any, found: Mapping[str, LeakageResult], which: str) -> Iterator[Picture]:
    """The saved pictures; missing files are left out."""
    for run in runs:
        leakage = found.get(run.label)
        if leakage is None or which not in leakage.pictures:
            continue
        try:
            content = (run.folder / PICTURES / Path(leakage.pictures[which]).name).read_bytes()
        except OSError:
            continue
        yield Picture(content, f"{run.label}, learner {leakage.learners[0]}")
