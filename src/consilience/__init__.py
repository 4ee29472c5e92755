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
    from consilience.config.schedules import Rate, Schedule, value_at
    from consilience.config.settings import Settings
    from consilience.data import Dataset, load, pad_sequences
    from consilience.errors import ConsilienceError
    from consilience.exchanges import (
        BatchView,
        Clusters,
        Contribution,
        Exchange,
        Gradients,
        Logits,
        Observations,
        Prototypes,
        Received,
        SeenObservations,
        Similarity,
        State,
        Update,
        View,
        Weights,
    )
    from consilience.export import load_model
    from consilience.functional.class_means import class_means, distance_to_means
    from consilience.method import Method, Role
    from consilience.methods import build_method, register_method
    from consilience.models import build_model
    from consilience.models.cut import cut
    from consilience.models.split import split
    from consilience.models.split_model import SplitModel
    from consilience.objectives import CrossEntropy, Objective, SimCLR, TwoStage
    from consilience.peer.array_peer import ArrayPeer, join_arrays
    from consilience.peer.array_targets import Targets
    from consilience.peer.direct.network import PeerNetwork
    from consilience.peer.peer import Peer, join
    from consilience.presentation.advice import Advice
    from consilience.report.page import write_report
    from consilience.simulation.advise import advise
    from consilience.simulation.compare import Comparison, compare
    from consilience.simulation.result import Result
    from consilience.simulation.simulate import simulate
    from consilience.simulation.sweep import Sweep, sweep
    from consilience.task import Task
    from consilience.wire import encodings, schema

__version__ = "0.1.0"

_HOMES = {
    "Advice": "presentation.advice",
    "ArrayPeer": "peer.array_peer",
    "BatchView": "exchanges",
    "Clusters": "exchanges",
    "Comparison": "simulation.compare",
    "Config": "config.config",
    "ConsilienceError": "errors",
    "Contribution": "exchanges",
    "CrossEntropy": "objectives",
    "Dataset": "data",
    "Exchange": "exchanges",
    "Gradients": "exchanges",
    "Logits": "exchanges",
    "Method": "method",
    "Objective": "objectives",
    "Observations": "exchanges",
    "Peer": "peer.peer",
    "PeerNetwork": "peer.direct.network",
    "Prototypes": "exchanges",
    "Rate": "config.schedules",
    "Received": "exchanges",
    "Result": "simulation.result",
    "Role": "method",
    "Schedule": "config.schedules",
    "Settings": "config.settings",
    "SimCLR": "objectives",
    "SeenObservations": "exchanges",
    "Similarity": "exchanges",
    "SplitModel": "models.split_model",
    "State": "exchanges",
    "Sweep": "simulation.sweep",
    "Targets": "peer.array_targets",
    "Task": "task",
    "TwoStage": "objectives",
    "Update": "exchanges",
    "View": "exchanges",
    "Weights": "exchanges",
    "advise": "simulation.advise",
    "build_method": "methods",
    "build_model": "models",
    "class_means": "functional.class_means",
    "compare": "simulation.compare",
    "cut": "models.cut",
    "distance_to_means": "functional.class_means",
    "encodings": "wire",
    "join": "peer.peer",
    "join_arrays": "peer.array_peer",
    "load": "data",
    "load_model": "export",
    "pad_sequences": "data",
    "register_method": "methods",
    "schema": "wire",
    "simulate": "simulation.simulate",
    "split": "models.split",
    "sweep": "simulation.sweep",
    "value_at": "config.schedules",
    "write_report": "report.page",
}

__all__ = [
    "Advice",
    "ArrayPeer",
    "BatchView",
    "Clusters",
    "Comparison",
    "Config",
    "ConsilienceError",
    "Contribution",
    "CrossEntropy",
    "Dataset",
    "Exchange",
    "Gradients",
    "Logits",
    "Method",
    "Objective",
    "Observations",
    "Peer",
    "PeerNetwork",
    "Prototypes",
    "Rate",
    "Received",
    "Result",
    "Role",
    "Schedule",
    "SeenObservations",
    "Settings",
    "SimCLR",
    "Similarity",
    "SplitModel",
    "State",
    "Sweep",
    "Targets",
    "Task",
    "TwoStage",
    "Update",
    "View",
    "Weights",
    "advise",
    "build_method",
    "build_model",
    "class_means",
    "compare",
    "cut",
    "distance_to_means",
    "encodings",
    "join",
    "join_arrays",
    "load",
    "load_model",
    "pad_sequences",
    "register_method",
    "schema",
    "simulate",
    "split",
    "sweep",
    "value_at",
    "write_report",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'consilience' has no attribute {name!r}")
    try:
        home = import_module(f"consilience.{_HOMES[name]}")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        from consilience.errors import ConfigurationError
        from consilience.extras import install_command

        raise ConfigurationError(
            f"consilience.{name} needs torch: {install_command('learn')}; members without torch take part with "
            f"consilience.join_arrays"
        ) from error
    return getattr(home, name) if hasattr(home, name) else import_module(f"{home.__name__}.{name}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
