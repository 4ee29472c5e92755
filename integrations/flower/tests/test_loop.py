"""Nodes with training loops of their own: bits of a `Peer` that speaks HTTP with the relay."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from consilience_flower import join_federation, open_peer
from consilience_flower.gateway import RelayGateway
from federations import SEED, held_answers, run_locally, ward, write_wards
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from local_grid import LocalGrid, LocalNode
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from wards.client_app import training
from wards.models import MODELS

from consilience.peer.connection import connect_to_relay
from consilience.peer.peer import Peer
from consilience.relay import admin

ROUNDS, WARDS = 3, 3


class Batches:
    """A ward's samples, 32 at a time, always in the same order."""

    def __init__(self, context: Context) -> None:
        data = training(context).data
        self.inputs = torch.from_numpy(np.array(data.inputs))
        self.targets = torch.from_numpy(np.array(data.targets)).long()

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return zip(torch.split(self.inputs, 32), torch.split(self.targets, 32), strict=True)


def build(number: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED + number)
        return MODELS[number]()


def train_round(peer: Peer, model: nn.Module, batches: Batches) -> float:
    """A round of somebody's own loop."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loss = torch.zeros(())
    for inputs, targets in batches:
        loss = cross_entropy(model(inputs), targets) + peer.penalty(targets)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return loss.item()


def loop_app() -> ClientApp:
    app = ClientApp()
    join_federation(app)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model, batches = build(int(context.node_config["ward"])), Batches(context)
        with open_peer(message, context, model) as peer:
            loss = train_round(peer, model, batches)
            return peer.reply(batches, loss=loss)

    return app


def test_an_upload_whose_reply_is_lost_leaves_with_the_next_reply(tmp_path: Path) -> None:
    write_wards(tmp_path / "wards.toml")
    nodes = [LocalNode(loop_app(), ward(tmp_path, n)) for n in range(2)]
    grid = LocalGrid(nodes)
    nodes[1].loses = lambda what, message: what == "reply" and grid.steps.count("train") == 1
    lines = run_locally(grid, tmp_path, 4, nodes=2)
    assert [line["round"] for line in lines if line["member"] == "ward-1"] == [1, 3, 4]
    (federation,) = admin.status(tmp_path / "wards.db")
    assert [each["round"] for each in federation["members"]] == [4, 3]  # the third message had the second upload again


@pytest.mark.parametrize("method", ["representation-sharing", "federated-distillation"])
def test_own_loops_give_the_bits_of_peers_over_http(tmp_path: Path, method: str) -> None:
    charter = write_wards(tmp_path / "wards.toml", method)
    grid = LocalGrid([LocalNode(loop_app(), ward(tmp_path, n)) for n in range(WARDS)])
    lines = run_locally(grid, tmp_path, ROUNDS, nodes=WARDS)
    assert grid.steps == ["query.consilience", *["train"] * ROUNDS]

    expected, losses, sizes = peers_over_http(tmp_path / "http", charter)
    assert [line["loss"] for line in lines] == losses
    assert [line["bytes_up"] for line in lines] == sizes
    for number, model in enumerate(expected):
        found = load_file(tmp_path / f"ward-{number}" / "model.safetensors")
        for name, value in model.state_dict().items():
            assert torch.equal(found[name], value)
    assert held_answers(tmp_path / "ward-0").keys() <= {"prototypes", "observations", "logits"}


def peers_over_http(folder: Path, charter: Path) -> tuple[list[nn.Module], list[float], list[int]]:
    """The same three loops, each of which speaks HTTP with a relay: models, losses by round, and bytes uploaded."""
    losses, sizes = list[float](), list[int]()
    models = [build(n) for n in range(WARDS)]
    with RelayGateway(folder / "relay.db", charter) as relay:
        tokens = [str(admin.invite(relay.store, f"ward-{n}")) for n in range(WARDS)]
        peers = [
            Peer(connect_to_relay(relay.url, token, folder / f"http-{n}", 60.0), models[n])
            for n, token in enumerate(tokens)
        ]
        batches = [Batches(LocalNode(ClientApp(), ward(folder, n)).context()) for n in range(WARDS)]
        for _ in range(ROUNDS):
            for number, peer in enumerate(peers):
                peer.refresh()
                losses.append(train_round(peer, models[number], batches[number]))
            for number, peer in enumerate(peers):
                before = peer.bytes_sent
                assert peer.share(batches[number])
                sizes.append(peer.bytes_sent - before)
        for peer in peers:
            peer.close()
    return models, losses, sizes
