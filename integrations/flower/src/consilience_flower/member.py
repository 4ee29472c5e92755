"""A node that trains as a simulated learner does: the same batches, draws and initial weights, hence the same numbers.

    def training(context):
        return NodeTraining(data=Dataset.from_arrays("ward-3", inputs, labels), model="lenet5", settings={"epochs": 2})

    app = member_app(training)

Flower starts a process for every message, so the learner's state is in the node's folder between two of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Message
from flwr.clientapp import ClientApp

from consilience.config.config import Config, make_config
from consilience.data import Dataset
from consilience.errors import CheckpointError, ConfigurationError
from consilience.peer.member_method import member_method
from consilience.simulation.records.run_folder import RunFolder
from consilience.simulation.setup.participants import Model
from consilience_flower.link import FlowerLink, connect_to_message
from consilience_flower.node import (
    Metrics,
    answer_introduction,
    charter_of,
    check_own_charter,
    member_folder,
    reply_or_refuse,
    with_metrics,
)
from consilience_flower.requests import AGAIN, number_of, record_of
from consilience_flower.trainer import MessageTrainer

_RESULTS, _MODEL = "rounds.jsonl", "model"


@dataclass(frozen=True)
class NodeTraining:
    """What a node trains: its samples, its model by name or as a function that builds it, and settings of a run.

    settings: such as epochs, batch_size, lr or optimizer; the method and the seed are the charter's. method:
    FILE.py:NAME, the node's own copy of the file where the federation's method is in one.
    """

    data: Dataset
    model: Model
    settings: Mapping[str, Any] = field(default_factory=dict)
    method: str | None = None


Training = Callable[[Context], NodeTraining]
"""A function that says what a node trains."""


def member_app(training: Training) -> ClientApp:
    """A ClientApp whose nodes train what `training` returns for them."""
    app = ClientApp()
    answer_introduction(app, every_message=True)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return reply_or_refuse(message, lambda: _work(_train, message, context, training))

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return reply_or_refuse(message, lambda: _work(_evaluate, message, context, training))

    return app


@dataclass
class _Opened:
    """A node's learner for the time of one message."""

    trainer: MessageTrainer
    link: FlowerLink
    folder: Path
    config: Config
    round: int


def _work(work: Callable[[_Opened], Metrics], message: Message, context: Context, training: Training) -> ConfigRecord:
    """Do what the message says, or ask the relay first for what that needs: the same message then comes again."""
    with _opened(message, context, training) as (link, opened):
        if opened is not None:
            _catch_up(opened)
        if opened is None or link.requests:
            record = link.record()
            record[AGAIN] = True
            return record
        metrics = work(opened)
        with (opened.folder / _RESULTS).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"round": opened.trainer.round, **metrics}) + "\n")
        return with_metrics(link.record(), metrics)


def _catch_up(opened: _Opened) -> None:
    """Settle what the last message left open, and receive what has come since."""
    trainer, link = opened.trainer, opened.link
    trainer.settle()
    if link.requests:
        return
    if trainer.is_new:
        trainer.start_from_now(late=opened.round > 1)
    elif link.has_answers:
        trainer.receive()


def _train(opened: _Opened) -> Metrics:
    """Train a round and upload; before the first round, upload what the untrained model shares."""
    trainer, first = opened.trainer, opened.round == 0
    losses, sent = dict[str, float](), 0
    if not first or trainer.is_new:
        found, sent = trainer.play(train=not first)
        losses = dict(found) if not first else {}
    trainer.save(opened.folder)
    trainer.connection.backoff.succeeded()  # the upload leaves with the reply
    trainer.ask()
    return {**{f"loss.{name}": value for name, value in losses.items()}, "bytes_up": sent}


def _evaluate(opened: _Opened) -> Metrics:
    """Test the model, with what the others have shared, and save it after the last round."""
    trainer, received = opened.trainer, opened.link.bytes_received
    tested, own = trainer.scores.common(), trainer.scores.own()
    trainer.save(opened.folder)
    if trainer.round >= trainer.rounds:
        trainer.save_model(opened.folder / _MODEL, opened.config)
    more = {} if own is None else {"accuracy_own": own}
    return {"accuracy": tested, **more, "bytes_down": received}


@contextmanager
def _opened(message: Message, context: Context, training: Training) -> Iterator[tuple[FlowerLink, _Opened | None]]:
    """The node's trainer with its state of the last message; None where it needs something of the relay first."""
    record = record_of(message)
    connection, link = connect_to_message(message, member_folder(context, charter_of(message).name))
    trainer = None
    try:
        check_own_charter(context, connection.charter)
        given = training(context)
        method = member_method(connection.charter, given.method)
        chosen = {**connection.charter.method, "name": method.source}
        fixed = {
            "learners": 1,
            "seed": connection.charter.seed,
            "method": chosen,
            "rounds": number_of(record, "rounds"),
        }
        config = make_config({**given.settings, **fixed})
        try:
            trainer = MessageTrainer(connection, config, method, given.data, given.model, wait=0.0)
        except ConfigurationError:
            if not link.requests:
                raise
            yield link, None  # common values that cannot be made here
            return
        _open_folder(connection.folder, config)
        trainer.resume(connection.folder)
        yield link, _Opened(trainer, link, connection.folder, config, number_of(record, "round"))
    finally:
        if trainer is not None:
            trainer.close()
        else:
            connection.disconnect()


def _open_folder(folder: Path, config: Config) -> None:
    """The node's folder with its settings; a folder that was started with other settings is refused."""
    if not (folder / "config.toml").exists():
        RunFolder.create(folder, config).append([])
        return
    before, now = RunFolder.open(folder).config.settings(exclude_none=False), config.settings(exclude_none=False)
    changed = [key for key in now if key != "rounds" and before[key] != now[key]]
    if changed:
        raise CheckpointError(
            f"{folder} was started with another {changed[0]}; use the same, or choose another consilience-folder"
        )
