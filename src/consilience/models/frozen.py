"""The frozen part of a model: parameters with requires_grad=False, and buffers of modules that have such parameters.

All learners have the same one. Its values are those that the function that builds the model gives it, such as weights
of a pretrained model that it loads; where it draws them at random, from a seed that is the same for every learner,
federation and process.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor, nn

from consilience.errors import ConfigurationError
from consilience.models.split import to_split_model
from consilience.models.split_model import SplitModel
from consilience.randomness import seed_of

FROZEN_SEED = seed_of("frozen part")
"""With which torch is seeded before a model is built for its frozen part."""


def frozen_names(module: nn.Module) -> frozenset[str]:
    """Names of the frozen parameters and buffers of a module.

    A buffer belongs to the nearest module around it that has parameters, and is frozen where one of these is. Running
    statistics of layers such as BatchNorm, which change in training, are frozen where all of these are.
    """
    frozen = {name for name, parameter in module.named_parameters() if not parameter.requires_grad}
    if not frozen:
        return frozenset()
    modules = dict(module.named_modules())
    return frozenset(frozen | {name for name, _ in module.named_buffers() if _has_frozen_owner(name, modules)})


def _has_frozen_owner(buffer: str, modules: Mapping[str, nn.Module]) -> bool:
    holder = owner = buffer.rpartition(".")[0]
    while owner and next(modules[owner].parameters(), None) is None:
        owner = owner.rpartition(".")[0]
    enough = all if isinstance(modules[holder], nn.modules.batchnorm._NormBase) else any
    return enough(not parameter.requires_grad for parameter in modules[owner].parameters())


def frozen_norms(module: nn.Module) -> Iterator[nn.Module]:
    """Layers such as BatchNorm with frozen statistics: they stay in evaluation mode, where they do not change them."""
    frozen = frozen_names(module)
    for name, each in module.named_modules():
        if isinstance(each, nn.modules.batchnorm._NormBase) and f"{name}.running_mean" in frozen:
            yield each


def build_with_frozen_part(build: Callable[[], nn.Module]) -> SplitModel:
    """A new model whose frozen part has its values; what is trained has any."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(FROZEN_SEED)  # torch.manual_seed would seed GPUs as well, which takes long
        return to_split_model(build())


def trained_tensors(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The parameters and the buffers of a model that are not frozen, by name."""
    frozen = frozen_names(model)
    parameters: dict[str, Tensor] = {k: p for k, p in model.named_parameters() if k not in frozen}
    return parameters, {k: b for k, b in model.named_buffers() if k not in frozen}


def frozen_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The frozen parameters and buffers of a model, by name."""
    names = frozen_names(model)
    named = (*model.named_parameters(), *model.named_buffers())
    return {name: tensor.detach() for name, tensor in named if name in names}


def frozen_digest(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of a frozen part: names, types, shapes and values; empty where there is none."""
    if not tensors:
        return ""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(_bytes(tensor))
    return digest.hexdigest()


def frozen_parameters(model: nn.Module) -> dict[str, Tensor]:
    """The frozen parameters that a model computes with, by name.

    Without the originals that peft keeps beside trained copies (`modules_to_save`): they are not used, and where a
    classifier is new, every process draws others.
    """
    unused = tuple(f"{name}.original_module." for name, module in model.named_modules() if _keeps_original(module))
    named = {name: p.detach() for name, p in model.named_parameters() if not p.requires_grad}
    return {name: parameter for name, parameter in named.items() if not name.startswith(unused)}


def frozen_parameters_digest(parameters: Mapping[str, Tensor]) -> str:
    """SHA-256 of frozen parameters as docs/protocol.md defines it; empty where there are none.

    Unlike `frozen_digest` it is the same on other machines and in other versions of a library: no buffers, which are
    often computed, and floating point as float32, into which half precision is converted without loss.
    """
    if not parameters:
        return ""
    digest = hashlib.sha256()
    for name, parameter in sorted(parameters.items()):
        values = parameter.cpu().float() if parameter.is_floating_point() else parameter
        digest.update(f"{name} {str(values.dtype).removeprefix('torch.')} {list(values.shape)}\n".encode())
        digest.update(_bytes(values))
    return digest.hexdigest()


def _keeps_original(module: nn.Module) -> bool:
    """Whether it is a wrapper of peft that holds a module as it was, and the trained copy that is used instead."""
    return {"original_module", "modules_to_save"} <= {name for name, _ in module.named_children()}


def _bytes(tensor: Tensor) -> memoryview:
    """The values of a tensor as they are in memory."""
    found: memoryview = tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
    return found


def check_frozen_digest(found: str, expected: str, model: str) -> None:
    """Refuse a model whose frozen part is not the expected one; any will do where `expected` is empty."""
    if expected and found != expected:
        raise ConfigurationError(
            f"model {model!r}: its frozen part (requires_grad=False) has other values than before, SHA-256 "
            f"{found[:16] or 'of nothing'} instead of {expected[:16]}; the function that builds the model must give it "
            f"the same values each time: load them from a file, or draw them with torch's random numbers alone"
        )
