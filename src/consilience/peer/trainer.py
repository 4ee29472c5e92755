"""A member with no loop of its own: trains as a simulated learner does, with the same code, and exchanges for real.

Its samples, batches, draws and first weights hang on the federation's seed and its own number, so that real processes
over a relay give a simulation's numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from consilience.channels import Answer, empty_answer
from consilience.config.config import Config
from consilience.data import Dataset
from consilience.errors import ConfigurationError, TrainingError
from consilience.evaluation import accuracy
from consilience.files import replace_file, report_write_errors
from consilience.learner.learner import Learner
from consilience.method import Method
from consilience.peer.connection import RelayConnection
from consilience.peer.member_method import check_channels
from consilience.peer.state import ChannelUpload
from consilience.randomness import seed_of
from consilience.simulation.engines.jobs import Evaluate, Probe, Receive, StoreAnswers, Work
from consilience.simulation.engines.loop.engine import LoopEngine
from consilience.simulation.records.round_record import terms_of
from consilience.simulation.records.run_folder import RunFolder
from consilience.simulation.setup.participants import Model
from consilience.simulation.setup.setup import build_setup
from consilience.wire import schema
from consilience.wire.charter import values_fingerprint

_ROW = np.array([0])


@dataclass(frozen=True)
class Played:
    """What a round came to: accuracy on the member's own test set, loss terms, and how the exchange went."""

    round: int
    accuracy: float
    losses: Mapping[str, float]
    acknowledged: bool
    heard: tuple[str, ...]
    bytes_up: int
    bytes_down: int


