"""A trained model in a folder of its own: weights, and all that is needed to use them elsewhere.

    model.safetensors   the state dictionary of the module, with its own names
    model.json          architecture, input scaling, class names, metrics: see `ModelCard`
    net.py              a copy of the user's file, where the model comes from one
    model.onnx          the same model for other programs, where it was asked for
    own_answer.safetensors, own_answer.onnx   where the learner has an answer of its own for data like its own

Runs, `consilience join` and `consilience export` write such folders; `load_model` and `consilience predict` read them.
"""

from consilience.export.card import InputDescription, ModelCard, describe_inputs, read_card
from consilience.export.load import load_model
from consilience.export.own_answer import OwnAnswer
from consilience.export.write import make_card, write_model

__all__ = [
    "InputDescription",
    "ModelCard",
    "OwnAnswer",
    "describe_inputs",
    "load_model",
    "make_card",
    "read_card",
    "write_model",
]
