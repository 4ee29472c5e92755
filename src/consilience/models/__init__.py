"""Models split into features, which exchanges can share, and a linear classifier that reads them.

By name, `build_model("lenet5", (1, 28, 28), 10)`; from a file, `build_model("net.py:Net@fc", ...)`; or any network,
`split(net)`.
"""

from consilience.models.cut import cut
from consilience.models.field_inputs import build_for, with_fields
from consilience.models.from_file import absolute_model_name, is_model_file, load_builder, model_digest
from consilience.models.registry import MODELS, build_model, model_factory, model_names, model_size, register_model
from consilience.models.split import split, split_or_whole, to_split_model
from consilience.models.split_model import SplitModel
from consilience.models.whole_model import UnknownClassifier, WholeModel

__all__ = [
    "MODELS",
    "SplitModel",
    "UnknownClassifier",
    "WholeModel",
    "absolute_model_name",
    "build_for",
    "build_model",
    "cut",
    "is_model_file",
    "load_builder",
    "model_digest",
    "model_factory",
    "model_names",
    "model_size",
    "register_model",
    "split",
    "split_or_whole",
    "to_split_model",
    "with_fields",
]
