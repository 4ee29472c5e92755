"""Checks before the first round: roles, models and data that do not fit together are refused."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from consilience.config.config import Config
from consilience.data import Dataset
from consilience.errors import ConfigurationError, ConsilienceError
from consilience.evaluation.classification import TOP
from consilience.input_fields import InputFields
from consilience.kinds import kind_of
from consilience.learner.learner import Learner
from consilience.learner.passes import layer_outputs
from consilience.method import Method
from consilience.models import from_file
from consilience.models.frozen import frozen_digest, frozen_tensors
from consilience.models.nets.lstm import Characters
from consilience.objectives import Objective
from consilience.simulation.engines.cohort import Members
from consilience.simulation.setup.participants import Participant
from consilience.simulation.setup.variants import Variants
from consilience.wire import schema
from consilience.wire.agreement import describe_difference, without_local_choices
from consilience.wire.robustness import PLAIN, Robustness

_MAX_CONFUSED = 100  # classes of a confusion matrix
_OFF = 0.01  # how far pixels may lie outside 0 to 1, because of rounding


def check_roles(method: Method, learners: int) -> None:
    """Refuse roles of learners that do not exist, and roles that no learner has."""
    unknown = sorted(who for who in method.members if not 0 <= who < learners)
    if unknown:
        raise ConfigurationError(
            f"method {method.name!r} gives learner {unknown[0]} a role; there are learners 0 to {learners - 1}"
        )
    if method.host is not None and not 0 <= method.host < learners:
        raise ConfigurationError(
            f"method {method.name!r} uses the samples of learner {method.host} as its public set; there are "
            f"learners 0 to {learners - 1}"
        )
    if method.host is not None and learners < 2:
        raise ConfigurationError(
            f"method {method.name!r} needs at least two learners: the samples of one are the public set"
        )
    unused = set(method.roles) - {role for who in range(learners) for role in method.roles_of(who)}
    if unused:
        raise ConfigurationError(f"method {method.name!r}: none of {learners} learners has the role {min(unused)!r}")


def check_ensemble(ensemble: str, method: Method, variants: Variants) -> None:
    """Refuse an ensemble of classifiers that are not trained."""
    if ensemble == "on" and not variants.labeled:
        raise ConfigurationError(
            f"ensemble is 'on', but not all learners of method {method.name!r} learn from labels: the mean of "
            f"untrained classifiers predicts nothing; leave ensemble out, or set it to 'off'"
        )


def check_validation(share: float, method: Method, accuracy_source: str) -> None:
    """Refuse validation where nothing predicts classes."""
    if share and accuracy_source == "nothing":
        raise ConfigurationError(
            f"validation is {share}, but not all learners of method {method.name!r} learn from labels, and probe is "
            f"'none', so nothing predicts the classes of held-out samples; leave probe or validation out"
        )


def check_metrics(metrics: Sequence[str], method: Method, variants: Variants, data: Dataset) -> None:
    """Refuse measures of classifiers that are not trained, and of more or fewer classes than they are for."""
    if metrics and not variants.labeled:
        raise ConfigurationError(
            f"metrics is {', '.join(metrics)}, but not all learners of method {method.name!r} learn from labels: they "
            f"measure the classifier, which is not trained; leave metrics out"
        )
    if metrics and data.kind != "single-label":
        scores = [kind_of(data.target).metric.name, *kind_of(data.target).further_names]
        raise ConfigurationError(
            f"metrics is {', '.join(metrics)}, which are of classes, and data set {data.name!r} is for {data.kind}, "
            f"whose scores, {' and '.join(scores)}, are always recorded; leave metrics out"
        )
    classes = data.classes
    if "top5" in metrics and classes <= TOP:
        raise ConfigurationError(
            f"metrics names top5, and the data has {classes} classes: it would always be 100 %; leave it out"
        )
    if "confusion" in metrics and classes > _MAX_CONFUSED:
        raise ConfigurationError(
            f"metrics names confusion, and the data has {classes} classes: every line of the metrics would have "
            f"{classes * classes:,} more numbers; it is for up to {_MAX_CONFUSED} classes"
        )


def check_kind(config: Config, data: Dataset) -> None:
    """Refuse settings that need a class per sample where samples have none."""
    if data.kind == "single-label":
        return
    network = config.network
    for key, wants in (("partners", network.partners.startswith("useful")), ("choose", network.choose == "useful")):
        if wants:
            raise ConfigurationError(
                f"{key} is {getattr(network, key)!r}, which compares validation samples with class means, and "
                f"data set {data.name!r} is for {data.kind}; use similar partners or relevant observations"
            )
    if config.evaluation.probe not in ("auto", "none"):
        raise ConfigurationError(
            f"probe is {config.evaluation.probe!r}, a classifier of features, and data set {data.name!r} is for "
            f"{data.kind}; leave probe out"
        )


def check_width(learner: Learner, width: int | None) -> None:
    """Refuse a model whose features do not have the width that was asked for."""
    if width not in (None, learner.task.width):
        raise ConfigurationError(
            f"width is {width}, and model {learner.task.model!r} has features of width {learner.task.width}; build it "
            f"with that width, or leave width out"
        )


def min_batch_size(learner: Learner, members: Members, participant: Participant, data: Dataset) -> int:
    """Two if the model has BatchNorm or the objective contrasts samples, else one.

    Refuses a learner that cannot fill such a batch.
    """
    name = learner.task.model
    if learner.task.classes != data.classes:
        if data.kind == "single-label":
            raise ConfigurationError(
                f"model {name!r} predicts {learner.task.classes} classes, the data has {data.classes}; end it with a "
                f"linear layer of {data.classes} outputs"
            )
        raise ConfigurationError(
            f"model {name!r} has {learner.task.classes} outputs, and {data.kind} of data set {data.name!r} needs "
            f"{data.classes}; end it with a linear layer of {data.classes} outputs"
        )
    _check_text(learner, data)
    if data.fields is not None:
        _check_fields(learner, participant.role.objective, data.fields)
    _check_features(learner, data)
    _check_views(learner, participant, data)
    norms = [m for m in learner.model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    normalizes = any(norm not in learner.modules.frozen_norms for norm in norms)
    if not participant.epochs or not (normalizes or participant.role.objective.compares_samples):
        return 1
    why, hint = f"BatchNorm in model {name!r}", "choose a model without BatchNorm"
    if participant.role.objective.compares_samples:
        why, hint = f"objective {participant.role.objective.name!r}", participant.role.objective.small_batch_hint
    single = np.flatnonzero(members.sizes < 2)
    if single.size:
        raise ConfigurationError(
            f"learner {members.learner[single[0]]} has one sample{_held_out(members, int(single[0]))}, and {why} needs "
            f"two; give it more data or {hint}"
        )
    if participant.batch_size < 2:
        raise ConfigurationError(
            f"batch_size is {participant.batch_size}, and {why} needs at least 2 samples in a batch; use larger "
            f"batches or {hint}"
        )
    return 2


def _held_out(members: Members, row: int) -> str:
    """How many samples a learner holds out for validation, for an error that it has too few."""
    count = 0 if members.validation is None else len(members.validation[row])
    return f" to train on, with {count} held out for validation" if count else ""


def _check_text(learner: Learner, data: Dataset) -> None:
    """Refuse a model that embeds characters if the data is not text, or has more characters than the model."""
    name = learner.task.model
    for layer in learner.model.modules():
        if isinstance(layer, Characters) and not data.alphabet:
            raise ConfigurationError(
                f"model {name!r} reads text, and data set {data.name!r} is not text; use model 'mlp', or data such as "
                f"'shakespeare' or Dataset.from_text"
            )
        if isinstance(layer, Characters) and len(data.alphabet) > layer.num_embeddings:
            raise ConfigurationError(
                f"model {name!r} knows {layer.num_embeddings} characters, one for each class, and data set "
                f"{data.name!r} has {len(data.alphabet)}; the model is for predicting the next character"
            )


def _check_fields(learner: Learner, objective: Objective, fields: InputFields) -> None:
    """Refuse what changes the samples of a mini-batch, where a sample has several fields."""
    if learner.spec.augmentation is not None:
        raise ConfigurationError(
            f"augment changes single arrays, and the data has the fields {fields.describe()}; leave it out, or "
            f"augment in the model's forward while it is in training mode"
        )
    if not objective.labeled:
        raise ConfigurationError(
            f"objective {objective.name!r} makes views of images, and the data has the fields {fields.describe()}; "
            f"give the images alone, or learn with labels"
        )


@torch.no_grad()
def _check_features(learner: Learner, data: Dataset) -> None:
    """Refuse a model that fails on the data's inputs, or whose features do not fit its classifier."""
    task, inputs = learner.task, torch.zeros(2, *learner.task.inputs, dtype=learner.dtype).to(learner.device)
    try:
        with torch.random.fork_rng(devices=[]):  # dropout uses random numbers
            for training in (True, False):
                learner.modules.set_training(training)
                features = learner.model.features(inputs)
                _check_unchanged(learner)
    except ConsilienceError:
        raise
    except Exception as error:  # the user's own code may raise anything
        message = str(error) if isinstance(error, RuntimeError | ValueError | IndexError) else from_file.failure(error)
        raise ConfigurationError(
            f"model {task.model!r} cannot take inputs of {data.describe_shape()}: {message}"
        ) from error
    if features.shape != (2, task.width):
        raise ConfigurationError(
            f"model {task.model!r}: its features have the shape {tuple(features.shape[1:])} for an input, and its "
            f"classifier expects ({task.width},); end the features with a layer of that shape"
        )


