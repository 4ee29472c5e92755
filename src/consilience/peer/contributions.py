"""What a member's exchanges contribute after one pass over its data: quantized, with the residuals that leaves."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from consilience.config.schedules import at_round
from consilience.errors import TrainingError
from consilience.exchanges.base import Contribution, Exchange, View
from consilience.learner.batches import LearnerKey
from consilience.learner.noise_source import SECRET, UPLOAD_NOISE
from consilience.learner.private_uploads import LearnerPrivacy, noise_size, private_contributions
from consilience.learner.residuals import as_sent
from consilience.peer.batches import Loader
from consilience.peer.called_model import CalledModel
from consilience.peer.exchange_context import ExchangeContext
from consilience.peer.one_pass import one_pass
from consilience.peer.shared_gradients import SharedGradients
from consilience.peer.state import ChannelUpload
from consilience.randomness import AFTER_TRAINING


class LoopContributions:
    """Computes uploads of a training loop that is not the library's. privacy: how they are made private."""

    def __init__(self, context: ExchangeContext, gradients: SharedGradients, privacy: LearnerPrivacy | None) -> None:
        self._context, self._gradients, self._privacy = context, gradients, privacy

    @torch.no_grad()
    def compute(
        self, due: Sequence[Exchange], model: CalledModel, loader: Loader, round_: int
    ) -> dict[str, ChannelUpload]:
        """What these exchanges upload in a round."""
        context, channels = self._context, self._context.channels
        due = [at_round(e, round_) for e in due]
        seen, samples = one_pass(model, loader, context.task, any(e.needs_representations for e in due))
        count = torch.full((), float(samples), device=context.device)
        views, given = dict[str, View](), dict[str, Contribution]()
        for e in due:
            draws = context.draws(e, e.sample_draws, samples, round_, AFTER_TRAINING)
            views[e.name] = context.view(e, **seen, samples=count, gradients=self._gradients.mean(e), **draws)
            given[e.name] = _checked_finite(e.name, e.contribute(context.state(e), views[e.name], context.received(e)))
        if self._privacy is not None:
            size = noise_size(self._privacy, due, channels)
            normal = SECRET.normal(UPLOAD_NOISE, LearnerKey(0, 0), round_, AFTER_TRAINING, size).to(context.device)
            given = private_contributions(self._privacy, due, channels, views, given, normal)
        uploads = {e.name: self._upload(e.name, given[e.name]) for e in due}
        self._gradients.forget()
        return uploads

    def _upload(self, name: str, contribution: Contribution) -> ChannelUpload:
        """A contribution as the relay decodes it, and what the encoding has rounded away."""
        context, channel = self._context, self._context.channels[name]
        sent, residuals = as_sent(channel, contribution, context.residuals(channel))
        return ChannelUpload(
            {k: to_numpy(t) for k, t in sent.tensors.items()},
            to_numpy(sent.weight),
            context.version(name),
            {k: to_numpy(t) for k, t in residuals.items()},
        )


def _checked_finite(name: str, contribution: Contribution) -> Contribution:
    """The contribution in float32, as it travels; NaN and infinite values are refused."""
    tensors = {k: t.float() for k, t in contribution.tensors.items()}
    if not all(bool(torch.isfinite(t).all()) for t in tensors.values()):
        raise TrainingError(
            f"the upload of exchange {name!r} is NaN or infinite; try a smaller learning rate or weight"
        )
    return Contribution(tensors, contribution.weight)


def to_numpy(tensor: Tensor) -> np.ndarray:
    """A tensor as a float32 array."""
    found: np.ndarray = tensor.detach().float().numpy(force=True)
    return found
