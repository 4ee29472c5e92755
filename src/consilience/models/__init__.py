"""Models in two halves: features that can be shared, and a linear classifier on top of them.

By name, `build("lenet5", (1, 28, 28), 10)`; from a file, `build("net.py:Net@fc", ...)`; or any network, `split(net)`.
"""

from consilience.models.cut import cut
from consilience.models.from_file import absolute, digest, is_path, load_builder
from consilience.models.registry import MODELS, build, describe, model_factory, model_names, register
from consilience.models.split import split, to_split_model
from consilience.models.split_model import SplitModel

__all__ = [
    "MODELS",
    "SplitModel",
    "absolute",
    "build",
    "cut",
    "describe",
    "digest",
    "is_path",
    "load_builder",
    "model_factory",
    "model_names",
    "register",
    "split",
    "to_split_model",
]
