"""The answers that a member's roles hold: those of a round, and those before any download."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from consilience.channels import LAST_MOVE, Answer, empty_answer
from consilience.errors import ConfigurationError
from consilience.learner.initial_state import CommonValues
from consilience.peer.connection import FederationConnection
from consilience.peer.member_role import MemberRole
from consilience.wire import schema
from consilience.wire.agreement import merge_channels
from consilience.wire.common_values import values_fingerprint


def download_answers(
    connection: FederationConnection, roles: Sequence[MemberRole], names: Collection[str], round_: int
) -> dict[str, Answer]:
    """The answers of some channels in a round, with as many entries of pools as the roles take."""
    channels = merge_channels([role.learner.channels for role in roles])
    draws = {n: c.draw for n, c in channels.items() if isinstance(c, schema.Pool) and n in names}
    return connection.inbox.download(names, draws, connection.timeout, round_)


def first_answer(connection: FederationConnection, name: str, channel: schema.Channel, common: CommonValues) -> Answer:
    """The answer before any download: nothing with count 0, or the common values at the start."""
    if name in connection.state.answers:
        return connection.state.answers[name]
    if name not in common:
        return empty_answer(channel)
    values = {k: t.numpy(force=True).copy() for k, t in common[name].items()}
    settings = connection.charter.channel_settings.get(name)
    if settings is not None and values_fingerprint(channel, values) != settings.start:
        found = connection.inbox.download([name], {}, connection.timeout)
        if name not in found:
            raise ConfigurationError(
                f"the common values of {name!r} cannot be made here, and the relay cannot be reached"
            )
        return found[name]
    if name in connection.inbox.last_moves:
        values |= {f"{LAST_MOVE}{k}": np.zeros_like(v) for k, v in values.items()}
    connection.state.answers[name] = Answer(values, np.zeros(()), 0)
    return connection.state.answers[name]
