"""The privacy of a simulation: the plan of its budget, and what cannot be private is refused here."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from itertools import count, islice

import numpy as np
import torch
from torch import nn

from consilience.config.config import Config
from consilience.errors import ConfigurationError
from consilience.exchanges.averaging import AveragingExchange
from consilience.exchanges.base import Exchange
from consilience.learner.learner import Learner
from consilience.learner.private_uploads import LearnerPrivacy, traveling
from consilience.method import Role
from consilience.privacy.plan import PrivacyPlan
from consilience.simulation.setup.participants import Participant
from consilience.task import TRAINED

log = logging.getLogger("consilience")


def uploaded(role: Role) -> list[Exchange]:
    """The exchanges of a role whose uploads leave the learner."""
    return [e for e in traveling(role.exchanges) if e.name in role.uploading]


def upload_rounds(role: Role) -> Iterator[int]:
    """The rounds in which a role uploads anything, without end; 0 is before the first."""
    due = uploaded(role)
    if any(e.uploads_before_training for e in due):
        yield 0
    for round_ in count(1) if due else ():
        if any(round_ % e.every == 0 for e in due):
            yield round_


def plan_privacy(config: Config, participants: Sequence[Participant]) -> PrivacyPlan | None:
    """The plan of a private run; None where nothing is private, or nothing leaves any learner."""
    asked, rounds = config.privacy, config.training.rounds
    if asked.private == "none":
        return None
    _refuse_other_ways_out(participants, asked.private)
    refuse_several_roles([each.learner for each in participants], asked.private)
    _refuse_choice_by_samples(config)
    planned: dict[int, int] = {}
    for each in participants:
        own = sum(1 for _ in _until(upload_rounds(each.role), rounds))
        planned[each.learner] = planned.get(each.learner, 0) + own
    most, sent = max(planned.values()), [e for each in participants for e in uploaded(each.role)]
    if not most:
        return None
    assert asked.epsilon is not None
    releases = asked.private == "upload" or any(isinstance(e, AveragingExchange) for e in sent)
    return PrivacyPlan(asked.private, asked.epsilon, asked.delta, asked.clip, asked.uploads or most, releases)


def learner_privacy(
    plan: PrivacyPlan | None, participant: Participant, sizes: Sequence[int] | np.ndarray
) -> LearnerPrivacy | None:
    """What the learners of a cohort do; sizes: how many samples they have. None where they upload nothing."""
    if plan is None or not uploaded(participant.role):
        return None
    small = int(min(sizes))
    if plan.delta >= 1 / small:
        log.warning(
            "delta is %g, and a learner has %d samples: a mechanism that publishes one of them would be as private; "
            "use a delta well below %.1g",
            plan.delta, small, 1 / small,
        )  # fmt: skip
    if plan.private != "training":
        return LearnerPrivacy(plan.private, plan.clip, plan.noise)
    (last,) = islice(upload_rounds(participant.role), plan.uploads - 1, plan.uploads)
    batch, steps = participant.batch_size, {}
    for size in {int(size) for size in sizes}:
        steps[size] = plan.for_steps(size, batch, last * participant.epochs * -(-size // batch))
    if not all(step.planned for step in steps.values()) and not plan.releases:
        raise ConfigurationError(
            f"private is 'training', and role {participant.role_name!r} uploads without a private step or class mean "
            f"before: its epsilon would be 0 whatever it sends; let it train, or use private='upload'"
        )
    return LearnerPrivacy(plan.private, plan.clip, plan.noise, steps)


def check_private(learner: Learner) -> None:
    """Refuse a learner whose uploads the mechanism does not make private."""
    privacy = learner.spec.privacy
    if privacy is None or privacy.private == "upload":
        return
    check_private_exchanges(learner.role, privacy.private)
    _refuse_several_groups(learner, privacy.private)
    if privacy.private == "training":
        _refuse_coupled_samples(learner)
    else:
        _refuse_trained_encoder(learner)


def _refuse_several_groups(learner: Learner, private: str) -> None:
    """Refuse means in several of which one sample counts: noise is computed for one."""
    means = [e.name for e in uploaded(learner.role) if isinstance(e, AveragingExchange)]
    if means and learner.task.target.kind == "multi-label":
        raise ConfigurationError(
            f"private is {private!r}, and in multi-label tasks a sample counts in the mean of each of its labels, so "
            f"that the noise of exchange {means[0]!r}, which is for one mean, would be too little; use "
            f"private='upload', or a method that shares weights alone, such as fedavg"
        )


def _until(rounds: Iterator[int], last: int) -> Iterator[int]:
    for round_ in rounds:
        if round_ > last:
            return
        yield round_


def _refuse_other_ways_out(participants: Sequence[Participant], private: str) -> None:
    """Refuse methods that send more than what exchanges upload, or train in several roles with private steps."""
    for each in participants:
        if each.role.turns is not None:
            raise ConfigurationError(
                f"private is {private!r}, and split learning sends the cut layer's output of every sample and its "
                f"class, without noise; choose a method that uploads once per round, such as fedavg or fedproto"
            )
        if private != "upload" and each.role.data == "public":
            raise ConfigurationError(
                f"private is {private!r}, and role {each.role_name!r} shares what models say of a public set; it can "
                f"be private with private='upload'"
            )


def refuse_several_roles(learners: Sequence[int], private: str) -> None:
    """Refuse learners that act in several roles, by their numbers, where steps or features are accounted for one."""
    twice = sorted({number for number in learners if learners.count(number) > 1})
    if private in ("training", "fixed-encoder") and twice:
        raise ConfigurationError(
            f"private is {private!r}, and learner {twice[0]} has several roles: the steps and releases of one alone "
            f"would be counted; use private='upload', or a method with one role for each learner"
        )


def _refuse_choice_by_samples(config: Config) -> None:
    """Refuse what is chosen by a learner's own samples: whom it asks, or for what, would reveal something of them."""
    if config.network.partners.startswith("useful"):
        raise ConfigurationError(
            f"private is {config.privacy.private!r}, and partners is {config.network.partners!r}: learners would "
            f"choose by their validation samples whom they ask, without noise; use partners='similar(K)', which "
            f"compares what was uploaded, or lists"
        )
    if config.network.choose == "useful":
        raise ConfigurationError(
            f"private is {config.privacy.private!r}, and choose is 'useful': learners would choose by their validation "
            f"samples which observations they ask for, without noise; use choose='relevant', which compares what was "
            f"uploaded, or 'random'"
        )


