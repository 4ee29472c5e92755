"""Trains a member of a federation as a simulation trains a learner, with the same code, and exchanges over a network.

Samples, batches, draws and initial weights depend on the federation's seed and the member's number alone, so that real
processes over a relay give a simulation's numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from consilience.channels import LAST_MOVE, Answer, empty_answer
from consilience.config.config import Config
from consilience.data import Dataset
from consilience.errors import ConfigurationError, TrainingError
from consilience.evaluation import accuracy
from consilience.exchanges.base import Contribution, Received
from consilience.export import describe_inputs, make_card, write_model
from consilience.learner.batches import LearnerKey
from consilience.learner.initial_state import CommonValues, common_values, first_state
from consilience.learner.learner import Learner
from consilience.learner.own_answer import own_answer_of
from consilience.learner.session import LearnerSession, LocalSamples, is_finite
from consilience.method import Method
from consilience.peer.connection import RelayConnection
from consilience.peer.member_method import check_charter_channels
from consilience.peer.state import ChannelUpload
from consilience.simulation.engines.jobs import non_finite_parameter, non_finite_upload
from consilience.simulation.engines.probing import ProbeSamples, probe
from consilience.simulation.engines.shared_data import SharedData, data_arrays, on_device
from consilience.simulation.records.checkpoint import (
    learner_checkpoint,
    load_checkpoint,
    restore_learner,
    save_checkpoint,
)
from consilience.simulation.records.run_folder import RunFolder
from consilience.simulation.setup.participants import Model
from consilience.simulation.setup.setup import Setup, build_setup
from consilience.wire import schema
from consilience.wire.charter import values_fingerprint


@dataclass(frozen=True)
class RoundResult:
    """The results of a round: accuracy on the member's own test set, loss terms, and how the exchange went.

    accuracy_own: of the member's own answer, with the test classes weighted as among its training samples; None where
    it has no other answer than its model's.
    """

    round: int
    accuracy: float
    losses: Mapping[str, float]
    acknowledged: bool
    received: tuple[str, ...]
    bytes_up: int
    bytes_down: int
    accuracy_own: float | None = None


@dataclass
class _Upload:
    """A round between upload and download."""

    due: tuple[str, ...]
    bytes_before: tuple[int, int]  # sent and received
    losses: Mapping[str, float] = field(default_factory=dict)
    own: Mapping[str, Answer] = field(default_factory=dict)  # of exchanges that do not travel
    round: int = 0  # under which the relay has it
    acknowledged: bool = False


class FederatedTrainer:
    """A learner in a process of its own.

    wait: the most seconds to wait in a round for the others, where a moving mean must be aggregated before the next
    round. Without an answer by then, training continues with the last one.
    """

    def __init__(
        self, connection: RelayConnection, config: Config, method: Method, data: Dataset, model: Model, wait: float
    ) -> None:
        self.connection, self.wait, charter = connection, wait, connection.charter
        single = config.replace(learners=1, seed=charter.seed, seeds=1)
        self.setup = build_setup(single, method, data, [model], first=connection.number)
        if data.classes != charter.classes:
            raise ConfigurationError(
                f"your data has {data.classes} classes, and federation {charter.name!r} has {charter.classes}"
            )
        (self.plan,) = self.setup.cohorts.plans
        self.learner = Learner(self.plan.spec)
        model_name = f"your model {self.learner.task.model!r}"
        check_charter_channels(method, self.learner.channels, charter, model_name)
        self._threads = torch.get_num_threads()
        torch.set_num_threads(1)  # as in a simulation, so that bits are the same
        self.data = on_device(data_arrays(self.setup.data.train, None), self.learner.device, self.learner.dtype)
        self.round, self._received = 0, dict[str, Received]()
        self._upload = _Upload((), (0, 0))
        self.stopped: Callable[[], bool] = lambda: False
        """Whether to stop, and not to wait for the others any longer."""
        connection.inbox.last_moves = self.learner.moved_before_batches
        common = common_values(self.learner, charter.seed)
        self.session = self._start_session(common)
        self._follow_schedules()
        for name, channel in self.learner.channels.items():
            self._hold(name, self._first_answer(name, channel, common))

    # -- before the first round ----------------------------------------------------------------------------------------

    def _start_session(self, common: CommonValues) -> LearnerSession:
        """A session with the first state of a simulated learner of the member's number."""
        members, key = self.plan.members, LearnerKey(self.connection.charter.seed, self.connection.number)
        counts = self.setup.data.counts_of(members.samples(0))
        state = first_state(self.learner, key.seed, key.number, common, counts)
        samples = LocalSamples(
            self.data.inputs, self.data.targets, members.samples(0), members.shareable(0), bool(members.even[0])
        )
        return LearnerSession(self.learner, state, key, samples, self.plan.work)

    def _first_answer(self, name: str, channel: schema.Channel, common: CommonValues) -> Answer:
        """The answer before any download: nothing with count 0, or the common values at the start."""
        connection = self.connection
        if name in connection.state.answers:
            return connection.state.answers[name]
        if name not in common:
            return empty_answer(channel)
        values = {k: t.numpy(force=True).copy() for k, t in common[name].items()}
        if (
            name in connection.channels
            and values_fingerprint(channel, values) != connection.charter.channel_settings[name].start
        ):
            found = connection.inbox.download([name], {}, connection.timeout)
            if name not in found:
                raise ConfigurationError(
                    f"the common values of {name!r} cannot be made here, and the relay cannot be reached"
                )
            return found[name]
        if name in self.learner.moved_before_batches:
            values |= {f"{LAST_MOVE}{k}": np.zeros_like(v) for k, v in values.items()}
        connection.state.answers[name] = Answer(values, np.zeros(()), 0)
        return connection.state.answers[name]

    def introduce(self) -> None:
        """Upload the untrained model's representations, and download the others', before the first round.

        Where the others are rounds ahead, start from the common values as they are now.
        """
        channels = self.connection.channels
        moving = [name for name in self.learner.receiving if name in channels and channels[name].moves]
        self._receive(self.connection.inbox.download(moving, {}, self.connection.timeout))
        if self.connection.state.round < 0 and self.upload(train=False):
            self.download()

    # -- a round -------------------------------------------------------------------------------------------------------

    def run_round(self) -> RoundResult:
        """One whole round: train, upload, wait for the others where that is needed, download, and test."""
        self.upload()
        return self.download()

    def upload(self, *, train: bool = True) -> bool:
        """Train, and upload what is due; whether anything was. Without training, what is due before the first round."""
        self.round += train
        self._follow_schedules()
        connection, uploading = self.connection, self.learner.uploading
        due = [e for e in self.learner.exchanges if e.name in uploading and self.round % e.every == 0]
        names = tuple(e.name for e in due if train or e.uploads_before_training)
        if not train and not names:
            return False
        self._upload = _Upload(names, (connection.client.bytes_sent, connection.client.bytes_received))
        open_ = [name for name in names if not connection.state.unconfirmed and self._may_upload(name)]
        self._restore_residuals()
        self._upload.losses, uploads = self._work(open_, train)
        traveling = {name: each for name, each in uploads.items() if name in connection.channels}
        self._upload.own = {n: Answer(dict(u.tensors), u.weight) for n, u in uploads.items() if n not in traveling}
        self._upload.round = max(
            self.round, connection.state.round + train
        )  # a new folder continues where the relay is
        self._upload.acknowledged = connection.outbox.queue(self._upload.round, traveling) and connection.outbox.flush(
            connection.timeout
        )
        return True

    def _may_upload(self, name: str) -> bool:
        """Whether a channel would accept an upload now: a change is measured from common values that are held."""
        connection = self.connection
        if name not in connection.channels:
            return True
        return name not in connection.state.awaiting and (
            name in connection.state.answers or not connection.channels[name].moves
        )

    def _work(self, names: Sequence[str], train: bool) -> tuple[dict[str, float], dict[str, ChannelUpload]]:
        """The learner's part of the round: loss terms, and what it uploads."""
        losses: dict[str, float] = dict.fromkeys(self.learner.loss_terms, 0.0)
        if train:
            found = self.session.train(self.round, self._received).tolist()
            losses = dict(zip(losses, found, strict=False))
        uploads = self.session.upload(self.round, {name: self._received[name] for name in names}) if names else {}
        wrong = _non_finite(self.session, losses, uploads)
        if wrong:
            raise TrainingError(f"round {self.round}: {wrong}; try a smaller learning rate or weight")
        held, residuals = self.connection.state.answers, self.session.state.residuals
        versions = {name: held[name].version if name in held else 0 for name in uploads}
        return losses, {
            name: _channel_upload(upload, versions[name], residuals.get(name, {}), self.learner.dtype)
            for name, upload in uploads.items()
        }

    def download(self) -> RoundResult:
        """Download what is due, wait for a moving mean that has this round's upload to be aggregated, and test."""
        connection, upload = self.connection, self._upload
        names = [name for name in upload.due if name in self.learner.receiving and name in connection.channels]
        reachable = upload.acknowledged or not connection.backoff.left
        found = {**upload.own, **(self._fetch(names) if reachable else {})}
        self._receive(found)
        sent, received = upload.bytes_before
        up, down = connection.client.bytes_sent - sent, connection.client.bytes_received - received
        accuracies = self.test(), self.test_own()
        return RoundResult(
            self.round, accuracies[0], upload.losses, upload.acknowledged, tuple(found), up, down, accuracies[1]
        )

    def _fetch(self, names: Sequence[str]) -> dict[str, Answer]:
        connection, channels = self.connection, self.learner.channels
        draws = {n: c.draw for n, c in channels.items() if isinstance(c, schema.Pool) and n in names}
        end = time.monotonic() + self.wait
        while connection.state.awaiting.keys() & set(names) and connection.backoff.allows(end) and not self.stopped():
            if connection.inbox.aggregated(names, end, connection.timeout):
                break
            connection.inbox.wait(min(end - time.monotonic(), 5.0))
        return connection.inbox.download(names, draws, connection.timeout, self._upload.round)

    def _receive(self, found: Mapping[str, Answer]) -> None:
        """Hold answers from now on, and let them change the model where they do."""
        for name, answer in found.items():
            self._hold(name, answer)
        self.session.receive({name: self._received[name] for name in found})

    def _hold(self, name: str, answer: Answer) -> None:
        """Hold an answer from now on, in the place of the last."""
        device, dtype = self.learner.device, self.learner.dtype
        tensors = {k: torch.from_numpy(np.array(t)).to(device, dtype) for k, t in answer.tensors.items()}
        count = torch.from_numpy(np.array(answer.count, dtype=np.float64)).to(device)
        self._received[name] = Received(tensors, count, torch.ones((), dtype=torch.bool, device=device))

    def _follow_schedules(self) -> None:
        """Give settings that change with the rounds, such as a learning rate schedule, their values in this one."""
        for (owner, name), values in self.plan.settings_at(self.round).items():
            self.session.state.settings[owner][name].copy_(torch.from_numpy(values)[0])

    def _restore_residuals(self) -> None:
        """Residuals are those of the last upload that the relay has acknowledged."""
        for exchange, residuals in self.session.state.residuals.items():
            for key, residual in residuals.items():
                saved = self.connection.state.residuals.get(exchange, {}).get(key)
                residual.zero_() if saved is None else residual.copy_(torch.from_numpy(np.array(saved)))

    def test(self) -> float:
        """Accuracy on the test set, in %: of the classifier, or where none is trained of a linear probe."""
        return measure_accuracy(self.session, self.setup, self.data)

    def test_own(self) -> float | None:
        """Accuracy of the own answer on data like the member's own, in %; None where it has no own answer."""
        if not self.learner.role.objective.has_own_answer:
            return None
        if self.learner.role.objective.chooses:
            self.session.choose(*self.data.held_out(self.plan.members.held_out(np.array([0]))[0]))
        correct = self.session.evaluate(*self.data.tests(), "own").numpy(force=True)
        return float(accuracy(correct[None], self.setup.data.test_counts, self.setup.data.shares[0])[0])

    # -- saving --------------------------------------------------------------------------------------------------------

    def save(self, folder: Path) -> None:
        """Save the learner's state, so that a restart continues from it."""
        save_checkpoint(RunFolder(folder), learner_checkpoint(self.session.state, self.round))

    def resume(self, folder: Path) -> bool:
        """Continue from what `save` wrote; whether there was anything."""
        checkpoint = load_checkpoint(RunFolder(folder)) if folder.exists() else None
        if checkpoint is None:
            return False
        restore_learner(self.session.state, checkpoint)
        self.round = checkpoint.round
        if self.connection.state.round > self.round:  # stopped between download and saving: the download counts
            held = self.connection.state.answers.items()
            self._receive({name: answer for name, answer in held if name in self.learner.receiving})
        return True

    def save_model(self, folder: Path, config: Config) -> None:
        """Write the model into a folder, as `consilience export` does; config: its training's settings."""
        model, spec, own_accuracy = self.learner.model, self.plan.spec, self.test_own()
        trained = {
            "method": config.method.label,
            "settings": config.method.settings,
            "data": config.data_name,
            "label": config.data.label,
            "federation": self.connection.charter.name,
            "member": self.connection.name,
            "learner": self.connection.number,
            "seed": self.connection.charter.seed,
            "round": self.round,
            "metrics": {"accuracy": self.test()} | ({} if own_accuracy is None else {"accuracy_own": own_accuracy}),
            "accuracy_source": "classifier" if self.setup.evaluation.labeled else "scaled",
        }
        inputs = describe_inputs(self.setup.data.train)
        card = make_card(model, spec.model, spec.named, inputs, config.model.width, trained)
        write_model(folder, model, card, spec.model, own_answer_of(self.learner))

    def close(self) -> None:
        """Close the connection."""
        torch.set_num_threads(self._threads)
        self.connection.close()


