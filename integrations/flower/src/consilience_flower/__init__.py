"""Federations of consilience on a Flower deployment.

The ServerApp passes requests to a relay, and the ClientApp is a member of it. Uploads and answers are those of members
that speak HTTP with a relay, to the byte; Flower carries them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from consilience_flower.loop import FlowerPeer, join_federation, open_peer
    from consilience_flower.member import NodeTraining, member_app
    from consilience_flower.server import run_federation, server_app

__all__ = [
    "FlowerPeer",
    "NodeTraining",
    "join_federation",
    "member_app",
    "open_peer",
    "run_federation",
    "server_app",
]

_PLACES = {
    **dict.fromkeys(("run_federation", "server_app"), "server"),
    **dict.fromkeys(("NodeTraining", "member_app"), "member"),
    **dict.fromkeys(("FlowerPeer", "join_federation", "open_peer"), "loop"),
}


def __getattr__(name: str) -> Any:
    """Import what is asked for, so that a ServerApp does not import torch."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
