"""What every member does in a loop of its own, whatever it trains with: download, upload, wait, close."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from types import TracebackType
from typing import NoReturn, Self

from consilience.channels import Answer
from consilience.errors import ConfigurationError
from consilience.peer.connection import FederationConnection
from consilience.peer.spent_budget import PrivacyBudget
from consilience.peer.state import ChannelUpload
from consilience.privacy.plan import PrivacyPlan
from consilience.validation import check_number

Uploads = dict[str, ChannelUpload]


class FederationMember:
    """A member over its connection: its rounds, its pending upload and its privacy budget."""

    def __init__(self, connection: FederationConnection, plan: PrivacyPlan | None) -> None:
        self.connection, self.charter = connection, connection.charter
        self._budget = PrivacyBudget(plan, connection.state)
        self._refreshed = False  # since the last round
        pending = connection.state.pending
        self._round = max(connection.state.round, pending.round if pending else 0, 0)

    @property
    def name(self) -> str:
        """The member's name at the relay."""
        return self.connection.name

    @property
    def round(self) -> int:
        """The number of the newest round that was shared, acknowledged or not."""
        return self._round

    @property
    def waiting(self) -> bool:
        """Whether an upload is pending: the relay has not acknowledged it."""
        return self.connection.state.pending is not None

    @property
    def bytes_sent(self) -> int:
        """Bytes of the bodies uploaded so far."""
        return self.connection.client.bytes_sent

    @property
    def privacy_spent(self) -> float:
        """Epsilon of all uploads so far, with the delta of the charter; 0 where uploads are not private."""
        return self._budget.spent

    def close(self) -> None:
        """Save the state and close the connection; a pending upload stays in the folder for the next time."""
        self.connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        """Refuse to be copied, or sent to another process, as trainers that start processes try to."""
        raise ConfigurationError(
            f"member {self.name!r} cannot be copied, nor sent to another process: a member is one peer in one process; "
            f"train in this process, such as with Trainer(devices=1) of Lightning, or let each process join as a "
            f"member of its own"
        )

    # -- for members of each kind ------------------------------------------------------------------------------------

    @property
    def _next_round(self) -> int:
        return max(self._round, self.connection.state.round) + 1

    @property
    def _before_first_round(self) -> bool:
        return self._round <= 0 and self.connection.state.round < 0

    def _can_contribute(self, name: str) -> bool:
        """Whether there is what an upload to an open channel is computed from."""
        return True

    def _finish_round(self) -> None:
        """What is done when an upload has been computed, before it is saved and sent."""

    def _check_call(self, wait: float) -> None:
        """Refuse a call after `close`, when the folder may be another one's, or with a wait that is no time."""
        check_number("wait", wait)
        self.connection.require_open()

    def _download(
        self, names: Collection[str], draws: Mapping[str, int], wait: float, some: bool = False
    ) -> dict[str, Answer]:
        """New answers of these channels; draws: how many entries of each pool.

        wait: the most seconds to wait until there is one; without a relay, until all others have uploaded the round
        that this member uploaded last. some: there are some already, so that no more need to be waited for.
        """
        self._check_call(wait)
        connection, started = self.connection, time.monotonic()
        self._refreshed = True
        end = started + max(wait, connection.timeout)
        connection.outbox.flush(connection.timeout)
        complete = wait <= 0 or connection.wait_for_others(connection.state.round, wait) or some
        while True:
            seconds = min(connection.timeout, end - time.monotonic())
            found = connection.inbox.download(names, draws, seconds)
            if found or complete or not connection.inbox.wait(started + wait - time.monotonic()):
                return found

    def _upload(
        self, due: Collection[str], round_: int, wait: float, contributions: Callable[[Collection[str]], Uploads]
    ) -> bool:
        """Upload to the channels that are due and open; whether the relay has acknowledged it.

        contributions: what to upload to some channels; called only where an upload can be queued.
        """
        self._check_call(wait)
        connection, outbox = self.connection, self.connection.outbox
        end = time.monotonic() + max(wait, connection.timeout)
        if connection.state.unconfirmed:
            outbox.flush(end - time.monotonic())
        opened = [name for name in due if name in outbox.open_channels and self._can_contribute(name)]
        left = end - time.monotonic()  # what the caller computes is its own work, and not limited
        uploads: Uploads = {}
        if opened and not connection.state.unconfirmed and self._budget.allows_upload():
            uploads = contributions(opened)
            self._budget.add_upload()
        self._round, self._refreshed = round_, False
        self._finish_round()
        return outbox.queue(round_, uploads) and outbox.flush(left)
