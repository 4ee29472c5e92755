"""A learner's own answer: its model's logits, changed by its class shares and its private head."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor


def own_logits(
    logits: Tensor, features: Tensor, log_shares: Tensor | None, head: Callable[[Tensor], Tensor] | None
) -> Tensor:
    """Logits for data like a learner's own, (rows, classes).

    logits: (rows, classes) for everybody's data. features: (rows, width). log_shares: the log of the learner's class
    shares, (classes,). head: the private head, whose correction is added. Either may be None.

    >>> import torch
    >>> own_logits(torch.zeros(1, 2), torch.ones(1, 3), torch.tensor([0.25, 0.75]).log(), None).softmax(1)
    tensor([[0.2500, 0.7500]])
    """
    fitted = logits if log_shares is None else logits + log_shares
    return fitted if head is None else fitted + head(features)
