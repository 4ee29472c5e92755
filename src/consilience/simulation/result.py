"""The result of a run: its metrics with their spread, its costs, and its history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch import nn

from consilience.config.config import Config
from consilience.errors import ConfigurationError
from consilience.export.load import check_answer
from consilience.kinds import ACCURACY, Metric
from consilience.presentation.ranking import ranked_by
from consilience.simulation.records.history import VALIDATION, History
from consilience.simulation.records.learner_models import LearnerModels, ModelsBySeed
from consilience.simulation.records.saved_result import read_result
from consilience.simulation.setup.participants import Model
from consilience.task import AnswerKind


@dataclass(frozen=True)
class Result:
    """The result of a run. `history[metric]` is (rounds, seeds, learners)."""

    config: Config
    history: History
    engine: str
    model_name: str
    message_bytes: dict[str, int]
    peak_memory_mb: float
    peak_device_mb: float | None = None
    finished: bool = True
    asked_to_stop: bool = False  # may be true of a finished run, if it was in the last round
    folder: Path | None = None
    diverged: Mapping[int, str] = field(default_factory=dict)
    metric: Metric = ACCURACY
    """The score that stands under `accuracy`: of multi-label tasks F1, of regressions R²."""
    accuracy_source: str = "classifier"
    """What predicts classes in `accuracy`: the learners' own classifier, or the name of a probe."""
    privacy: Mapping[str, Any] | None = None
    """Mechanism, neighboring relation and budget, where uploads are private; `summary` adds what was spent."""
    trained: Mapping[str, LearnerModels] = field(default_factory=dict, repr=False)
    """The models after the last round, "last", and with a validation split after the best one of each seed, "best"."""

    @classmethod
    def load(cls, folder: str | Path, *, model: Model | Sequence[Model] | None = None) -> Result:
        """The result of a run that was saved in a folder, with the models of its learners.

        model: what builds the models, where the run was given objects of your program and not names or files.

            >>> Result.load("runs/first").model(learner=0)  # doctest: +SKIP
        """
        return cls(**read_result(Path(folder), model))

    def model(
        self,
        learner: int = 0,
        seed: int | None = None,
        round: Literal["last", "best"] = "last",
        answer: AnswerKind = "common",
    ) -> nn.Module:
        """A learner's trained model: a new module of its own class, on the CPU and in evaluation mode.

        seed: the first one by default. round: "last", or "best": after the evaluated round with the highest mean
        validation accuracy of the seed, in a run with a validation split. answer: "common", the model itself, or "own",
        an `OwnAnswer` around it, for data like the learner's own, where the method has one. Inputs are scaled as the
        run's data are.

            >>> from consilience import simulate
            >>> type(simulate(rounds=1, learners=2, train=40, test=20).model(learner=1)).__name__
            'SplitModel'
        """
        check_answer(answer)
        models, chosen = self._by_seed(round), self.history.seeds[0] if seed is None else seed
        return models[chosen, learner] if answer == "common" else models.own_answer(chosen, learner)

    @property
    def models(self) -> ModelsBySeed:
        """The models after the last round by (seed, learner); each is built when it is asked for."""
        return self._by_seed("last")

    def export(
        self,
        out: str | Path,
        *,
        learner: int | None = None,
        seed: int | None = None,
        round: Literal["last", "best"] = "last",
        onnx: bool = False,
    ) -> list[Path]:
        """Write trained models into a folder: one learner's, or each learner's in a subfolder `learner-N` of it.

        The folders are returned; `load_model` and `consilience predict` read them. A learner's own answer, where it has
        one, is in a file of its own, `own_answer.safetensors`. onnx: write `model.onnx` as well, and `own_answer.onnx`.
        """
        models, chosen = self._by_seed(round), self.history.seeds[0] if seed is None else seed
        learners = range(self.history.learners) if learner is None else [learner]
        places = {who: Path(out) if learner is not None else Path(out) / f"learner-{who}" for who in learners}
        for who in learners:
            place = models.place(chosen, who)
            models.export(places[who], *place, self.config.model.width, self._about_training(round, *place), onnx=onnx)
        return list(places.values())

    def _by_seed(self, round_: str) -> ModelsBySeed:
        if self.config.variants:
            raise ConfigurationError(
                f"the run has {len(self.config.variants)} variants, numbered from 0; take the models of one of them: "
                f"result.variants[0].model(), or --variant 0 of `consilience export`"
            )
        if round_ not in ("last", "best"):
            raise ConfigurationError(f"round is {round_!r}; it must be 'last' or 'best'")
        if round_ == "best" and not self.config.evaluation.validation:
            raise ConfigurationError(
                "the run had no validation split, so no round is known to be the best; set validation=0.1 to hold out "
                "a tenth of each learner's samples, or use the last round"
            )
        if round_ not in self.trained:
            raise ConfigurationError(
                f"{self.folder or 'the run'} has no models: it was run with keep_models=False, as `reproduce` does, or "
                f"it was stopped before its first checkpoint; run it again, keeping them"
            )
        return ModelsBySeed(self.trained[round_], self.history.seeds)

    def _about_training(self, round_: str, federation: int, learner: int) -> dict[str, Any]:
        """What a model's card says about its training."""
        after = int(self.trained[round_].rounds[federation])
        record = self.history.records[after]
        kept = [key for key in record if key.startswith(("accuracy", "rmse"))]
        metrics = {key: float(record[key][federation, learner]) for key in kept}
        return {
            "method": self.config.method.label,
            "settings": self.config.method.settings,
            "data": self.config.data_name,
            "label": self.config.data.label,
            "learner": learner,
            "learners": self.history.learners,
            "seed": self.history.seeds[federation],
            "round": after,
            "rounds": self.history.rounds,
            "metrics": {key: value for key, value in metrics.items() if np.isfinite(value)},
            "accuracy_source": self.accuracy_source,
            **({} if self.metric == ACCURACY else {"metric": self.metric.key}),
        }

    def raise_if_interrupted(self) -> None:
        """Raise KeyboardInterrupt if Ctrl-C was pressed in the last round of a finished run: no other should start."""
        if self.finished and self.asked_to_stop:
            raise KeyboardInterrupt

    @property
    def variants(self) -> list[Result]:
        """The result of each variant, if the run has variants; each has an equal share of the time."""
        seeds = len(self.history.seeds)
        return [
            replace(
                self,
                config=self.config.variant(i),
                history=self.history.of(i),
                diverged={f % seeds: what for f, what in self.diverged.items() if f // seeds == i},
                trained={k: models.of(slice(i * seeds, (i + 1) * seeds)) for k, models in self.trained.items()},
            )
            for i in range(len(self.config.variants))
        ]

    def variant(self, number: int) -> Result:
        """The result of one of the variants, by its number from 0."""
        if not 0 <= number < len(self.config.variants):
            raise ConfigurationError(f"there is no variant {number}; the run has {len(self.config.variants)} of them")
        return self.variants[number]

    @property
    def accuracy(self) -> np.ndarray:
        """The score, `metric`, in percent, after the last evaluated round: (seeds, learners)."""
        return self.history.last("accuracy")

    def confusion(self) -> np.ndarray:
        """The test samples of each class, by row, predicted as each class, by column, after the last evaluated round.

        Summed over learners and seeds; for runs with `metrics = ["confusion"]`.
        """
        places = [key.split(".")[1:] for key in self.history if key.startswith("confusion.")]
        if not places:
            raise ConfigurationError('the run recorded no confusion matrix; run it with metrics = ["confusion"]')
        size = 1 + max(int(row) for row, _ in places)
        counts = [float(np.nansum(self.history.last(f"confusion.{row}.{column}"))) for row, column in places]
        return np.array(counts).astype(np.int64).reshape(size, size)

    def summary(self) -> dict[str, Any]:
        """The run as one JSON object; with variants: that of the best one, and a list of all under `variants`."""
        if self.config.variants:
            each = [
                result.summary() | {"set": changes}
                for result, changes in zip(self.variants, self.config.variants, strict=True)
            ]
            seconds = {"total": sum(self.history.seconds.values()), **self.history.seconds}
            return (best_of(each) or each[0]) | {"seconds": seconds, "variants": each}
        history, config = self.history, self.config
        rounds = max(history.rounds, 1)
        moved = {way: history.total(f"bytes.{way}") for way in ("up", "down")}
        before, local = _spread(history.last("accuracy_before")), history.last("accuracy_own")
        return {
            "method": config.method.label,
            "settings": config.method.settings,
            "data": config.data.source,
            "model": self.model_name,
            "learners": history.learners,
            "rounds": history.rounds,
            "seed": history.seeds[0],
            "seeds": len(history.seeds),
            "engine": self.engine,
            "device": config.execution.device,
            "metric": self.metric.key,
            "accuracy": _spread(self.accuracy),
            "accuracy_source": self.accuracy_source,
            "accuracy_own": _spread(local) | {"by_learner": _by_learner(local)},
            "accuracy_before": before if before["mean"] is not None else None,
            "accuracy_validation": _spread(self._optional_metric(VALIDATION)),
            "best_rounds": history.best_rounds(VALIDATION).tolist() if VALIDATION in history.records[0] else None,
            "probes": {
                probe: _spread(accuracy)
                for probe in ("linear", "scaled", "knn")
                if (accuracy := self._optional_metric(f"accuracy_{probe}")).size
            },
            "ensemble": _spread(self._optional_metric("accuracy_ensemble")),
            "heads": _spread(self._optional_metric("accuracy_heads")),
            **({"rmse": _spread(self._optional_metric("rmse"))} if "rmse" in history.records[0] else {}),
            "dependence": _spread(self._optional_metric("dependence")),
            **(
                {}
                if self.privacy is None
                else {"privacy": _privacy_spent(self.privacy, self._optional_metric("epsilon"))}
            ),
            **{name: _spread(self._optional_metric(name)) for name in config.evaluation.metrics if name != "confusion"},
            **({"confusion": self.confusion().tolist()} if "confusion" in config.evaluation.metrics else {}),
            "bytes": {way: float(total.mean() / rounds) for way, total in self._moved().items()},
            "message_bytes": self.message_bytes,
            "public_bytes": float(sum(np.sum(r.get("bytes.public", 0)) for r in history.records) / len(history.seeds)),
            "bytes_total": float(sum(total.sum() for total in moved.values()) / len(history.seeds)),
            "values_total": float(
                sum(history.total(f"values.{way}").sum() for way in ("up", "down")) / len(history.seeds)
            ),
            "seconds": {"total": sum(history.seconds.values()), **history.seconds},
            "peak_memory_mb": self.peak_memory_mb,
            "peak_device_mb": self.peak_device_mb,
            "groups": self._by_group(),
            "diverged": list(self.diverged.values()),
            "finished": self.finished,
            "run": str(self.folder) if self.folder else None,
        }

    def _optional_metric(self, key: str) -> np.ndarray:
        """A metric that not every run has, after the last evaluated round, (seeds, learners); empty if missing."""
        return self.history.last(key) if key in self.history.records[0] else np.zeros((0, 0))

    def _by_group(self) -> dict[str, Any]:
        """The results of each group of learners, if learners differ in their models or settings."""
        history, rounds, moved = self.history, max(self.history.rounds, 1), self._moved()
        groups = self.config.learners_by_group() if history.learners == self.config.federation.learners else {}
        models = self.config.learner_models if groups else []
        return {
            name: {
                "learners": who,
                "model": ", ".join(dict.fromkeys(models[w] for w in who)),
                "accuracy": _spread(self.accuracy[:, who]),
                "accuracy_own": _spread(history.last("accuracy_own")[:, who]),
                "bytes": {way: float(total[:, who].mean() / rounds) for way, total in moved.items()},
            }
            for name, who in groups.items()
        }

    def _moved(self) -> dict[str, np.ndarray]:
        """Bytes of each learner in all rounds, (seeds, learners), without those before the first round."""
        ways = {way: f"bytes.{way}" for way in ("up", "down")}
        return {way: self.history.total(key) - self.history.records[0][key] for way, key in ways.items()}

    def table(self) -> str:
        """The last round in a few lines of text."""
        from consilience.presentation.tables import table_text

        return "\n".join(map(table_text, summary_tables([self.summary()])))

    def __repr__(self) -> str:
        from consilience.presentation.tables import plural

        mean = _spread(self.accuracy)["mean"] if self.history.records else None
        found = "not evaluated" if mean is None else f"{self.metric.name} {mean:.1f} %"
        counts = {"learner": self.history.learners, "round": self.history.rounds, "seed": len(self.history.seeds)}
        size = ", ".join(plural(count, noun) for noun, count in counts.items())
        return f"Result({self.config.method.label} on {self.config.data_name}: {found}; {size})"

    def _repr_html_(self) -> str:
        from consilience.presentation.notebook import tables_html

        return tables_html(summary_tables([self.summary()]))

    def to_pandas(self) -> Any:
        """Every metric as a pandas data frame: a row per round, seed and learner, round 0 is before the first."""
        from consilience.presentation.notebook import data_frame

        return data_frame(self.history.columns())

    def plot(self, metric: str = "accuracy") -> Any:
        """A metric over rounds as an Altair chart: the mean of learners, and its deviation over seeds or learners."""
        from consilience.simulation.plots import plot_runs

        return plot_runs(histories_of(self), metric, self.metric)


def histories_of(result: Result) -> dict[str, History]:
    """The history of each variant by its settings; that of a run without variants by its method."""
    if not result.config.variants:
        return {result.config.method.label: result.history}
    names = (" ".join(f"{key}={value}" for key, value in changes.items()) for changes in result.config.variants)
    return dict(zip(names, (each.history for each in result.variants), strict=True))


def summary_tables(summaries: Sequence[Mapping[str, Any]]) -> list[Any]:
    """The tables of one or more runs: by method and, where learners differ, by group of learners."""
    from consilience.presentation.tables import comparison_table, groups_table

    groups = any(summary.get("groups") for summary in summaries)
    return [comparison_table(summaries), *([groups_table(summaries)] if groups else [])]


def best_of(summaries: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The summary that ranks first of those that did not diverge: see `ranked_by`; None if there is none."""
    converged = [s for s in summaries if not s["diverged"] and s["accuracy"]["mean"] is not None]
    metric = ranked_by(converged)
    return dict(max(converged, key=lambda s: float(s[metric]["mean"]))) if converged else None


def _spread(values: np.ndarray) -> dict[str, Any]:
    """The mean of (seeds, learners), its spread over seeds and over learners, and the worst learner."""
    if np.isnan(values).all():
        return {"mean": None, "std_seeds": None, "std_learners": None, "worst": None, "by_seed": []}
    by_seed = np.nanmean(values, axis=1)
    return {
        "mean": float(by_seed.mean()),
        "std_seeds": float(by_seed.std(ddof=1)) if len(by_seed) > 1 else None,
        "std_learners": float(np.nanstd(values, axis=1).mean()),
        "worst": float(np.nanmin(values, axis=1).mean()),
        "by_seed": [float(x) for x in by_seed],
    }


def _privacy_spent(plan: Mapping[str, Any], spent: np.ndarray) -> dict[str, Any]:
    """What uploads have revealed at most: spent, (seeds, learners), by the learner that has spent most."""
    return {"epsilon": float(np.max(spent)) if spent.size else 0.0, **plan}


def _by_learner(values: np.ndarray) -> list[list[float | None]]:
    """The values of each seed, one per learner, to four digits after the point; None if not known."""
    return [[None if np.isnan(value) else round(float(value), 4) for value in row] for row in values]
