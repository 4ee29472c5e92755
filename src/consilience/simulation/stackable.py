"""Whether learners of a model can be stacked: a small trial, before anything is trained."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import vmap

from consilience.errors import ConfigurationError
from consilience.learner import Learner, Row

_SAMPLES = 2
_WAY_OUT = "; run it with --engine loop, which trains one learner after the other"


def refuse_unstackable(learner: Learner) -> None:
    """Refuse a model that two learners cannot run side by side, saying which layer or operation is in the way."""
    model = learner.task.model
    dropout = [name for name, m in learner.model.named_modules() if isinstance(m, nn.modules.dropout._DropoutNd)]
    if dropout:
        raise ConfigurationError(
            f"model {model!r} draws random numbers as it trains (dropout in {dropout[0]!r}), which learners in a stack "
            f"cannot do each for itself{_WAY_OUT}"
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
        if "vmap" not in said:
            raise
        what = "an operation that looks at values (an `if`, a loop, `.item()` on a tensor)"
        if "random" in said:
            what = "an operation that draws random numbers"
        elif "dynamic shape" in said or "data-dependent" in said.lower():
            what = "an operation whose result's shape, or course, hangs on values"
        raise ConfigurationError(
            f"model {learner.task.model!r}, or an exchange with it, has {what}, which learners in a stack cannot share "
            f"(torch says: {said.splitlines()[0]}){_WAY_OUT}"
        ) from error


def _try(learner: Learner) -> None:
    """A forward and a backward pass of two learners."""
    learner.mode(training=True)
    rows = {key: torch.stack([value, value]) for key, value in learner.template().items()}
    objective = learner.role.objective
    inputs = torch.zeros((2, _SAMPLES, *learner.task.inputs), dtype=learner.dtype, device=learner.device)
    draws = torch.zeros((2, objective.batch_draws, _SAMPLES), dtype=torch.float64, device=learner.device)
    views, buffers = learner.tensors(rows)
    leaves = {name: view.detach().requires_grad_() for name, view in views.items()}

    def one(row: Row, parameters: Row, buffers: Row, inputs: Tensor, draws: Tensor) -> Tensor:
        with learner.dressed(row, parameters, buffers):
            logits: Tensor = learner.forward(objective.prepare(inputs, draws))["logits"]
            return logits.sum()

    total = vmap(one)(rows, leaves, {k: b.clone() for k, b in buffers.items()}, inputs, draws).sum()
    torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
