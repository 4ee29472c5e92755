"""The trainer of `consilience join`, one message at a time: its state is in the member's folder between two of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from consilience.channels import Answer
from consilience.peer.member_answers import download_answers
from consilience.peer.trainer import FederatedTrainer, due_exchanges


class MessageTrainer(FederatedTrainer):
    """A learner that has the others' answers with the next message, and waits for nothing during one."""

    @property
    def is_new(self) -> bool:
        """Whether it has neither trained nor uploaded anything."""
        return self.round == 0 and self.connection.state.round < 0

    def settle(self) -> None:
        """Find out what has become of an upload that was sent, and is sent again where that is not known."""
        if self.connection.state.pending is not None:
            self.connection.outbox.flush(self.connection.timeout)
            self.connection.backoff.succeeded()

    def receive(self) -> None:
        """Hold the answers that have come with the message; they are those of the last round."""
        self._receive(self._download(self._expected()))

    def start_from_now(self, *, late: bool) -> None:
        """Begin a new member with the common values as they are now. late: also with all that others have shared."""
        held, channels = self.connection.state.answers, self.connection.channels
        names = self._received_names(channels)
        moving = [name for name in names if channels[name].moves]
        versions = (self.connection.inbox.status(float("inf"), self.connection.timeout) or {}).get("versions", {})
        behind = any(versions.get(name, 0) > held[name].version for name in moving if name in held)
        if late or behind:
            self._receive(self._download(names if late else moving))

    def play(self, *, train: bool) -> tuple[Mapping[str, float], int]:
        """Train a round and upload; loss terms, and how many bytes the upload has. Without training, only upload."""
        self.upload(train=train)
        self._receive(self._now.own)
        pending = self.connection.state.pending
        size = len(pending.body) if pending is not None and pending.round == self._now.number else 0
        return self._now.losses, size

    def ask(self) -> None:
        """Ask what the others share in this round: the question leaves with the reply, after all uploads."""
        self._download(self._expected())

    def _expected(self) -> list[str]:
        """The channels that are answered in this round."""
        due = due_exchanges(self.method.roles[self.main.name], self.round, self.round > 0)
        return self._received_names(due)

    def _received_names(self, names: Sequence[str] | Mapping[str, object]) -> list[str]:
        mine = self.main.learner.receiving
        return [name for name in names if name in mine and name in self.connection.channels]

    def _download(self, names: Sequence[str]) -> dict[str, Answer]:
        if not names:
            return {}
        found = download_answers(self.connection, self.roles, names, max(self.round, self.connection.state.round))
        self.connection.backoff.succeeded()
        return found
