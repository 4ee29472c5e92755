"""Since when contributions wait at each moving mean, and which of the means must not wait any longer."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from consilience.relay.federation import FederationService
from consilience.relay.snapshot import Snapshot


class Deadlines:
    """The time of the first waiting contribution of each moving mean.

    clock: seconds that never go back, so that setting the machine's time changes nothing.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
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
            service = federations[federation]
            rules, snapshot = service.charter.rules, drafts.get(federation, service.snapshot)
            late = now - since >= rules.deadline and snapshot.moving[name].version == version
            if late and snapshot.waiting[name] >= rules.min_contributions:
                found.append((federation, name))
        return found
