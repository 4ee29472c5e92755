"""The modules that learners of one kind share: the model, and what the objective and the exchanges train beside it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from consilience.errors import ConfigurationError, UnknownName
from consilience.exchanges.base import CUT, Exchange
from consilience.learner.frozen_part import FrozenPart
from consilience.learner.memory_order import accept_channels_last, refuse_channels_first
from consilience.learner.spec import LearnerSpec
from consilience.learner.state import Tensors
from consilience.models import SplitModel, to_split_model
from consilience.models.cut import cut, cut_shape
from consilience.models.frozen import (
    FROZEN_SEED,
    check_frozen_digest,
    frozen_digest,
    frozen_names,
    frozen_norms,
    frozen_tensors,
)
from consilience.models.split import network_names
from consilience.objectives import Objective
from consilience.task import DEVICE, Task

OWN_MODEL = "own_model"
"""Name of the second model among the objective's modules, where it trains one."""
Representations = dict[str, Any]
"""Samples as exchanges see them: inputs, features, logits, targets, which are valid, and outputs of named layers."""


class LearnerModules:
    """The model and the extra modules of one architecture, with the forward pass over them."""

    def __init__(self, spec: LearnerSpec) -> None:
        self.spec = spec
        self.owners: tuple[Objective | Exchange, ...] = (spec.role.objective, *spec.role.exchanges)
        device = torch.device(spec.device)
        with torch.random.fork_rng(devices=[]):  # weights come with a state, only those of the frozen part stay
            torch.default_generator.manual_seed(FROZEN_SEED)  # torch.manual_seed would seed GPUs, which takes long
            self.model: SplitModel = _build_model(spec).to(device, spec.dtype)
            self.task = _task(self.model, spec)
            self.extra = {name: modules.to(device, spec.dtype) for name, modules in self._make_extra().items()}
        self.frozen = self._frozen_part()
        self.frozen_sha256 = frozen_digest(frozen_tensors(self.model))
        check_frozen_digest(self.frozen_sha256, spec.frozen_sha256, spec.model)
        self.frozen_norms = frozenset(norm for root in self.roots() for norm in frozen_norms(root))
        self.runs_channels_last = accept_channels_last([self.model, *self._own_models()], self._run_a_few, device)
        self._drawn: tuple[int, tuple[Tensors, Tensors]] | None = None  # with a frozen part, what was drawn last
        self._outputs: dict[str, Tensor] = {}
        for layer in {layer for owner in self.owners for layer in owner.layers}:
            self.layer(layer).register_forward_hook(keep_output(self._outputs, layer))

    def check_memory_order(self) -> None:
        """Refuse a model that cannot run with states on a CPU, which have kernels with their channels last."""
        if not self.runs_channels_last and torch.device(self.spec.device).type == "cpu":
            refuse_channels_first(self.spec.model)

    def _own_models(self) -> list[nn.Module]:
        """The learner's own model, where it trains one."""
        own = self.extra[self.spec.role.objective.name]
        return [own[OWN_MODEL]] if OWN_MODEL in own else []

    def _run_a_few(self) -> None:
        inputs = torch.zeros(2, *self.spec.shape, dtype=self.spec.dtype, device=self.spec.device)
        with self.precision():
            for model in (self.model, *self._own_models()):
                model(inputs)

    def roots(self) -> tuple[nn.Module, ...]:
        """The model, and the extra modules."""
        return (self.model, *self.extra.values())

    def named_tensors(self) -> tuple[Tensors, Tensors]:
        """Parameters and buffers by name, without the frozen ones."""
        named = _named_tensors(self.model, self.extra)
        parameters, buffers = ({k: t for k, t in each.items() if k not in self.frozen} for each in named)
        return parameters, buffers

    def draw(self, seed: int) -> tuple[Tensors, Tensors]:
        """Parameters and buffers of newly made modules, with weights drawn from a seed, without the frozen ones."""
        if self._drawn is not None and self._drawn[0] == seed:
            return self._drawn[1]
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed GPUs as well, which takes long
            parameters, buffers = self.build_tensors()
        own, others = self.named_tensors()
        if missing := own.keys() - {name for name, tensor in parameters.items() if tensor.requires_grad}:
            raise ConfigurationError(
                f"{self.task.model}: the function that builds the model freezes {min(missing)!r} in one call and not "
                f"in another; it must freeze the same parameters each time it is called"
            )
        if any(parameters[name] is tensor for name, tensor in own.items()):
            raise ConfigurationError(
                f"{self.task.model}: the function that builds the model returned the same module twice; it must make a "
                f"new one each time it is called, because every learner needs weights of its own"
            )
        drawn = {name: parameters[name] for name in own}, {name: buffers[name] for name in others}
        self._drawn = (seed, drawn) if self.frozen_sha256 else None
        return drawn

    def build_tensors(self) -> tuple[Tensors, Tensors]:
        """Parameters and buffers of newly made modules, drawn with torch's generator as it is."""
        model = to_split_model(self.spec.build())
        return _named_tensors(model, self._make_extra())

    def _make_extra(self) -> dict[str, nn.ModuleDict]:
        """New modules of the objective and the exchanges; the learner's own model is the last of the objective's."""
        extra = {o.name: nn.ModuleDict(o.modules(self.task)) for o in self.owners}
        objective = self.spec.role.objective
        if objective.trains_own_model:
            extra[objective.name][OWN_MODEL] = to_split_model(self.spec.build())
        return extra

    def _frozen_part(self) -> FrozenPart:
        """The frozen tensors of all modules; a model of the learner's own has those of the model."""
        named: Tensors = {k: t for each in _named_tensors(self.model, self.extra) for k, t in each.items()}
        prefixes = {"": self.model} | {f"{owner}/": modules for owner, modules in self.extra.items()}
        frozen = [f"{prefix}{name}" for prefix, root in prefixes.items() for name in sorted(frozen_names(root))]
        own = f"{self.spec.role.objective.name}/{OWN_MODEL}."
        alike = {name: name.removeprefix(own) for name in frozen if name.startswith(own)}
        return FrozenPart({k: named[k] for k in frozen}, alike, torch.device(self.spec.device).type == "cpu")

    def layer(self, name: str) -> nn.Module:
        """A module of the model by its name, or the one where its first part ends, "cut"."""
        modules, known = dict(self.model.named_modules()), self.model.cut if name == CUT else name
        if known is None:
            raise ConfigurationError(
                f"{self.task.model} is in one part, and this run needs the output of a model's first part; use a model "
                f"in two parts, such as device-cnn for images and device-lstm for text, or cut it after a layer, "
                f"cut(model, at=...)"
            )
        if not known or known not in modules:
            there = [each for each in modules if each] + ([CUT] if self.model.cut else [])
            raise UnknownName("layer", name, there, of=self.task.model)
        module: nn.Module = modules[known]
        return module

    def set_training(self, training: bool) -> None:
        """Switch layers such as BatchNorm between training and evaluation mode, where frozen ones stay."""
        for module in self.roots():
            module.train(training)
        for norm in self.frozen_norms:
            norm.training = False

    def forward(self, inputs: Tensor) -> Representations:
        """Features, logits and outputs of named layers for inputs, each of which is a valid sample."""
        dtype = self.spec.dtype
        self._outputs.clear()
        with self.precision():
            features = self.model.features(inputs)
            logits = self.model.classifier(features)
        return {
            "inputs": inputs,
            "features": features.to(dtype),
            "logits": logits.to(dtype),
            "valid": torch.ones(len(inputs), dtype=dtype, device=self.spec.device),
            "outputs": dict(self._outputs),
        }

    def run_own_model(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Features and logits of inputs by the model that never leaves the learner."""
        own = self.extra[self.spec.role.objective.name][OWN_MODEL]
        assert isinstance(own, SplitModel)
        with self.precision():
            features = own.features(inputs)
            logits = own.classifier(features)
        return features.to(self.spec.dtype), logits.to(self.spec.dtype)

    def precision(self) -> AbstractContextManager[object]:
        """The precision the model runs in: bfloat16 where the spec says so."""
        if not self.spec.half:
            return nullcontext()
        return torch.autocast(torch.device(self.spec.device).type, torch.bfloat16, cache_enabled=False)

    def features(self, inputs: Tensor) -> Tensor:
        """The model's features of inputs, (rows, width)."""
        with self.precision():
            features: Tensor = self.model.features(inputs)
        return features.to(self.spec.dtype)


def _build_model(spec: LearnerSpec) -> SplitModel:
    """A new model of the spec, cut after another layer where learners take turns and name one."""
    model, turns = to_split_model(spec.build()), spec.role.turns
    if turns is None:
        return model
    if turns.cut:
        return cut(model, at=turns.cut)
    if model.cut is None:
        raise ConfigurationError(
            f"{spec.model} is in one part, and split learning needs a layer to cut it after; name one, "
            f"split-learning:cut=LAYER, or use a model in two parts, such as lenet5 or device-cnn"
        )
    return model


def keep_output(outputs: dict[str, Any], layer: str) -> Any:
    """A forward hook that keeps a layer's output; later layers get a copy, which they may change in place."""

    def hook(module: nn.Module, inputs: Any, output: Any) -> Any:
        outputs[layer] = output
        return output.clone() if isinstance(output, Tensor) else None

    return hook


def _named_tensors(model: nn.Module, extra: Mapping[str, nn.Module]) -> tuple[Tensors, Tensors]:
    """Parameters and buffers by name: the model's, then those of the objective's and the exchanges' own modules."""
    parameters: Tensors = dict(model.named_parameters())
    buffers = dict(model.named_buffers())
    for owner, modules in extra.items():
        parameters |= {f"{owner}/{k}": p for k, p in modules.named_parameters()}
        buffers |= {f"{owner}/{k}": b for k, b in modules.named_buffers()}
    return parameters, buffers


def _task(model: SplitModel, spec: LearnerSpec) -> Task:
    buffers = {k: tuple(b.shape) for k, b in model.named_buffers() if b.is_floating_point()}
    parameters = {k: tuple(p.shape) for k, p in model.named_parameters()}
    known = Task(
        model.classes,
        model.width,
        spec.shape,
        model.bound,
        model=spec.model,
        symbols=spec.symbols,
        target=spec.target,
        cut=cut_shape(model, spec.shape, spec.model) if model.cut is not None else None,
    )
    objective = spec.role.objective
    # Trained beside the model, and shared where all of it is.
    extra = nn.ModuleDict({} if objective.has_private_modules else objective.modules(known))
    parameters |= {f"{objective.name}/{k}": tuple(p.shape) for k, p in extra.named_parameters()}
    floating = {k: b for k, b in extra.named_buffers() if b.is_floating_point()}
    buffers |= {f"{objective.name}/{k}": tuple(b.shape) for k, b in floating.items()}
    own = {name for name in (*parameters, *buffers) if name.startswith(f"{objective.name}/")}
    parts = {part: names | own if part == DEVICE else names for part, names in model.parts.items()}
    frozen = frozen_names(model) | {f"{objective.name}/{name}" for name in frozen_names(extra)}
    shared: dict[str, Any] = {"scaling": spec.scaling, "public": spec.public, "parts": parts, "frozen": frozen}
    return replace(known, parameters=parameters, buffers=buffers, network_names=network_names(model), **shared)
