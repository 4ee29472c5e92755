"""Gradients of the parts of a caller's model that only everybody's votes move."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from consilience.errors import ConfigurationError, TrainingError
from consilience.exchanges.base import Exchange
from consilience.peer.exchange_context import ExchangeContext


class SharedGradients:
    """Sums up gradients over the batches of a round, and sees to it that nothing else moves the shared part."""

    def __init__(self, exchanges: Sequence[Exchange], context: ExchangeContext) -> None:
        self._exchanges, self._context = [e for e in exchanges if e.owned_part is not None], context
        self._sums: dict[str, Tensor] = {}
        self._finite: list[Tensor] = []
        """For each batch whether all of its gradients are finite; read once, by `mean`."""

    def private_parameters(self) -> list[nn.Parameter]:
        """The model's parameters that are not in a shared part."""
        shared = {name for e in self._exchanges for name in self._names(e)}
        model = self._context.require_model()
        return [parameter for name, parameter in model.named_parameters() if name not in shared]

    @torch.no_grad()
    def take(self) -> None:
        """Add the gradients of a batch, and clear them, so that no optimizer uses them.

        A batch with infinite or NaN gradients does not count: with float16 a loss that is scaled too much has them, and
        its scaler skips that step too.
        """
        if not self._exchanges:
            raise ConfigurationError(
                f"federation {self._context.charter.name!r} moves no part of the model by gradients; leave "
                f"take_gradients out"
            )
        self.check_unmoved()
        parameters = dict(self._context.require_model().named_parameters())
        names = [name for e in self._exchanges for name in self._names(e)]
        for name in names:
            if parameters[name].grad is None:
                raise ConfigurationError(
                    f"{name!r} has no gradient; call take_gradients() after loss.backward() and before the optimizer's "
                    f"step, once for each batch, with requires_grad of all parameters on"
                )
        gradients = {name: _gradient(parameters[name]).float() for name in names}
        finite = torch.stack([torch.isfinite(each).all() for each in gradients.values()]).all()
        for name, gradient in gradients.items():
            counted = torch.where(finite, gradient, 0.0)
            self._sums[name] = self._sums[name] + counted if name in self._sums else counted
            parameters[name].grad = None
        self._finite.append(finite)

    def mean(self, e: Exchange) -> dict[str, Tensor]:
        """The mean over the batches since the last upload; nothing for an exchange that moves no part."""
        if e.name not in {each.name for each in self._exchanges}:
            return {}
        if not self._finite:
            raise ConfigurationError(
                f"there is no gradient of {e.owned_part!r} to vote with; call take_gradients() after each "
                f"loss.backward()"
            )
        self.check_unmoved()
        counted = int(torch.stack(self._finite).sum())
        if not counted:
            raise TrainingError(
                f"the gradients of {e.owned_part!r} are NaN or infinite in all {len(self._finite)} batches since the "
                f"last upload; try a smaller learning rate, or a smaller scale of the loss with float16"
            )
        return {name: self._sums[name].to(self._context.device) / counted for name in self._names(e)}

    def forget(self) -> None:
        """Begin anew: what there was has been uploaded."""
        self._sums, self._finite = {}, []

    @torch.no_grad()
    def check_unmoved(self) -> None:
        """Refuse a shared part whose values are not those that the last download gave it."""
        parameters = dict(self._context.require_model().named_parameters())
        for e in (e for e in self._exchanges if self._context.has_reference(e)):
            common = self._context.received(e).tensors
            for name in self._names(e):
                if not torch.equal(parameters[name], common[name].to(parameters[name].device, parameters[name].dtype)):
                    raise ConfigurationError(
                        f"{name!r} was moved by your loop, and only everybody's votes may move the part "
                        f"{e.owned_part!r}; give your optimizer peer.private_parameters(), and call take_gradients() "
                        f"before its step"
                    )

    def _names(self, e: Exchange) -> list[str]:
        assert e.owned_part is not None
        return self._context.task.covered(e.owned_part, self._context.task.parameters)


def _gradient(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad
