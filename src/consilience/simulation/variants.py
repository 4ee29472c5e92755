"""Settings in which the federations of one run differ: what may, and each federation's own values.

Numbers that only weigh something, an exchange's fractions and the learning rate, may differ between the rows of one
stack: each learner carries its own. Whatever else differs decides shapes or the course of the work, and takes a run of
its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from consilience.body import OPTIMISER
from consilience.config import Config
from consilience.errors import ConfigurationError
from consilience.exchanges.base import Exchange
from consilience.method import Method
from consilience.methods import build_method

_RATE = "lr"


@dataclass(frozen=True)
class Variants:
    """How the federations differ: for each role, by exchange (or the optimiser) and field, one value a variant."""

    count: int = 1
    names: tuple[str, ...] = ()  # in words; none where there is nothing to choose from
    values: Mapping[str, Mapping[str, Mapping[str, np.ndarray]]] = field(default_factory=dict)

    def varied(self, role: str) -> dict[str, tuple[str, ...]]:
        """The fields that differ, by whose they are."""
        return {owner: tuple(named) for owner, named in self.values.get(role, {}).items()}

    def rows(self, role: str, variant: np.ndarray) -> dict[str, np.ndarray]:
        """Values for rows of these variants, by the part of a row that they lie in."""
        return {
            f"setting.{owner}.{name}": values[variant]
            for owner, named in self.values.get(role, {}).items()
            for name, values in named.items()
        }


def variants_of(config: Config, method: Method) -> Variants:
    """The variants a configuration asks for; refuses settings that cannot differ within a run."""
    if not config.variants:
        return Variants()
    configs = [config.variant(i) for i in range(len(config.variants))]
    methods = [build_method(c.method.name, c.method.settings) for c in configs]
    first = shape_of(config, method)
    for changes, own, chosen in zip(config.variants, configs, methods, strict=True):
        if shape_of(own, chosen) != first:
            raise ConfigurationError(
                f"{_in_words(changes)} changes more than weights and rates, and so cannot run beside the others; "
                f"sweep over it with `consilience sweep`, which gives it a run of its own"
            )
    rates = np.array([c.lr for c in configs])
    values: dict[str, dict[str, dict[str, np.ndarray]]] = {}
    for role in method.roles:
        values[role] = _differing([m.roles[role].exchanges for m in methods])
        if len(set(rates.tolist())) > 1:
            values[role][OPTIMISER] = {_RATE: rates}
    return Variants(len(configs), tuple(map(_in_words, config.variants)), values)


def shape_of(config: Config, method: Method) -> str:
    """All that decides shapes and the course of a run: what must be the same for settings to run side by side."""
    settings = config.model_dump(exclude={_RATE, "method", "variants"})
    roles = {
        name: (role.objective, role.epochs, [(type(e).__name__, _fixed(e)) for e in role.exchanges])
        for name, role in method.roles.items()
    }
    return repr((settings, method.name, roles, dict(method.members)))


def _differing(roles: Sequence[tuple[Exchange, ...]]) -> dict[str, dict[str, np.ndarray]]:
    found: dict[str, dict[str, np.ndarray]] = {}
    for alike in zip(*roles, strict=True):  # the same exchange in every variant
        for name in _fractions(alike[0]):
            values = np.array([float(getattr(e, name)) for e in alike])
            if (values != values[0]).any():
                found.setdefault(alike[0].name, {})[name] = values
    return found


def _fractions(exchange: Exchange) -> list[str]:
    """Fields that may be any number."""
    return [f.name for f in fields(exchange) if f.type in (float, "float")]  # type: ignore[arg-type]


def _fixed(exchange: Exchange) -> dict[str, Any]:
    free = _fractions(exchange)
    return {f.name: getattr(exchange, f.name) for f in fields(exchange) if f.name not in free}  # type: ignore[arg-type]


def _in_words(changes: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={value}" for key, value in changes.items())