def _check_unchanged(learner: Learner) -> None:
    """Refuse a model whose forward pass changes a frozen buffer, which all learners share."""
    if frozen_digest(frozen_tensors(learner.model)) != learner.modules.frozen_sha256:
        raise ConfigurationError(
            f"model {learner.task.model!r} changes a buffer of its frozen part (requires_grad=False) when it runs, and "
            f"all learners share that part; leave such buffers unchanged there, or unfreeze the module"
        )


def check_watched(learner: Learner, layer: str) -> None:
    """Refuse a watched layer that does not exist, is not run, or has no output for each sample."""
    inputs = torch.zeros(2, *learner.task.inputs, dtype=learner.dtype, device=learner.device)
    layer_outputs(learner, inputs, [layer])


def _check_views(learner: Learner, participant: Participant, data: Dataset) -> None:
    """Refuse inputs that the objective cannot augment, unless nothing is trained."""
    if participant.epochs:
        objective = participant.role.objective
        inputs = torch.zeros(2, *learner.task.inputs, dtype=learner.dtype, device=learner.device)
        objective.prepare(learner.task, inputs, inputs.new_zeros(objective.batch_draws, 2))
        if learner.spec.augmentation is not None:
            _check_augmentation(learner, objective, inputs)
        mean, std = data.scaling.of_pixels
        if objective.labeled or data.stream is not None:
            return
        low, high = (float(value * std + mean) for value in (data.inputs.min(), data.inputs.max()))
        if not -_OFF <= low <= high <= 1 + _OFF:
            raise ConfigurationError(
                f"objective {objective.name!r} makes views of images, whose pixels lie in 0 to 1; those of data set "
                f"{data.name!r} lie in {low:.3g} to {high:.3g}: store them as bytes, or as fractions from 0 to 1"
            )


