"""Whether learners of a model can be stacked: a small trial, before anything is trained."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import vmap

from consilience.errors import ConfigurationError, first_sentence
from consilience.kinds import kind_of
from consilience.learner.initial_state import template_state
from consilience.learner.learner import Batch, Learner, batch_draws, upload_noise_size
from consilience.learner.local_training import values_before_batch
from consilience.learner.passes import represent
from consilience.learner.private_uploads import NOISE
from consilience.learner.state import LearnerState, Tensors
from consilience.simulation.engines.stack.batched_layers import Layers
from consilience.simulation.engines.stack.stacked_answers import one_received
from consilience.simulation.federation import Federation

_SAMPLES = 2
_REFUSALS = ("vmap", "Batching rule", "data pointer of Tensor")  # in messages by which torch refuses to stack
_USE_LOOP = '; run it with --engine loop (engine="loop"), which trains one learner after the other'
_USE_BRANCHES = ", or on a GPU with --engine branches"


class CannotStackError(ConfigurationError):
    """A model that stacked learners cannot run.

    recordable: whether a CUDA graph may record its step all the same, for one learner.
    """

    def __init__(self, reason: str, *, recordable: bool) -> None:
        super().__init__(f"{reason}{_USE_LOOP}{_USE_BRANCHES if recordable else ''}")
        self.reason, self.recordable = reason, recordable

    def __reduce__(self) -> tuple[Any, ...]:
        """It may come from another process, with notes of where."""
        return partial(CannotStackError, recordable=self.recordable), (self.reason,), self.__dict__


def why_not_stacked(learner: Learner) -> CannotStackError | None:
    """Why two stacked learners cannot run a model; None where they can."""
    try:
        refuse_unstackable(learner)
    except CannotStackError as error:
        return error
    return None


def refuse_unrecordable(learner: Learner) -> None:
    """Refuse what is known to be neither stacked nor recorded for one learner; what reads values is found later.

    A function of the user's own may use anything of the program to change a sample. Dropout between recurrent layers
    is drawn by cuDNN, from one state for all learners.
    """
    if learner.spec.augmentation is not None and not learner.spec.augmentation.stackable:
        raise CannotStackError(
            "augment is a function of one sample, which learners that train together cannot call; crop and flip run "
            "on every engine",
            recordable=False,
        )
    for name, layer in learner.model.named_modules():
        if isinstance(layer, nn.RNNBase) and layer.dropout > 0 and layer.num_layers > 1:
            raise CannotStackError(
                f"model {learner.task.model!r} has dropout between recurrent layers ({type(layer).__name__} in "
                f"{name!r}), whose random numbers learners that train together cannot have separately; use nn.Dropout "
                f"between layers of their own",
                recordable=False,
            )


def refuse_unstackable(learner: Learner) -> None:
    """Refuse a model that two stacked learners cannot run, naming the layer or operation that prevents it."""
    refuse_unrecordable(learner)
    model = learner.task.model
    layers = [(name, m) for name, m in learner.model.named_modules() if isinstance(m, nn.modules.dropout._DropoutNd)]
    dropout = [name for name, layer in layers if layer.p > 0]
    if dropout:
        raise CannotStackError(
            f"model {model!r} draws random numbers as it trains (dropout in {dropout[0]!r}), which stacked learners "
            f"cannot do separately",
            recordable=True,
        )
    recurrent = [(name, m) for name, m in learner.model.named_modules() if isinstance(m, nn.RNNBase)]
    if recurrent:
        name, layer = recurrent[0]
        raise CannotStackError(
            f"model {model!r} reads sequences step by step ({type(layer).__name__} in {name!r}), which torch cannot do "
            f"for many learners at once",
            recordable=True,
        )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with explain_unstackable(learner):
            _run_two_learners(learner)
    for warning in caught:
        slow = re.search(r"batching rule for (\S+?)\.?\s", f"{warning.message} ")
        if slow:
            raise CannotStackError(
                f"model {model!r}: stacked learners cannot run {slow.group(1)} together, and would run it one after "
                f"the other at every step",
                recordable=True,
            )


@contextmanager
def explain_unstackable(learner: Learner) -> Iterator[None]:
    """Explain what torch refuses to do for a stack of learners."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        said = str(error)
        if not any(refusal in said for refusal in _REFUSALS):
            raise
        named = re.search(r"aten::\w+", said)
        what, recordable = (
            "an operation that reads values (an `if`, a loop, `.item()` or `.numpy()` of a tensor)",
            False,
        )
        if named:
            recordable = True
            what = f"an operation, {named.group()}, that torch cannot do for many learners at once"
        elif "random" in said:
            what, recordable = "an operation that draws random numbers", True
        elif "dynamic shape" in said:
            what = "an operation whose result's shape depends on values"
        raise CannotStackError(
            f"model {learner.task.model!r}, or an exchange with it, has {what}, which stacked learners cannot run "
            f"together (torch says: {first_sentence(error)})",
            recordable=recordable,
        ) from error


