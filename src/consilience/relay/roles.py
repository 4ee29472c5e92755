"""What a member's role allows it to upload, and whose uploads each moving mean waits for."""

from __future__ import annotations

import time
from collections.abc import Iterable

from consilience.relay.rejections import Rejection
from consilience.relay.store import Store
from consilience.wire.charter import Charter


def check_uploads(charter: Charter, number: int, channels: Iterable[str]) -> None:
    """Refuse an upload to a channel to which the member's role does not upload."""
    if charter.roles is None:
        return
    allowed = charter.roles.uploads_of(number)
    for name in channels:
        if name not in allowed:
            roles, mine = " and ".join(charter.roles.roles_of(number)), ", ".join(sorted(allowed)) or "nothing"
            raise Rejection("other-role", f"{name}: member {number} is {roles}, and uploads to {mine} only", field=name)


def fewest_contributions(charter: Charter, channel: str) -> int:
    """With how many contributions a moving mean is aggregated at least: no more than its roles can upload."""
    most = float("inf") if charter.roles is None else charter.roles.most_uploads(channel)
    return int(min(charter.rules.min_contributions, most))


def count_expected(store: Store, federation: int, charter: Charter, moving: Iterable[str]) -> dict[str, int]:
    """How many members each moving mean waits for: they upload to it, and are neither revoked nor away."""
    if charter.roles is None:
        return dict.fromkeys(moving, store.members.count_expected(federation))
    present = [member.number for member in store.members.of(federation) if not (member.revoked or member.away)]
    uploads = [charter.roles.uploads_of(number) for number in present]
    return {name: sum(name in mine for mine in uploads) for name in moving}


def newest_rounds(store: Store, federation: int, charter: Charter) -> dict[str, dict[int, int]]:
    """Where members wait for each other by their roles: the newest round of each that can be waited for."""
    if charter.roles is None:
        return {}
    now = time.time()
    present = [m for m in store.members.of(federation) if not m.away and m.state(now) not in ("revoked", "expired")]
    return {"rounds": {member.number: member.round for member in present}}
