"""Which kinds of tasks a method serves, and a role as it is for one of them."""

from __future__ import annotations

from dataclasses import replace

from consilience.errors import ConfigurationError
from consilience.kinds import ALL_KINDS
from consilience.method import Method, Role
from consilience.task import TaskKind

_OTHERS = "fedavg, fedproto, federated-distillation or consilience"


def kinds_of(method: Method) -> tuple[TaskKind, ...]:
    """The kinds of tasks that all roles of a method serve."""
    return tuple(kind for kind in ALL_KINDS if all(not _unserved(role, kind) for role in method.roles.values()))


def role_for_kind(method: Method, role: Role, kind: TaskKind) -> Role:
    """The role with the plain loss of the kind, and without optional exchanges that do not serve it.

    Refused where the objective or another exchange does not serve the kind.
    """
    if kind == "single-label":
        return role
    if wrong := _unserved(role, kind):
        raise ConfigurationError(
            f"method {method.name!r} does not serve {kind}: {wrong[0]}; use {_OTHERS}, or make a data set with one "
            f"class per sample"
        )
    served = tuple(e for e in role.exchanges if kind in e.kinds)
    names = {e.name for e in served}
    return replace(
        role,
        objective=role.objective.for_kind(kind),
        exchanges=served,
        uploads=None if role.uploads is None else tuple(name for name in role.uploads if name in names),
        downloads=None if role.downloads is None else tuple(name for name in role.downloads if name in names),
    )


def method_for_kind(method: Method, kind: TaskKind) -> Method:
    """The method with its roles as they are for a kind of task; refused where one does not serve it."""
    if kind == "single-label":
        return method
    return replace(method, roles={name: role_for_kind(method, role, kind) for name, role in method.roles.items()})


def _unserved(role: Role, kind: TaskKind) -> list[str]:
    """What of a role does not serve a kind of task, in words."""
    found = []
    if role.turns is not None and kind != "single-label":
        found.append("in split learning the class of each sample goes to the server with the cut layer's output")
    objective = role.objective.for_kind(kind)
    if kind not in objective.kinds:
        found.append(f"its objective {objective.name!r} is for {' and '.join(objective.kinds)}")
    for e in role.exchanges:
        if kind not in e.kinds and e.name not in role.optional:
            found.append(f"its exchange {e.name!r} is for {' and '.join(e.kinds)}{e.kind_hint}")
    return found
