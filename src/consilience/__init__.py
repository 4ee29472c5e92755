"""Learn together without sharing data or models.

    >>> import consilience
    >>> result = consilience.simulate(method="fedavg", rounds=1, learners=2)
    >>> print(result.table())  # doctest: +SKIP

Names are loaded when they are first used, so that a relay never imports torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from consilience.config.config import Config
    from consilience.config.schedules import Schedule
    from consilience.data import Dataset, load
    from consilience.errors import ConsilienceError
    from consilience.exchanges import Exchange, Gradients, Logits, Observations, Prototypes, Similarity, Weights
    from consilience.method import Method, Role
    from consilience.methods import build_method
    from consilience.models import SplitModel, cut, split
    from consilience.objectives import SimCLR, TwoStage
    from consilience.peer.peer import Peer, join
    from consilience.simulation.result import Result
    from consilience.simulation.simulate import simulate

__version__ = "0.1.0"

_HOMES = {
    "Config": "config.config",
    "ConsilienceError": "errors",
    "Dataset": "data",
    "Exchange": "exchanges",
    "Gradients": "exchanges",
    "Logits": "exchanges",
    "Method": "method",
    "Observations": "exchanges",
    "Peer": "peer.peer",
    "Prototypes": "exchanges",
    "Result": "simulation.result",
    "Role": "method",
    "Schedule": "config.schedules",
    "SimCLR": "objectives",
    "Similarity": "exchanges",
    "SplitModel": "models",
    "TwoStage": "objectives",
    "Weights": "exchanges",
    "build_method": "methods",
    "cut": "models",
    "join": "peer.peer",
    "load": "data",
    "simulate": "simulation.simulate",
    "split": "models",
}

__all__ = [
    "Config",
    "ConsilienceError",
    "Dataset",
    "Exchange",
    "Gradients",
    "Logits",
    "Method",
    "Observations",
    "Peer",
    "Prototypes",
    "Result",
    "Role",
    "Schedule",
    "SimCLR",
    "Similarity",
    "SplitModel",
    "TwoStage",
    "Weights",
    "build_method",
    "cut",
    "join",
    "load",
    "simulate",
    "split",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'consilience' has no attribute {name!r}")
    return getattr(import_module(f"consilience.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
