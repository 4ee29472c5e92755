"""The members of a federation without a relay, as its charter lists them: names, and the keys that they sign with."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pydantic import Field, model_validator

from consilience.wire.section import CharterSection
from consilience.wire.signatures import decode_base64

_KEY = re.compile(r"ed25519:([A-Za-z0-9+/]{43}=)")
FEWEST = 2
"""The fewest members of a federation without a relay."""


class MemberKey(CharterSection):
    """One member: its name, and its Ed25519 public key."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,63}$", description="its name, unique in the federation")
    key: str = Field(description="its public key, ed25519: and 44 characters; `consilience key` prints it")

    @model_validator(mode="after")
    def _check_key(self) -> MemberKey:
        """Refuse what is not a public key, without the value, which may be a secret key."""
        if not is_public_key(self.key):
            raise ValueError(
                f"the key of {self.name} is not a public key; one is ed25519: with 44 characters, `consilience key` "
                f"prints it"
            )
        return self


def is_public_key(text: str) -> bool:
    """Whether a text has the form of a public key."""
    match = _KEY.fullmatch(text)
    try:
        return match is not None and len(decode_base64(match[1])) == 32
    except ValueError:
        return False


def check_members(members: Sequence[MemberKey]) -> None:
    """Refuse too few members, and two with one name or one key."""
    if len(members) < FEWEST:
        raise ValueError(f"{len(members)} members are listed; a federation without a relay has {FEWEST} or more")
    names: set[str] = set()
    owners: dict[str, str] = {}
    for member in members:
        if member.name in names:
            raise ValueError(f"two members are named {member.name!r}; give each a name of its own")
        if member.key in owners:
            raise ValueError(
                f"members {owners[member.key]!r} and {member.name!r} have one key, {member.key}; each needs a key of "
                f"its own, which `consilience key` makes"
            )
        names.add(member.name)
        owners[member.key] = member.name
