"""A round, as data flows: local steps, one pass, contribute, encode, put, close, answers, receive, evaluate, record."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from consilience.channels import Answer, as_slice
from consilience.errors import TrainingError
from consilience.evaluation import accuracy
from consilience.learner.learner import Learner, Row
from consilience.simulation.engines.base import Engine
from consilience.simulation.engines.jobs import Done, Job, Receive, StoreAnswers, Work
from consilience.simulation.records.round_record import Record, blank, share_out, terms_of
from consilience.simulation.round.answers import Answers, Fresh
from consilience.simulation.round.evaluate import examine
from consilience.simulation.round.federation import Federation
from consilience.simulation.round.plan import Presence, presences
from consilience.simulation.setup.setup import Setup
from consilience.wire import schema
from consilience.wire.agreement import merge_channels
from consilience.wire.byte_count import ByteCount

At = tuple[np.ndarray, np.ndarray]
"""Learners: their federations, and their numbers there."""


class Rounds:
    """Plays rounds on an engine. All that a later round depends on is in `state`."""

    def __init__(self, setup: Setup, engine: Engine) -> None:
        self.setup, self.engine = setup, engine
        self.learners = engine.learners
        self.traffic = [ByteCount(learner.channels) for learner in self.learners]
        self.trades = [frozenset(learner.channels) for learner in self.learners]  # all exchanges of each cohort
        self.hears = [learner.receiving for learner in self.learners]
        names = [[e.name for e in learner.exchanges] for learner in self.learners]
        self.answers = Answers(names, [len(c.plan.members) for c in engine.cohorts])
        self.federations: list[Federation] = []
        self.round = 0
        self.diverged: dict[int, str] = {}
        """Federations of a sweep in which something is no number any more, and since when; the others go on."""
        self.took_part = np.ones(setup.federations.shape, dtype=bool)  # in the last round
        self.lies = setup.cohorts.main.copy()  # (federations, learners) the cohort with the newest model

    # -- before the first round ----------------------------------------------------------------------------------------

    def begin(self) -> Record:
        """Give learners their first weights, open the channels, and let eager exchanges put up what is untrained."""
        commons = self._first_weights()
        for f, seed in enumerate(self.setup.federations.seeds):
            channels = merge_channels([self.learners[i].channels for i in self.setup.cohorts.in_federation(f)])
            self.federations.append(
                Federation(seed, channels, self.setup.federations.learners, commons[f], self.engine.like)
            )
        record, everybody = self._blank(), np.ones(self.setup.federations.shape, dtype=bool)
        self._hand_out_public(record, first=1)
        # Before anything was put: zeros with count 0, or the common values at the start.
        names = tuple(dict.fromkeys(name for learner in self.learners for name in learner.channels))
        news, fresh = self._answers(names, everybody, self.trades)
        self.answers.hold(fresh)
        self.engine.learn(StoreAnswers(news))
        for role in self.setup.roles:
            self._act(role, Presence(everybody & self.setup.federations.joined(0), everybody), record, train=False)
        self._go_home()
        return record

    def _hand_out_public(self, record: Record, first: int) -> None:
        """The public set goes to those whose first round this is."""
        if self.setup.method.host is not None:
            heard = self.setup.public_bytes * (self.setup.federations.joins == first)
            record["bytes.public"] += heard
            record["bytes.down"] += heard

    def _first_weights(self) -> list[dict[str, dict[str, Tensor]]]:
        """Fill the learners' rows; return the common values of each federation's moving means."""
        commons: list[dict[str, dict[str, Tensor]]] = [{} for _ in self.setup.federations.seeds]
        for cohort, learner in zip(self.engine.cohorts, self.learners, strict=True):
            members, settings = cohort.plan.members, cohort.plan.settings_at(0)
            for f in np.unique(members.federation):
                learner.wear(learner.initial(self.setup.federations.common_seed(f)))
                commons[f] |= {e.name: c for e in learner.exchanges if (c := learner.common_values(e))}
            first: dict[tuple[int, int], int] = {}  # the row with a seed and a learner's weights; variants begin alike
            for number, (f, who) in enumerate(zip(members.federation, members.learner, strict=True)):
                row = cohort.row(number)
                like = first.setdefault((self.setup.federations.seeds[f], int(who)), number)
                if like == number:
                    alike = learner.role.start == "common"
                    seed = (
                        self.setup.federations.common_seed(f) if alike else self.setup.federations.learner_seed(f, who)
                    )
                    self._first_row(learner, row, commons[f], seed)
                for key, tensor in row.items():
                    if key in settings:
                        tensor.copy_(torch.tensor(settings[key][number]))  # what is too large becomes infinite
                    elif like != number:
                        tensor.copy_(cohort.state[key][like])
        return commons

    def _first_row(self, learner: Learner, row: Row, common: Mapping[str, Mapping[str, Tensor]], seed: int) -> None:
        """A learner's first weights and states; all else in a new row is zero already."""
        mine = learner.weights(seed) | {key: row[key] for key in row if key.startswith("setting.")}
        learner.wear(mine)
        for exchange in learner.exchanges:
            learner.take(common.get(exchange.name, {}) if exchange.start == "common" else {})
        for key, value in (mine | learner.states()).items():
            row[key].copy_(value)

    # -- a round -------------------------------------------------------------------------------------------------------

    def play(self, evaluate: bool) -> Record:
        """One whole round."""
        self.round += 1
        self._follow_schedules()
        record, setup = self._blank(), self.setup
        who, host = setup.federations, setup.method.host
        present = presences(
            who.seeds, self.round, who.learners, who.participation, who.offline, host, who.groups, who.joins
        )
        if self.round > 1:
            self._hand_out_public(record, first=self.round)
        self._catch_up(present, record)
        for role in setup.roles:
            self._act(role, present, record, train=True, evaluate=evaluate)
        self._go_home()
        if evaluate:
            examine(setup, self.engine, record, setup.federations.joined(self.round))
        record["participated"][:] = self.took_part = present.participates
        return record

    def _follow_schedules(self) -> None:
        """Weights and rates that change with the rounds become what they are in this one."""
        for cohort in self.engine.cohorts:
            for key, values in cohort.plan.settings_at(self.round).items() if cohort.plan.scheduled else ():
                cohort.state[key].copy_(torch.from_numpy(values))

    def _act(self, role: str, present: Presence, record: Record, *, train: bool, evaluate: bool = False) -> None:
        """One role's part of a round: work, put, close, and answers to everybody who listens."""
        started, spent = time.perf_counter(), defaultdict[str, float](float)
        putting = [self._putting(i, train) if c.plan.role == role else () for i, c in enumerate(self.engine.cohorts)]
        names = tuple(dict.fromkeys(name for put in putting for name in put))
        if not train and not names:
            return
        self._expect(present, putting, names)
        for i in (i for i, cohort in enumerate(self.engine.cohorts) if cohort.plan.role == role):
            self._bring(i, np.flatnonzero(present.participates[self._at(i)]))
        for job, done in self.engine.run(self._jobs(role, present, putting, train, evaluate)):
            assert isinstance(job, Work)
            self._note(job, done, record, spent)
            self._put(job)
        share_out(time.perf_counter() - started, spent, record)
        started = time.perf_counter()
        for federation in self.federations:
            federation.aggregate(names)
        self._answer(names, present.exchanges, record)
        record["wall.exchange"] += time.perf_counter() - started

    def _putting(self, cohort: int, train: bool) -> tuple[str, ...]:
        """The exchanges a cohort puts something up to this time."""
        learner, due = self.learners[cohort], self._due(cohort)
        return tuple(
            e.name
            for e in learner.exchanges
            if e.name in learner.uploading & due and (train or e.uploads_before_training)
        )

    def _due(self, cohort: int) -> frozenset[str]:
        """The exchanges a cohort takes part in in this round."""
        return frozenset(e.name for e in self.learners[cohort].exchanges if self.round % e.every == 0)

    def _expect(self, present: Presence, putting: Sequence[tuple[str, ...]], names: tuple[str, ...]) -> None:
        for name in names:
            uploads = self._cohorts_with(name, putting) & present.exchanges
            for federation, members in zip(self.federations, uploads, strict=True):
                federation.expect(name, np.flatnonzero(members))

    def _cohorts_with(self, name: str, named: Sequence[Collection[str]]) -> np.ndarray:
        """(federations, learners): whose cohort is among those that name it."""
        cohorts = [i for i, names in enumerate(named) if name in names]
        found: np.ndarray = np.any(self.setup.cohorts.rows[cohorts] >= 0, axis=0)
        return found

    def _bring(self, cohort: int, rows: np.ndarray) -> None:
        """Learners who play several roles take their model along: the newest is copied into these rows."""
        federations, members = self._at(cohort)
        lies = self.lies[federations[rows], members[rows]]
        if (lies == cohort).all():
            return
        mine = _by_name(self.learners[cohort], self.engine.cohorts[cohort].state)
        for other in np.unique(lies[lies != cohort]):
            moved = rows[lies == other]
            at = federations[moved], members[moved]
            theirs = _by_name(self.learners[other], self.engine.cohorts[other].state)
            into, out_of = torch.from_numpy(moved), torch.from_numpy(self.setup.cohorts.rows[other][at])
            for name in mine.keys() & theirs.keys():
                mine[name][into] = theirs[name][out_of]
            self.lies[at] = cohort

    def _go_home(self) -> None:
        """Between rounds every model lies in the cohort of its learner's first role."""
        for i in np.unique(self.setup.cohorts.main).tolist():
            self._bring(i, self.setup.cohorts.rows[i][self.setup.cohorts.main == i])

    def _jobs(
        self, role: str, present: Presence, putting: Sequence[tuple[str, ...]], train: bool, evaluate: bool
    ) -> list[Job]:
        jobs: list[Job] = []
        for i, cohort in enumerate(self.engine.cohorts):
            if cohort.plan.role != role or not (train or putting[i]):
                continue
            at, before_merge = self._at(i), evaluate and self.setup.evaluation.labeled and bool(self._changing(i))
            works = train and cohort.plan.work.epochs > 0
            for rows in self.engine.cut(Work, i, np.flatnonzero(present.participates[at])):
                up, held = present.online[at][rows], self.answers.of(i, rows)
                jobs.append(Work(i, rows, self.round, held, putting[i], up, works, before_merge))
        return jobs

    def _changing(self, cohort: int) -> list[str]:
        """The exchanges whose answers change a cohort's models."""
        learner = self.learners[cohort]
        return [e.name for e in learner.exchanges if e.changes_model and e.name in learner.downloading]

    def _at(self, cohort: int) -> At:
        members = self.engine.cohorts[cohort].plan.members
        return members.federation, members.learner

    def _note(self, job: Work, done: Done, record: Record, spent: dict[str, float]) -> None:
        """Write down what training a few rows was like; stop where a loss is no number."""
        learner = self.learners[job.cohort]
        federations, members = self._at(job.cohort)
        at = federations[job.rows], members[job.rows]
        assert done.losses is not None
        *terms, right = done.losses.T
        losses = dict(zip(terms_of(learner), terms, strict=True))
        self._refuse_nonsense(at, losses, done.non_finite)
        if job.train:
            for term, values in losses.items():
                record[f"loss.{term}"][at] = values
            record["accuracy_train"][at] = 100 * right
            for e in (e for e in learner.exchanges if e.name in learner.penalized):  # no penalty tells nothing
                for key, values in e.metrics(learner.task, losses[e.name]).items():
                    record[key][at] = values
        if done.right is not None:
            record["accuracy_before"][at] = accuracy(done.right, self.setup.data.test_counts)
        for phase, seconds in done.seconds.items():
            record[f"seconds.{phase}"][at] += seconds
            spent[phase] += float(seconds.sum())
        traffic = self.traffic[job.cohort]
        record["bytes.up"][at] += traffic.up(job.put) * job.up
        record["values.up"][at] += traffic.values("up", job.put) * job.up

    def _refuse_nonsense(self, at: At, losses: Mapping[str, np.ndarray], bad: Mapping[int, str]) -> None:
        wrong = dict(bad)
        for term, values in reversed(list(losses.items())):  # the first term is named
            wrong |= {i: f"loss term {term!r} is no number" for i in np.flatnonzero(~np.isfinite(values)).tolist()}
        if not wrong:
            return
        for entry, what in sorted(wrong.items()):
            f = int(at[0][entry])
            said = f"learner {at[1][entry]} ({self.setup.label(f)}), round {self.round}: {what}"
            self.diverged.setdefault(f, said)
        if not self.setup.variants.names:
            said = next(iter(self.diverged.values()))
            raise TrainingError(f"{self.setup.method.name}: {said}; try a smaller learning rate or weight")

    def _put(self, job: Work) -> None:
        """Put what a few rows contributed into the channels of their federations."""
        federations, members = self._at(job.cohort)
        putting = np.flatnonzero(job.up)  # entries of the job
        of = federations[job.rows[putting]]
        for name in job.put if putting.size else ():
            tensors, weights = self.engine.contributions(job, name)
            versions = self.answers.versions(job.held[name])
            for f in np.unique(of):
                some = putting[of == f]
                who, taken = members[job.rows[some]], as_slice(some)
                mine = {k: t[taken] for k, t in tensors.items()}
                for refused in self.federations[f].upload(name, who, mine, weights[taken], versions[some], self.round):
                    k = int(np.flatnonzero(who == refused)[0])
                    self._take_back(job.cohort, job.rows[some[k]], name, {key: t[k] for key, t in mine.items()})

    def _take_back(self, cohort: int, row: int, name: str, sent: Mapping[str, Tensor]) -> None:
        """A refused put is not lost where the learner keeps its rounding error: it goes back into it."""
        for key, value in sent.items():
            error = self.engine.cohorts[cohort].state.get(f"error.{name}.{key}")
            if error is not None:
                error[row] += value.to(error.device)

    # -- answers -------------------------------------------------------------------------------------------------------

    def _catch_up(self, present: Presence, record: Record) -> None:
        """Who did not take part last time hears first what was said meanwhile."""
        back = present.exchanges & ~self.took_part
        if back.any():
            names = tuple(dict.fromkeys(name for heard in self.answers.held for name in heard))
            self._answer(names, back, record, catching_up=1)

    def _answer(self, names: tuple[str, ...], readers: np.ndarray, record: Record, catching_up: int = 0) -> None:
        """Answers to the readers (federations, learners), what they weigh, and what they change."""
        hears = self.hears if catching_up else [self._due(i) & heard for i, heard in enumerate(self.hears)]
        news, fresh = self._answers(names, readers, hears, catching_up)
        for i, heard in enumerate(fresh):
            moved = self._moved(i, heard)
            for name, replies in moved.items():  # one that has not moved sends nothing, and must not undo local work
                heard[name][replies <= 0] = -1
            size, values = self._heard(i, heard, moved)
            record["bytes.down"][self._at(i)] += size
            record["values.down"][self._at(i)] += values
        self.answers.hold(fresh)
        self.engine.learn(StoreAnswers(news, self.answers.forget()))
        if catching_up:
            self._keep_first_weights(fresh)
        self._receive(fresh)

    def _keep_first_weights(self, fresh: Fresh) -> None:
        """Who joins now begins with weights of its own, as everybody did, but where all begin with the common ones."""
        for i, learner in enumerate(self.learners):
            joining = self.setup.federations.joins[self._at(i)[1]] == self.round
            for exchange in (e for e in learner.exchanges if e.start != "common"):
                fresh[i][exchange.name][joining] = -1

    def _answers(
        self, names: tuple[str, ...], readers: np.ndarray, hears: Sequence[Collection[str]], catching_up: int = 0
    ) -> tuple[dict[int, Answer], list[dict[str, np.ndarray]]]:
        news: dict[int, Answer] = {}
        fresh = self.answers.nothing_new()
        for name in names:
            listeners = [i for i, heard in enumerate(hears) if name in heard]
            draws = self._draws(name)
            for draw in np.unique(draws[listeners]):
                cohorts = [i for i in listeners if draws[i] == draw]
                downloads = (self.setup.cohorts.rows[cohorts] >= 0).any(axis=0) & readers
                for f, federation in enumerate(self.federations):
                    downloading = np.flatnonzero(downloads[f])
                    if not downloading.size:
                        continue
                    batch, which = federation.answers(name, downloading, self.round, catching_up, draw=int(draw))
                    numbers = self.answers.keep(batch) + which
                    news[int(numbers.min())] = batch
                    for i in cohorts:
                        rows = self.setup.cohorts.rows[i][f, downloading]
                        fresh[i][name][rows[rows >= 0]] = numbers[rows >= 0]
        return news, fresh

    def _draws(self, name: str) -> np.ndarray:
        """(cohorts,): how many entries of a pool each is sent at a time; 0 where it is none, or is not theirs."""
        channels = [learner.channels.get(name) for learner in self.learners]
        return np.array([channel.draw if isinstance(channel, schema.Pool) else 0 for channel in channels])

    def _moved(self, cohort: int, heard: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """How many replies of each moving mean the rows have not heard yet; 0 where they hear nothing."""
        moved = {}
        for name, numbers in heard.items():
            if self.learners[cohort].channels[name].moves and (numbers >= 0).any():
                before = self.answers.versions(self.answers.held[cohort][name])
                moved[name] = np.where(numbers >= 0, self.answers.versions(numbers) - before, 0)
        return moved

    def _heard(self, cohort: int, heard: Mapping[str, np.ndarray], moved: Mapping[str, np.ndarray]) -> np.ndarray:
        """Bytes and numbers each row hears, (2, rows): one sum for all rows that hear the same."""
        names = list(heard)
        columns = [numbers >= 0 for numbers in heard.values()] + list(moved.values())
        if not columns:
            return np.zeros((2, len(self.engine.cohorts[cohort].plan.members)))
        kinds, of = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
        traffic, sizes = self.traffic[cohort], []
        for kind in kinds.tolist():
            some = [n for n, there in zip(names, kind, strict=False) if there]
            missed = dict(zip(moved, kind[len(names) :], strict=True))
            sizes.append((traffic.down(some, missed), traffic.values("down", some, missed)))
        return np.array(sizes)[of.reshape(-1)].T

    def _receive(self, fresh: Fresh) -> None:
        jobs: list[Job] = []
        for i in range(len(self.learners)):
            news = {name: fresh[i][name] for name in self._changing(i)}
            if not news:
                continue
            changed = np.flatnonzero(np.any([numbers >= 0 for numbers in news.values()], axis=0))
            self._bring(i, changed)
            for rows in self.engine.cut(Receive, i, changed):
                jobs.append(Receive(i, rows, {name: numbers[rows] for name, numbers in news.items()}))
        for _ in self.engine.run(jobs):
            pass

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def _blank(self) -> Record:
        more = [f"accuracy_{probe}" for probe in self.setup.evaluation.probes]
        more += ["accuracy_ensemble"] if self.setup.evaluation.ensemble else []
        more += ["accuracy_heads"] if self.setup.evaluation.ensemble and self.setup.evaluation.headed else []
        more += ["dependence"] if self.setup.evaluation.watched_layer is not None else []
        more += ["bytes.public"] if self.setup.method.host is not None else []
        return blank(*self.setup.federations.shape, self.learners, more)

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, object]]:
        """Everything the next round depends on: arrays, and a few numbers."""
        arrays, numbers = self.answers.state()
        arrays |= {f"learners.{k}": v for k, v in self.engine.state().items()}
        for f, federation in enumerate(self.federations):
            arrays |= {f"channels.{f}.{k}": v for k, v in federation.state().items()}
        arrays["took_part"] = self.took_part.astype(np.uint8)
        return _as_numpy(arrays), numbers | {
            "round": self.round,
            "diverged": {str(f): w for f, w in self.diverged.items()},
        }

    def load(self, arrays: Mapping[str, np.ndarray], numbers: Mapping[str, object]) -> None:
        """Go on from what `state` gave; `begin` must have been called."""
        device = self.engine.like.device

        def under(prefix: str, place: torch.device = device) -> dict[str, Tensor]:
            found = {k[len(prefix) :]: v for k, v in arrays.items() if k.startswith(prefix)}
            return {k: torch.from_numpy(v.copy()).to(place) for k, v in found.items()}

        self.engine.load(under("learners.", torch.device("cpu")))  # it knows where its learners' state lies
        for f, federation in enumerate(self.federations):
            federation.load(under(f"channels.{f}."))
        for i, cohort in enumerate(self.answers.held):
            cohort.update({name: arrays[f"held.{i}.{name}"].copy() for name in cohort})
        versions, stale = numbers["versions"], tuple(self.answers.kept)
        assert isinstance(versions, dict)
        self.answers.kept = {
            int(k): Answer(under(f"answers.{k}."), under(f"counts.{k}")[""], int(v)) for k, v in versions.items()
        }
        self.engine.learn(StoreAnswers({}, stale))
        self.engine.learn(StoreAnswers(self.answers.kept))
        self.took_part, self.lies = arrays["took_part"].astype(bool), self.setup.cohorts.main.copy()
        diverged = numbers["diverged"]
        assert isinstance(diverged, dict)
        self.diverged = {int(f): str(what) for f, what in diverged.items()}
        self.round, self.answers.next = int(str(numbers["round"])), int(str(numbers["next"]))


def _by_name(learner: Learner, state: Row) -> dict[str, Tensor]:
    """The model's tensors in a cohort's state, (rows, ...) each, as views."""
    parameters, buffers = learner.tensors(state)
    return {**parameters, **buffers}


def _as_numpy(arrays: Mapping[str, object]) -> dict[str, np.ndarray]:
    return {k: v.numpy(force=True) if isinstance(v, Tensor) else np.asarray(v) for k, v in arrays.items()}
