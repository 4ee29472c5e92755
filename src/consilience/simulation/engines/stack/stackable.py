"""Whether learners of a model can be stacked: a small trial, before anything is trained."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import vmap

from consilience.errors import ConfigurationError, first_sentence
from consilience.learner.learner import Batch, Learner, Row
from consilience.simulation.engines.stack.answer_cache import received_of
from consilience.simulation.engines.stack.batched_layers import Layers
from consilience.simulation.round.federation import Federation

_SAMPLES = 2
_SIGNS = ("vmap", "Batching rule", "data pointer of Tensor")  # by which torch's refusals are known
_WAY_OUT = '; run it with --engine loop (engine="loop"), which trains one learner after the other'


def refuse_unstackable(learner: Learner) -> None:
    """Refuse a model that two learners cannot run side by side, saying which layer or operation is in the way."""
    model = learner.task.model
    layers = [(name, m) for name, m in learner.model.named_modules() if isinstance(m, nn.modules.dropout._DropoutNd)]
    dropout = [name for name, layer in layers if layer.p > 0]
    if dropout:
        raise ConfigurationError(
            f"model {model!r} draws random numbers as it trains (dropout in {dropout[0]!r}), which learners in a stack "
            f"cannot do each for itself{_WAY_OUT}"
        )
    recurrent = [(name, m) for name, m in learner.model.named_modules() if isinstance(m, nn.RNNBase)]
    if recurrent:
        name, layer = recurrent[0]
        raise ConfigurationError(
            f"model {model!r} reads sequences place by place ({type(layer).__name__} in {name!r}), which torch cannot "
            f"do for many learners at once{_WAY_OUT}"
        )
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        with in_words(learner):
            _try(learner)
    for warning in heard:
        slow = re.search(r"batching rule for (\S+?)\.?\s", f"{warning.message} ")
        if slow:
            raise ConfigurationError(
                f"model {model!r}: learners in a stack cannot share {slow.group(1)}, and would do it one after the "
                f"other at every step{_WAY_OUT}"
            )


@contextmanager
def in_words(learner: Learner) -> Iterator[None]:
    """Say in words what torch refuses to do for a stack of learners."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        said = str(error)
        if not any(sign in said for sign in _SIGNS):
            raise
        named = re.search(r"aten::\w+", said)
        what = "an operation that looks at values (an `if`, a loop, `.item()` or `.numpy()` of a tensor)"
        if named:
            what = f"an operation, {named.group()}, that cannot be done for many at once"
        elif "random" in said:
            what = "an operation that draws random numbers"
        elif "dynamic shape" in said:
            what = "an operation whose result's shape hangs on values"
        raise ConfigurationError(
            f"model {learner.task.model!r}, or an exchange with it, has {what}, which learners in a stack cannot share "
            f"(torch says: {first_sentence(error)}){_WAY_OUT}"
        ) from error


@torch.no_grad()
def _try(learner: Learner) -> None:
    """Two learners go through all that a round asks of them: a step, a pass, a contribution, an answer."""
    row = learner.template()
    rows = {key: torch.stack([value, value]) for key, value in row.items()}
    commons = {e.name: learner.common_values(e) for e in learner.exchanges}
    relay = Federation(0, learner.channels, 1, commons, row["parameters"])
    answers = {name: relay.answers(name, np.zeros(1, dtype=np.int64), 0)[0][0] for name in learner.channels}
    fresh = torch.ones(2, dtype=torch.bool, device=learner.device)
    held = {
        name: ({k: torch.stack([t, t]) for k, t in answer.tensors.items()}, torch.stack([answer.count] * 2), fresh)
        for name, answer in answers.items()
    }
    count = learner.count(_SAMPLES)
    inputs = torch.zeros((2, _SAMPLES, *learner.task.inputs), dtype=learner.dtype, device=learner.device)
    targets = torch.zeros((2, _SAMPLES), dtype=torch.int64, device=learner.device)

    def zeros(wanted: int) -> Tensor:
        return torch.zeros((wanted, _SAMPLES), dtype=torch.float64, device=learner.device)

    def step(row: Row, held: Any, parameters: Row, buffers: Row, inputs: Tensor, targets: Tensor) -> Tensor:
        received = {name: received_of(parts) for name, parts in held.items()}
        drawn = {o.name: zeros(o.batch_draws) for o in learner.owners if o.batch_draws}
        batch = Batch(inputs, targets, drawn, torch.arange(_SAMPLES, device=learner.device))
        with learner.dressed(row, parameters, buffers):
            loss, _ = learner.losses(batch, count, received)
        return loss

    def rest(row: Row, held: Any, inputs: Tensor, targets: Tensor) -> Tensor:
        received = {name: received_of(parts) for name, parts in held.items()}
        putting = {e.name: received[e.name] for e in learner.exchanges if e.name in learner.uploading}
        draws = {e.name: zeros(e.sample_draws) for e in learner.exchanges if e.sample_draws}
        with learner.dressed(row, *learner.tensors(row)):
            learner.contribute(learner.represent(inputs, targets), count, draws, putting)
            learner.receive(received)
        return row["parameters"]

    learner.mode(training=True)
    views, buffers = learner.tensors(rows)
    with torch.enable_grad():
        leaves = {name: view.detach().requires_grad_() for name, view in views.items()}
        with Layers():
            loss = vmap(step)(rows, held, leaves, {k: b.clone() for k, b in buffers.items()}, inputs, targets)
        torch.autograd.grad(loss.sum(), list(leaves.values()), allow_unused=True)
    with Layers():
        vmap(rest)(rows, held, inputs, targets)
