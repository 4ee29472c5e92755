"""What a member knows between two calls, and what a restart resumes from."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from consilience.channels import Answer
from consilience.wire.headers import Part

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class ChannelUpload:
    """An upload to one channel as the relay will decode it.

    version: of the moving mean that a change is measured from. residuals: what the encoding has rounded away once the
    relay accepts the upload, by tensor.
    """

    tensors: Mapping[str, np.ndarray]
    weight: np.ndarray
    version: int = 0
    residuals: Arrays = field(default_factory=dict)


@dataclass
class PendingUpload:
    """An encoded upload that the relay has not acknowledged.

    may_have_arrived: it was sent and no answer came, so the same bytes are sent again until one does. was_sent:
    somebody may have read it, even if the relay's answer was that it has not accepted it.
    residuals_if_accepted, residuals_if_refused: of each channel, by tensor. A channel that refuses an upload as too
    stale leaves all of it in the residual.
    """

    round: int
    parts: dict[str, Part]
    body: bytes
    residuals_if_accepted: dict[str, Arrays]
    residuals_if_refused: dict[str, Arrays]
    may_have_arrived: bool = False
    was_sent: bool = False

    @property
    def versions(self) -> dict[str, int]:
        """The versions that changes are measured from, by moving mean."""
        return {name: part.version for name, part in self.parts.items() if part.version is not None}


@dataclass
class PeerState:
    """A member's side of the federation. Arrays are replaced, never changed in place.

    round: the newest one that the relay has acknowledged. answers: the newest download of each channel.
    awaiting: moving means that have this member's upload and have not aggregated it, with the version it was made from.
    residuals: what encodings have rounded away so far, by channel and tensor. private: what the own answer needs beside
    the model, such as class shares and a private head; it is never sent. receipt: of the newest acknowledged upload.
    spent: what the privacy budget has been spent on: uploads, private steps, and those before the last upload; lost is
    1 where the folder was lost and nobody knows how many steps there were. etag: of the newest download; not saved.
    """

    round: int = -1
    answers: dict[str, Answer] = field(default_factory=dict)
    awaiting: dict[str, int] = field(default_factory=dict)
    residuals: dict[str, Arrays] = field(default_factory=dict)
    pending: PendingUpload | None = None
    private: Arrays = field(default_factory=dict)
    receipt: dict[str, Any] = field(default_factory=dict)
    spent: dict[str, int] = field(default_factory=lambda: {"uploads": 0, "steps": 0, "released": 0, "lost": 0})
    etag: str = ""

    @property
    def unconfirmed(self) -> bool:
        """Whether an upload was sent and may have arrived: until that is known, no other is sent."""
        return self.pending is not None and self.pending.may_have_arrived

    def accept_pending(self, refused: Collection[str] = ()) -> None:
        """Commit the pending upload and its residuals together: the relay has acknowledged it.

        refused: the channels that have refused it as too stale.
        """
        pending = self.pending
        assert pending is not None
        self.pending, self.round = None, max(self.round, pending.round)
        for name in pending.parts:
            residuals = pending.residuals_if_refused if name in refused else pending.residuals_if_accepted
            if name in residuals:
                self.residuals[name] = residuals[name]
        self.awaiting |= {name: version for name, version in pending.versions.items() if name not in refused}

    def count_lost(self, round_: int) -> None:
        """Count one upload per round up to this one, the newest that others have: the folder was lost."""
        if round_ >= 0:
            self.spent = {**self.spent, "uploads": round_ + 1, "lost": 1}

    def notice_loss(self, epoch: int, round_: int) -> str:
        """Whether the relay, whose newest round of this member is `round_`, has lost an upload that it acknowledged.

        Within one epoch a relay never goes back. If it did, its versions and revisions may come to numbers that this
        member knows, with other values: what depends on them is dropped and downloaded again. Returns a message.
        """
        if self.receipt.get("epoch") != epoch or round_ >= self.receipt["round"]:
            return ""
        known, self.receipt, self.etag = self.receipt, {}, ""
        self.awaiting.clear()
        for name in [name for name, answer in self.answers.items() if answer.version]:
            del self.answers[name]
        entry = f", entry {known['entry']} of its audit trail" if "entry" in known else ""
        return (
            f"the relay has lost an upload that it acknowledged: it has round {round_} of this member, and its receipt "
            f"is of round {known['round']}{entry}, SHA-256 {known['sha256']}. Tell its operator; the next upload "
            f"replaces it"
        )

    def forget_aggregated(self, status: Mapping[str, Any]) -> None:
        """Stop awaiting moving means where no upload waits: they have aggregated, even where no value changed."""
        for name, version in list(self.awaiting.items()):
            if status["waiting"].get(name) == 0 and status["versions"].get(name, -1) <= version:
                del self.awaiting[name]
