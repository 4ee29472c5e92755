"""Exchanges: what learners trade. One file each; `base` has the interface."""

from consilience.exchanges.base import BatchView, Contribution, Exchange, Received, State, Update, View
from consilience.exchanges.clusters import Clusters
from consilience.exchanges.gradients import Gradients
from consilience.exchanges.logits import Logits
from consilience.exchanges.observations import Observations
from consilience.exchanges.prototypes import Prototypes
from consilience.exchanges.seen_observations import SeenObservations
from consilience.exchanges.similarity import Similarity
from consilience.exchanges.weights import Weights

__all__ = [
    "BatchView",
    "Clusters",
    "Contribution",
    "Exchange",
    "Gradients",
    "Logits",
    "Observations",
    "Prototypes",
    "Received",
    "SeenObservations",
    "Similarity",
    "State",
    "Update",
    "View",
    "Weights",
]
