"""A node that trains as a simulated learner does: the same batches, draws and initial weights, hence the same numbers.

    def training(context):
        return NodeTraining(data=Dataset.from_arrays(...), model="lenet5", settings={"epochs": 2})

    app = member_app(training)

Flower starts a process for every message, so the learner's state is in the node's folder between two of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Message
from flwr.clientapp import ClientApp

from consilience.config.config import make_config
from consilience.data import Dataset
from consilience.errors import ConfigurationError
from consilience.peer.connection import FederationConnection
from consilience.peer.member_answers import download_answers
from consilience.peer.member_method import member_method
from consilience.peer.trainer import FederatedTrainer, _due, _RoundState
from consilience.simulation.records.run_folder import RunFolder
from consilience.simulation.setup.participants import Model
from consilience.wire.charter import read_charter
from consilience_flower.link import connect_to_message
from consilience_flower.node import introduce_node, member_folder, reply_or_refuse, with_metrics
from consilience_flower.requests import RECORD, STATUS, unpack_responses

_WAIT = 0.05  # seconds: the others' answers come with a message, and are not waited for
_METRICS = "rounds.jsonl"


@dataclass(frozen=True)
class NodeTraining:
    """What a node trains: its samples, its model by name or as a function that builds it, and settings of a run.

    settings: such as epochs, batch_size, lr or optimizer; the method and the seed are the charter's.
    """

    data: Dataset
    model: Model
    settings: Mapping[str, Any] = field(default_factory=dict)


def member_app(training: Callable[[Context], NodeTraining]) -> ClientApp:
    """A ClientApp whose nodes train what `training` returns for them."""
    app = ClientApp()

    @app.query()
    def query(message: Message, context: Context) -> Message:
        return introduce_node(message, context)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return reply_or_refuse(message, lambda: _train(message, context, training))

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return reply_or_refuse(message, lambda: _evaluate(message, context, training))

    return app


def _train(message: Message, context: Context, training: Callable[[Context], NodeTraining]) -> ConfigRecord:
    """Train a round and upload; before the first round, upload what the untrained model shares."""
    record = message.content[RECORD]
    assert isinstance(record, ConfigRecord)
    trainer, link, folder = _open(message, context, training)
    connection = trainer.connection
    try:
        first = int(record["round"]) == 0  # type: ignore[call-overload]
        if not first or connection.state.round < 0:
            trainer.upload(train=not first)
        losses = dict(trainer._now.losses)
        pending = connection.state.pending
        up = 0 if pending is None else len(pending.body)
        trainer.save(folder)
        names, number = _due_names(trainer, train=not first), trainer.round
        connection.backoff.succeeded()  # the upload leaves with the reply; now the question for what others share
        download_answers(connection, trainer.roles, names, number)
        _note(folder, {"round": trainer.round, "loss": losses, "bytes_up": up})
        return with_metrics(link.record(), {f"loss.{k}": v for k, v in losses.items()} | {"bytes_up": up})
    finally:
        trainer.close()


def _evaluate(message: Message, context: Context, training: Callable[[Context], NodeTraining]) -> ConfigRecord:
    """Receive what the others have shared, and test the model."""
    trainer, link, folder = _open(message, context, training)
    try:
        sent = (link.bytes_sent, link.bytes_received)
        names = _due_names(trainer, train=trainer.round > 0)
        trainer._now = _RoundState(trainer.round, sent, due=tuple(names))
        trainer.download()
        score = trainer.scores.common()
        trainer.save(folder)
        found = {"accuracy": score, "bytes_down": link.bytes_received - sent[1]}
        _note(folder, {"round": trainer.round, **found})
        link.requests.clear()  # what did not come with this message is asked for in the next round
        return with_metrics(link.record(), found)
    finally:
        trainer.close()


def _open(
    message: Message, context: Context, training: Callable[[Context], NodeTraining]
) -> tuple[FederatedTrainer, Any, Path]:
    """The node's trainer with its state of the last message."""
    record = message.content[RECORD]
    assert isinstance(record, ConfigRecord)
    status = json.loads(unpack_responses(record)[STATUS].body)
    folder = member_folder(context, read_charter(str(status["charter"]), "the relay's charter").name)
    connection, link = connect_to_message(message, folder)
    try:
        given = training(context)
        method = member_method(connection.charter, None)
        _refuse_local(connection, method.name)
        chosen = {**connection.charter.method, "name": method.source}
        fixed = {"learners": 1, "seed": connection.charter.seed, "method": chosen, "rounds": record["rounds"]}
        config = make_config({**given.settings, **fixed})
        trainer = FederatedTrainer(connection, config, method, given.data, given.model, _WAIT)
        if not (folder / "config.toml").exists():
            RunFolder.create(folder, config).append([])
        trainer.resume(folder)
        return trainer, link, folder
    except BaseException:
        connection.disconnect()
        raise


def _refuse_local(connection: FederationConnection, method: str) -> None:
    if connection.charter.roles is not None:
        raise ConfigurationError(f"method {method!r} has several roles, and a Flower node acts in one")


def _due_names(trainer: FederatedTrainer, *, train: bool) -> list[str]:
    """The channels that are answered in this round."""
    due = _due(trainer.method.roles[trainer.main.name], trainer.round, train)
    return [n for n in due if n in trainer.main.learner.receiving and n in trainer.connection.channels]


def _note(folder: Path, line: Mapping[str, Any]) -> None:
    with (folder / _METRICS).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
