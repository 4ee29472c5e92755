"""Binds a learner's state to modules: one set of modules serves all learners of an architecture, one after the other.

`bind` lets the modules' tensors be views into a state, for work in place. `bound` puts other tensors into the modules
for a while, as a function under `torch.func.vmap` needs it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from consilience.learner.layout import Layout
from consilience.learner.modules import LearnerModules
from consilience.learner.state import LearnerState, Tensors
from consilience.task import TRAINED


class ModelBinding:
    """The modules of one architecture, and the state they are bound to."""

    state: LearnerState
    """The state that is bound now."""

    def __init__(self, modules: LearnerModules) -> None:
        self.modules, device = modules, torch.device(modules.spec.device)
        parameters, buffers = modules.named_tensors()
        self._holders = _holders(modules, parameters | buffers)  # of the frozen part none: it stays as it is
        self._parameters: Mapping[str, Tensor] = parameters
        self._buffers: Mapping[str, Tensor] = {k: b for k, b in buffers.items() if b.is_floating_point()}
        self._other_buffers = _by_dtype({k: b for k, b in buffers.items() if not b.is_floating_point()})
        channels_last = device.type == "cpu"
        self.parameters = _layout(self._parameters, channels_last)
        self.buffers = _layout(self._buffers, channels_last)
        self.other_buffers = {kind: _layout(named, channels_last) for kind, named in self._other_buffers.items()}
        self._name_model_tensors(self._parameters, self._buffers)
        self.gradient = torch.zeros(self.parameters.size, dtype=modules.spec.dtype, device=device)
        gradients = self.parameters.views(self.gradient)
        for name, parameter in parameters.items():
            parameter.grad = gradients[name]

    def _name_model_tensors(self, parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor]) -> None:
        """The tensors an exchange sees: those of the task, without what is frozen or what exchanges train beside it."""
        task = self.modules.task
        self.model_parameters = {name: parameters[name] for name in task.covered(TRAINED, task.parameters)}
        self.model_buffers = {name: buffers[name] for name in task.covered(TRAINED, task.buffers)}

    def bind(self, state: LearnerState) -> None:
        """Let the modules' tensors be views into this state."""
        parts = [(self.parameters, state.parameters, self._parameters), (self.buffers, state.buffers, self._buffers)]
        for kind, named in self._other_buffers.items():
            parts.append((self.other_buffers[kind], state.other_buffers[kind], named))
        for layout, flat, tensors in parts:
            views = layout.views(flat)
            for name, tensor in tensors.items():
                tensor.data = views[name]
        self.state = state

    @contextmanager
    def bound(self, state: LearnerState, parameters: Tensors, buffers: Tensors) -> Iterator[None]:
        """For a while, use this state and these tensors in the place of the modules' own."""
        changed = ("state", "_parameters", "_buffers", "model_parameters", "model_buffers")
        before = {name: getattr(self, name) for name in changed if hasattr(self, name)}
        named = {**parameters, **buffers}
        own = [(holder, key, holder[key]) for holder, key, _ in self._holders]
        for holder, key, name in self._holders:
            holder[key] = named[name]
        self.state, self._parameters, self._buffers = state, parameters, buffers
        self._name_model_tensors(parameters, buffers)
        try:
            yield
        finally:
            for holder, key, tensor in own:
                holder[key] = tensor
            vars(self).update(before)

    def tensors(self, state: LearnerState) -> tuple[Tensors, Tensors]:
        """Parameters and buffers of a state, single or stacked, by name, as views."""
        buffers = self.buffers.views(state.buffers)
        for kind, layout in self.other_buffers.items():
            buffers |= layout.views(state.other_buffers[kind])
        return self.parameters.views(state.parameters), buffers

    def model_tensors(self, state: LearnerState) -> Tensors:
        """Parameters and buffers of a state, single or stacked, in one dictionary, as views."""
        parameters, buffers = self.tensors(state)
        return parameters | buffers

    def flat_buffers(self, buffers: Mapping[str, Tensor]) -> tuple[Tensor | None, Tensors]:
        """Buffers by name, laid end to end as a state has them: the floating ones, None without any, and the others."""
        others = {kind: layout.flat(buffers) for kind, layout in self.other_buffers.items()}
        return self.buffers.flat(buffers) if self.buffers.shapes else None, others

    @torch.no_grad()
    def assign(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy values into the bound state, by name of parameter or buffer."""
        for name, value in tensors.items():
            self.tensor(name).copy_(value)

    def tensor(self, name: str) -> Tensor:
        """A parameter or floating buffer that is bound now, by its name."""
        return self._parameters[name] if name in self._parameters else self._buffers[name]

    @torch.no_grad()
    def features_with(self, parameters: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        """Features of inputs, (rows, width), with other parameters; buffers are copied, and stay as they were."""
        own = [(holder, key, name, held) for holder, key, name in self._holders if (held := holder[key]) is not None]
        for holder, key, name, held in own:
            holder[key] = parameters.get(name, held) if name in self._parameters else held.clone()
        try:
            return self.modules.features(inputs)
        finally:
            for holder, key, _, held in own:
                holder[key] = held


def _layout(tensors: Mapping[str, Tensor], channels_last: bool) -> Layout:
    return Layout({name: tuple(tensor.shape) for name, tensor in tensors.items()}, channels_last=channels_last)


def _holders(modules: LearnerModules, named: Mapping[str, Tensor]) -> list[tuple[dict[str, Tensor | None], str, str]]:
    """Where modules keep each named tensor; one that several modules share is kept in several places."""
    names = {id(tensor): name for name, tensor in named.items()}
    every = [module for root in modules.roots() for module in root.modules()]
    dicts: list[Any] = [held for module in every for held in (module._parameters, module._buffers)]
    return [(held, key, names[id(t)]) for held in dicts for key, t in held.items() if id(t) in names]


def _by_dtype(named: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Integer and boolean buffers by dtype: a mask stays a mask."""
    groups: dict[str, dict[str, Tensor]] = {}
    for name, buffer in named.items():
        groups.setdefault(str(buffer.dtype).removeprefix("torch."), {})[name] = buffer
    return groups
