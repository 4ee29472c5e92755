"""Flower: `FedAvg` of its ServerApp on the simulation runtime, with one Ray actor per core and one thread in each.

`run_simulation` is the entry point of its simulation runtime from Python; `flwr run` starts the same from a shell.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from importlib.metadata import version
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.peers.lenet5 import LeNet5
from benchmarks.peers.plain_loop import steps
from benchmarks.peers.work import Turns, Work, mean_accuracy, read_work


class InTurns(FedAvg):  # type: ignore[misc]
    """FedAvg that waits after each round."""

    def __init__(self, turns: Turns, **settings: Any) -> None:
        super().__init__(**settings)
        self.turns = turns

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> tuple[Any, Any]:
        found: tuple[Any, Any] = super().aggregate_train(server_round, replies)
        self.turns.end_of_round()
        return found


def client_app(work: Work) -> ClientApp:
    """A learner's part: load the common weights, train, reply with its own."""
    app = ClientApp()

    @app.train()  # type: ignore[untyped-decorator]
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        x, y = work.learner_data(int(context.node_config["partition-id"]))  # an actor reads the images once
        model = LeNet5()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        steps(model, torch.optim.Adam(model.parameters(), lr=work.lr), x, y, work.batch_size)
        reply = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(y)})}
        return Message(content=RecordDict(reply), reply_to=message)

    return app


def server_app(work: Work, turns: Turns, model: LeNet5) -> ServerApp:
    """Runs all rounds, and leaves the common weights in the model."""
    app = ServerApp()

    @app.main()  # type: ignore[untyped-decorator]
    def main(grid: Grid, context: Context) -> None:
        strategy = InTurns(
            turns, fraction_evaluate=0.0, min_train_nodes=work.learners, min_available_nodes=work.learners
        )
        result = strategy.start(grid, ArrayRecord(model.state_dict()), num_rounds=work.rounds)
        model.load_state_dict(result.arrays.to_torch_state_dict())

    return app


def main() -> None:
    work, turns = read_work(), Turns()
    torch.manual_seed(0)
    model = LeNet5()
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as own:
        cluster = {"num_cpus": work.cores, "address": "local", "_temp_dir": own}  # never one that runs already
        run_simulation(
            server_app(work, turns, model),
            client_app(work),
            num_supernodes=work.learners,
            backend_config={"init_args": cluster, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
        )
    turns.report(version=version("flwr"), accuracy=mean_accuracy([model], work))


if __name__ == "__main__":
    main()
