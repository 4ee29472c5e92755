"""Passes over samples in evaluation mode, for the learner whose state is bound: nothing is trained."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from consilience.errors import ConfigurationError
from consilience.exchanges.base import View
from consilience.kinds import kind_of
from consilience.learner.learner import Learner
from consilience.learner.modules import Representations, keep_output
from consilience.task import AnswerKind

PASS_ROWS, EVALUATED_ROWS = 1024, 256
"""Samples in one forward pass when nothing is trained: bounds the memory it takes."""


def needs_representations(learner: Learner, names: Iterable[str]) -> bool:
    """Whether any of these exchanges looks at samples; otherwise the pass over them is left out."""
    return any(e.needs_representations for e in learner.exchanges if e.name in names)


def sample_parts(learner: Learner, inputs: Tensor, rows: int) -> Iterator[Tensor]:
    """Inputs, `rows` at a time; of streamed samples, whose numbers these are, the samples themselves."""
    parts, reader = torch.split(inputs, rows), learner.spec.reader
    return iter(parts) if reader is None else reader.batches(parts)


def _forward_in_parts(learner: Learner, inputs: Tensor, rows: int) -> Representations:
    """One forward pass, `rows` samples at a time. Of streamed samples the numbers are kept in the place of inputs."""
    parts = zip(sample_parts(learner, inputs, rows), torch.split(inputs, rows), strict=True)
    return _joined([learner.modules.forward(part) | {"inputs": kept} for part, kept in parts])


@torch.no_grad()
def represent(
    learner: Learner, inputs: Tensor, targets: Tensor, valid: Tensor | None = None, rows: int = PASS_ROWS
) -> Representations:
    """One pass over the learner's samples, `rows` at a time: what all exchanges see of them.

    valid: 1 where there is a sample, 0 where the array is only filled up.
    """
    learner.modules.set_training(False)
    seen = _forward_in_parts(learner, inputs, rows) | {"targets": targets}
    return seen if valid is None else seen | {"valid": valid}


@torch.no_grad()
def compute_features(learner: Learner, inputs: Tensor, rows: int = PASS_ROWS) -> Tensor:
    """The model's features of inputs, `rows` at a time, (samples, width)."""
    learner.modules.set_training(False)
    return torch.cat([learner.modules.features(part) for part in sample_parts(learner, inputs, rows)])


@torch.no_grad()
def compute_logits(learner: Learner, inputs: Tensor, rows: int = PASS_ROWS) -> Tensor:
    """Logits of inputs, `rows` at a time, (1 or 2, samples, classes): the model's, and a private part's head's."""
    learner.modules.set_training(False)
    return torch.cat([_logits(learner, part) for part in sample_parts(learner, inputs, rows)], dim=1)


def _logits(learner: Learner, inputs: Tensor) -> Tensor:
    objective, view = learner.role.objective, _unlabeled_view(learner, inputs)
    if not objective.has_device_head:
        return view.logits[None]
    return torch.stack([view.logits, objective.device_logits(view)])


def _unlabeled_view(learner: Learner, inputs: Tensor) -> View:
    """What the objective sees of samples whose classes it does not know."""
    unknown = kind_of(learner.task).example_targets(learner.task, len(inputs)).to(learner.device)
    seen = learner.modules.forward(inputs) | {"targets": unknown}
    return learner.view(learner.role.objective, seen, learner.count(0))


@torch.no_grad()
def layer_outputs(
    learner: Learner, inputs: Tensor, layers: Sequence[str], rows: int = EVALUATED_ROWS
) -> dict[str, Tensor]:
    """Outputs of layers of the model for inputs, `rows` at a time, (samples, ...) each."""
    learner.modules.set_training(False)
    outputs: dict[str, Any] = {}
    parts: dict[str, list[Tensor]] = {layer: [] for layer in layers}
    with ExitStack() as hooks:
        for layer in layers:
            hook = learner.modules.layer(layer).register_forward_hook(keep_output(outputs, layer))
            hooks.callback(hook.remove)
        for part in sample_parts(learner, inputs, rows):
            outputs.clear()
            learner.modules.forward(part)
            for layer in layers:
                what = f"layer {layer!r} of {learner.task.model}"
                parts[layer].append(_per_sample(outputs.get(layer), len(part), what).to(learner.dtype))
    return {layer: torch.cat(each) for layer, each in parts.items()}


@torch.no_grad()
def score_sums(
    learner: Learner, inputs: Tensor, targets: Tensor, answer: AnswerKind = "common", rows: int = EVALUATED_ROWS
) -> Tensor:
    """What the score of an answer follows from, (columns,), such as the correct predictions of each class.

    `rows` samples at a time.
    """
    learner.modules.set_training(False)
    parts = sample_parts(learner, inputs, rows)
    logits = torch.cat([_answer(learner, part, answer) for part in parts])
    return kind_of(learner.task).score_sums(learner.task, logits, targets)


@torch.no_grad()
def choose(learner: Learner, inputs: Tensor, targets: Tensor, rows: int = EVALUATED_ROWS) -> dict[str, Tensor]:
    """What the objective chooses by held-out samples, by name; class -1 where the array is only filled up."""
    learner.modules.set_training(False)
    held = {"targets": targets.clamp(min=0), "valid": (targets >= 0).to(learner.dtype)}
    seen = _forward_in_parts(learner, inputs, rows) | held
    objective = learner.role.objective
    view = learner.view(objective, seen, learner.count(len(inputs)))
    return dict(objective.choose(replace(view, own_model=partial(_own_model_in_parts, learner, rows))))


def _own_model_in_parts(learner: Learner, rows: int, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Features and logits of inputs by the learner's own model, `rows` at a time."""
    parts = [learner.modules.run_own_model(part) for part in sample_parts(learner, inputs, rows)]
    return torch.cat([features for features, _ in parts]), torch.cat([logits for _, logits in parts])


def _answer(learner: Learner, inputs: Tensor, answer: AnswerKind) -> Tensor:
    """A learner's answer for inputs, (rows, classes)."""
    if answer == "common":
        return learner.modules.forward(inputs)["logits"]  # type: ignore[no-any-return]
    return learner.role.objective.own_logits(_unlabeled_view(learner, inputs))


def _per_sample(output: Any, samples: int, what: str) -> Tensor:
    """A layer's output for each sample; where it has several outputs, as a recurrent layer does, the first."""
    first = output[0] if isinstance(output, tuple) and output else output
    if first is None:
        raise ConfigurationError(f"{what} is not reached when the model runs; name another layer")
    if not isinstance(first, Tensor) or first.shape[:1] != (samples,):
        given = tuple(first.shape) if isinstance(first, Tensor) else type(first).__name__
        raise ConfigurationError(
            f"{what} gives {given} for {samples} samples, and not one value per sample; name another layer"
        )
    return first


def _joined(parts: Sequence[Representations]) -> Representations:
    """Parts of a pass as one."""
    return {
        key: _joined([part[key] for part in parts]) if isinstance(first, dict) else torch.cat([p[key] for p in parts])
        for key, first in parts[0].items()
    }
