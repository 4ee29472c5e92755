"""Counts among settings: whole numbers. pydantic alone also takes true, 2.0 and "2" for one."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ValidationInfo, field_validator

from consilience.validation import is_integer

_COUNTS = (int, int | None)
"""The types of the fields that are counts."""


class WithCounts(BaseModel):
    """Settings whose fields of the type int take integers only."""

    @field_validator("*", mode="before")
    @classmethod
    def _whole(cls, given: Any, about: ValidationInfo) -> Any:
        field = cls.model_fields[str(about.field_name)]
        if given is None or field.annotation not in _COUNTS:
            return given
        if not is_integer(given):
            raise ValueError("it must be a whole number")
        return int(given)
