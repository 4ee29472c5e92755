"""Audit a mechanism of differential privacy: run it many times on two neighboring inputs, and try to tell them apart.

The attacker knows the mechanism and both inputs, and learns from the first half of the outputs which linear combination
of them separates the inputs best: of a correct mechanism the noise of every value is its own, and this is the
likelihood ratio. Noise that is used twice, or taken back later, cancels in some combination, which the attacker finds.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from consilience.errors import ConfigurationError
from consilience.privacy.epsilon_bound import MIN_TRIALS, Bound, EpsilonBound, epsilon_lower_bound
from consilience.randomness import normal

Mechanism = Callable[[Tensor, Tensor], Tensor]
"""All that is released, as one vector, from an input and standard normal numbers; a pure function."""
_RIDGE = 1e-9  # relative; combinations in which noise cancels exactly keep a variance of 0 but for this


def audit_mechanism(
    mechanism: Mechanism,
    inputs: tuple[Tensor, Tensor],
    noise_shape: tuple[int, ...],
    delta: float,
    *,
    trials: int = 20_000,
    seed: int = 0,
    bound: Bound = "gaussian",
) -> EpsilonBound:
    """A lower bound of the mechanism's epsilon from `trials` runs on each of two neighboring inputs.

    noise_shape: of the standard normal numbers that a run takes.
    """
    if trials < 2 * MIN_TRIALS:
        raise ConfigurationError(f"trials is {trials}; a lower bound of epsilon needs {2 * MIN_TRIALS} or more")
    released = [_run(mechanism, each, noise_shape, trials, (seed, side)) for side, each in enumerate(inputs)]
    first, second = separating_scores(*released)
    return epsilon_lower_bound(second, first, delta, bound=bound)


def separating_scores(first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scores of outputs (trials, values) of two inputs, larger for the second: Fisher's linear discriminant.

    It is fitted to the first half of each; a bound must measure errors on the second half only.
    """
    half = min(len(first), len(second)) // 2
    pilots = [side[:half] for side in (first, second)]
    difference = pilots[1].mean(0) - pilots[0].mean(0)
    spread = np.concatenate([side - side.mean(0) for side in pilots])
    covariance = spread.T @ spread / len(spread)
    covariance += (_RIDGE * covariance.diagonal().mean() + 1e-300) * np.eye(len(covariance))
    direction = np.linalg.solve(covariance, difference)
    return first @ direction, second @ direction


def _run(
    mechanism: Mechanism, given: Tensor, noise_shape: tuple[int, ...], trials: int, where: tuple[int, int]
) -> np.ndarray:
    """The outputs of the mechanism in every trial, (trials, values)."""
    count = int(np.prod(noise_shape))
    drawn = torch.from_numpy(normal("mechanism audit", *where, np.arange(trials)[:, None], np.arange(count)))
    found = vmap(mechanism, in_dims=(None, 0))(given, drawn.reshape(trials, *noise_shape))
    released: np.ndarray = found.reshape(trials, -1).double().numpy(force=True)
    return released