def check_private_exchanges(role: Role, private: str) -> None:
    """Refuse exchanges whose upload neither is class means nor uses parameters alone, or that couple samples."""
    if private == "upload":
        return
    if private == "training":
        _refuse_coupling_exchanges(role)
    for e in uploaded(role):
        if e.has_round_start or e.has_batch_hook or (e.needs_representations and not isinstance(e, AveragingExchange)):
            raise ConfigurationError(
                f"private is {private!r}, and the upload of exchange {e.name!r} depends on single samples in a way "
                f"that has no known bound; use private='upload', or a method such as fedproto or fedavg"
            )
        if private == "fixed-encoder" and not (isinstance(e, AveragingExchange) and e.feature_tensors):
            raise ConfigurationError(
                f"private is 'fixed-encoder', and exchange {e.name!r} uploads what was trained on the samples; use "
                f"private='training', or a method that shares mean features alone, such as fedproto"
            )


def _refuse_coupling_exchanges(role: Role) -> None:
    """Refuse exchanges through which a sample's gradient depends on other samples, whether they upload or not."""
    for e in role.exchanges:
        hooks = e.has_round_start or e.has_batch_hook
        own = e.scope != "everybody" and e.name in role.downloading and (e.weight != 0 or e.changes_model)
        if hooks or own:
            what = "looks at all samples before steps" if hooks else "keeps values of the samples without noise"
            raise ConfigurationError(
                f"private is 'training', and exchange {e.name!r} {what}, so that a sample's gradient depends on the "
                f"others; use private='upload', or scope='everybody' and a method such as fedproto or fedavg"
            )


def _refuse_coupled_samples(learner: Learner) -> None:
    """Refuse learners of which a sample's gradient depends on other samples."""
    objective, model = learner.role.objective, learner.task.model
    parts = [learner.model, *(part for extra in learner.modules.extra.values() for part in extra.values())]
    normalizes = any(isinstance(m, nn.modules.batchnorm._BatchNorm) for part in parts for m in part.modules())
    if normalizes:
        raise ConfigurationError(
            f"private is 'training', and model {model!r} has BatchNorm, which mixes the samples of a batch: no sample "
            f"has a gradient of its own; use a model without it, such as lenet5 or mlp, or private='upload'"
        )
    if objective.compares_samples or objective.layers or not objective.labeled:
        raise ConfigurationError(
            f"private is 'training', and objective {objective.name!r} compares samples: no sample has a gradient of "
            f"its own; use private='upload', or objective=cross-entropy"
        )
    if objective.init_state(learner.task, torch.ones(learner.task.classes)):
        raise ConfigurationError(
            "private is 'training', and the method's loss is calibrated by the class shares of all samples of a "
            "learner: a sample's gradient depends on the others; set the method's objective=cross-entropy, or use "
            "private='upload'"
        )


def _refuse_trained_encoder(learner: Learner) -> None:
    """Refuse a model whose features training changes."""
    model = learner.task.model
    trained = [n for n in learner.task.covered(TRAINED, learner.task.parameters) if n.startswith("features.")]
    if trained:
        raise ConfigurationError(
            f"private is 'fixed-encoder', and training changes the encoder of model {model!r}: "
            f"{trained[0]} is not frozen; give a model whose features have requires_grad=False, with weights "
            f"that never saw the learners' data, or use private='training'"
        )
    refuse_batch_statistics(learner.model.features, f"of model {model!r}")


def refuse_batch_statistics(features: nn.Module, whose: str) -> None:
    """Refuse an encoder in which BatchNorm follows the samples when it is trained, or always uses those of a batch."""
    modes = {module: module.training for module in features.modules()}
    features.train()
    normalizing = [m for m in modes if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    mixes = any(m.training or m.running_mean is None for m in normalizing)
    for module, mode in modes.items():
        module.training = mode
    if mixes:
        raise ConfigurationError(
            f"private is 'fixed-encoder', and BatchNorm in the encoder {whose} follows the samples, or mixes those of "
            f"a batch; let its train() keep it in evaluation mode, with track_running_stats=True, or use a model "
            f"without it"
        )
