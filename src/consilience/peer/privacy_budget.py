"""What a federation's charter asks of a member so that its uploads are private, and what a loop cannot do."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from consilience.config.config import Config
from consilience.errors import ConfigurationError
from consilience.exchanges.averaging import AveragingExchange
from consilience.exchanges.base import Exchange
from consilience.learner.private_uploads import LearnerPrivacy
from consilience.method import Role
from consilience.privacy.plan import PrivacyPlan
from consilience.simulation.setup.privacy import check_private_exchanges, refuse_batch_statistics
from consilience.wire.charter import Charter


def charter_plan(charter: Charter, exchanges: Sequence[Exchange]) -> PrivacyPlan | None:
    """The plan of a federation's charter for a member that uploads to these exchanges; None where it has none."""
    asked = charter.privacy
    if asked is None or not exchanges:
        return None
    releases = asked.private == "upload" or any(isinstance(e, AveragingExchange) for e in exchanges)
    return PrivacyPlan(asked.private, asked.epsilon, asked.delta, asked.clip, asked.uploads, releases)


def with_charter_privacy(config: Config, charter: Charter) -> Config:
    """A member's settings with the privacy of its federation."""
    asked = charter.privacy
    if asked is None:
        return config.replace(private="none", epsilon=None, private_uploads=None)
    return config.replace(
        private=asked.private,
        epsilon=asked.epsilon,
        delta=asked.delta,
        private_clip=asked.clip,
        private_uploads=asked.uploads,
    )


def loop_privacy(plan: PrivacyPlan | None, role: Role, federation: str) -> LearnerPrivacy | None:
    """What a training loop of one's own does so that its uploads are private; refuses what it cannot do."""
    if plan is None:
        return None
    if plan.private == "training":
        raise ConfigurationError(
            f"federation {federation!r} trains with noise in every step (private = 'training'), which a loop of your "
            f"own would have to add itself; take part with `consilience join`"
        )
    check_private_exchanges(role, plan.private)  # whatever the charter's author has checked
    return LearnerPrivacy(plan.private, plan.clip, plan.noise)


def check_fixed_encoder(privacy: LearnerPrivacy | None, features: nn.Module) -> None:
    """Refuse an encoder that training changes, where its features are shared as those of a fixed one."""
    if privacy is None or privacy.private != "fixed-encoder":
        return
    refuse_batch_statistics(features, "of your model")
    trained = [name for name, parameter in features.named_parameters() if parameter.requires_grad]
    if trained:
        raise ConfigurationError(
            f"the federation shares features of a fixed encoder (private = 'fixed-encoder'), and features.{trained[0]} "
            f"of your model is trained; freeze all parameters of its features, requires_grad=False"
        )
