"""The methods of a trial: two ways of learning alone, the method asked about, and two others that fit the bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from consilience.config.config import Config
from consilience.config.network import NetworkConfig
from consilience.config.overrides import parse_method
from consilience.config.parts import EvaluationConfig
from consilience.config.privacy import PrivacyConfig
from consilience.errors import ConfigurationError
from consilience.exchanges import Exchange
from consilience.exchanges.averaging import AveragingExchange
from consilience.learner.learner import Learner
from consilience.learner.split_messages import message_bytes
from consilience.method import Method
from consilience.methods import build_method
from consilience.presentation.gains import ALONE, BATCH_ORDER
from consilience.presentation.trial import WITH_ITSELF, LeftOut
from consilience.simulation.compare import config_for_method
from consilience.simulation.setup.setup import Setup
from consilience.task import TaskKind

CONTROL = f"{ALONE}:{BATCH_ORDER}=1"
"""Learning alone with another order of batches: what differs by chance."""
LONGER = 2
"""How many times as long a learner alone may train: it waits for nobody and sends nothing."""
ALONE_LONGER, ALONE_WITH_ITSELF = f"{ALONE} for {LONGER} times as long", f"{{name}}{WITH_ITSELF}"
"""Names of further ways of learning alone. What helps without others is no reason to work together: longer training, or
the regularization of an exchange whose only member is the learner."""
WHOLE_MODELS = ("fedavg", "fedavg:up=int8:down=int8", "fedavg-1bit")
"""Alternatives that share all weights, the most exact first."""
SMALL_MESSAGES = (
    "representation-sharing",
    "representation-sharing:encoding=float16",
    "fedproto:encoding=float16",
    "federated-distillation",
    "federated-distillation:encoding=float16",
)
"""Alternatives that share small tensors of each class, for which models may differ. Federated distillation is the last:
the mean of logits also regularizes learners whose labels have nothing to do with each other."""
VALIDATION = 0.2
"""What a learner holds out of the rest of its samples where its method chooses by them, unless the settings say."""


@dataclass(frozen=True, eq=False)  # comparing by value would compare whole arrays
class Candidate:
    """A method of the trial, set up, and the bytes of a learner's largest messages in a round."""

    name: str  # of the method with its settings, or of a way of learning alone
    config: Config
    method: Method
    setup: Setup
    up: int
    down: int

    @property
    def bytes(self) -> int:
        """What a learner sends and receives in a round, at most."""
        return self.up + self.down

    @property
    def has_own_answer(self) -> bool:
        """Whether its learners have an answer for data like their own beside the common one."""
        return any(plan.spec.role.objective.has_own_answer for plan in self.setup.cohorts.plans)


@dataclass(frozen=True)
class Candidates:
    """What is tried: ways of learning alone, the control, methods of working together; and what is not."""

    alone: tuple[Candidate, ...]
    control: Candidate
    together: tuple[Candidate, ...]
    left_out: tuple[LeftOut, ...]

    @property
    def all(self) -> tuple[Candidate, ...]:
        """Every method that is run, learning alone first."""
        return (*self.alone, self.control, *self.together)


@dataclass(frozen=True)
class SetUp:
    """Sets a method up for the learners of the trial; refuses one that does not fit them. kind: of their task."""

    build: Callable[[Config, Method], Setup]
    kind: TaskKind


def find_candidates(config: Config, asked: str, set_up: SetUp, budget: int | None) -> Candidates:
    """The methods to try. asked: the one asked about. budget: the most bytes of a learner in a round."""
    alone = _candidate(config, ALONE, set_up)  # what is wrong with data or models is refused here
    _check_asked(_build(asked))
    left_out: list[LeftOut] = []
    together: list[Candidate] = []
    known: list[Candidate] = []
    for names in ((asked,), WHOLE_MODELS, SMALL_MESSAGES):
        fitting = _fitting(config, [n for n in names if n != asked or names == (asked,)], set_up, left_out)
        known += fitting
        affordable = [each for each in fitting if budget is None or each.bytes <= budget]
        together += affordable[:1]
        if fitting and fitting[0] not in affordable:
            left_out.append(LeftOut(fitting[0].name, fitting[0].bytes))
    if not known:
        raise ConfigurationError(f"no method fits these learners; {left_out[0].method}: {left_out[0].reason}")
    if not together:
        least = min(known, key=lambda each: each.bytes)
        raise ConfigurationError(
            f"bytes_per_round is {budget}, and the method with the smallest messages for these models, {least.name}, "
            f"sends and receives {least.bytes} bytes per learner and round; allow {least.bytes} or more, or choose a "
            f"smaller model"
        )
    longer = replace(alone, name=ALONE_LONGER, config=alone.config.replace(**_longer(alone.config)))
    ways = (alone, longer, *(_with_itself(each, set_up) for each in together if _may_be_alone(each.method)))
    return Candidates(ways, _candidate(config, CONTROL, set_up), tuple(together), tuple(left_out))


