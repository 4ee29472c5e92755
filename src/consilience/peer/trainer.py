"""Trains a member of a federation as a simulation trains a learner, with the same code, and exchanges over a network.

Samples, batches, draws and initial weights depend on the federation's seed and the member's number alone, so that real
processes over a relay give a simulation's numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from consilience.channels import Answer
from consilience.config.config import Config
from consilience.data import Dataset
from consilience.errors import ConfigurationError, TrainingError
from consilience.export import describe_inputs, make_card, write_model
from consilience.kinds import ACCURACY, Metric
from consilience.learner.own_answer import own_answer_of
from consilience.method import Method, Role
from consilience.peer.charter_frozen import check_frozen_part
from consilience.peer.connection import FederationConnection
from consilience.peer.member_answers import download_answers, first_answer
from consilience.peer.member_method import check_charter_channels
from consilience.peer.member_role import MemberRole, build_roles
from consilience.peer.member_scores import MemberScores
from consilience.peer.others import OtherMembers
from consilience.peer.privacy_budget import with_charter_privacy
from consilience.peer.spent_budget import PrivacyBudget
from consilience.peer.state import ChannelUpload
from consilience.simulation.engines.shared_data import SharedData, data_arrays, on_device
from consilience.simulation.records.checkpoint import (
    learner_checkpoint,
    load_checkpoint,
    restore_learner,
    save_checkpoint,
)
from consilience.simulation.records.run_folder import RunFolder
from consilience.simulation.setup.participants import Model
from consilience.simulation.setup.privacy import refuse_several_roles
from consilience.simulation.simulate import in_one_round
from consilience.wire.agreement import merge_channels

_OTHER_DATA = "join with data of the federation's kind and classes, or ask for another charter"


@dataclass(frozen=True)
class RoundResult:
    """The results of a round: accuracy on the member's own test set, loss terms, and how the exchange went.

    accuracy_own: of the member's own answer, with the test classes weighted as among its training samples; None where
    it has no other answer than its model's. epsilon: what uploads have spent of the privacy budget; None without one.
    members: without a relay, the round of each member's upload that counted.
    """

    round: int
    accuracy: float
    losses: Mapping[str, float]
    acknowledged: bool
    received: tuple[str, ...]
    bytes_up: int
    bytes_down: int
    accuracy_own: float | None = None
    epsilon: float | None = None
    members: Mapping[str, int] = field(default_factory=dict)


@dataclass
class _RoundState:
    """A round that is under way."""

    number: int  # under which the relay has this member's upload
    bytes_before: tuple[int, int]  # sent and received
    losses: dict[str, float] = field(default_factory=dict)
    own: Mapping[str, Answer] = field(default_factory=dict)  # of exchanges that do not travel
    due: tuple[str, ...] = ()  # exchanges of the role that acts now
    acknowledged: bool = True
    received: tuple[str, ...] = ()


class FederatedTrainer:
    """A learner in a process of its own, in one role or in several.

    public: the samples of the public set, (samples, *shape), where a role works on it. wait: the most seconds to wait
    in a round for the others, where a moving mean must be aggregated before the next round, or where a role needs what
    others upload. Without an answer by then, training continues with the last one.
    """

    def __init__(
        self,
        connection: FederationConnection,
        config: Config,
        method: Method,
        data: Dataset,
        model: Model,
        wait: float,
        public: np.ndarray | None = None,
    ) -> None:
        self.connection, self.wait, charter = connection, wait, connection.charter
        self.method = method
        if data.kind != charter.kind:
            raise ConfigurationError(
                f"your data is for {data.kind}, and federation {charter.name!r} is for {charter.kind}; {_OTHER_DATA}"
            )
        if data.classes != charter.classes:
            raise ConfigurationError(
                f"your data has {data.classes} classes, and federation {charter.name!r} has {charter.classes}; "
                f"{_OTHER_DATA}"
            )
        config = with_charter_privacy(in_one_round(config, method), charter)
        self.rounds = config.training.rounds
        samples = data, None if public is None else _public_data(data, public)
        self.roles = build_roles(charter, connection.number, config, method, samples, model)
        channels = merge_channels([role.learner.channels for role in self.roles])
        check_charter_channels(method, channels, charter, f"your model {self.main.learner.task.model!r}")
        for learner in (role.learner for role in self.roles):
            check_frozen_part(
                charter, f"your model {learner.task.model!r}", learner.model, learner.task, learner.exchanges
            )
        labeled = all(role.objective.labeled for role in method.roles.values())
        self.labeled = self.main.setup.evaluation.labeled and labeled
        """Whether the classifier is trained."""
        self._threads = torch.get_num_threads()
        torch.set_num_threads(1)  # as in a simulation, so that bits are the same
        own_samples = self.main.data if self.main.plan.spec.public is None else _on_device(self.main, data)
        self.scores = MemberScores(self.main, own_samples, self.labeled)
        """What it scores on the member's test samples."""
        self.round, self._now = 0, _RoundState(0, (0, 0))
        self._model_in = self.main  # the role with the newest model
        self.stopped: Callable[[], bool] = lambda: False
        """Whether to stop, and not to wait for the others any longer."""
        refuse_several_roles([connection.number] * len(self.roles), config.privacy.private)
        plan = next((role.setup.privacy for role in self.roles if role.setup.privacy is not None), None)
        self.budget = PrivacyBudget(plan, connection.state, self.main.step_plan, self.main.private_steps)
        """What uploads may reveal, where they are private."""
        self.others = OtherMembers(connection, lambda: self.stopped())
        connection.inbox.last_moves = frozenset[str]().union(*(r.learner.moved_before_batches for r in self.roles))
        for role in self.roles:
            role.follow_schedules(0)
            for name, channel in role.learner.channels.items():
                role.hold(name, first_answer(connection, name, channel, role.common))

    @property
    def main(self) -> MemberRole:
        """The member's first role, which has its model between rounds."""
        return self.roles[0]

    @property
    def steps(self) -> tuple[str, ...]:
        """The roles of all members, which act one after the other in a round."""
        roles = self.connection.charter.roles
        return (self.main.name,) if roles is None else roles.order

    # -- before the first round ----------------------------------------------------------------------------------------

    def introduce(self) -> None:
        """Upload the untrained model's representations, and download the others', before the first round.

        Where the others are rounds ahead, start from the common values as they are now.
        """
        channels = self.connection.channels
        receiving = {name for role in self.roles for name in role.learner.receiving}
        moving = [name for name in channels if name in receiving and channels[name].moves]
        self._receive(self.connection.inbox.download(moving, {}, self.connection.timeout))
        first = 1 if self.connection.repeats_rounds else 0  # what was published before a restart is exchanged again
        if self.connection.state.round < first:
            for step in range(len(self.steps)):
                if self.upload(step, train=False):
                    self.exchange()
            self._take_model(self.main)

    # -- a round -------------------------------------------------------------------------------------------------------

    def run_round(self) -> RoundResult:
        """One whole round: train, upload, wait for the others where that is needed, download, and test."""
        for step in range(len(self.steps)):
            self.upload(step)
            self.exchange()
        return self.finish_round()

    def upload(self, step: int = 0, *, train: bool = True) -> bool:
        """One role's turn: where it is this member's, train and upload what is due; whether anything was.

        Without training, what is due before the first round.
        """
        if step == 0:
            self._begin_round(train)
        due = due_exchanges(self.method.roles[self.steps[step]], self.round, train)
        self._now.due, self._now.own = due, {}
        role = next((role for role in self.roles if role.name == self.steps[step]), None)
        if role is None or not (train or due):
            return False
        connection = self.connection
        self._take_model(role)
        self.budget.add_steps(role.private_steps if train else 0)
        if connection.state.unconfirmed:  # an earlier one that may have arrived: nothing else is sent before it
            connection.outbox.flush(connection.timeout)
        may = not connection.state.unconfirmed and self.budget.allows_upload()
        open_ = [name for name in due if may and _may_upload(connection, name)]
        role.restore_residuals(connection.state.residuals)
        uploads = self._work(role, open_, train)
        traveling = {name: each for name, each in uploads.items() if name in connection.channels}
        self._now.own = {n: Answer(dict(u.tensors), u.weight) for n, u in uploads.items() if n not in traveling}
        if not (connection.repeats_rounds and self._now.number <= connection.state.round):  # else it is published
            if traveling:
                self.budget.add_upload()
            self._now.acknowledged &= connection.outbox.queue(self._now.number, traveling) and connection.outbox.flush(
                connection.timeout
            )
        return True

    def _begin_round(self, train: bool) -> None:
        """Start to count a round's bytes; settings follow their schedules."""
        connection = self.connection
        self.round += train
        for role in self.roles:
            role.follow_schedules(self.round)
        number = max(self.round, connection.state.round + train)  # a new folder continues where the relay is
        if connection.repeats_rounds and connection.state.round == self.round:
            number = self.round  # it was published, and not saved, before a restart
        self._now = _RoundState(number, (connection.client.bytes_sent, connection.client.bytes_received))
        if self.others.late_means:
            found = connection.inbox.download(self.others.late_means, {}, connection.timeout)
            self.others.late_means -= found.keys()  # a moving mean is in an answer only if it has moved
            self._receive(found)

    def _work(self, role: MemberRole, names: Sequence[str], train: bool) -> dict[str, ChannelUpload]:
        """The role's part of the round: loss terms are noted, and what it uploads is returned."""
        losses: dict[str, float] = dict.fromkeys(role.learner.loss_terms, 0.0)
        if train and role.trains:
            found = role.session.train(self.round, role.received).tolist()
            losses = dict(zip(losses, found, strict=False))
        uploads = role.session.upload(self.round, {name: role.received[name] for name in names}) if names else {}
        wrong = role.non_finite(losses, uploads)
        if wrong:
            raise TrainingError(f"round {self.round}: {wrong}; try a smaller learning rate or weight")
        if role.trains:
            self._now.losses |= losses
        held = self.connection.state.answers
        return {
            name: role.channel_upload(name, upload, held[name].version if name in held else 0)
            for name, upload in uploads.items()
        }

    def exchange(self) -> None:
        """Download what this member's roles use of what the acting role has uploaded; wait for it where needed."""
        connection, now = self.connection, self._now
        receiving = {name for role in self.roles for name in role.learner.receiving}
        names = [name for name in now.due if name in receiving and name in connection.channels]
        reachable = now.acknowledged or not connection.backoff.left
        found = {**now.own, **(self._fetch(names) if reachable else {})}
        self._receive(found)
        now.received += tuple(found)

    def download(self) -> RoundResult:
        """The exchange of the round's last role, and the round's results."""
        self.exchange()
        return self.finish_round()

    def finish_round(self) -> RoundResult:
        """The results of the round."""
        self._take_model(self.main)
        now, client = self._now, self.connection.client
        up, down = client.bytes_sent - now.bytes_before[0], client.bytes_received - now.bytes_before[1]
        tested, own = self.scores.common(), self.scores.own()
        spent = None if self.budget.plan is None else self.budget.spent
        how = now.acknowledged, now.received, up, down, own, spent, self.connection.counted_rounds(now.number)
        return RoundResult(self.round, tested, now.losses, *how)

    def _fetch(self, names: Sequence[str]) -> dict[str, Answer]:
        connection, end = self.connection, time.monotonic() + self.wait
        if connection.charter.roles is not None and names:
            mine = connection.charter.roles.uploads_of(connection.number)
            awaited = [n for n in names if n not in mine or not connection.channels[n].moves]
            if awaited:
                self.others.wait(awaited, self._now.number, self.wait)
        while connection.state.awaiting.keys() & set(names) and connection.backoff.allows(end) and not self.stopped():
            if connection.inbox.aggregated(names, end, connection.timeout):
                break
            connection.inbox.wait(min(end - time.monotonic(), 5.0))
        if names:
            connection.wait_for_others(self._now.number, self.wait, self.stopped)
        return download_answers(connection, self.roles, names, self._now.number)

    def _receive(self, found: Mapping[str, Answer]) -> None:
        """Hold answers from now on, and let them change the model where they do."""
        for role in self.roles:
            mine = [name for name in found if name in role.learner.receiving or name in self._now.own]
            for name in mine:
                role.hold(name, found[name])
            if role.changes_model(mine):
                self._take_model(role)
            role.session.receive({name: role.received[name] for name in mine})

    def _take_model(self, role: MemberRole) -> None:
        """Bring the newest model into a role."""
        if role is not self._model_in:
            role.take_model(self._model_in)
            self._model_in = role

    @property
    def metric(self) -> Metric:
        """The score: accuracy, or what stands in its place."""
        return self.scores.metric

    # -- saving --------------------------------------------------------------------------------------------------------

    def save(self, folder: Path) -> None:
        """Save the learner's state, so that a restart continues from it; first what the privacy budget has spent."""
        self.connection.save()
        save_checkpoint(RunFolder(folder), learner_checkpoint([role.session.state for role in self.roles], self.round))

    def resume(self, folder: Path) -> bool:
        """Continue from what `save` wrote; whether there was anything."""
        checkpoint = load_checkpoint(RunFolder(folder)) if folder.exists() else None
        if checkpoint is None:
            return False
        restore_learner([role.session.state for role in self.roles], checkpoint)
        self.round = checkpoint.round
        if self.connection.repeats_rounds:  # with what counted in that round, whatever has come since
            names = [name for role in self.roles for name in role.learner.receiving if name in self.connection.channels]
            self._receive(download_answers(self.connection, self.roles, names, self.round))
        elif self.connection.state.round > self.round:  # stopped between download and saving: the download counts
            self._receive(self.connection.state.answers)
            self._take_model(self.main)
        return True

    def save_model(self, folder: Path, config: Config) -> None:
        """Write the model into a folder, as `consilience export` does; config: its training's settings."""
        model, spec, own_accuracy = self.main.learner.model, self.main.plan.spec, self.scores.own()
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
            "metrics": {"accuracy": self.scores.common()}
            | ({} if own_accuracy is None else {"accuracy_own": own_accuracy}),
            "accuracy_source": "classifier" if self.labeled else "scaled",
            **({} if self.metric == ACCURACY else {"metric": self.metric.key}),
        }
        inputs = describe_inputs(self.main.setup.data.train)
        card = make_card(model, spec.model, spec.named, inputs, config.model.width, trained)
        write_model(folder, model, card, spec.model, own_answer_of(self.main.learner))

    def close(self) -> None:
        """Close the connection."""
        torch.set_num_threads(self._threads)
        self.connection.close()


def _may_upload(connection: FederationConnection, name: str) -> bool:
    """Whether a channel would accept an upload now: a change is measured from common values that are held."""
    if name not in connection.channels:
        return True
    return name not in connection.state.awaiting and (
        name in connection.state.answers or not connection.channels[name].moves
    )


def due_exchanges(role: Role, round_: int, train: bool) -> tuple[str, ...]:
    """The exchanges to which members of a role upload in a round; without training, before the first one."""
    due = [e for e in role.exchanges if e.name in role.uploading and round_ % e.every == 0]
    return tuple(e.name for e in due if train or e.uploads_before_training)


def _on_device(role: MemberRole, data: Dataset) -> SharedData:
    return on_device(data_arrays(data, None), role.learner.device, role.learner.dtype)


def _public_data(own: Dataset, public: np.ndarray) -> Dataset:
    """The public set as training samples; nobody has its classes, and no role that works on it uses them."""
    inputs, targets = np.ascontiguousarray(public, dtype=np.float32), np.zeros(len(public), dtype=np.int64)
    unmarked = replace(own, inputs=inputs, targets=targets, shareable=None, owners=None, owner_names=())
    return replace(unmarked, sample_epsilons=None)
