"""A round, as data flows: local steps, one pass, contribute, encode, put, close, answers, receive, evaluate, record."""

from __future__ import annotations

import hashlib
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping

import numpy as np
import torch
from torch import Tensor

from consilience.channels import Answer
from consilience.errors import TrainingError
from consilience.exchanges.base import Exchange
from consilience.simulation.federation import Federation
from consilience.simulation.hands import Done, Evaluate, Job, Learn, Receive, Work
from consilience.simulation.loop import LoopEngine
from consilience.simulation.plan import Presence, presence
from consilience.simulation.scene import Scene
from consilience.simulation.traffic import Traffic

Record = dict[str, np.ndarray]
"""What a round was like: metric names to (federations, learners) arrays, NaN where a learner has none."""


class Rounds:
    """Plays rounds on an engine. All that a later round depends on is in `state`."""

    def __init__(self, scene: Scene, engine: LoopEngine) -> None:
        self.scene, self.engine = scene, engine
        self.learners = engine.hands.learners
        self.traffic = [Traffic(learner.channels) for learner in self.learners]
        self.federations: list[Federation] = []
        self.answers: dict[int, Answer] = {}
        self._next_answer = 0
        self.held = [
            {e.name: np.full(len(c.plan.members), -1, dtype=np.int64) for e in learner.exchanges}
            for c, learner in zip(engine.cohorts, self.learners, strict=True)
        ]
        self.round = 0
        self.last_participation = np.ones((scene.federations, scene.learners), dtype=bool)

    # -- before the first round ----------------------------------------------------------------------------------------

    def begin(self) -> Record:
        """Give learners their first weights, open the channels, and let eager exchanges put up what is untrained."""
        commons = self._first_weights()
        like = self.engine.hands.data.inputs
        channels = {name: c for learner in self.learners for name, c in learner.channels.items()}
        for f, seed in enumerate(self.scene.seeds):
            self.federations.append(Federation(seed, channels, self.scene.learners, commons[f], like))
        self._first_answers()
        everybody = np.ones((self.scene.federations, self.scene.learners), dtype=bool)
        record = self._blank()
        for role in self.scene.roles:
            self._act(role, [Presence(e, e) for e in everybody], record, train=False, evaluate=False)
        return record

    def _first_weights(self) -> list[dict[str, dict[str, Tensor]]]:
        """Fill the learners' rows; return the common values of each federation's moving means."""
        commons: list[dict[str, dict[str, Tensor]]] = [{} for _ in self.scene.seeds]
        for cohort, learner in zip(self.engine.cohorts, self.learners, strict=True):
            for f in np.unique(cohort.plan.members.federation):
                learner.wear(learner.initial(self.scene.common_seed(f)))
                commons[f] |= {e.name: c for e in learner.exchanges if (c := learner.common(e))}
            for number, (f, who) in enumerate(
                zip(cohort.plan.members.federation, cohort.plan.members.learner, strict=True)
            ):
                row = cohort.row(number)
                for key, value in learner.initial(self.scene.learner_seed(f, who)).items():
                    row[key].copy_(value)
                learner.wear(row)
                for exchange in learner.exchanges:
                    if exchange.start == "common":
                        learner.take(commons[f].get(exchange.name, {}))
                for key, value in learner.states().items():
                    row[key].copy_(value)
        return commons

    def _first_answers(self) -> None:
        """Before anything was put: zeros with count 0, or the common values at the start."""
        news = {}
        for f, federation in enumerate(self.federations):
            for name in federation.channels:
                for answer, readers in federation.answers(name, range(self.scene.learners), 0, 0):
                    number = self._keep_answer(answer)
                    news[number] = answer
                    for reader in readers:
                        cohort, row = self.scene.place(f, reader)
                        if name in self.held[cohort]:
                            self.held[cohort][name][row] = number
        self.engine.learn(Learn(news))

    def _keep_answer(self, answer: Answer) -> int:
        number, self._next_answer = self._next_answer, self._next_answer + 1
        self.answers[number] = answer
        return number

    # -- a round -------------------------------------------------------------------------------------------------------

    def play(self, evaluate: bool) -> Record:
        """One whole round."""
        self.round += 1
        record = self._blank()
        present = [
            presence(seed, self.round, self.scene.learners, self.scene.participation, self.scene.offline)
            for seed in self.scene.seeds
        ]
        self._catch_up(present, record)
        for role in self.scene.roles:
            self._act(role, present, record, train=True, evaluate=evaluate and self._merges(role))
        if evaluate:
            self._evaluate(record)
        self.last_participation = np.stack([p.participates for p in present])
        record["participated"][:] = self.last_participation
        return record

    def _merges(self, role: str) -> bool:
        return any(e.changes_model for e in self.scene.method.roles[role].exchanges)

    def _act(self, role: str, present: list[Presence], record: Record, train: bool, evaluate: bool) -> None:
        """One role's part of a round: work, put, close, and answers to everybody who listens."""
        started = time.perf_counter()
        active = [e for e in self.scene.method.roles[role].exchanges if self._active(e, train)]
        if not train and not active:
            return
        names = tuple(e.name for e in active)
        jobs = self._jobs(role, present, names, train, evaluate)
        for f, federation in enumerate(self.federations):
            for name in names:
                putting = [m for m in np.flatnonzero(present[f].exchanges) if self._role(f, m) == role]
                federation.expect(name, putting)
        spent: dict[str, float] = defaultdict(float)
        for job, done in self.engine.run(jobs):
            assert isinstance(job, Work)
            self._note(job, done, record, spent)
            self._put(job, names)
        self._share_out(time.perf_counter() - started, spent, record)
        started = time.perf_counter()
        for federation in self.federations:
            federation.close(names)
        readers = [np.flatnonzero(p.exchanges) for p in present]
        self._answer(names, readers, record, catch_up=False)
        record["wall.exchange"] += time.perf_counter() - started

    def _active(self, exchange: Exchange, train: bool) -> bool:
        return self.round % exchange.every == 0 if train else exchange.eager

    def _role(self, federation: int, learner: int) -> str:
        return self.engine.cohorts[self.scene.place(federation, learner)[0]].plan.role

    def _jobs(self, role: str, present: list[Presence], names: tuple[str, ...], train: bool, evaluate: bool) -> list[Job]:
        jobs: list[Job] = []
        for i, cohort in enumerate(self.engine.cohorts):
            if cohort.plan.role != role:
                continue
            members = cohort.plan.members
            rows = [
                r for r in range(len(members)) if present[members.federation[r]].participates[members.learner[r]]
            ]
            step = self.engine.job_rows[i]
            for some in (tuple(rows[k : k + step]) for k in range(0, len(rows), step)):
                online = [present[members.federation[r]].online[members.learner[r]] for r in some]
                put = tuple(names if up else () for up in online)
                held = tuple(self._held(i, r) for r in some)
                jobs.append(Work(i, some, self.round, held, put, train, evaluate))
        return jobs

    def _held(self, cohort: int, row: int) -> dict[str, int]:
        return {name: int(numbers[row]) for name, numbers in self.held[cohort].items()}

    def _note(self, job: Work, done: Done, record: Record, spent: dict[str, float]) -> None:
        """Write down what training a few rows was like; stop where a loss is no number."""
        learner, members = self.learners[job.cohort], self.engine.cohorts[job.cohort].plan.members
        terms = [learner.role.objective.name, *(e.name for e in learner.exchanges)]
        assert done.losses is not None
        for i, row in enumerate(job.rows):
            at = members.federation[row], members.learner[row]
            self._refuse_nonsense(at, terms, done.losses[i], done.finite[i])
            if job.train:
                for term, loss in zip(terms, done.losses[i], strict=True):
                    record[f"loss.{term}"][at] = loss
                for exchange, loss in zip(learner.exchanges, done.losses[i][1:], strict=True):
                    for key, value in exchange.metrics(learner.task, float(loss)).items():
                        record[key][at] = value
            if done.right is not None:
                record["accuracy_before"][at] = self._accuracy(done.right[i])
            for phase, seconds in done.seconds.items():
                record[f"seconds.{phase}"][at] += seconds[i]
                spent[phase] += seconds[i]
            if job.put[i]:
                record["bytes.up"][at] += self.traffic[job.cohort].up(job.put[i])

    def _refuse_nonsense(self, at: tuple[int, int], terms: list[str], losses: np.ndarray, bad: str) -> None:
        wrong = [t for t, loss in zip(terms, losses, strict=True) if not np.isfinite(loss)]
        if not wrong and not bad:
            return
        what = f"loss term {wrong[0]!r} is no number" if wrong else f"exchange {bad!r} would put up what is no number"
        raise TrainingError(
            f"learner {at[1]} (seed {self.scene.seeds[at[0]]}), round {self.round}: {what}; "
            f"try a smaller learning rate or weight"
        )

    def _put(self, job: Work, names: tuple[str, ...]) -> None:
        """Put what a few rows contributed into the channels of their federations."""
        members = self.engine.cohorts[job.cohort].plan.members
        for name in names:
            tensors, weights = self.engine.contributions(job, name)
            for f in dict.fromkeys(members.federation[list(job.rows)]):
                some = [i for i, r in enumerate(job.rows) if members.federation[r] == f and job.put[i]]
                if not some:
                    continue
                who = [int(members.learner[job.rows[i]]) for i in some]
                versions = [self.answers[job.held[i][name]].version for i in some]
                mine = {k: t[some] for k, t in tensors.items()}
                refused = self.federations[f].put(name, who, mine, weights[some], versions, self.round)
                for member in refused:
                    self._take_back(f, member, name, {k: t[who.index(member)] for k, t in mine.items()})

    def _take_back(self, federation: int, member: int, name: str, sent: Mapping[str, Tensor]) -> None:
        """A refused put is not lost where the learner keeps its rounding error: it goes back into it."""
        cohort, row = self.scene.place(federation, member)
        for key, value in sent.items():
            error = self.engine.cohorts[cohort].state.get(f"error.{name}.{key}")
            if error is not None:
                error[row] += value

    def _answer(
        self, names: tuple[str, ...], readers: list[np.ndarray], record: Record, catch_up: bool
    ) -> None:
        """Answers to the readers of each federation, and what they change in them."""
        news: dict[int, Answer] = {}
        fresh: dict[tuple[int, int], dict[str, int]] = defaultdict(dict)
        for f, federation in enumerate(self.federations):
            for name in names:
                who = [int(m) for m in readers[f] if name in self.held[self.scene.place(f, m)[0]]]
                for answer, some in federation.answers(name, who, self.round, int(catch_up)) if who else ():
                    number = self._keep_answer(answer)
                    news[number] = answer
                    for member in some:
                        fresh[self.scene.place(f, member)][name] = number
        self._count_down(fresh, record)
        for (cohort, row), numbers in fresh.items():
            for name, number in numbers.items():
                self.held[cohort][name][row] = number
        self.engine.learn(Learn(news, self._forget()))
        self._receive(fresh)

    def _count_down(self, fresh: Mapping[tuple[int, int], dict[str, int]], record: Record) -> None:
        for (cohort, row), numbers in fresh.items():
            before = self._held(cohort, row)
            missed = {n: self.answers[k].version - self.answers[before[n]].version for n, k in numbers.items()}
            moving = {n: m for n, m in missed.items() if self._moving(cohort, n)}
            got = [n for n in numbers if moving.get(n, 1) > 0]  # a mean that has not moved sends nothing
            members = self.engine.cohorts[cohort].plan.members
            at = members.federation[row], members.learner[row]
            record["bytes.down"][at] += self.traffic[cohort].down(got, moving) if got else 0

    def _moving(self, cohort: int, name: str) -> bool:
        return bool(getattr(self.learners[cohort].channels[name], "moving", False))

    def _forget(self) -> tuple[int, ...]:
        held = {int(n) for cohort in self.held for numbers in cohort.values() for n in numbers}
        gone = tuple(n for n in self.answers if n not in held)
        for number in gone:
            del self.answers[number]
        return gone

    def _receive(self, fresh: Mapping[tuple[int, int], dict[str, int]]) -> None:
        jobs: list[Job] = []
        for i, learner in enumerate(self.learners):
            changing = {e.name for e in learner.exchanges if e.changes_model}
            rows = [(row, {n: k for n, k in news.items() if n in changing}) for (c, row), news in fresh.items() if c == i]
            rows = sorted((row, news) for row, news in rows if news)
            step = self.engine.job_rows[i]
            for k in range(0, len(rows), step):
                some = rows[k : k + step]
                jobs.append(Receive(i, tuple(r for r, _ in some), tuple(n for _, n in some)))
        for _ in self.engine.run(jobs):
            pass

    def _catch_up(self, present: list[Presence], record: Record) -> None:
        """Who did not take part last time hears first what was said meanwhile."""
        back = [np.flatnonzero(p.exchanges & ~last) for p, last in zip(present, self.last_participation, strict=True)]
        if any(len(b) for b in back):
            names = tuple(dict.fromkeys(e.name for e in self.scene.method.exchanges))
            self._answer(names, back, record, catch_up=True)

    # -- evaluation ----------------------------------------------------------------------------------------------------

    def _evaluate(self, record: Record) -> None:
        started = time.perf_counter()
        for i, cohort in enumerate(self.engine.cohorts):
            same = self._same_models(i)
            jobs: list[Job] = [Evaluate(i, (row,)) for row in dict.fromkeys(same)]
            right: dict[int, np.ndarray] = {}
            for job, done in self.engine.run(jobs):
                assert isinstance(job, Evaluate) and done.right is not None
                right[job.rows[0]] = done.right[0]
            members = cohort.plan.members
            for row, like in enumerate(same):
                at = members.federation[row], members.learner[row]
                record["accuracy"][at] = self._accuracy(right[like])
                record["accuracy_local"][at] = self._accuracy(right[like], self.scene.shares[at])
        elapsed = time.perf_counter() - started
        record["wall.evaluate"] += elapsed
        record["seconds.evaluate"] += elapsed / record["accuracy"].size

    def _same_models(self, cohort: int) -> list[int]:
        """For each row the first row with the same model: where weights are shared one test does for all."""
        state, rows = self.engine.cohorts[cohort].state, len(self.engine.cohorts[cohort].plan.members)
        if not any(e.changes_model for e in self.learners[cohort].exchanges):
            return list(range(rows))
        first: dict[bytes, int] = {}
        return [first.setdefault(_digest(state["parameters"][r], state["buffers"][r]), r) for r in range(rows)]

    def _accuracy(self, right: np.ndarray, shares: np.ndarray | None = None) -> float:
        """In percent, over the test set or weighted to a learner's own class shares."""
        total = self.scene.test_counts
        if shares is None:
            return float(100 * right.sum() / total.sum())
        known = np.where(total > 0, shares, 0.0)
        return float(100 * (known * right / np.maximum(total, 1)).sum() / max(known.sum(), 1e-12))

    # -- records and checkpoints ---------------------------------------------------------------------------------------

    def _blank(self) -> Record:
        shape = (self.scene.federations, self.scene.learners)
        terms = dict.fromkeys(
            t for learner in self.learners for t in (learner.role.objective.name, *(e.name for e in learner.exchanges))
        )
        extra = dict.fromkeys(
            k for learner in self.learners for e in learner.exchanges for k in e.metrics(learner.task, 0.0)
        )
        missing = [f"loss.{t}" for t in terms] + ["accuracy", "accuracy_local", "accuracy_before", *extra]
        zero = ["bytes.up", "bytes.down", *(f"seconds.{p}" for p in ("train", "exchange", "evaluate")), "participated"]
        record = {k: np.full(shape, np.nan) for k in missing} | {k: np.zeros(shape) for k in zero}
        return record | {f"wall.{p}": np.zeros(()) for p in ("train", "exchange", "evaluate")}

    @staticmethod
    def _share_out(wall: float, spent: Mapping[str, float], record: Record) -> None:
        """Wall-clock time of work done side by side, by the phases it was spent on."""
        total = sum(spent.values()) or 1.0
        for phase in ("train", "exchange", "evaluate"):
            record[f"wall.{phase}"] += wall * spent.get(phase, 0.0) / total

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, object]]:
        """Everything the next round depends on: arrays, and a few numbers."""
        arrays = {f"learners.{k}": v for k, v in self.engine.state().items()}
        for f, federation in enumerate(self.federations):
            arrays |= {f"channels.{f}.{k}": v for k, v in federation.state().items()}
        for number, answer in self.answers.items():
            arrays |= {f"answers.{number}.{k}": v for k, v in answer.tensors.items()}
            arrays[f"counts.{number}"] = answer.count
        for i, cohort in enumerate(self.held):
            arrays |= {f"held.{i}.{name}": numbers for name, numbers in cohort.items()}
        arrays["participation"] = self.last_participation.astype(np.uint8)
        versions = {str(n): a.version for n, a in self.answers.items()}
        return _as_numpy(arrays), {"round": self.round, "next_answer": self._next_answer, "versions": versions}

    def load(self, arrays: Mapping[str, np.ndarray], numbers: Mapping[str, object]) -> None:
        """Go on from what `state` gave; `begin` must have been called."""
        device = self.engine.hands.data.inputs.device

        def under(prefix: str) -> dict[str, Tensor]:
            return {
                k[len(prefix) :]: torch.from_numpy(v.copy()).to(device) for k, v in arrays.items() if k.startswith(prefix)
            }

        self.engine.load(under("learners."))
        for f, federation in enumerate(self.federations):
            federation.load(under(f"channels.{f}."))
        for i, cohort in enumerate(self.held):
            for name in cohort:
                cohort[name] = arrays[f"held.{i}.{name}"].copy()
        stale = tuple(self.answers)
        self.answers = {}
        versions = numbers["versions"]
        assert isinstance(versions, dict)
        for key, version in versions.items():
            self.answers[int(key)] = Answer(under(f"answers.{key}."), under(f"counts.{key}")[""], int(version))
        self.engine.learn(Learn({}, stale))
        self.engine.learn(Learn(self.answers))
        self.last_participation = arrays["participation"].astype(bool)
        self.round, self._next_answer = int(str(numbers["round"])), int(str(numbers["next_answer"]))


def _digest(*tensors: Tensor) -> bytes:
    digest = hashlib.blake2b()
    for tensor in tensors:
        digest.update(tensor.numpy(force=True).tobytes())
    return digest.digest()


def _as_numpy(arrays: Mapping[str, object]) -> dict[str, np.ndarray]:
    return {k: v.numpy(force=True) if isinstance(v, Tensor) else np.asarray(v) for k, v in arrays.items()}


def walls(records: Iterable[Record]) -> dict[str, float]:
    """Seconds of wall-clock time by phase over some rounds."""
    total: dict[str, float] = defaultdict(float)
    for record in records:
        for phase in ("train", "exchange", "evaluate"):
            total[phase] += float(record[f"wall.{phase}"])
    return dict(total)
