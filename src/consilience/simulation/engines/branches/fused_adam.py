"""Adam and AdamW of one learner by torch's fused kernel: the step of `optimizers.py`, in one pass over memory."""

from __future__ import annotations

import torch
from torch import Tensor

from consilience.learner.learner import Learner
from consilience.learner.state import LearnerState
from consilience.optimizers import Adam, AdamW, clip_norm


def has_fused_adam(learner: Learner) -> bool:
    """Whether the fused kernel does all that a learner's optimizer does.

    It takes one number as learning rate and one step count, and moves all parameters alike.
    """
    optimizer, device = learner.spec.optimizer, learner.device
    plain = type(optimizer) in (Adam, AdamW) and isinstance(optimizer, Adam) and not optimizer.count_each
    alike = learner.optimized is None and learner.rescaled is None
    return plain and alike and not learner.spec.varied.get("optimizer") and device.type in ("cpu", "cuda")


def take_fused_step(learner: Learner, state: LearnerState, gradient: Tensor, active: Tensor | None) -> None:
    """Move a stack of one row by its gradient, (1, parameters), in place; where it is not active, it stays."""
    optimizer = learner.spec.optimizer
    assert isinstance(optimizer, Adam) and isinstance(optimizer.lr, float | int)
    state.step += 1 if active is None else active.to(torch.int64)
    take = torch._fused_adamw_ if isinstance(optimizer, AdamW) else torch._fused_adam_
    take(
        [state.parameters[0]],
        [clip_norm(gradient, optimizer.clip)[0]],
        [state.optimizer["first"][0]],
        [state.optimizer["second"][0]],
        [],
        [state.step[0].to(torch.float32)],
        lr=float(optimizer.lr),
        beta1=optimizer.beta1,
        beta2=optimizer.beta2,
        weight_decay=optimizer.weight_decay,
        eps=optimizer.eps,
        amsgrad=False,
        maximize=False,
        # Meant for scaled gradients that overflow: where it is 1, the kernel changes nothing.
        found_inf=None if active is None else (~active[0]).to(torch.float32),
    )
