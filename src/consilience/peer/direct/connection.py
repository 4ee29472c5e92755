"""A member's connection to a federation without a relay: it waits for the others, and resumes from its folder."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from consilience.errors import CheckpointError, ConfigurationError, RelayUnreachable
from consilience.files import MEMBER_FOLDER
from consilience.peer.connection import FederationConnection
from consilience.peer.direct.key_file import read_key
from consilience.peer.direct.link import DirectLink
from consilience.peer.direct.network import PeerNetwork
from consilience.peer.state import PeerState
from consilience.peer.state_folder import Identity, StateFolder
from consilience.wire.charter import Charter

log = logging.getLogger("consilience.peer")
_POLL = 1.0  # seconds after which those that are awaited are asked again
_FIRST_POLL = 0.1  # the same while nobody is there


def connect_to_peers(network: PeerNetwork, folder: Path | str | None = None, timeout: float = 5.0) -> DirectConnection:
    """Connect to the other members, and resume from the state in the folder, by default one under `peers/`.

    timeout: the most seconds that a call may take where it is not asked to wait.
    """
    charter = network.read_charter()
    secret, key, public = read_key(network.key)
    name = _name_of(charter, public, network)
    place = Path(folder) if folder is not None else Path("peers") / f"{charter.name}-{name}"
    store = StateFolder(place)
    with contextlib.ExitStack() as opened:
        store.lock()
        opened.callback(store.unlock)
        saved = store.load()
        identity = Identity(charter, [member.name for member in charter.members].index(name), name)
        if saved is not None and saved[0] != identity:
            raise CheckpointError(
                f"{store.path} is of another federation or member ({saved[0].name}); choose another folder"
            )
        link = DirectLink(charter, name, key, place / MEMBER_FOLDER / "messages")
        opened.callback(link.close)
        link.start(network.open(link, secret))
        connection = DirectConnection(link, store, saved[1] if saved else PeerState(), identity, timeout)
        connection.open(network.wait if saved is None else timeout, network, new=saved is None)
        opened.pop_all()
    return connection


def _name_of(charter: Charter, public: str, network: PeerNetwork) -> str:
    for member in charter.members:
        if member.key == public:
            return member.name
    listed = ", ".join(member.name for member in charter.members)
    raise ConfigurationError(
        f"{network.key} is not the key of a member: its public key is {public}, and {network.charter} lists the keys "
        f"of {listed}; use your own key, or ask for a charter that lists it"
    )


class DirectConnection(FederationConnection):
    """One member's side of a federation without a relay."""

    client: DirectLink

    def __init__(
        self, client: DirectLink, store: StateFolder, state: PeerState, identity: Identity, timeout: float
    ) -> None:
        super().__init__(client, store, state, identity, timeout)
        self._given_up: dict[str, int] = {}  # members that did not come in time, and the round that they had then

    @property
    def repeats_rounds(self) -> bool:
        """Whether a round that was published before a restart is continued under its number."""
        return True

    def use_partners(self, numbers: Iterable[int]) -> None:
        """Let means and observations be of these members' uploads alone, beside one's own; without any, everybody's."""
        listed = sorted(set(numbers))
        if unknown := [number for number in listed if number not in self.client.numbers.values()]:
            known = ", ".join(f"{number} {name}" for name, number in self.client.numbers.items())
            raise ConfigurationError(
                f"partners: {self.charter.name!r} has no member {', '.join(map(str, unknown))}; there are {known}"
            )
        super().use_partners(listed)

    # -- opening -------------------------------------------------------------------------------------------------------

    def open(self, seconds: float, network: PeerNetwork, *, new: bool) -> None:
        """Wait for another member, get what it has, and continue after this member's newest round.

        new: the folder had no state. If others have messages of this member, it was lost, and they count as sent.
        """
        present = self._wait_for_somebody(seconds)
        self.client.fetch(list(self.client.numbers), self.timeout)
        others = self.client.other_charters
        if others and not present - others.keys():
            raise ConfigurationError(self.client.describe_other_charter(sorted(others)[0]))
        if not present and self.state.round < 0 and not self.heard_of():
            raise self._alone(seconds, network)
        self._settle_pending()
        self.state.round = max(self.state.round, self.client.mailbox.newest_round(self.name))
        if new:
            self.state.count_lost(self.state.round)
        self.save()

    def heard_of(self) -> list[str]:
        """The other members of whom a message is held."""
        return [name for name in self.client.others if self.client.mailbox.newest_round(name) >= 0]

    def _wait_for_somebody(self, seconds: float) -> set[str]:
        end = time.monotonic() + seconds
        while not (present := self.client.present()) and time.monotonic() < end:
            time.sleep(_FIRST_POLL)
        return present

    def _alone(self, seconds: float, network: PeerNetwork) -> RelayUnreachable:
        where = ", ".join(map(str, network.peers)) or "no address given"
        return RelayUnreachable(
            f"no other member of {self.charter.name!r} could be reached within {seconds:g} s, of "
            f"{', '.join(self.client.others)}: tried {where}, listened at {', '.join(network.listen) or 'no address'}; "
            f"are they running, are the addresses theirs, and has one authority signed all certificates?"
        )

    def _settle_pending(self) -> None:
        """A pending upload that is among the messages was published before the restart."""
        pending = self.state.pending
        if pending is not None and self.client.mailbox.newest_round(self.name) >= pending.round:
            self.state.accept_pending()

    # -- waiting -------------------------------------------------------------------------------------------------------

    def wait_for_others(self, round_: int, seconds: float, stopped: Callable[[], bool] = lambda: False) -> bool:
        """Wait until all others have published this round; True: nothing more of it is worth waiting for.

        A member that did not come in time is not waited for again until it has published something newer.
        """
        end, mailbox = time.monotonic() + seconds, self.client.mailbox
        asked, revision = 0.0, mailbox.revision
        while (missing := self._missing(round_)) and (left := end - time.monotonic()) > 0 and not stopped():
            if time.monotonic() - asked > _POLL:
                self.client.fetch(missing, min(left, self.timeout))
                asked = time.monotonic()
            revision = mailbox.wait(revision, min(left, _POLL))
        if missing and not stopped():
            self._given_up |= {name: mailbox.newest_round(name) for name in missing}
            log.warning(
                "nothing of round %d from %s within %g s; continuing with what there is",
                round_,
                ", ".join(missing),
                seconds,
            )
        return True

    def counted_rounds(self, round_: int) -> dict[str, int]:
        """The round of each member's newest upload that counts in a round of this member."""
        rounds: dict[str, int] = {}
        for channel in self.channels:
            for name, message in self.client.counted(channel, round_).items():
                rounds[name] = max(rounds.get(name, -1), message.round)
        return {name: rounds[name] for name in self.client.numbers if name in rounds}

    def _missing(self, round_: int) -> list[str]:
        """The members that are awaited."""
        newest = {name: self.client.mailbox.newest_round(name) for name in self.client.others}
        self._given_up = {name: known for name, known in self._given_up.items() if newest[name] <= known}
        return [name for name, known in newest.items() if known < round_ and name not in self._given_up]
