"""Distance correlation: how strongly two quantities of the same samples depend on each other, linear or not.

Distance correlation (Székely, Rizzo, Bakirov, 2007) is 0 for independent quantities and 1 for quantities that are
equal up to rotation and scale; the two may have any shapes. All of it is plain torch without branches on values: it
also runs under `torch.func.vmap` and in a CUDA graph.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from consilience.errors import ConfigurationError


def distance_correlation(x: Tensor, z: Tensor) -> Tensor:
    """The sample distance correlation of x (rows, ...) and z (rows, ...), between 0 and 1, differentiable in both.

    It is 0, with gradient 0, where either is the same in all rows, and for fewer than two rows. Few rows of many values
    are never far from 1, however independent: the mean is 0.98 for 32 rows of 784 and of 128 normal numbers. To measure
    rather than to train, use `corrected_distance_correlation`.

        >>> x = torch.tensor([[0.0], [1.0], [2.0]])
        >>> round(distance_correlation(x, -3 * x).item(), 4), round(distance_correlation(x, x % 2).item(), 4)
        (1.0, 0.5623)
    """
    square = _squared_correlation(x, z)
    none = square <= 0
    return square.masked_fill(none, 1).sqrt().masked_fill(none, 0)  # a root has no finite slope at 0


def log_distance_correlation(x: Tensor, z: Tensor) -> Tensor:
    """The logarithm of `distance_correlation`, with value and gradient finite for all finite inputs.

    It is at least half the logarithm of the dtype's `eps`: -7.97 in float32, -18.02 in float64. Smaller values
    are rounding errors; the gradient is 0 there, and where the correlation is not defined.
    """
    square = _squared_correlation(x, z)
    least = torch.finfo(square.dtype).eps
    return square.masked_fill(square <= least, least).log() / 2


def corrected_distance_correlation(x: Tensor, z: Tensor) -> Tensor:
    """The squared distance correlation of x (rows, ...) and z (rows, ...) without its bias, for measuring.

    1 for equal quantities, around 0 for independent ones, and then below 0 as often as above (Székely, Rizzo, 2013).
    Where the square of the plain one has a mean of 0.97 (32 rows of 784 and of 128 independent normal numbers), this
    one has 0.00. It is 0 for fewer than four rows, and where either has all its rows equally far from each other.
    """
    x, z = _flat_rows(x, z)
    rows = len(x)
    if rows < 4 or not (x.numel() and z.numel()):
        return _zero(x, z)
    off = 1 - torch.eye(rows, dtype=x.dtype, device=x.device)
    a, b = (
        (d - _row_and_column_sums(d) / (rows - 2) + d.sum() / ((rows - 1) * (rows - 2)))
        * off  # (rows, rows), rows sum to 0
        for d in (_distances(x), _distances(z))
    )
    # Equal distances leave only rounding errors, which would correlate with each other.
    return _cosine(a, b, least=(32 * torch.finfo(x.dtype).eps) ** 2).clamp(-1, 1)


def _squared_correlation(x: Tensor, z: Tensor) -> Tensor:
    """The squared sample distance correlation: of distances whose rows and columns have a mean of 0."""
    x, z = _flat_rows(x, z)
    if len(x) < 2 or not (x.numel() and z.numel()):
        return _zero(x, z)
    a, b = (d - _row_and_column_sums(d) / len(x) + d.mean() for d in (_distances(x), _distances(z)))  # (rows, rows)
    return _cosine(a, b, least=0.0).clamp(0, 1)


def _cosine(a: Tensor, b: Tensor, least: float) -> Tensor:
    """The cosine between two centered matrices; 0 where an element's mean square is `least`."""
    both, own, other = (a * b).mean(), a.square().mean(), b.square().mean()
    none = (own <= least) | (other <= least)
    return (both / (own.masked_fill(none, 1) * other.masked_fill(none, 1)).sqrt()).masked_fill(none, 0)


def _distances(x: Tensor) -> Tensor:
    """Euclidean distances between rows (rows, width), (rows, rows), the largest of them 1, or all 0.

    Scale does not change a correlation, so distances are scaled, and the scale needs no gradient; the bounds keep
    gradients finite.
    """
    tiny = torch.finfo(x.dtype).tiny
    largest = x.detach().abs().amax().clamp(min=tiny**0.25)
    x = x / (largest / (2 * torch.frexp(largest)[0]))  # by a power of two: differences stay exact
    distances: Tensor = _Distances.apply(x)  # type: ignore[no-untyped-call]
    return distances / distances.detach().amax().clamp(min=tiny**0.5)


class _Distances(torch.autograd.Function):
    """Euclidean distances between rows (rows, width), (rows, rows); between rows that are the same the gradient is 0.

    From differences: products of rows lose the distance of rows that are nearly the same. Gradients are products, as
    those of `torch.cdist` hold all differences at once on a GPU, (rows, rows, width), and take four times as long.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        """The distances."""
        return torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        """Save inputs and distances for the gradient."""
        ctx.save_for_backward(*inputs, output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """The gradient of each row is along its differences to the other rows."""
        x, distances = ctx.saved_tensors
        same = distances == 0
        along = ((gradient + gradient.mT) / distances.masked_fill(same, 1)).masked_fill(same, 0)  # (rows, rows)
        x = x - x.mean(0)  # differences stay, and products are no larger than they must be
        with torch.autocast(x.device.type, enabled=False):
            toward: Tensor = along.sum(1, keepdim=True) * x - along @ x
        return toward


def _row_and_column_sums(distances: Tensor) -> Tensor:
    """For each element, the sum of its row and its column, (rows, rows); the matrix is symmetric."""
    sums = distances.sum(1)
    return sums[:, None] + sums


def _flat_rows(x: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """Both as (rows, width) of one dtype, float32 at least."""
    if not (x.ndim and z.ndim) or len(x) != len(z):
        raise ConfigurationError(
            f"dependence is measured between two things of the same samples, (rows, ...) each, "
            f"got {tuple(x.shape)} and {tuple(z.shape)}; give as many rows of both"
        )
    dtype = torch.promote_types(torch.promote_types(x.dtype, z.dtype), torch.float32)
    x, z = ((t[:, None] if t.ndim == 1 else t.flatten(1)).to(dtype) for t in (x, z))
    return x, z


def _zero(x: Tensor, z: Tensor) -> Tensor:
    """0, with gradient 0 in both."""
    return (0 * x).sum() + (0 * z).sum()
