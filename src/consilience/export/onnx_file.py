"""A model as an ONNX file, for programs without Python; needs the extra `onnx`."""

from __future__ import annotations

import importlib.util
import inspect
import logging
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from consilience.errors import ConfigurationError
from consilience.export.card import InputDescription
from consilience.extras import install_command
from consilience.user_code import failure

INPUT, OUTPUT = "inputs", "logits"
"""Names in the ONNX file: inputs (samples, *shape), scaled as model.json says, and what the model returns for them.

Several inputs have the names of their fields.
"""
_SAMPLES = 2  # of the example that is traced; a single one would be taken for a constant


@dataclass(frozen=True)
class _Example:
    """What a module is traced with."""

    by_position: tuple[Tensor, ...]
    by_name: dict[str, Tensor]
    names: list[str]

    @classmethod
    def of(cls, module: nn.Module, inputs: InputDescription) -> _Example:
        """Zeros, as one array or as the fields that the module takes."""
        zeros = torch.zeros((_SAMPLES, *inputs.shape), dtype=next(module.parameters()).dtype)
        fields = inputs.input_fields
        if fields is None:
            return cls((zeros,), {}, [INPUT])
        return cls(*fields.unpack(zeros), list(fields.names))

    def dynamic_shapes(self, module: nn.Module) -> Any:
        """That the first axis may have any length, in the form of the module's arguments."""
        first: dict[int, Any] = {0: torch.export.Dim("samples")}
        parameters = inspect.signature(module.forward).parameters.values()
        places = tuple(first for _ in self.by_position)
        if places:
            several = next(iter(parameters)).kind is inspect.Parameter.VAR_POSITIONAL
            return (places,) if several else places
        names = dict.fromkeys(self.by_name, first)
        known = {each.name for each in parameters}
        rest = next((each.name for each in parameters if each.kind is inspect.Parameter.VAR_KEYWORD), None)
        return names if known >= names.keys() or rest is None else {rest: names}


def onnx_model(module: nn.Module, inputs: InputDescription) -> bytes:
    """The module as an ONNX model for any number of samples."""
    missing = [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigurationError(f"{missing[0]} is not installed, and model.onnx needs it: {install_command('onnx')}")
    example = _Example.of(module, inputs)
    # The exporter reports its progress and its optional parts in warnings and on standard output.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = logging.root.manager.disable
        logging.disable(logging.WARNING)
        try:
            program = torch.onnx.export(
                module,
                example.by_position,
                kwargs=example.by_name or None,
                input_names=example.names,
                output_names=[OUTPUT],
                dynamic_shapes=example.dynamic_shapes(module),
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
