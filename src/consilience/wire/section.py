"""The base of every section of a charter."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class CharterSection(BaseModel):
    """A part of a charter: it never changes, and a key that it does not know is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")
