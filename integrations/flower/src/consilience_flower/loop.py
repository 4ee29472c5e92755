"""A node with a training loop of its own: `consilience.Peer` over the messages of Flower.

@app.train()
def train(message, context):
    with open_peer(message, context, model) as peer:
        for inputs, targets in loader:
            loss = cross_entropy(model(inputs), targets) + peer.penalty(targets)
            ...
        return peer.reply(loader, loss=float(loss))
"""

from __future__ import annotations

from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from torch import nn

from consilience.peer.batches import Loader, Unpack
from consilience.peer.peer import Peer
from consilience_flower.link import FlowerLink, connect_to_message
from consilience_flower.node import member_folder, with_metrics
from consilience_flower.requests import RECORD, STATUS, unpack_responses

_MODEL = "consilience-model"


class FlowerPeer(Peer):
    """A peer for the time of one message. Its methods are those of `Peer`; `reply` takes the place of `share`."""

    def __init__(
        self, message: Message, context: Context, model: nn.Module, *, layer: str | None, unpack: Unpack | None
    ) -> None:
        self._message, self._context_of_node = message, context
        known = context.state.get(_MODEL)
        if isinstance(known, ArrayRecord):  # Flower keeps it at the node; it does not travel
            model.load_state_dict(known.to_torch_state_dict())
        folder = member_folder(context, _federation(message))
        self._connected, self._link = connect_to_message(message, folder)
        try:
            super().__init__(self._connected, model, layer=layer, unpack=unpack)
        except BaseException:
            self._connected.disconnect()
            raise

    @property
    def before_training(self) -> bool:
        """Whether this message comes before the first round: share the untrained model, and do not train."""
        return int(self._message.content[RECORD]["round"]) == 0  # type: ignore[call-overload]

    def reply(self, loader: Loader, **metrics: float) -> Message:
        """Upload what the federation shares, and return the reply to the message; metrics are shown at the server."""
        assert self.model is not None
        link: FlowerLink = self._link
        if self.before_training:
            self.introduce(loader)
        else:
            self._refreshed = True  # the answers have come with the message
            self.share(loader)
        self.connection.backoff.succeeded()
        self.refresh()  # the question goes out with the reply, and the answers come with the next message
        record = with_metrics(link.record(), metrics)
        state: dict[str, torch.Tensor] = {k: v.detach().cpu() for k, v in self.model.state_dict().items()}
        self._context_of_node.state[_MODEL] = ArrayRecord(state)
        return Message(RecordDict({RECORD: record}), reply_to=self._message)


def open_peer(
    message: Message, context: Context, model: nn.Module, *, layer: str | None = None, unpack: Unpack | None = None
) -> FlowerPeer:
    """The peer of this node for one message, with the newest answers; use it in a `with` statement.

    The model gets back what it was at the last message. layer, unpack: as of `consilience.join`.
    """
    peer = FlowerPeer(message, context, model, layer=layer, unpack=unpack)
    peer.refresh()
    return peer


def _federation(message: Message) -> str:
    import json

    from consilience.wire.charter import read_charter

    record: Any = message.content[RECORD]
    assert isinstance(record, ConfigRecord)
    status = json.loads(unpack_responses(record)[STATUS].body)
    return read_charter(str(status["charter"])).name
