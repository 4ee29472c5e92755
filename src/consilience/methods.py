"""The methods by name. Each is a function of its settings; the docstring's first line is what `methods` lists."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from consilience.checks import number
from consilience.encodings import BIT, ENCODINGS, FLOAT16, Encoding
from consilience.errors import ConfigurationError, UnknownName
from consilience.exchanges import Exchange, Logits, Observations, Prototypes, Weights
from consilience.exchanges.base import Scope, Start
from consilience.exchanges.observations import Discriminator
from consilience.exchanges.weights import Buffers
from consilience.method import Method, Role
from consilience.schedules import Schedule, scheduled

Settings = Mapping[str, Any]
METHODS: dict[str, Callable[..., tuple[Exchange, ...]]] = {}
_POOLED = {"centralized"}


def method(make: Callable[..., tuple[Exchange, ...]]) -> Callable[..., tuple[Exchange, ...]]:
    """Enter a function that gives a method's exchanges into the list of methods."""
    METHODS[make.__name__.replace("_", "-")] = make
    return make


@method
def centralized() -> tuple[Exchange, ...]:
    """One learner holds all data: the yardstick, not a federation."""
    return ()


@method
def independent() -> tuple[Exchange, ...]:
    """Everybody learns alone."""
    return ()


@method
def alone(kd: float = 10.0, contrast: float = 1.0, n_avg: int = 10) -> tuple[Exchange, ...]:
    """Representation sharing with oneself only: the control for mere regularisation."""
    return _representations(kd, contrast, n_avg, scope="oneself")


@method
def federated_distillation(kd: float = 10.0, encoding: str = "float32") -> tuple[Exchange, ...]:
    """Mean logits of each class, distilled (Jeong et al. 2018)."""
    return (Logits(weight=kd, encoding=_encoding(encoding)),)


@method
def fedavg(
    start: Start = "common", part: str = "*", every: int = 1, buffers: Buffers = "share", encoding: str = "float32"
) -> tuple[Exchange, ...]:
    """The mean of everybody's weights (McMahan et al. 2017)."""
    coded = _encoding(encoding)
    return (Weights(part=part, every=every, buffers=buffers, start=start, up=coded, down=coded),)


@method
def fedprox(mu: float = 0.01, start: Start = "common", part: str = "*", every: int = 1) -> tuple[Exchange, ...]:
    """FedAvg with training held near the common weights (Li et al. 2020)."""
    number("mu", mu)
    return (Weights(part=part, every=every, start=start, prox=mu),)


@method
def fedproto(kd: float = 10.0, encoding: str = "float32") -> tuple[Exchange, ...]:
    """Mean features of each class, distilled (Tan et al. 2022)."""
    return (Prototypes(weight=kd, encoding=_encoding(encoding)),)


@method
def representation_sharing(
    kd: float = 10.0,
    contrast: float = 1.0,
    n_avg: int = 10,
    up: int = 1,
    down: int = 1,
    discriminator: Discriminator = "classifier",
    encoding: str = "float32",
) -> tuple[Exchange, ...]:
    """Mean features distilled, and contrasted with a random member's (Berdoz et al. 2022)."""
    return _representations(kd, contrast, n_avg, up, down, discriminator, _encoding(encoding))


@method
def voted(every: int = 1, start: Start = "common") -> tuple[Exchange, ...]:
    """FedAvg at one bit a weight, both ways, with error feedback."""
    return (Weights(every=every, start=start, up=BIT, down=BIT),)


@method
def consilience(
    kd: float = Schedule("cosine", 1.0, 10.0, 100),
    contrast: float = 0.3,
    n_avg: int = 10,
    up: int = 1,
    down: int = 1,
    every: int = 1,
) -> tuple[Exchange, ...]:
    """The house blend: representation sharing in sixteen bits, and weights at one bit both ways."""
    shared = _representations(kd, contrast, n_avg, up, down, encoding=FLOAT16)
    return (*shared, Weights(every=every, up=BIT, down=BIT))


def _representations(
    kd: float,
    contrast: float,
    n_avg: int,
    up: int = 1,
    down: int = 1,
    discriminator: Discriminator = "classifier",
    encoding: Encoding = ENCODINGS["float32"],
    scope: Scope = "everybody",
) -> tuple[Exchange, ...]:
    return (
        Prototypes(weight=kd, encoding=encoding, scope=scope),
        Observations(
            weight=contrast,
            n_avg=n_avg,
            up=up,
            down=down,
            discriminator=discriminator,
            encoding=encoding,
            scope=scope,
        ),
    )


def _encoding(name: str) -> Encoding:
    known = {k: e for k, e in ENCODINGS.items() if k not in ("int32",)}
    if name not in known:
        raise UnknownName("encoding", name, known)
    return known[name]


def settings_of(name: str) -> dict[str, Any]:
    """The settings a method takes, with their defaults."""
    return {p.name: p.default for p in inspect.signature(_known(name)).parameters.values()}


def build_method(name: str, settings: Settings | None = None) -> Method:
    """The method of that name with these settings; unknown names and keys are refused with the nearest known one."""
    make, given = _known(name), dict(settings or {})
    defaults = settings_of(name)
    meant = {}
    for key, value in given.items():
        if key not in defaults:
            raise UnknownName("setting", key, defaults, of=f"method {name!r}")
        meant[key] = _checked(name, key, value, defaults[key])
    summary = (inspect.getdoc(make) or "").splitlines()[0]
    role = Role(exchanges=make(**meant))
    return Method(name, {"learner": role}, pooled=name in _POOLED, summary=summary, settings=given)


def with_settings(method: Method, settings: Settings) -> Method:
    """The same method with some settings changed; one that was put together by hand has none to change."""
    by_hand = method.name not in METHODS or build_method(method.name, method.settings) != method
    if by_hand and settings:
        raise ConfigurationError(
            f"method {method.name!r} was put together by hand, so {next(iter(settings))!r} cannot be set by name; give "
            f"its learners roles of their own"
        )
    return method if by_hand else build_method(method.name, {**method.settings, **settings})


def _known(name: str) -> Callable[..., tuple[Exchange, ...]]:
    if name not in METHODS:
        raise UnknownName("method", name, METHODS)
    return METHODS[name]


_KINDS = {int: "a whole number", str: "a word"}


def _checked(name: str, key: str, value: Any, default: Any) -> Any:
    """The setting as it is meant: of its default's kind, or where that is a fraction a schedule of them."""
    wanted = float | int if isinstance(default, float) else type(default)
    try:
        meant = scheduled(value) if isinstance(default, float) else value
    except ConfigurationError as error:
        raise ConfigurationError(f"method {name!r}: {key}: {error}") from None
    if not isinstance(meant, wanted) or isinstance(meant, bool):
        kind = "a number" if isinstance(default, float) else _KINDS[type(default)]
        or_schedule = ", or a schedule of numbers, such as 'ramp(0, 10, 20)'" if isinstance(default, float) else ""
        raise ConfigurationError(
            f"method {name!r}: {key} is {value!r}; it must be {kind}, such as its default {default!r}{or_schedule}"
        )
    return meant
