"""A model with saved weights, apart from any learner: the flat vectors of a state, put back into a new module."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from consilience.errors import CheckpointError
from consilience.export.own_answer import OwnAnswer, own_answer
from consilience.learner.layout import Layout
from consilience.models import SplitModel, model_digest
from consilience.models.frozen import (
    build_with_frozen_part,
    check_frozen_digest,
    frozen_digest,
    frozen_tensors,
    trained_tensors,
)
from consilience.objectives.two_answers import LOG_SHARES, WEIGHTS

OTHER, OBJECTIVE = "other_buffers.", "objective_state."
"""Among the names of flat vectors: before the dtype of integer and boolean buffers, and before what the objective
remembers of the learner's own data."""


@dataclass(frozen=True)
class ModelKind:
    """What the learners of a cohort have in common that their models are rebuilt with."""

    build: Callable[[], nn.Module]
    name: str
    named: bool  # whether `name` builds the model anywhere; otherwise it is the name of an object of the user's program
    file_sha256: str = ""  # of the user's file as it was when the model was trained, where the model comes from one
    dtype: torch.dtype = torch.float32
    channels_last: bool = True  # how the flat vectors hold kernels of convolutions, see `Layout`
    own_head: bool = False  # whether a private head comes after the model among the parameters
    own_model: bool = False  # whether a model of the learner's own comes after that
    frozen_sha256: str = ""  # of the frozen part, which is no part of the vectors: building the model makes it

    def rebuild(self, flat: Mapping[str, Tensor]) -> SplitModel:
        """A new model on the CPU, in evaluation mode, with these weights and its frozen part.

        flat: "parameters", "buffers" and "other_buffers.DTYPE" of a learner's state. What is trained beside the model
        comes after it in these vectors and is left out.
        """
        self._refuse_changed_file()
        model = build_with_frozen_part(self.build).to(self.dtype)
        check_frozen_digest(frozen_digest(frozen_tensors(model)), self.frozen_sha256, self.name)
        parameters, buffers = trained_tensors(model)
        self._fill(parameters, flat["parameters"])
        self._fill({name: b for name, b in buffers.items() if b.is_floating_point()}, flat["buffers"])
        for key, values in flat.items():
            if key.startswith(OTHER):
                kind = getattr(torch, key.removeprefix(OTHER))
                self._fill({name: b for name, b in buffers.items() if b.dtype == kind}, values)
        model.original.eval()
        return model.eval()

    def rebuild_own_answer(self, flat: Mapping[str, Tensor]) -> OwnAnswer | None:
        """The learner's own answer, around a model as `rebuild` makes it; None where it has no other than its model's.

        flat: also "objective_state.NAME" of the learner's state.
        """
        private = {k: flat[f"{OBJECTIVE}{k}"] for k in (LOG_SHARES, WEIGHTS) if f"{OBJECTIVE}{k}" in flat}
        if not self.own_head and not private:
            return None
        model, head = self.rebuild(flat), 0
        size = sum(parameter.numel() for parameter in trained_tensors(model)[0].values())
        if self.own_head:
            layout = Layout({"head.weight": (model.classes, model.width), "head.bias": (model.classes,)})
            head = layout.size
            private |= layout.views(flat["parameters"][size : size + head])
        if self.own_model:
            own = self.rebuild(_after_model(flat, model, size + head))
            private |= {f"own_model.{name}": tensor for name, tensor in own.original.state_dict().items()}
        return own_answer(model, {name: tensor.clone() for name, tensor in private.items()})

    def _refuse_changed_file(self) -> None:
        if self.file_sha256 and model_digest(self.name) != self.file_sha256:
            raise CheckpointError(
                f"{self.name.rpartition(':')[0]} has changed since the model was trained, and the weights belong to "
                f"the file as it was; restore it, or train again"
            )

    @torch.no_grad()
    def _fill(self, tensors: Mapping[str, Tensor], flat: Tensor) -> None:
        layout = Layout({name: tuple(t.shape) for name, t in tensors.items()}, channels_last=self.channels_last)
        if layout.size > len(flat):
            raise CheckpointError(
                f"model {self.name!r} has {layout.size} values, and {len(flat)} were saved: it is another model than "
                f"the one that was trained"
            )
        for name, view in layout.views(flat[: layout.size]).items():
            tensors[name].copy_(view)


def _after_model(flat: Mapping[str, Tensor], model: SplitModel, parameters: int) -> dict[str, Tensor]:
    """The flat vectors of a learner's own model, which comes after the model; parameters: how many come before it."""
    buffers = list(trained_tensors(model)[1].values())
    floating = sum(b.numel() for b in buffers if b.is_floating_point())
    own = {"parameters": flat["parameters"][parameters:], "buffers": flat["buffers"][floating:]}
    for key in (key for key in flat if key.startswith(OTHER)):
        kind = getattr(torch, key.removeprefix(OTHER))
        own[key] = flat[key][sum(b.numel() for b in buffers if b.dtype == kind) :]
    return own
