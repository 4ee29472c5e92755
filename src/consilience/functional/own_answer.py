"""A learner's own answer: its model's logits, changed by its class shares, its private head and its own model."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import torch
from torch import Tensor

_STEPS = 4
"""Weights of answers in their mean are tried in steps of one quarter."""
_TINY = 1e-30  # keeps logarithms finite


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


def possible_answers(
    logits: Tensor,
    features: Tensor,
    log_shares: Tensor | None,
    head: Callable[[Tensor], Tensor] | None,
    own: Tensor | None,
) -> Tensor:
    """The answers that a learner chooses from, (answers, rows, classes), in the order of their weights.

    The common answer with the class shares; the same corrected by the head; own: the own model's logits. The last two
    may be None.
    """
    found = [own_logits(logits, features, log_shares, None)]
    found += [] if head is None else [own_logits(logits, features, log_shares, head)]
    return torch.stack(found if own is None else [*found, own])


def mean_answer(answers: Tensor, weights: Tensor) -> Tensor:
    """Log-probabilities, (rows, classes), of the mean of several answers' probabilities.

    answers: logits, (answers, rows, classes). weights: of the answers, (answers,), with sum 1.

    >>> mean_answer(torch.tensor([[[0.5, 0.5]], [[0.9, 0.1]]]).log(), torch.tensor([0.5, 0.5])).exp()
    tensor([[0.7000, 0.3000]])
    """
    return torch.einsum("a,arc->rc", weights, answers.softmax(-1)).clamp(min=_TINY).log()


def choose_weights(answers: Tensor, targets: Tensor, valid: Tensor) -> Tensor:
    """The weights of several answers in their mean, (answers,), chosen by samples that none was trained on.

    answers: logits, (answers, rows, classes). valid: 1 where a row is a sample, 0 where it is padding. All weights in
    steps of one quarter are tried; the result is their mean, each weighted by the likelihood of the samples under it:
    equal weights without samples, and the best of those tried with many.

    >>> sure, unsure = torch.tensor([[9.0, 0.0]]).expand(50, 2), torch.zeros(50, 2)
    >>> targets = torch.zeros(50, dtype=torch.int64)
    >>> choose_weights(torch.stack([sure, unsure]), targets, torch.zeros(50))
    tensor([0.5000, 0.5000])
    >>> choose_weights(torch.stack([sure, unsure]), targets, torch.ones(50)).argmax()
    tensor(0)
    """
    tried = torch.tensor(_weights_tried(len(answers)), dtype=answers.dtype, device=answers.device)  # (tried, answers)
    correct = answers.softmax(-1).gather(-1, targets.expand(len(answers), -1)[..., None])[..., 0]  # (answers, rows)
    likelihood = ((tried @ correct).clamp(min=_TINY).log() * valid).sum(1)  # (tried,)
    return likelihood.softmax(0) @ tried


def _weights_tried(answers: int) -> list[list[float]]:
    """Every way to split 1 among so many answers in steps of one quarter."""
    parts = product(range(_STEPS + 1), repeat=answers)
    return [[part / _STEPS for part in each] for each in parts if sum(each) == _STEPS]
