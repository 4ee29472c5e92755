"""`consilience join` where an upload was sent and nobody knows whether it arrived."""

from __future__ import annotations

from pathlib import Path

import pytest

from consilience import load
from consilience.config.config import make_config
from consilience.peer.connection import connect_to_relay
from consilience.peer.create_charter import TaskShape, create_charter, write_charter
from consilience.peer.member_method import member_method
from consilience.peer.trainer import FederatedTrainer
from consilience.relay import admin
from tests.peer_tools import line
from tests.relay_tools import PATIENT, serving

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("arrives", [False, True], ids=["it did not arrive", "it did, and the receipt was lost"])
def test_it_is_sent_again_before_the_next_round_s(tmp_path: Path, arrives: bool) -> None:
    data = load("digits", train=60, test=30)
    charter, starts = create_charter(
        "one", {"name": "fedproto"}, TaskShape(data.shape, data.classes), ["mlp"], seed=5, rules=PATIENT
    )
    write_charter(tmp_path / "one.toml", charter, starts)
    store = tmp_path / "relay.db"
    admin.create(store, tmp_path / "one.toml")
    token = str(admin.invite(store, "m0"))
    with serving(store) as running, line(running.port) as way:
        connection = connect_to_relay(way.url, token, tmp_path / "peer", timeout=5.0)
        config = make_config({"learners": 1, "rounds": 4, "seed": 5, "model": "mlp"})
        trainer = FederatedTrainer(connection, config, member_method(charter), data, "mlp", 0.0)
        assert trainer.run_round().acknowledged
        way.now(*(("drop",) if arrives else ("cut", b"HTTP/1.1 200 OK\r\n")))
        connection.timeout = 0.5
        assert not trainer.run_round().acknowledged and connection.state.unconfirmed
        way.now("pass")
        connection.timeout, connection.backoff.until = 5.0, 0.0
        assert trainer.run_round().acknowledged and connection.state.pending is None
        assert admin.status(store)[0]["members"][0]["round"] == 3
        trainer.close()
