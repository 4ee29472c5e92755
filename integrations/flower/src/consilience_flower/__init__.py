"""Federations of consilience on a Flower deployment.

The ServerApp passes requests to a relay, and the ClientApp is a member of it. Uploads and answers are those of members
that speak HTTP with a relay, to the byte; Flower carries them.
"""

from consilience_flower.loop import join_federation, open_peer
from consilience_flower.member import NodeTraining, member_app
from consilience_flower.server import run_federation, server_app

__all__ = ["NodeTraining", "join_federation", "member_app", "open_peer", "run_federation", "server_app"]