class Member:
    """A learner in a process of its own.

    wait: the most seconds to wait in a round for the others, where a moving mean must close before going on. Without
    an answer by then it trains on with the last one.
    """

    def __init__(
        self, connection: RelayConnection, config: Config, method: Method, data: Dataset, model: Model, wait: float
    ) -> None:
        self.connection, self.method, self.wait = connection, method, wait
        self.config = config.replace(learners=1, seed=connection.charter.seed, seeds=1)
        setup = build_setup(self.config, method, data, [model])
        (plan,) = setup.cohorts.plans
        charter = connection.charter
        if data.classes != charter.classes:
            raise ConfigurationError(
                f"your data has {data.classes} classes, and federation {charter.name!r} has {charter.classes}"
            )
        self.plan = replace(plan, members=replace(plan.members, learner=np.array([connection.number])))
        self.engine = LoopEngine([self.plan], setup.data.train, workers=0)
        self.tested, self.labeled, self.seen = setup.data.test_counts, setup.evaluation.labeled, setup.data.ranges
        self.learner: Learner = self.engine.learners[0]
        self.uploading, self.receiving = self.learner.uploading, self.learner.receiving
        self.round = 0
        self._numbers: dict[str, int] = {}
        self._next = 0
        self._own: dict[str, Answer] = {}
        self._before = 0, 0
        self.due: tuple[str, ...] = ()
        self.losses: dict[str, float] = {}
        self.acknowledged, self.put_as = False, 0
        self.stopped: Callable[[], bool] = lambda: False
        """Whether somebody wants to go, and not to wait for the others any longer."""
        self._check()
        self._begin()

    # -- before the first round ----------------------------------------------------------------------------------------

    def _check(self) -> None:
        """Refuse a method or a model whose channels are not the federation's."""
        model = f"your model {self.learner.task.model!r}"
        check_channels(self.method, self.learner.channels, self.connection.charter, model)

    def _begin(self) -> None:
        """First weights, as a simulated learner of this number has them; or those of a run that is gone on with."""
        learner, cohort, seed = self.learner, self.engine.cohorts[0], self.connection.charter.seed
        learner.wear(learner.initial(seed_of("common weights", seed)))
        common = {e.name: c for e in learner.exchanges if (c := learner.common_values(e))}
        row = cohort.row(0)
        alike = learner.role.start == "common"
        mine = learner.weights(
            seed_of("common weights", seed) if alike else seed_of("weights", seed, self.connection.number)
        )
        mine |= {key: row[key] for key in row if key.startswith("setting.")}
        learner.wear(mine)
        for e in learner.exchanges:
            learner.take(common.get(e.name, {}) if e.start == "common" else {})
        for key, value in (mine | learner.states()).items():
            row[key].copy_(value)
        self._follow_schedules()
        for name, channel in learner.channels.items():
            self._hold(name, self._first(name, channel, common.get(name, {})))

    def _first(self, name: str, channel: schema.Channel, common: Mapping[str, Tensor]) -> Answer:
        """What is held before anything is heard: nothing with count 0, or the common values at the start."""
        if name in self.connection.state.answers:
            return self.connection.state.answers[name]
        if not common:
            return empty_answer(channel)
        values = {k: t.numpy(force=True).copy() for k, t in common.items()}
        if (
            name in self.connection.channels
            and values_fingerprint(channel, values) != self.connection.charter.channel_settings[name].start
        ):
            found = self.connection.inbox.download([name], {}, self.connection.timeout)
            if name not in found:
                raise ConfigurationError(
                    f"the common values of {name!r} cannot be made here, and the relay is out of reach"
                )
            return found[name]
        self.connection.state.answers[name] = Answer(values, np.zeros(()), 0)
        return self.connection.state.answers[name]

    # -- a round -------------------------------------------------------------------------------------------------------

    def introduce(self) -> None:
        """Put up the untrained model's representations, and hear the others', before the first round.

        Where the others have begun long ago, go on from the common values as they are now.
        """
        moving = [
            name for name in self.receiving if name in self.connection.channels and self.connection.channels[name].moves
        ]
        self._take(self.connection.inbox.download(moving, {}, self.connection.timeout))
        if self.connection.state.round < 0 and self.share(train=False):
            self.hear()

    def play(self) -> Played:
        """One whole round: train, put up, wait for the others where that is needed, hear, and test."""
        self.share()
        return self.hear()

    def share(self, *, train: bool = True) -> bool:
        """Train, and put up what is due; whether anything was. Without training, what is due before the first round."""
        self.round += train
        self._follow_schedules()
        active = [e for e in self.learner.exchanges if e.name in self.uploading and self.round % e.every == 0]
        self.due = tuple(e.name for e in active if train or e.uploads_before_training)
        if not train and not self.due:
            return False
        self._before = self.connection.client.bytes_sent, self.connection.client.bytes_received
        putting = tuple(name for name in self.due if not self.connection.state.unconfirmed and self._may_put(name))
        self._restore_errors()
        self.losses, offers = self._work(self.round, putting, train)
        traveling = {name: offer for name, offer in offers.items() if name in self.connection.channels}
        self._own = {n: Answer(dict(o.tensors), o.weight) for n, o in offers.items() if n not in traveling}
        self.put_as = max(
            self.round, self.connection.state.round + train
        )  # in a new folder, on from where the relay is
        self.acknowledged = self.connection.outbox.queue(self.put_as, traveling) and self.connection.outbox.flush(
            self.connection.timeout
        )
        return True

    def _may_put(self, name: str) -> bool:
        """Whether a channel would take something now: a change is measured from common values that are held."""
        if name not in self.connection.channels:
            return True
        return name not in self.connection.state.awaiting and (
            name in self.connection.state.answers or not self.connection.channels[name].moves
        )

    def hear(self) -> Played:
        """Hear what is due, wait for a moving mean to close where it has this round's contribution, and test."""
        names = [name for name in self.due if name in self.receiving and name in self.connection.channels]
        reached = self.acknowledged or not self.connection.backoff.left
        found = self._own | (self._answers(names, self.put_as) if reached else {})
        self._take(found)
        client, (sent, received) = self.connection.client, self._before
        up, down = client.bytes_sent - sent, client.bytes_received - received
        return Played(self.round, self.test(), self.losses, self.acknowledged, tuple(found), up, down)

    def _take(self, found: Mapping[str, Answer]) -> None:
        """Hold answers from now on, and let them change the model where they do."""
        for name, answer in found.items():
            self._hold(name, answer)
        changing = [e.name for e in self.learner.exchanges if e.changes_model and e.name in self.learner.downloading]
        news = {name: np.array([self._numbers[name] if name in found else -1]) for name in changing}
        if any((numbers >= 0).any() for numbers in news.values()):
            self.engine.hands.do(Receive(0, _ROW, news))

    def _follow_schedules(self) -> None:
        for key, values in self.plan.settings_at(self.round).items():
            self.engine.cohorts[0].state[key].copy_(torch.from_numpy(values))

    def _restore_errors(self) -> None:
        """What encodings have rounded away is what the relay has acknowledged of it, and nothing else."""
        row = self.engine.cohorts[0].row(0)
        for key, tensor in row.items():
            if key.startswith("error."):
                channel, _, name = key.removeprefix("error.").partition(".")
                kept = self.connection.state.residuals.get(channel, {}).get(name)
                tensor.zero_() if kept is None else tensor.copy_(torch.from_numpy(np.array(kept)))

    def _work(
        self, round_: int, putting: tuple[str, ...], train: bool
    ) -> tuple[dict[str, float], dict[str, ChannelUpload]]:
        """Local work, and what is to be put up."""
        held = {name: np.array([number]) for name, number in self._numbers.items()}
        job = Work(0, _ROW, round_, held, putting, np.array([True]), train)
        done = self.engine.hands.do(job)
        assert done.losses is not None
        losses = dict(zip(terms_of(self.learner), done.losses[0].tolist(), strict=False))
        wrong = done.non_finite.get(0) or next((k for k, v in losses.items() if not np.isfinite(v)), None)
        if wrong:
            raise TrainingError(f"round {round_}: {wrong} is no number; try a smaller learning rate or weight")
        offers, row = {}, self.engine.cohorts[0].row(0)
        for name in putting:
            tensors, weights = self.engine.contributions(job, name)
            prefix = f"error.{name}."
            after = {k.removeprefix(prefix): v.numpy(force=True).copy() for k, v in row.items() if k.startswith(prefix)}
            offers[name] = ChannelUpload(
                {k: t[0].numpy(force=True).copy() for k, t in tensors.items()},
                weights[0].numpy(force=True).copy(),
                self.connection.state.answers[name].version if name in self.connection.state.answers else 0,
                after,
            )
        return losses, offers

    def _answers(self, names: Sequence[str], round_: int) -> dict[str, Answer]:
        draws = {n: c.draw for n, c in self.learner.channels.items() if isinstance(c, schema.Pool) and n in names}
        end = time.monotonic() + self.wait
        while (
            self.connection.state.awaiting.keys() & set(names)
            and self.connection.backoff.allows(end)
            and not self.stopped()
        ):
            if self.connection.inbox.aggregated(names, end, self.connection.timeout):
                break
            self.connection.inbox.wait(min(end - time.monotonic(), 5.0))
        return self.connection.inbox.download(names, draws, self.connection.timeout, round_)

    def _hold(self, name: str, answer: Answer) -> None:
        """Hold an answer from now on, in the place of the last."""
        dtype = self.learner.dtype
        tensors = {k: torch.from_numpy(np.array(t)).to(self.learner.device, dtype) for k, t in answer.tensors.items()}
        count = torch.from_numpy(np.array(answer.count, dtype=np.float64)).to(self.learner.device)
        stale = (self._numbers[name],) if name in self._numbers else ()
        self.engine.learn(StoreAnswers({self._next: Answer(tensors, count, answer.version).for_one()}, stale))
        self._numbers[name], self._next = self._next, self._next + 1

    def test(self) -> float:
        """Accuracy on the test set, in %: the classifier's, or where it is not taught that of a linear probe."""
        done = self.engine.hands.do(Evaluate(0, _ROW) if self.labeled else Probe(0, _ROW, ("scaled",), self.seen))
        assert done.right is not None
        return float(accuracy(done.right if self.labeled else done.right[:, 0], self.tested)[0])

    # -- keeping -------------------------------------------------------------------------------------------------------

    def keep(self, folder: Path) -> None:
        """Keep the learner as it is, so that a restart goes on with it."""
        arrays = {k: t.numpy(force=True) for k, t in self.engine.state().items()}
        RunFolder(folder).save(arrays, {"round": self.round}, self.round)

    def go_on(self, folder: Path) -> bool:
        """Take up what `keep` kept; whether there was anything."""
        kept = RunFolder(folder).load() if folder.exists() else None
        if kept is None:
            return False
        arrays, numbers = kept
        self.engine.load({k: torch.from_numpy(v.copy()) for k, v in arrays.items()})
        self.round = int(numbers["round"])
        if self.connection.state.round > self.round:  # stopped between hearing and keeping: what was heard counts
            self._take(
                {name: answer for name, answer in self.connection.state.answers.items() if name in self.receiving}
            )
        return True

    def save_model(self, file: Path) -> None:
        """The model alone, as safetensors."""
        self.learner.wear(self.engine.cohorts[0].row(0))
        tensors = {k: v.detach().contiguous().clone() for k, v in self.learner.model.state_dict().items()}
        with report_write_errors(file, "choose another folder"):
            replace_file(file, save(tensors))

    def close(self) -> None:
        """Hang up."""
        self.engine.__exit__(None, None, None)
        self.connection.close()
