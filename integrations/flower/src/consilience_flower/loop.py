"""A node with a training loop of its own: `consilience.Peer` over the messages of Flower.

app = ClientApp()
join_federation(app)

@app.train()
def train(message, context):
    model = Net()
    with open_peer(message, context, model) as peer:
        for inputs, targets in loader:
            loss = cross_entropy(model(inputs), targets) + peer.penalty(targets)
            ...
        return peer.reply(loader, loss=loss.item())
"""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from safetensors.torch import load_file, save
from torch import nn

from consilience.errors import CheckpointError
from consilience.files import replace_file, report_write_errors
from consilience.peer.batches import Loader, Unpack
from consilience.peer.connection import RelayConnection
from consilience.peer.peer import Peer
from consilience_flower.link import FlowerLink, connect_to_message
from consilience_flower.node import answer_introduction, charter_of, check_own_charter, member_folder, with_metrics
from consilience_flower.requests import RECORD

_MODEL = "model.safetensors"


def join_federation(app: ClientApp) -> None:
    """Let an existing ClientApp say who its node is; its own `train` function uses `open_peer`."""
    answer_introduction(app, every_message=False)


class FlowerPeer(Peer):
    """A peer for the time of one message. Its methods are those of `Peer`; `reply` takes the place of `share`."""

    def __init__(
        self,
        message: Message,
        connected: tuple[RelayConnection, FlowerLink],
        model: nn.Module,
        *,
        layer: str | None,
        unpack: Unpack | None,
        method: str | None,
    ) -> None:
        self._message, (connection, self._link) = message, connected
        super().__init__(connection, model, method, layer=layer, unpack=unpack)

    def receive(self) -> None:
        """Let answers that have come with the message change the model, or ask for them; `refresh` would send first."""
        connection = self.connection
        connection.backoff.succeeded()
        names, draws = self._answers.channels(), self._context.pool_draws()
        self._answers.receive(connection.inbox.download(names, draws, connection.timeout))
        connection.backoff.succeeded()
        self._refreshed = True

    def reply(self, loader: Loader, **metrics: float) -> Message:
        """Upload what the federation shares, and return the reply to the message; the server writes metrics down."""
        assert self.model is not None
        self.connection.backoff.succeeded()
        self.share(loader)  # leaves with the reply
        self.receive()  # so does the question, and its answers come with the next message
        _save_model(self.connection.folder / _MODEL, self.model)
        record = with_metrics(self._link.record(), metrics)
        return Message(RecordDict({RECORD: record}), reply_to=self._message)


def open_peer(
    message: Message,
    context: Context,
    model: nn.Module,
    *,
    layer: str | None = None,
    unpack: Unpack | None = None,
    method: str | None = None,
) -> FlowerPeer:
    """The peer of this node for one message, with the newest answers; use it in a `with` statement.

    The model gets back what it was after the last message: it is in the node's folder and does not travel. layer,
    unpack, method: as of `consilience.join`.
    """
    folder = member_folder(context, charter_of(message).name)
    connected = connect_to_message(message, folder)
    try:
        check_own_charter(context, connected[0].charter)
        _load_model(connected[0].folder / _MODEL, model)
        peer = FlowerPeer(message, connected, model, layer=layer, unpack=unpack, method=method)
        connected[0].backoff.succeeded()
        connected[0].outbox.flush(connected[0].timeout)  # what has become of the last upload
        peer.receive()
        return peer
    except BaseException:
        connected[0].disconnect()
        raise


def _save_model(file: Path, model: nn.Module) -> None:
    state = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in model.state_dict().items()}
    with report_write_errors(file, "choose another consilience-folder"):
        replace_file(file, save(state))


def _load_model(file: Path, model: nn.Module) -> None:
    if not file.exists():
        return
    try:
        model.load_state_dict(load_file(file))
    except Exception as error:
        raise CheckpointError(f"{file} is of another model: {error}; choose another consilience-folder") from error
