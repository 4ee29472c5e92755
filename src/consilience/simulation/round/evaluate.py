"""Evaluating every learner's model, each different model once."""

from __future__ import annotations

import time
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from consilience.kinds import Kind, kind_of
from consilience.learner.learner import Learner
from consilience.models.frozen import trained_tensors
from consilience.objectives.two_answers import WEIGHTS
from consilience.simulation.engines.base import Engine
from consilience.simulation.engines.jobs import Choose, Evaluate, Inspect, Job, Measure, Probe, TestSet
from consilience.simulation.records.round_record import Record
from consilience.simulation.round.run_state import RunState
from consilience.task import AnswerKind

_COMPARED = 2**24  # values at a time


def evaluate_models(run: RunState, record: Record) -> None:
    """Record the accuracy of every learner that has joined: of its classifier, and of probes of its features.

    Where no classifier is trained, the accuracy is the first probe's.
    """
    started = time.perf_counter()
    setup, engine, joined = run.setup, run.engine, run.setup.federations.joined(run.round)
    kind = _kind(run)
    for cohort in np.unique(setup.cohorts.main).tolist():
        rows = _rows_at_home(run, cohort, joined)
        if not rows.size:
            continue
        different, like = different_models(engine, cohort, rows, setup.evaluation.labeled)
        at = tuple(members[rows] for members in run.at(cohort))
        if engine.learners[cohort].role.objective.chooses:
            _choose(engine, cohort, rows)
        weights = engine.read(cohort, fields=["objective_state"]).objective_state.get(WEIGHTS)  # (rows, answers)
        if weights is not None and engine.learners[cohort].spec.own_model:
            record["own_model_weight"][at] = weights.numpy(force=True)[rows, -1]
        correct = _sums(engine, cohort, different)[like] if setup.evaluation.labeled else None  # (rows, columns)
        if setup.evaluation.probes:
            probed, validated = _probed(run, cohort, different)
            probed = probed[like]  # (rows, probes, classes)
            correct = probed[:, 0] if correct is None else correct
            for k, probe in enumerate(setup.evaluation.probes):
                record[f"accuracy_{probe}"][at] = kind.score(probed[:, k], setup.data.test_totals)
        if setup.data.validation is not None:
            record["accuracy_validation"][at] = (
                _validate(run, cohort, rows)
                if setup.evaluation.labeled
                else _validate_probes(run, cohort, rows, [validated[i] for i in like])
            )
        if correct is None:
            continue  # there is nothing to measure accuracy by
        record["accuracy"][at] = kind.score(correct, setup.data.test_totals)
        for name, values in kind.further_scores(setup.data.train.target, correct, setup.data.test_totals).items():
            record[name][at] = values
        own, totals = _own_sums(run, cohort, rows, correct)
        record["accuracy_own"][at] = kind.score(own, totals, setup.data.shares[at])
    if setup.evaluation.ensemble:
        _evaluate_ensemble(run, record, joined)
    if setup.evaluation.metrics:
        _measure(run, record, setup.evaluation.metrics, joined)
    if setup.evaluation.watched_layer is not None:
        _measure_dependence(run, record, setup.evaluation.watched_layer, joined)
    elapsed = time.perf_counter() - started
    record["wall.evaluate"] += elapsed
    record["seconds.evaluate"][:, joined] += elapsed / record["accuracy"][:, joined].size


def evaluate_before_merging(run: RunState, record: Record, cohorts: Iterable[int], participates: np.ndarray) -> None:
    """Record the accuracy of participants on test samples like their own, before answers change their models.

    Only where learners have different test samples: otherwise `accuracy_before` is measured with the local work.
    """
    tests = run.setup.data.local_test_sets
    if tests is None or not run.setup.evaluation.labeled:
        return
    for cohort in cohorts:
        rows = np.flatnonzero(participates[run.at(cohort)])
        if not rows.size or not run.changing(cohort):
            continue
        at = tuple(members[rows] for members in run.at(cohort))
        own = _sums(run.engine, cohort, rows, "own", _own_answer(run.engine, cohort))
        record["accuracy_own_before"][at] = _kind(run).score(own, tests.totals()[at[1]], run.setup.data.shares[at])


