"""A method: one or more roles, each with an objective and a tuple of exchanges, under a name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from consilience.config.schedules import Rate
from consilience.errors import ConfigurationError, UnknownName
from consilience.exchanges.base import Exchange, Start
from consilience.objectives import CrossEntropy, Objective
from consilience.validation import check_choice, check_integer

DevicePart = Literal["handed-on", "private"]
"""What happens to the learner's part of a model after its turn: the next learner continues with it, or it stays."""


@dataclass(frozen=True)
class Turns:
    """Learners train one after the other, all with one server, which has the upper part of the model.

    For every batch a learner uploads the output of the cut layer and the labels, and downloads the gradient of that
    output. cut: the layer after which models are cut; empty for the cut that a model has. device: what happens to the
    learner's own part, up to the cut.
    """

    cut: str = ""
    device: DevicePart = "handed-on"

    def __post_init__(self) -> None:
        check_choice("device", self.device, get_args(DevicePart))


@dataclass(frozen=True)
class Role:
    """What a learner does in a method: its local objective, its exchanges, and how it trains in a round.

    uploads, downloads: names of the exchanges to which it uploads, and of those whose answers it uses; None means all.
    A role that uploads to a moving mean without downloading still receives the common values, because its change is
    measured from them, but its model does not change. never_share: classes whose samples never enter an upload.
    sample_epsilons: privacy budgets of the samples of some classes, pairs of a class and an epsilon. data: the samples
    it trains on and uploads something of, its own or the public set. start: whether learners start with the
    same weights, made from the federation's seed, or each with its own, except what an exchange makes common. epochs,
    batch_size, lr: of local training; None means the run's setting, and 0 epochs mean no training. batch_order: which
    of many shuffles of the samples into batches a seed has; 0 is the one that all methods have. turns: how learners
    take turns at one server; None where all train at the same time. optional: names of exchanges that are left out for
    kinds of tasks that they do not serve, where others make the method refuse the task.
    """

    objective: Objective = field(default_factory=CrossEntropy)
    exchanges: tuple[Exchange, ...] = ()
    uploads: tuple[str, ...] | None = None
    downloads: tuple[str, ...] | None = None
    never_share: tuple[int | str, ...] = ()
    sample_epsilons: tuple[tuple[int | str, float], ...] = ()
    data: Literal["own", "public"] = "own"
    start: Start = "different"
    epochs: int | None = None
    batch_size: int | None = None
    lr: Rate | None = None
    batch_order: int = 0
    turns: Turns | None = None
    optional: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_integer("batch_order", self.batch_order, low=0)
        for what, low in (("epochs", 0), ("batch_size", 1)):
            if getattr(self, what) is not None:
                check_integer(what, getattr(self, what), low)
        for exchange in self.exchanges:
            check_integer(f"every of exchange {exchange.name!r}", exchange.every)
        names = [self.objective.name, *(e.name for e in self.exchanges)]
        twice = sorted({n for n in names if names.count(n) > 1})
        if twice:
            raise ConfigurationError(
                f"a role holds {twice[0]!r} twice; give one of them another name, such as "
                f"Weights(part='classifier', name='head')"
            )
        for name in (*(self.uploads or ()), *(self.downloads or ())):
            if name not in names[1:]:
                raise UnknownName("exchange", name, names[1:], of="the role")

    @property
    def uploading(self) -> frozenset[str]:
        """Names of the exchanges it uploads to."""
        names = {e.name for e in self.exchanges if type(e).contribute is not Exchange.contribute}
        return frozenset(names if self.uploads is None else names & set(self.uploads))

    @property
    def downloading(self) -> frozenset[str]:
        """Names of the exchanges whose answers it uses."""
        names = {e.name for e in self.exchanges}
        return frozenset(names if self.downloads is None else names & set(self.downloads))

    @property
    def reads_samples(self) -> bool:
        """Whether an exchange uses features, logits or targets; with weights alone none does."""
        return any(e.needs_representations or _reads_batches(e) for e in self.exchanges)

    @property
    def takes_any_model(self) -> bool:
        """Whether it needs no features: then nobody has to know which layer of a model computes the logits."""
        return not self.reads_samples and type(self.objective).modules is Objective.modules


def _reads_batches(exchange: Exchange) -> bool:
    """Whether a hook uses a mini-batch. A class outside this package that overrides one has to say itself if not."""
    lineage = type(exchange).__mro__
    said = next(i for i, each in enumerate(lineage) if "needs_batches" in vars(each))
    hooks = {"penalty", "on_batch"}
    own = any(hooks & vars(each).keys() and not each.__module__.startswith("consilience.") for each in lineage[:said])
    return own or exchange.needs_batches


@dataclass(frozen=True)
class Method:
    """A way to learn together.

    roles: in the order they act in a round. members: the roles of particular learners by number; all others have the
    `usual` ones, by default the first role. A learner of several roles runs them one after the other in a round and
    takes its model along. host: the learner whose samples are the public set; it takes part in every round. once: it
    communicates once, and all epochs of a run are those of one round. pooled: one learner has all data, the yardstick
    and not a federation. source, settings: the name or FILE.py:NAME that `build_method` made it of, and the settings,
    stored with a run so that it can be made again; empty where it was put together by hand.
    """

    name: str
    roles: Mapping[str, Role]
    members: Mapping[int, str | tuple[str, ...]] = field(default_factory=dict)
    usual: tuple[str, ...] = ()
    host: int | None = None
    once: bool = False
    pooled: bool = False
    summary: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""

    def __post_init__(self) -> None:
        if not self.roles:
            raise ConfigurationError(f"method {self.name!r} has no role")
        given = {*self.usual, *(role for who in self.members for role in self.roles_of(who))}
        strangers = sorted(given - set(self.roles))
        if strangers:
            raise ConfigurationError(
                f"method {self.name!r} gives members the role {strangers[0]!r}, which it does not have; its roles are "
                f"{', '.join(self.roles)}"
            )
        public = [name for name, role in self.roles.items() if role.data == "public"]
        if public and self.host is None:
            raise ConfigurationError(
                f"method {self.name!r}: role {public[0]!r} works on the public set; say whose samples "
                f"these are, such as host=0"
            )

    def roles_of(self, learner: int) -> tuple[str, ...]:
        """The roles of a learner by its number, in the order it runs them."""
        usual = self.usual or tuple(self.roles)[:1]
        roles = self.members.get(learner, usual)
        named = {roles} if isinstance(roles, str) else set(roles)
        return (*(role for role in self.roles if role in named), *sorted(named - set(self.roles)))

    def role_of(self, learner: int) -> str:
        """The first role of a learner by its number: its model is there between rounds."""
        return self.roles_of(learner)[0]

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """Every exchange of every role."""
        return tuple(e for role in self.roles.values() for e in role.exchanges)

    def describe_upload(self) -> str:
        """What leaves a learner, in a few words."""
        if self.pooled:
            return "all data"
        parts: dict[str, str] = {}
        for name, role in self.roles.items():
            whose = f"of the {name}: " if self.usual and name not in self.usual else ""
            if role.turns is not None:
                parts["turns"] = "the cut layer's output and the label of every sample, in every epoch" + (
                    "; the weights up to the cut" if role.turns.device == "handed-on" else ""
                )
            given = [e for e in role.exchanges if e.name in role.uploading]
            for e in (e for e in given if e.scope == "everybody"):
                parts.setdefault(e.name, f"{whose}{e.describe_upload()}")
        return "; ".join(parts.values()) or "nothing"