def measure_accuracy(session: LearnerSession, setup: Setup, data: SharedData) -> float:
    """Accuracy of a session's model on the test set, in %."""
    if setup.evaluation.labeled:
        correct = session.evaluate(*data.tests()).numpy(force=True)
    else:
        ((first, last),) = setup.data.ranges.tolist()
        tests = data.test_inputs, data.test_targets
        samples = ProbeSamples(data.inputs[first:last], data.targets[first:last], *tests)
        correct = probe(session.learner, samples, ("scaled",), session.key.seed)[0]
    return float(accuracy(correct[None], setup.data.test_counts)[0])


def _non_finite(session: LearnerSession, losses: Mapping[str, float], uploads: Mapping[str, Contribution]) -> str:
    """What is NaN or infinite after local work; nothing where all is well."""
    if not session.has_finite_parameters():
        return non_finite_parameter()
    wrong = [non_finite_upload(name) for name, upload in uploads.items() if not is_finite(upload)]
    wrong += [f"loss term {term!r} is NaN or infinite" for term, value in losses.items() if not np.isfinite(value)]
    return next(iter(wrong), "")


def _channel_upload(
    upload: Contribution, version: int, residuals: Mapping[str, Tensor], dtype: torch.dtype
) -> ChannelUpload:
    """An upload as the outbox takes it, in the learner's precision."""

    def array(tensor: Tensor) -> np.ndarray:
        return tensor.to(dtype).numpy(force=True).copy()

    tensors = {key: array(tensor) for key, tensor in upload.tensors.items()}
    return ChannelUpload(
        tensors, array(upload.weight), version, {key: array(residual) for key, residual in residuals.items()}
    )