def _own_sums(run: RunState, cohort: int, rows: np.ndarray, common: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What the score of the own answer follows from, on data like each learner's own, and totals of the tests.

    common: those of the common answer on the common test set, which does where both answers and test sets are the same.
    """
    setup, answer = run.setup, _own_answer(run.engine, cohort)
    if setup.data.local_test_sets is not None and setup.evaluation.labeled:
        learners = run.at(cohort)[1][rows]
        return _sums(run.engine, cohort, rows, "own", answer), setup.data.local_test_sets.totals()[learners]
    own = common if answer == "common" else _sums(run.engine, cohort, rows, answer=answer)
    return own, setup.data.test_totals


def _choose(engine: Engine, cohort: int, rows: np.ndarray) -> None:
    """Let learners choose by held-out samples how much of the common answer enters their own."""
    jobs: list[Job] = [Choose(cohort, some) for some in engine.split(Choose, cohort, rows)]
    for _ in engine.run(jobs):
        pass


def _own_answer(engine: Engine, cohort: int) -> AnswerKind:
    """The answer that the learners of a cohort have for data like their own."""
    return "own" if engine.learners[cohort].role.objective.has_own_answer else "common"


def _rows_at_home(run: RunState, cohort: int, joined: np.ndarray) -> np.ndarray:
    """Rows of a cohort whose learners have joined and have their model there between rounds."""
    federation, learner = run.at(cohort)
    return np.flatnonzero((run.setup.cohorts.main[federation, learner] == cohort) & joined[learner])


def _evaluate_ensemble(run: RunState, record: Record, joined: np.ndarray) -> None:
    """The accuracy of the mean of all learners' logits."""
    setup, engine, targets = run.setup, run.engine, run.setup.data.train.test_targets
    for f in range(setup.federations.count):
        jobs: list[Job] = []
        for i in np.unique(setup.cohorts.main[f]).tolist():
            rows = setup.cohorts.rows[i][f, (setup.cohorts.main[f] == i) & joined]
            jobs += [Inspect(i, some, logits=True) for some in engine.split(Inspect, i, rows)]
        task = engine.learners[0].task
        logits = np.zeros((1 + setup.evaluation.headed, len(targets), task.classes))
        for _, result in engine.run(jobs):  # one after the other, in the order of the jobs
            logits += 0.0 if result.logits is None else result.logits
        members = max(1, int(joined.sum()))
        for key, each in zip(("accuracy_ensemble", "accuracy_heads"), logits, strict=False):
            sums = _kind(run).score_sums(task, torch.from_numpy(each / members), torch.from_numpy(targets))
            record[key][f, joined] = _kind(run).score(sums.numpy()[None], setup.data.test_totals)


def _measure(run: RunState, record: Record, metrics: tuple[str, ...], joined: np.ndarray) -> None:
    """Further measures of every learner's classifier."""
    for i in np.unique(run.setup.cohorts.main).tolist():
        rows = _rows_at_home(run, i, joined)
        if not rows.size:
            continue
        different, like = different_models(run.engine, i, rows, classifiers=True)
        jobs: list[Job] = [Measure(i, some, metrics) for some in run.engine.split(Measure, i, different)]
        found = [result.measured for _, result in run.engine.run(jobs)]
        federation, learner = run.at(i)
        for key in found[0]:
            record[key][federation[rows], learner[rows]] = np.concatenate([each[key] for each in found])[like]


def _measure_dependence(run: RunState, record: Record, layer: str, joined: np.ndarray) -> None:
    """How much of the inputs a layer of each model gives away."""
    for i in np.unique(run.setup.cohorts.main).tolist():
        rows = _rows_at_home(run, i, joined)
        if not rows.size:
            continue
        different, like = different_models(run.engine, i, rows, classifiers=True)
        jobs: list[Job] = [Inspect(i, some, False, layer) for some in run.engine.split(Inspect, i, different)]
        found = [result.dependence for _, result in run.engine.run(jobs) if result.dependence is not None]
        federation, learner = run.at(i)
        record["dependence"][federation[rows], learner[rows]] = np.concatenate(found)[like]


def _probed(run: RunState, cohort: int, rows: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """Correct test samples of probes trained on the federation's whole training set, (rows, probes, classes).

    Also, for each row, which of the samples that its federation holds out for validation the first probe predicts.
    """
    data, engine, federation = run.setup.data, run.engine, run.at(cohort)[0]
    training = data.ranges[federation]
    held = None if data.validation is None else [np.concatenate(mine) for mine in data.validation]
    jobs: list[Job] = []
    for some in engine.split(Probe, cohort, rows):
        held_out = None if held is None else tuple(held[f] for f in federation[some])
        jobs.append(Probe(cohort, some, run.setup.evaluation.probes, training[some], held_out))
    results = [result for _, result in engine.run(jobs) if result.correct is not None]
    correct = np.concatenate([result.correct for result in results if result.correct is not None])
    return correct, [each for result in results for each in result.validated]


def _validate_probes(run: RunState, cohort: int, rows: np.ndarray, validated: list[np.ndarray]) -> np.ndarray:
    """Accuracy of the first probe on what each learner held out, (rows,); NaN where that is nothing.

    validated: for each row, which of the samples that its federation holds out are predicted correctly.
    """
    held, (federation, learner) = run.setup.data.validation, run.at(cohort)
    assert held is not None
    found = np.full(len(rows), np.nan)
    for i, (row, correct) in enumerate(zip(rows, validated, strict=True)):
        sizes = [len(mine) for mine in held[federation[row]]]
        first, size = sum(sizes[: learner[row]]), sizes[learner[row]]
        if size:
            found[i] = 100 * correct[first : first + size].mean()
    return found


def _kind(run: RunState) -> Kind:
    """The kind of task, which says what the score is."""
    return kind_of(run.setup.data.train.target)


def _validate(run: RunState, cohort: int, rows: np.ndarray) -> np.ndarray:
    """The score of what each learner held out for validation, (rows,); NaN where that is nothing."""
    engine, data, kind = run.engine, run.setup.data.train, _kind(run)
    members = engine.plans[cohort].members
    assert members.validation is not None
    sums = _sums(engine, cohort, rows, "validation", _own_answer(engine, cohort))
    held = [data.targets[members.validation[row]] for row in rows]
    totals = np.stack([kind.totals(data.target, data.classes, targets) for targets in held])
    found = kind.score(sums, totals, reference=run.setup.data.test_totals)
    return np.where([len(targets) > 0 for targets in held], found, np.nan)


def _sums(
    engine: Engine, cohort: int, rows: np.ndarray, tests: TestSet = "common", answer: AnswerKind = "common"
) -> np.ndarray:
    """What scores follow from, (rows, columns), such as the correct test samples of each class."""
    jobs: list[Job] = [Evaluate(cohort, some, tests, answer) for some in engine.split(Evaluate, cohort, rows)]
    return np.concatenate([result.correct for _, result in engine.run(jobs) if result.correct is not None])


def different_models(engine: Engine, cohort: int, rows: np.ndarray, classifiers: bool) -> tuple[np.ndarray, np.ndarray]:
    """Rows to test, and for each row which of them has its model: where weights are shared, one test does for all.

    What learners train beside their model does not count. classifiers: whether classifiers are tested too; otherwise
    models with the same features are the same.
    """
    learner = engine.learners[cohort]
    if not any(e.changes_model for e in learner.exchanges):
        return rows, np.arange(len(rows))
    state = engine.read(cohort, fields=["parameters", "buffers"])
    federation = engine.plans[cohort].members.federation
    _, firsts, of = np.unique(federation[rows], return_index=True, return_inverse=True)
    first = rows[firsts[of]]  # of the row's federation
    same = np.ones(len(rows), dtype=bool)
    buffers = state.buffers[:, : buffer_size(learner)]
    for flat in (_model_parameters(learner, state.parameters, classifiers), buffers):
        same &= _equal_rows(flat, rows, first)
    return np.unique(np.where(same, first, rows), return_inverse=True)


def model_size(learner: Learner) -> int:
    """How many of a learner's trained parameters are the model's; what is trained beside it comes after them."""
    return sum(parameter.numel() for parameter in trained_tensors(learner.model)[0].values())


def buffer_size(learner: Learner) -> int:
    """How many of a learner's floating-point buffers are the model's; those of other modules come after them."""
    return sum(buffer.numel() for buffer in trained_tensors(learner.model)[1].values() if buffer.is_floating_point())


def _model_parameters(learner: Learner, parameters: Tensor, classifiers: bool) -> Tensor:
    """Of stacked parameters those of the model, (rows, values), with its classifier or without."""
    size = model_size(learner)
    model = parameters[:, :size]
    if classifiers:
        return model
    classifier = {f"classifier.{name}" for name, _ in learner.model.classifier.named_parameters()}
    return model[:, ~learner.binding.parameters.mask(classifier)[:size].to(parameters.device)]


def _equal_rows(stacked: Tensor, rows: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Whether each of these rows is, bit for bit, the same as another one; a few rows at a time."""
    if not stacked.shape[1]:
        return np.ones(len(other), dtype=bool)
    some = max(1, _COMPARED // stacked.shape[1])
    mine, theirs = (torch.from_numpy(numbers).to(stacked.device) for numbers in (rows, other))
    parts = [(stacked[mine[i : i + some]] == stacked[theirs[i : i + some]]).all(1) for i in range(0, len(other), some)]
    return torch.cat(parts).numpy(force=True)
