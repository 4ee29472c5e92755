"""A new token for a member, in place of the one it has."""

from __future__ import annotations

import math
import time
from pathlib import Path

from consilience.errors import ConfigurationError
from consilience.relay.admin import find_member, open_store
from consilience.relay.expiry import expiry, format_time
from consilience.wire import tokens

_HOUR = 3600
_LONGEST = 24 * 90  # hours


def rotate(
    path: Path, member: str, federation: str | None = None, *, grace: float = 0.0, days: float | None = None
) -> tokens.Token:
    """Give a member a new token, which cannot be shown again.

    grace: hours during which the old token is accepted beside it. days: for how long the new one is valid; without, it
    never expires.
    """
    if not (math.isfinite(grace) and 0 <= grace <= _LONGEST):
        raise ConfigurationError(
            f"grace is {grace:g} hours; allowed is 0 (the old token is refused at once) to {_LONGEST}"
        )
    expires = expiry(days)
    with open_store(path) as store, store.writing():
        known = find_member(store, member, federation)
        if known.revoked == 1:
            raise ConfigurationError(
                f"member {member!r} is revoked and has no token; accept it again: consilience relay invite {member}"
            )
        if grace and known.old_expires > time.time():
            raise ConfigurationError(
                f"{member}'s token was replaced before, and that old one is accepted until "
                f"{format_time(known.old_expires)}; only one old token is kept. Wait until then, or refuse both at "
                f"once with --grace 0"
            )
        token = tokens.Token.new(known.id)
        until = _accepted_until(known.expires, grace)
        store.members.set_token(known.id, token.hashed, expires, old_hash=known.token_hash, old_expires=until)
        store.audit.append("rotated", known.federation, known.id, name=member, grace_hours=grace)
    return token


def _accepted_until(expires: int, grace: float) -> int:
    """Until when the old token is accepted. 0 without grace: no clock that is set back makes it valid again."""
    now = time.time()
    if not grace or 0 < expires <= now:
        return 0
    until = int(now + grace * _HOUR)
    return min(until, expires) if expires else until
