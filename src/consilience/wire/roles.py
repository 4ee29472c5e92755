"""Who does what in a federation whose method has several roles: the charter's sections `roles` and `public_set`."""

from __future__ import annotations

import hashlib
import math

import numpy as np
from pydantic import Field, model_validator

from consilience.errors import ConfigurationError
from consilience.wire.section import CharterSection

LARGEST_PUBLIC_SET = 2**28
"""Bytes of the largest public set that a charter may name."""


class RoleSettings(CharterSection):
    """Which roles each member has, and to which channels each role uploads.

    A member uploads at most once in a round, so only one of its roles uploads.
    """

    learners: int = Field(ge=1, description="the number of members the federation was created for")
    order: tuple[str, ...] = Field(min_length=1, description="the roles, in the order in which they act in a round")
    usual: tuple[str, ...] = Field(min_length=1, description="the roles of every member that `members` does not name")
    members: dict[int, tuple[str, ...]] = Field(default={}, description="the roles of members by their numbers")
    uploads: dict[str, tuple[str, ...]] = Field(description="the channels to which each role uploads")

    @model_validator(mode="after")
    def _check(self) -> RoleSettings:
        if len(set(self.order)) < len(self.order) or self.uploads.keys() != set(self.order):
            raise ValueError("`order` names every role once, and `uploads` has the channels of each of them")
        for number, roles in self.members.items():
            if not 0 <= number < self.learners or not roles:
                raise ValueError(
                    f"member {number} has the roles {list(roles)}; give members 0 to {self.learners - 1} one"
                )
        given = [*self.usual, *(role for roles in self.members.values() for role in roles)]
        unknown = [role for role in given if role not in self.order]
        if unknown:
            raise ValueError(f"role {unknown[0]!r} is not one of {', '.join(self.order)}")
        usual = [self.usual] if len(self.members) < self.learners else []
        played = {role for roles in (*self.members.values(), *usual) for role in roles}
        unused = [role for role in self.order if role not in played]
        if unused:
            raise ValueError(
                f"nobody has the role {unused[0]!r} among {self.learners} members; give it to one, or invite more "
                f"members (learners)"
            )
        for number in (-1, *self.members):
            uploading = [role for role in self.roles_of(number) if self.uploads[role]]
            if len(uploading) > 1:
                raise ValueError(
                    f"a member with the roles {' and '.join(uploading)} would upload twice in a round, and a member "
                    f"uploads once; let one of the roles upload to all of their channels"
                )
        return self

    def roles_of(self, number: int) -> tuple[str, ...]:
        """The roles of a member by its number, in the order it acts."""
        named = self.members.get(number, self.usual)
        return tuple(role for role in self.order if role in named)

    def uploads_of(self, number: int) -> frozenset[str]:
        """The channels to which a member uploads."""
        return frozenset(channel for role in self.roles_of(number) for channel in self.uploads[role])

    def most_uploads(self, channel: str) -> float:
        """How many members can upload to a channel: those named, or any number where the usual roles do."""
        if any(channel in self.uploads[role] for role in self.usual):
            return math.inf
        return sum(channel in self.uploads_of(number) for number in self.members)

    def to_plain(self) -> dict[str, object]:
        """What TOML can write: its keys are texts."""
        return {**self.model_dump(), "members": {str(number): roles for number, roles in self.members.items()}}


class PublicSetSettings(CharterSection):
    """The public set: who has it, and what it is.

    sha256: of the samples after scaling, as 32-bit floats, little-endian, one sample after the other in C order.
    """

    host: int = Field(ge=0, description="the number of the member whose samples it is")
    samples: int = Field(ge=1)
    shape: tuple[int, ...] = Field(min_length=1, description="of one sample")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")

    @model_validator(mode="after")
    def _check(self) -> PublicSetSettings:
        if any(n < 1 for n in self.shape) or self.size > LARGEST_PUBLIC_SET:
            raise ValueError(
                f"a public set of {self.samples} samples of the shape {self.shape} has {self.size} bytes; sizes are 1 "
                f"or more, and at most {LARGEST_PUBLIC_SET} bytes are allowed: choose fewer samples"
            )
        return self

    @property
    def size(self) -> int:
        """Its length in bytes, as it travels."""
        return 4 * self.samples * math.prod(self.shape)

    def decode(self, body: bytes) -> np.ndarray:
        """The samples of a body, (samples, *shape); one that is not this public set is refused."""
        found = hashlib.sha256(body).hexdigest()
        if len(body) != self.size or found != self.sha256:
            raise ConfigurationError(
                f"this is not the public set of the charter: it has {len(body)} bytes, SHA-256 {found[:12]}..., and "
                f"should have {self.size}, SHA-256 {self.sha256[:12]}..."
            )
        samples = np.frombuffer(body, dtype="<f4").reshape(self.samples, *self.shape)
        if not np.isfinite(samples).all():
            raise ConfigurationError("the public set of the charter has values that are NaN or infinite; make it again")
        return samples.astype(np.float32)


def encode_public_set(inputs: np.ndarray) -> bytes:
    """The samples of a public set as they travel and are hashed."""
    return np.ascontiguousarray(inputs, dtype="<f4").tobytes()


def describe_public_set(inputs: np.ndarray, host: int) -> PublicSetSettings:
    """The charter's section for these samples, (samples, *shape)."""
    sha256 = hashlib.sha256(encode_public_set(inputs)).hexdigest()
    return PublicSetSettings(host=host, samples=len(inputs), shape=inputs.shape[1:], sha256=sha256)
