"""What the run configuration of a Flower app says of a federation."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from consilience.errors import ConfigurationError

_PREFIX = "consilience-"
_KEYS = ("charter", "store", "nodes", "least", "rounds", "evaluate", "timeout")


@dataclass(frozen=True)
class FederationSettings:
    """A federation as the run configuration describes it.

    charter, store: files at the server. nodes: how many the first round waits for. least: with how many the run goes on
    when others vanish. evaluate: whether nodes get a second message in a round, with the others' answers, which they
    then test with. timeout: the most seconds to wait for the nodes, and for the replies to one message.
    """

    charter: Path
    store: Path
    nodes: int = 2
    least: int = 2
    rounds: int = 10
    evaluate: bool = True
    timeout: float = 600.0

    @classmethod
    def of(cls, config: Mapping[str, object]) -> FederationSettings:
        """Read the keys `consilience-...` of a run configuration."""
        given = {key.removeprefix(_PREFIX): value for key, value in config.items() if key.startswith(_PREFIX)}
        _refuse_unknown(given)
        charter = _path(given, "charter", None)
        store = _path(given, "store", charter.with_suffix(".db"))
        nodes = _count(given, "nodes", cls.nodes)
        least = _count(given, "least", min(cls.least, nodes))
        if least > nodes:
            raise ConfigurationError(
                f"{_PREFIX}least is {least}, and {_PREFIX}nodes {nodes}; a run cannot go on with more nodes than it "
                f"starts with, use at most {nodes}"
            )
        evaluate = given.get("evaluate", cls.evaluate)
        if not isinstance(evaluate, bool):
            raise ConfigurationError(f"{_PREFIX}evaluate is {evaluate!r}; write true or false")
        rounds = _count(given, "rounds", cls.rounds)
        return cls(charter, store, nodes, least, rounds, evaluate, _seconds(given))

    @property
    def results(self) -> Path:
        """The file with one line for each member and round, beside the store."""
        return self.store.with_suffix(".rounds.jsonl")


def _refuse_unknown(given: Mapping[str, object]) -> None:
    for key in given:
        if key not in _KEYS:
            close = difflib.get_close_matches(key, _KEYS, 1)
            hint = f"; did you mean {_PREFIX}{close[0]}?" if close else ""
            known = ", ".join(_PREFIX + each for each in _KEYS)
            raise ConfigurationError(f"run configuration: unknown key '{_PREFIX}{key}'{hint} There are {known}")


def _path(given: Mapping[str, object], key: str, default: Path | None) -> Path:
    value = given.get(key)
    if value is None and default is not None:
        return default
    if not isinstance(value, str) or not value:
        raise ConfigurationError(
            f"{_PREFIX}{key} is {value!r}; give the path of a file at the place where the ServerApp runs, in "
            f"[tool.flwr.app.config] of pyproject.toml or with --run-config"
        )
    return Path(value).expanduser()


def _count(given: Mapping[str, object], key: str, default: int) -> int:
    value = given.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigurationError(f"{_PREFIX}{key} is {value!r}; a whole number of at least 1 is needed")
    return value


def _seconds(given: Mapping[str, object]) -> float:
    value = given.get("timeout", FederationSettings.timeout)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < float("inf"):
        raise ConfigurationError(f"{_PREFIX}timeout is {value!r}; seconds, more than 0, are needed")
    return float(value)
