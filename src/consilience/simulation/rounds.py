"""A round, as data flows: local steps, one pass, contribute, encode, put, close, answers, receive, evaluate, record."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from consilience.channels import Answer
from consilience.errors import TrainingError
from consilience.evaluation import accuracy
from consilience.exchanges.base import Exchange
from consilience.simulation.answers import Answers, Fresh
from consilience.simulation.engine import Engine
from consilience.simulation.examine import examine
from consilience.simulation.federation import Federation
from consilience.simulation.jobs import Done, Job, Learn, Receive, Work
from consilience.simulation.plan import Presence, presence
from consilience.simulation.record import Record, blank, share_out, terms_of
from consilience.simulation.scene import Scene
from consilience.simulation.traffic import Traffic

_RECEIVE_ROWS = 16  # in a job at most: receiving is quick, and nothing of it depends on how it is cut

At = tuple[int, int]
"""A learner: its federation and its number there."""


class Rounds:
    """Plays rounds on an engine. All that a later round depends on is in `state`."""

    def __init__(self, scene: Scene, engine: Engine) -> None:
        self.scene, self.engine = scene, engine
        self.learners = engine.learners
        self.traffic = [Traffic(learner.channels) for learner in self.learners]
        names = [[e.name for e in learner.exchanges] for learner in self.learners]
        self.answers = Answers(names, [len(c.plan.members) for c in engine.cohorts])
        self.federations: list[Federation] = []
        self.round = 0
        self.took_part = np.ones((scene.federations, scene.learners), dtype=bool)  # in the last round

    # -- before the first round ----------------------------------------------------------------------------------------

    def begin(self) -> Record:
        """Give learners their first weights, open the channels, and let eager exchanges put up what is untrained."""
        commons = self._first_weights()
        channels = {name: c for learner in self.learners for name, c in learner.channels.items()}
        for f, seed in enumerate(self.scene.seeds):
            self.federations.append(Federation(seed, channels, self.scene.learners, commons[f], self.engine.like))
        record, everybody = self._blank(), np.ones(self.scene.learners, dtype=bool)
        # Before anything was put: zeros with count 0, or the common values at the start.
        news, fresh = self._answers(tuple(channels), [np.arange(self.scene.learners)] * self.scene.federations, 0)
        self.answers.hold(fresh)
        self.engine.learn(Learn(news))
        for role in self.scene.roles:
            self._act(role, [Presence(everybody, everybody)] * self.scene.federations, record, train=False)
        return record

    def _first_weights(self) -> list[dict[str, dict[str, Tensor]]]:
        """Fill the learners' rows; return the common values of each federation's moving means."""
        commons: list[dict[str, dict[str, Tensor]]] = [{} for _ in self.scene.seeds]
        for cohort, learner in zip(self.engine.cohorts, self.learners, strict=True):
            members = cohort.plan.members
            for f in np.unique(members.federation):
                learner.wear(learner.initial(self.scene.common_seed(f)))
                commons[f] |= {e.name: c for e in learner.exchanges if (c := learner.common(e))}
            for number, (f, who) in enumerate(zip(members.federation, members.learner, strict=True)):
                row = cohort.row(number)
                for key, value in learner.initial(self.scene.learner_seed(f, who)).items():
                    row[key].copy_(value)
                learner.wear(row)
                for exchange in learner.exchanges:
                    learner.take(commons[f].get(exchange.name, {}) if exchange.start == "common" else {})
                for key, value in learner.states().items():
                    row[key].copy_(value)
        return commons

    # -- a round -------------------------------------------------------------------------------------------------------

    def play(self, evaluate: bool) -> Record:
        """One whole round."""
        self.round += 1
        record, scene = self._blank(), self.scene
        present = [
            presence(seed, self.round, scene.learners, scene.participation, scene.offline) for seed in scene.seeds
        ]
        self._catch_up(present, record)
        for role in scene.roles:
            self._act(role, present, record, train=True, evaluate=evaluate)
        if evaluate:
            examine(scene, self.engine, record)
        self.took_part = np.stack([p.participates for p in present])
        record["participated"][:] = self.took_part
        return record

    def _act(self, role: str, present: list[Presence], record: Record, *, train: bool, evaluate: bool = False) -> None:
        """One role's part of a round: work, put, close, and answers to everybody who listens."""
        started, spent = time.perf_counter(), defaultdict[str, float](float)
        exchanges = self.scene.method.roles[role].exchanges
        names = tuple(e.name for e in exchanges if self._active(e, train))
        if not train and not names:
            return
        self._expect(role, present, names)
        before_merge = evaluate and any(e.changes_model for e in exchanges)
        for job, done in self.engine.run(self._jobs(role, present, names, train, before_merge)):
            assert isinstance(job, Work)
            self._note(job, done, record, spent)
            self._put(job, names)
        share_out(time.perf_counter() - started, spent, record)
        started = time.perf_counter()
        for federation in self.federations:
            federation.close(names)
        self._answer(names, [np.flatnonzero(p.exchanges) for p in present], record)
        record["wall.exchange"] += time.perf_counter() - started

    def _active(self, exchange: Exchange, train: bool) -> bool:
        return exchange.contributes and (self.round % exchange.every == 0 if train else exchange.eager)

    def _expect(self, role: str, present: list[Presence], names: tuple[str, ...]) -> None:
        for f, federation in enumerate(self.federations):
            putting = [m for m in np.flatnonzero(present[f].exchanges).tolist() if self.scene.method.role_of(m) == role]
            for name in names:
                federation.expect(name, putting)

    def _jobs(
        self, role: str, present: list[Presence], names: tuple[str, ...], train: bool, evaluate: bool
    ) -> list[Job]:
        jobs: list[Job] = []
        for i, cohort in enumerate(self.engine.cohorts):
            if cohort.plan.role != role:
                continue
            who = list(zip(cohort.plan.members.federation, cohort.plan.members.learner, strict=True))
            rows = [r for r, (f, m) in enumerate(who) if present[f].participates[m]]
            for some in _cut(rows, self.engine.job_rows[i]):
                online = [present[f].online[m] for f, m in (who[r] for r in some)]
                put = tuple(names if up else () for up in online)
                held = tuple(self.answers.of(i, r) for r in some)
                jobs.append(Work(i, tuple(some), self.round, held, put, train, evaluate))
        return jobs

    def _at(self, cohort: int, row: int) -> At:
        members = self.engine.cohorts[cohort].plan.members
        return int(members.federation[row]), int(members.learner[row])

    def _note(self, job: Work, done: Done, record: Record, spent: dict[str, float]) -> None:
        """Write down what training a few rows was like; stop where a loss is no number."""
        learner = self.learners[job.cohort]
        assert done.losses is not None
        for i, row in enumerate(job.rows):
            at = self._at(job.cohort, row)
            losses = dict(zip(terms_of(learner), map(float, done.losses[i]), strict=True))
            self._refuse_nonsense(at, losses, done.nonsense[i])
            if job.train:
                for term, loss in losses.items():
                    record[f"loss.{term}"][at] = loss
                for e in (e for e in learner.exchanges if e.weight):  # no weight, no penalty to tell anything
                    for key, value in e.metrics(learner.task, losses[e.name]).items():
                        record[key][at] = value
            if done.right is not None:
                record["accuracy_before"][at] = accuracy(done.right[i], self.scene.test_counts)
            for phase, seconds in done.seconds.items():
                record[f"seconds.{phase}"][at] += seconds[i]
                spent[phase] += seconds[i]
            record["bytes.up"][at] += self.traffic[job.cohort].up(job.put[i])

    def _refuse_nonsense(self, at: At, losses: Mapping[str, float], bad: str) -> None:
        wrong = [term for term, loss in losses.items() if not np.isfinite(loss)]
        if not wrong and not bad:
            return
        what = f"loss term {wrong[0]!r} is no number" if wrong else bad
        raise TrainingError(
            f"{self.scene.method.name}: learner {at[1]} (seed {self.scene.seeds[at[0]]}), round {self.round}: {what}; "
            f"try a smaller learning rate or weight"
        )

    def _put(self, job: Work, names: tuple[str, ...]) -> None:
        """Put what a few rows contributed into the channels of their federations."""
        by_federation: dict[int, list[int]] = defaultdict(list)
        for i, row in enumerate(job.rows):
            if job.put[i]:
                by_federation[self._at(job.cohort, row)[0]].append(i)
        for name in names:
            tensors, weights = self.engine.contributions(job, name)
            for f, some in by_federation.items():
                who = [self._at(job.cohort, job.rows[i])[1] for i in some]
                versions = [self.answers.version(job.held[i][name]) for i in some]
                rows = slice(some[0], some[-1] + 1) if len(some) == some[-1] + 1 - some[0] else some
                mine = {k: t[rows] for k, t in tensors.items()}
                for refused in self.federations[f].put(name, who, mine, weights[some], versions, self.round):
                    k = who.index(refused)
                    self._take_back(job.cohort, job.rows[some[k]], name, {key: t[k] for key, t in mine.items()})

    def _take_back(self, cohort: int, row: int, name: str, sent: Mapping[str, Tensor]) -> None:
        """A refused put is not lost where the learner keeps its rounding error: it goes back into it."""
        for key, value in sent.items():
            error = self.engine.cohorts[cohort].state.get(f"error.{name}.{key}")
            if error is not None:
                error[row] += value

    # -- answers -------------------------------------------------------------------------------------------------------

    def _catch_up(self, present: list[Presence], record: Record) -> None:
        """Who did not take part last time hears first what was said meanwhile."""
        back = [np.flatnonzero(p.exchanges & ~last) for p, last in zip(present, self.took_part, strict=True)]
        if any(len(b) for b in back):
            names = tuple(dict.fromkeys(e.name for e in self.scene.method.exchanges))
            self._answer(names, back, record, catching_up=1)

    def _answer(self, names: tuple[str, ...], readers: list[np.ndarray], record: Record, catching_up: int = 0) -> None:
        """Answers to the readers of each federation, what they weigh, and what they change."""
        news, fresh = self._answers(names, readers, catching_up)
        fresh = {place: self._unheard(place, numbers) for place, numbers in fresh.items()}
        for (cohort, row), numbers in fresh.items():
            record["bytes.down"][self._at(cohort, row)] += self._bytes_down(cohort, row, numbers)
        self.answers.hold(fresh)
        self.engine.learn(Learn(news, self.answers.forget()))
        self._receive(fresh)

    def _answers(
        self, names: tuple[str, ...], readers: Sequence[np.ndarray], catching_up: int
    ) -> tuple[dict[int, Answer], Fresh]:
        news: dict[int, Answer] = {}
        fresh: dict[tuple[int, int], dict[str, int]] = defaultdict(dict)
        for f, federation in enumerate(self.federations):
            for name in names:
                listening = [int(m) for m in readers[f] if name in self.answers.held[self.scene.place(f, m)[0]]]
                found = federation.answers(name, listening, self.round, catching_up) if listening else []
                for answer, some in found:
                    number = self.answers.keep(answer)
                    news[number] = answer
                    for member in some:
                        fresh[self.scene.place(f, member)][name] = number
        return news, fresh

    def _moved(self, cohort: int, row: int, numbers: Mapping[str, int]) -> dict[str, int]:
        """How many replies of each moving mean a learner has not heard yet."""
        held = self.answers.of(cohort, row)
        return {
            name: self.answers.version(number) - self.answers.version(held[name])
            for name, number in numbers.items()
            if getattr(self.learners[cohort].channels[name], "moving", False)
        }

    def _unheard(self, place: tuple[int, int], numbers: Mapping[str, int]) -> Mapping[str, int]:
        """Without the moving means that have not moved: they send nothing, and must not undo local work."""
        moved = self._moved(*place, numbers)
        return {name: number for name, number in numbers.items() if moved.get(name, 1) > 0}

    def _bytes_down(self, cohort: int, row: int, numbers: Mapping[str, int]) -> int:
        return self.traffic[cohort].down(numbers, self._moved(cohort, row, numbers))

    def _receive(self, fresh: Fresh) -> None:
        jobs: list[Job] = []
        for i, learner in enumerate(self.learners):
            changing = {e.name for e in learner.exchanges if e.changes_model}
            rows = sorted(row for (cohort, row), numbers in fresh.items() if cohort == i and changing & set(numbers))
            hands = max(len(self.engine.processes), 1)
            for some in _cut(rows, min(_RECEIVE_ROWS, -(-len(rows) // hands) or 1)):
                news = tuple({n: k for n, k in fresh[i, r].items() if n in changing} for r in some)
                jobs.append(Receive(i, tuple(some), news))
        for _ in self.engine.run(jobs):
            pass

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def _blank(self) -> Record:
        return blank(self.scene.federations, self.scene.learners, self.learners)

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, object]]:
        """Everything the next round depends on: arrays, and a few numbers."""
        arrays, numbers = self.answers.state()
        arrays |= {f"learners.{k}": v for k, v in self.engine.state().items()}
        for f, federation in enumerate(self.federations):
            arrays |= {f"channels.{f}.{k}": v for k, v in federation.state().items()}
        arrays["took_part"] = self.took_part.astype(np.uint8)
        return _as_numpy(arrays), numbers | {"round": self.round}

    def load(self, arrays: Mapping[str, np.ndarray], numbers: Mapping[str, object]) -> None:
        """Go on from what `state` gave; `begin` must have been called."""
        device = self.engine.like.device

        def under(prefix: str) -> dict[str, Tensor]:
            found = {k[len(prefix) :]: v for k, v in arrays.items() if k.startswith(prefix)}
            return {k: torch.from_numpy(v.copy()).to(device) for k, v in found.items()}

        self.engine.load(under("learners."))
        for f, federation in enumerate(self.federations):
            federation.load(under(f"channels.{f}."))
        for i, cohort in enumerate(self.answers.held):
            cohort.update({name: arrays[f"held.{i}.{name}"].copy() for name in cohort})
        versions, stale = numbers["versions"], tuple(self.answers.kept)
        assert isinstance(versions, dict)
        self.answers.kept = {
            int(k): Answer(under(f"answers.{k}."), under(f"counts.{k}")[""], int(v)) for k, v in versions.items()
        }
        self.engine.learn(Learn({}, stale))
        self.engine.learn(Learn(self.answers.kept))
        self.took_part = arrays["took_part"].astype(bool)
        self.round, self.answers.next = int(str(numbers["round"])), int(str(numbers["next"]))


def _cut(rows: list[int], size: int) -> list[list[int]]:
    return [rows[k : k + size] for k in range(0, len(rows), size)]


def _as_numpy(arrays: Mapping[str, object]) -> dict[str, np.ndarray]:
    return {k: v.numpy(force=True) if isinstance(v, Tensor) else np.asarray(v) for k, v in arrays.items()}
