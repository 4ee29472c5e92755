"""A model as an ONNX file, for programs without Python; needs the extra `onnx`."""

from __future__ import annotations

import importlib.util
import logging
import warnings

import torch
from torch import nn

from consilience.errors import ConfigurationError
from consilience.export.card import InputDescription
from consilience.extras import install_command
from consilience.user_code import failure

INPUT, OUTPUT = "inputs", "logits"
"""Names in the ONNX file: inputs (samples, *shape), scaled as model.json says, and what the model returns for them."""
_SAMPLES = 2  # of the example that is traced; a single one would be taken for a constant


def onnx_model(module: nn.Module, inputs: InputDescription) -> bytes:
    """The module as an ONNX model for any number of samples."""
    missing = [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigurationError(f"{missing[0]} is not installed, and model.onnx needs it: {install_command('onnx')}")
    example = torch.zeros((_SAMPLES, *inputs.shape), dtype=next(module.parameters()).dtype)
    # The exporter reports its progress and its optional parts in warnings and on standard output.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = logging.root.manager.disable
        logging.disable(logging.WARNING)
        try:
            program = torch.onnx.export(
                module,
                (example,),
                input_names=[INPUT],
                output_names=[OUTPUT],
                dynamic_shapes=({0: torch.export.Dim("samples")},),
                dynamo=True,
                verbose=False,
            )
        except Exception as error:  # a model may do anything that ONNX has no operation for
            raise ConfigurationError(
                f"{type(module).__name__} cannot be written as ONNX: {failure(error).splitlines()[0]}; export it "
                f"without --onnx"
            ) from error
        finally:
            logging.disable(before)
    assert program is not None
    written: bytes = program.model_proto.SerializeToString()
    return written
