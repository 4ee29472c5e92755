"""A model as an ONNX file, for programs without Python; needs the extra `onnx`."""

from __future__ import annotations

import importlib.util
import inspect
import logging
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from consilience.errors import ConfigurationError
from consilience.export.card import InputDescription
from consilience.extras import install_command
from consilience.input_fields import InputFields
from consilience.user_code import failure

INPUT, OUTPUT = "inputs", "logits"
"""Names in the ONNX file: inputs (samples, *shape), scaled as model.json says, and what the model returns for them.

Several inputs have the names of their fields; those by position are inputs_0, inputs_1 and so on.
"""
_SAMPLES = 2  # of the example that is traced; a single one would be taken for a constant


class _ByPosition(nn.Module):
    """A module that takes fields by name, with its fields by position: torch traces these."""

    def __init__(self, module: nn.Module, fields: InputFields) -> None:
        super().__init__()
        self.module, self.fields = module, fields

    def forward(self, *values: Tensor) -> Any:
        """What the module returns for the fields in their order."""
        return self.module(**dict(zip(self.fields.names, values, strict=True)))


def _traced(module: nn.Module, inputs: InputDescription) -> tuple[nn.Module, tuple[Tensor, ...], list[str]]:
    """What to trace, with which zeros, and what these are called."""
    zeros, fields = torch.zeros((_SAMPLES, *inputs.shape), dtype=next(module.parameters()).dtype), inputs.input_fields
    if fields is None:
        return module, (zeros,), [INPUT]
    by_position, by_name = fields.unpack(zeros)
    names = [name if fields.named else f"{INPUT}_{name}" for name in fields.names]
    return (_ByPosition(module, fields) if fields.named else module), (*by_position, *by_name.values()), names


def onnx_model(module: nn.Module, inputs: InputDescription) -> bytes:
    """The module as an ONNX model for any number of samples."""
    missing = [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigurationError(f"{missing[0]} is not installed, and model.onnx needs it: {install_command('onnx')}")
    traced, example, names = _traced(module, inputs)
    first = tuple({0: torch.export.Dim("samples")} for _ in example)
    several = next(iter(inspect.signature(traced.forward).parameters.values())).kind is inspect.Parameter.VAR_POSITIONAL
    # The exporter reports its progress and its optional parts in warnings and on standard output.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = logging.root.manager.disable
        logging.disable(logging.WARNING)
        try:
            program = torch.onnx.export(
                traced,
                example,
                input_names=names,
                output_names=[OUTPUT],
                dynamic_shapes=(first,) if several else first,
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
