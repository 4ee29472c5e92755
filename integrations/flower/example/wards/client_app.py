"""A ward: its own digits and its own architecture, by the number in its node configuration."""

from dataclasses import replace

import numpy as np
from consilience_flower.member import NodeTraining, member_app
from flwr.app import Context

from consilience import load
from consilience.data.local_datasets import make_local_datasets
from wards.models import MODELS


def training(context: Context) -> NodeTraining:
    """The samples and the model of ward 0, 1 or 2."""
    ward = int(context.node_config["ward"])
    data = load("digits", train=360)
    own = np.sort(make_local_datasets(data, 3, seed=3).parts[ward])
    mine = replace(data, inputs=data.inputs[own], targets=data.targets[own])
    return NodeTraining(mine, MODELS[ward])


app = member_app(training)