def _longer(config: Config) -> dict[str, int]:
    rounds = LONGER * config.training.rounds
    return {"rounds": rounds, "eval_every": rounds}


def _may_be_alone(method: Method) -> bool:
    """Whether every exchange of a method also works with one member, the learner itself."""
    return bool(method.exchanges) and all(isinstance(each, AveragingExchange) for each in method.exchanges)


def _with_itself(candidate: Candidate, set_up: SetUp) -> Candidate:
    """The same method, but everybody receives only what it has sent itself, which need not be sent."""
    roles = {
        name: replace(role, exchanges=tuple(map(_with_one_member, role.exchanges)))
        for name, role in candidate.method.roles.items()
    }
    method = replace(candidate.method, roles=roles, source="", settings={})
    name = ALONE_WITH_ITSELF.format(name=candidate.name)
    config = _without_others(candidate.config)
    return replace(candidate, name=name, config=config, method=method, setup=set_up.build(config, method), up=0, down=0)


def _fitting(config: Config, names: Sequence[str], set_up: SetUp, left_out: list[LeftOut]) -> list[Candidate]:
    """The methods that fit the learners; the first of those that do not, with the reason, goes to `left_out`."""
    found = []
    for name in names:
        try:
            found.append(_candidate(config, name, set_up))
        except ConfigurationError as error:
            if name == names[0]:
                left_out.append(LeftOut(name, reason=str(error)))
    return found


def _with_one_member(exchange: Exchange) -> Exchange:
    own: Exchange = replace(exchange, scope="oneself")  # type: ignore[type-var]  # exchanges are dataclasses
    return own


def _candidate(config: Config, name: str, set_up: SetUp) -> Candidate:
    own = config_for_method(config, name)
    method = build_method(own.method.name, own.method.settings)
    share = config.evaluation.validation or VALIDATION
    evaluation = EvaluationConfig.defaults().model_copy(
        update={"every": config.training.rounds, "validation": share if chooses(method, set_up.kind) else 0.0}
    )
    own = own.model_copy(update={"evaluation": evaluation})
    own = _without_others(own) if own.method.name == ALONE else own
    setup = set_up.build(own, method)
    sizes = [message_bytes(Learner(plan.spec), plan.work.batch_size) for plan in setup.cohorts.plans]
    up, down = (max(size[way] for size in sizes) for way in ("up", "down"))
    return Candidate(name, own, method, setup, up, down)


def _without_others(config: Config) -> Config:
    """The settings of a learner alone, who has no partners and uploads nothing that would be noised."""
    return config.model_copy(update={"network": NetworkConfig.defaults(), "privacy": PrivacyConfig.defaults()})


def chooses(method: Method, kind: TaskKind = "single-label") -> bool:
    """Whether learners of a method choose by samples that they hold out, for tasks of this kind."""
    objectives = [role.objective.for_kind(kind) for role in method.roles.values()]
    return any(each.for_held_out(True) != each.for_held_out(False) for each in objectives)


def _build(name: str) -> Method:
    given = parse_method(name)
    return build_method(given.pop("name"), given)


def _check_asked(method: Method) -> None:
    """Refuse methods whose learners have no answer of their own to held-out samples, or that do not work together."""
    if method.pooled or method.describe_upload() == "nothing":
        raise ConfigurationError(
            f"method {method.name!r} does not let learners work together, so there is nothing to advise about; name "
            f"one that does, such as consilience"
        )
    if not all(role.objective.labeled for role in method.roles.values()) or method.host is not None:
        raise ConfigurationError(
            f"method {method.name!r} learns without labels or with a public set, and advice counts right answers to "
            f"samples that learners hold out; name a method that learns from labels, such as consilience, or compare "
            f"it: consilience compare --methods independent:objective=simclr,{method.name}"
        )