def _check_augmentation(learner: Learner, objective: Objective, inputs: Tensor) -> None:
    """Refuse an augmentation that the inputs do not suit, or that an objective without labels would repeat."""
    augmentation = learner.spec.augmentation
    assert augmentation is not None
    if not objective.labeled:
        raise ConfigurationError(
            f"augment is for training with labels, and objective {objective.name!r} makes views of its own; leave "
            f"augment out"
        )
    with torch.random.fork_rng(devices=[]):  # a transform of the user's own draws random numbers
        augmentation(learner.task, inputs, inputs.new_zeros(augmentation.draws, 2))


def check_channels(learners: Sequence[Learner], who: Sequence[int]) -> None:
    """Refuse learners whose exchanges ask for different channels under one name."""
    first: dict[str, int] = {}
    for i, learner in enumerate(learners):
        for name, channel in learner.channels.items():
            j = first.setdefault(name, i)
            other = learners[j].channels[name]
            if without_local_choices(channel) != without_local_choices(other):
                difference = describe_difference(other, channel)
            elif _robustness(channel) != _robustness(other):
                difference = "one counts every learner once and the other does not; give both the same weighting"
            else:
                continue
            a, b = learners[j].task, learner.task
            raise ConfigurationError(
                f"learners {who[j]} ({a.model}, d' = {a.width}) and {who[i]} ({b.model}, d' = {b.width}) cannot share "
                f"{name!r}: {difference}. {_hint(learner, name)}"
            )


def _robustness(channel: schema.Channel) -> Robustness:
    """How the exchange itself wants uploads aggregated, before the run's settings."""
    return channel.robustness if isinstance(channel, schema.Mean) else PLAIN


def check_turns(learners: Sequence[Learner], who: Sequence[int], attacks: Collection[int]) -> None:
    """Refuse learners of one federation that take turns at one server with different models or settings."""
    taking = [i for i, learner in enumerate(learners) if learner.role.turns is not None]
    if not taking:
        return
    if len(learners) > 1:
        a, b = taking[0], next(i for i in range(len(learners)) if i != taking[0])
        raise ConfigurationError(
            f"learners {who[a]} and {who[b]} take turns at one server and differ in the model, the batch size, the "
            f"epochs or the method's settings; give all learners the same"
        )
    if attacks:
        raise ConfigurationError(
            f"learner {min(attacks)} has an attack on what it uploads to a channel, and split learning has no "
            f"channels; leave attack out, or choose another method"
        )


def _hint(learner: Learner, name: str) -> str:
    """What to do about it: the hint of the exchange, or leaving it out."""
    exchange = next(e for e in learner.role.exchanges if e.name == name)
    return f"{exchange.mismatch_hint}, or a group that should not take part in it leaves it out with exchanges = [...]"
