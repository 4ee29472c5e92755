"""When moving means must not wait any longer, and when the round of a federation may advance."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from consilience.relay.federation import FederationService
from consilience.relay.roles import fewest_contributions
from consilience.relay.snapshot import Snapshot


class Deadlines:
    """The time of the first waiting contribution of each moving mean.

    clock: seconds that never go back, so that setting the machine's time changes nothing.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock, self.pace = clock, RoundPace(clock)
        self._waiting_since: dict[tuple[int, str], tuple[int, float]] = {}  # the mean's version then, and the time

    def note(self, federation: int, snapshot: Snapshot) -> None:
        """Note which moving means of a federation have waiting contributions now."""
        for name, waiting in snapshot.waiting.items():
            version = snapshot.moving[name].version
            known, _ = self._waiting_since.get((federation, name), (-1, 0.0))
            if waiting and known != version:
                self._waiting_since[federation, name] = version, self.clock()
            elif not waiting:
                self._waiting_since.pop((federation, name), None)

    def overdue(
        self, federations: Mapping[int, FederationService], drafts: Mapping[int, Snapshot]
    ) -> list[tuple[int, str]]:
        """Moving means whose deadline has passed; one that was aggregated since then waits anew."""
        now, found = self.clock(), []
        for (federation, name), (version, since) in self._waiting_since.items():
            service = federations.get(federation)
            if service is None:  # its records are damaged, and it is not served any more
                continue
            rules, snapshot = service.charter.rules, drafts.get(federation, service.snapshot)
            late = now - since >= rules.deadline and snapshot.moving[name].version == version
            if late and snapshot.waiting[name] >= fewest_contributions(service.charter, name):
                found.append((federation, name))
        return found


class RoundPace:
    """When the round of each federation advanced last.

    Contributions expire by rounds. If rounds were as short as members can upload, two of them could make those of all
    others expire within a second.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self._advanced: dict[int, float] = {}

    def note(self, federation: int) -> None:
        """Note that the round of a federation has advanced."""
        self._advanced[federation] = self.clock()

    def may_advance(self, service: FederationService, draft: Snapshot) -> bool:
        """Whether a round has lasted long enough; after a start, the first one begins with the first question."""
        rules = service.charter.rules
        if not rules.expire or not rules.round_seconds or draft.round < 0:
            return True
        since = self._advanced.setdefault(service.id, self.clock())
        return draft.round == service.snapshot.round and self.clock() - since >= rules.round_seconds
