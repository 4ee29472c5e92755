"""A run's result, read back from its folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from consilience.errors import CheckpointError, ConfigurationError
from consilience.export import InputDescription
from consilience.export.card import CARD
from consilience.kinds import ACCURACY, METRICS
from consilience.simulation.records.checkpoint import SavedModels
from consilience.simulation.records.history import VALIDATION, History
from consilience.simulation.records.learner_models import LearnerModels, models_of_folder
from consilience.simulation.records.run_folder import PROVENANCE, RunFolder, kind_of, resume_command
from consilience.simulation.records.run_lock import run_status
from consilience.simulation.setup.participants import Model


def read_result(folder: Path, model: Model | Sequence[Model] | None) -> dict[str, Any]:
    """The fields of the `Result` of the run in a folder; model: what builds its models, where names do not."""
    kind = kind_of(folder)
    if kind is not None and kind[0] != "run":
        runs = ", ".join(str(path.parent) for path in sorted(folder.glob("*/config.toml"))) or "none yet"
        raise ConfigurationError(f"{folder} is a {kind[0]}; name one of its runs: {runs}")
    run = RunFolder.open(folder)
    config, summary = run.config, run.result
    if summary is None:
        if (folder / "model" / CARD).is_file():
            raise ConfigurationError(f"{folder} is a member's folder; its model is exported in {folder / 'model'}")
        status = run_status(run)
        hint = "wait until it ends" if status.state == "running" else f"finish it with: {resume_command(folder)}"
        raise CheckpointError(f"{folder} has no result yet, it is {status.describe()}; {hint}")
    seeds = tuple(range(config.federation.seed, config.federation.seed + config.federation.seeds))
    history = History(seeds, int(summary["learners"]), len(config.variants) or 1)
    # A run that was stopped, resumed and then killed has a checkpoint of a later round than its result.
    rounds = int(SavedModels(run).numbers["round"]) if run.has_checkpoint else int(summary["rounds"])
    history.read(run.lines(), rounds, str(run.metrics))
    history.seconds = {phase: float(summary["seconds"][phase]) for phase in history.seconds}
    history.folder = folder
    return {
        "config": config,
        "history": history,
        "engine": summary["engine"],
        "model_name": summary["model"],
        "message_bytes": summary["message_bytes"],
        "peak_memory_mb": summary["peak_memory_mb"],
        "peak_device_mb": summary["peak_device_mb"],
        "finished": summary["finished"],
        "folder": folder,
        "diverged": dict(enumerate(summary["diverged"])),
        "metric": METRICS[summary.get("metric", ACCURACY.key)],
        "accuracy_source": summary["accuracy_source"],
        "privacy": _privacy_of(summary),
        "trained": _models(run, history, model) if run.has_checkpoint else {},
    }


def _privacy_of(summary: dict[str, Any]) -> dict[str, Any] | None:
    """The mechanism and the budget of a private run, without what was spent."""
    known = summary.get("privacy")
    return None if known is None else {key: value for key, value in known.items() if key != "epsilon"}


def _models(run: RunFolder, history: History, model: Model | Sequence[Model] | None) -> dict[str, LearnerModels]:
    config, inputs = run.config, _inputs(run)
    found = {"last": models_of_folder(SavedModels(run), config, inputs, model)}
    if config.evaluation.validation:
        saved, rounds = SavedModels(run, best=True), history.best_rounds(VALIDATION)
        found["best"] = models_of_folder(saved, config, inputs, model, rounds)
    return found


def _inputs(run: RunFolder) -> InputDescription:
    """What the run's models take, from the record of its data."""
    file = run.path / PROVENANCE
    try:
        return InputDescription.of_record(json.loads(file.read_text(encoding="utf-8"))["data"])
    except (OSError, ValueError, KeyError, TypeError, ValidationError) as error:
        raise CheckpointError(
            f"{file} does not say what the models take as inputs ({type(error).__name__}: {error}); it was changed or "
            f"written by an earlier version of consilience: start the run again in another folder"
        ) from error