@torch.no_grad()
def _run_two_learners(learner: Learner) -> None:
    """Run everything a round asks of learners with two stacked ones: a step, a pass, a contribution, an answer."""
    state = template_state(learner)
    stacked = state.map(lambda tensor: torch.stack([tensor, tensor]))
    held = _first_answers(learner, state)
    count, binding = learner.count(_SAMPLES), learner.binding
    inputs = torch.zeros((2, _SAMPLES, *learner.task.inputs), dtype=learner.dtype, device=learner.device)
    example = kind_of(learner.task).example_targets(learner.task, _SAMPLES).to(learner.device)
    targets = torch.stack([example, example])

    def zeros(wanted: int) -> Tensor:
        return torch.zeros((wanted, _SAMPLES), dtype=torch.float64, device=learner.device)

    def step(
        state: dict[str, Any], held: Any, parameters: Tensors, buffers: Tensors, inputs: Tensor, targets: Tensor
    ) -> Tensor:
        drawn = {owner: zeros(count) for owner, count in batch_draws(learner).items()}
        batch = Batch(inputs, targets, drawn, torch.arange(_SAMPLES, device=learner.device))
        with learner.bound(LearnerState.from_dict(state), parameters, buffers):
            loss, _ = learner.losses(batch, count, one_received(held))
        return loss

    def rest(state: dict[str, Any], held: Any, inputs: Tensor, targets: Tensor) -> Tensor:
        row, received = LearnerState.from_dict(state), one_received(held)
        uploading = {e.name: received[e.name] for e in learner.exchanges if e.name in learner.uploading}
        draws = {e.name: zeros(e.sample_draws) for e in learner.exchanges if e.sample_draws}
        draws[NOISE] = torch.zeros(upload_noise_size(learner, uploading), dtype=torch.float64, device=learner.device)
        gradient = None if learner.optimized is None else torch.zeros_like(row.parameters)
        with learner.bound(row, *binding.tensors(row)):
            learner.contribute(represent(learner, inputs, targets), count, draws, uploading, gradient)
            learner.receive(received)
            values_before_batch(learner, received, learner.count(1))
        return row.parameters

    learner.modules.set_training(True)
    views, buffers = binding.tensors(stacked)
    with torch.enable_grad():
        leaves = {name: view.detach().requires_grad_() for name, view in views.items()}
        with Layers():
            copies = {k: b.clone() for k, b in buffers.items()}
            loss = vmap(step)(stacked.as_dict(), held, leaves, copies, inputs, targets)
        torch.autograd.grad(loss.sum(), list(leaves.values()), allow_unused=True)
    with Layers():
        vmap(rest)(stacked.as_dict(), held, inputs, targets)


def _first_answers(learner: Learner, state: LearnerState) -> dict[str, Any]:
    """The answers of channels before any upload, stacked for two learners; the state must be bound."""
    common = {e.name: dict(e.common_values(learner.model_view(e))) for e in learner.exchanges}
    relay = Federation(0, learner.channels, 1, common, state.parameters, learner.moved_before_batches)
    answers = {name: relay.answers(name, np.zeros(1, dtype=np.int64), 0)[0][0] for name in learner.channels}
    fresh = torch.ones(2, dtype=torch.bool, device=learner.device)
    return {
        name: ({k: torch.stack([t, t]) for k, t in answer.tensors.items()}, torch.stack([answer.count] * 2), fresh)
        for name, answer in answers.items()
    }
