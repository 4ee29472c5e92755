"""Answers in a training loop of one's own: which are downloaded, and how they change the caller's model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from consilience.channels import Answer
from consilience.exchanges.base import Exchange
from consilience.method import Role
from consilience.peer.connection import FederationConnection
from consilience.peer.contributions import to_numpy
from consilience.peer.exchange_context import ExchangeContext
from consilience.wire.common_values import values_fingerprint


class LoopAnswers:
    """Downloads answers of the exchanges of a member, and lets them change its model."""

    def __init__(
        self, connection: FederationConnection, role: Role, exchanges: Sequence[Exchange], context: ExchangeContext
    ) -> None:
        self._connection, self._role, self._exchanges, self._context = connection, role, exchanges, context

    def channels(self) -> list[str]:
        """Those whose answers are downloaded: a change is measured from the common values of a moving mean."""
        channels, downloading = self._connection.channels, self._role.downloading
        return [e.name for e in self._exchanges if e.name in downloading or channels[e.name].moves]

    @torch.no_grad()
    def receive(self, found: Mapping[str, Answer]) -> None:
        """Let new answers change the model, where their exchange does that."""
        context = self._context
        context.follow_model()
        for e in (e for e in self._exchanges if e.name in found):
            context.forget_received(e)
            if not e.changes_model or e.name not in self._role.downloading:
                continue
            model = context.require_model()
            update = e.receive(context.state(e), context.view(e), context.received(e))
            tensors = dict(model.named_parameters()) | dict(model.named_buffers())
            for name, value in {**update.parameters, **update.buffers}.items():
                tensors[name].copy_(value)
            context.set_state(e, update.state)

    @torch.no_grad()
    def start_from_common_values(self) -> None:
        """Hold the common values of moving means: the model's own where the charter names them, else the relay's."""
        connection, answers = self._connection, self._connection.state.answers
        moving = [e for e in self._exchanges if connection.channels[e.name].moves]
        for e in (e for e in moving if e.name not in answers):
            # Copies: training changes the model's own.
            own = {k: to_numpy(t).copy() for k, t in e.common_values(self._context.view(e)).items()}
            start = connection.charter.channel_settings[e.name].start
            if values_fingerprint(connection.channels[e.name], own) == start:
                answers[e.name] = Answer(own, np.zeros(()), 0)
        missing = [e.name for e in moving if e.name not in answers]
        if missing:
            connection.inbox.download(missing, {}, connection.timeout)
        started = {e.name for e in moving if e.start == "common" or connection.state.round > 0}
        self.receive({name: answers[name] for name in started if name in answers})
