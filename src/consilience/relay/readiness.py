"""Whether members can use a relay now, for a load balancer: more than being alive."""

from __future__ import annotations

from consilience.relay.store_health import writer_state
from consilience.relay.writer import Writer


def why_not_ready(writer: Writer, stopping: bool) -> str | None:
    """Why a relay should get no requests now; None if it should.

    Sums need not be recounted for it: they are saved with every upload, and a recount only looks for damage.
    """
    state = "stopping" if stopping else writer_state(writer)
    if state != "ok":
        return state
    if writer.loaded.lost and not writer.federations:
        return "damaged"
    return None
