"""The frozen part of models of which trained parameters are shared: a charter has its SHA-256, and members compare it.

Adapters and whatever else is trained beside one frozen part do not fit beside another one. Means of features and logits
do: members that share these may have any models.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from consilience.errors import ConfigurationError
from consilience.exchanges.base import Exchange
from consilience.learner.learner import Learner
from consilience.learner.private_uploads import traveling
from consilience.models import SplitModel
from consilience.models.frozen import frozen_parameters, frozen_parameters_digest
from consilience.task import TRAINED, Task, names_in_part
from consilience.wire.charter import Charter

_HALVES = ("features", "classifier")


def agreed_digests(learners: Sequence[Learner]) -> dict[str, str]:
    """The digests of a charter, by channel; refuses models of which one channel cannot have the same."""
    first: dict[str, tuple[str, str]] = {}
    for learner in learners:
        mine = learner.task.model
        for name, digest in _digests(learner.model, learner.task, traveling(learner.exchanges)).items():
            known, other = first.setdefault(name, (digest, mine))
            if digest != known:
                raise ConfigurationError(
                    f"{other} and {mine} cannot share {name!r}: their frozen parts (requires_grad=False) differ, "
                    f"SHA-256 {_short(known)} and {_short(digest)}; freeze the same parameters, with the same values, "
                    f"in both, or share prototypes or logits"
                )
    return {name: digest for name, (digest, _) in first.items()}


def check_frozen_part(
    charter: Charter, whose: str, model: SplitModel, task: Task, exchanges: Iterable[Exchange]
) -> None:
    """Refuse a model whose frozen part is not that of the charter, for each channel that names one."""
    named = {name: settings.frozen_sha256 for name, settings in charter.channel_settings.items()}
    for name, found in _digests(model, task, [e for e in exchanges if named.get(e.name)]).items():
        if found != named[name]:
            raise ConfigurationError(
                f"{whose} cannot share {name!r} in federation {charter.name!r}: its frozen part (requires_grad=False) "
                f"is not the one that the federation was created with, SHA-256 {_short(found)} instead of "
                f"{_short(named[name])}, and what others train beside theirs does not fit beside yours. Load the "
                f"pretrained model that the federation's creator names, in the same revision and precision, and freeze "
                f"the same parameters; values drawn at random must be loaded from a file too. Where another frozen "
                f"part is meant, such as a quantized copy, ask for a charter without `frozen_sha256`"
            )


def _digests(model: SplitModel, task: Task, exchanges: Iterable[Exchange]) -> dict[str, str]:
    """By exchange that shares parameters of the model, SHA-256 of the frozen ones beside them; empty without any."""
    frozen = frozen_parameters(model)
    sharing = [e for e in exchanges if e.channel(task).tensors.keys() & task.parameters.keys()]
    beside = {e.name: _beside(str(getattr(e, "part", TRAINED)), task, frozen) for e in sharing}
    return {name: frozen_parameters_digest({n: frozen[n] for n in names}) for name, names in beside.items()}


def _beside(part: str, task: Task, frozen: Iterable[str]) -> list[str]:
    """The frozen parameters beside which a part is trained: all, but for one of the two parts of a model its own.

    A part such as the classifier may be shared by models whose other parts have different architectures.
    """
    if part in task.parts:
        return [name for name in frozen if name in task.parts[part]]
    return names_in_part(part, frozen) if part in _HALVES else list(frozen)


def _short(digest: str) -> str:
    return digest[:16] or "of nothing"
