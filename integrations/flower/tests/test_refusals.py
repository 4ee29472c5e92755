"""What does not fit is refused: charters, models, data, messages and settings; each error says what to do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from consilience_flower import NodeTraining, join_federation, member_app
from consilience_flower.gateway import RelayGateway
from consilience_flower.requests import (
    RECORD,
    RelayRequest,
    RelayResponse,
    pack_requests,
    pack_responses,
    unpack_requests,
    unpack_responses,
)
from consilience_flower.settings import FederationSettings
from federations import member, run_locally, ward, write_wards
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from local_grid import LocalGrid, LocalNode
from wards.client_app import training
from wards.models import SHAPE

from consilience import Dataset
from consilience.errors import ConfigurationError, ConsilienceError, WireError
from consilience.models import build_model
from consilience.peer.create_charter import TaskShape, create_charter, write_charter


def refused(folder: Path, node: LocalNode, caplog: pytest.LogCaptureFixture) -> str:
    """What the server's log says of a node that joins two others, which go on without it."""
    nodes = [member(folder, 0), member(folder, 1), node]
    lines = run_locally(LocalGrid(nodes), folder, 1, nodes=2, timeout=5.0)
    assert [line["member"] for line in lines if line["round"] == 1] == ["ward-0", "ward-1"]
    return caplog.text


def test_a_node_that_agreed_to_another_charter(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_wards(tmp_path / "wards.toml")
    other = write_wards(tmp_path / "other.toml", "fedproto")
    node = member(tmp_path, 2, charter=other)
    assert (
        "of federation 'other' with method 'fedproto', and the server runs another one, 'wards' with "
        "'representation-sharing'; give the server and all nodes the same file"
    ) in refused(tmp_path, node, caplog)
    assert not (tmp_path / "ward-2").exists()


def test_a_node_that_agreed_to_this_charter(tmp_path: Path) -> None:
    charter = write_wards(tmp_path / "wards.toml")
    nodes = [member(tmp_path, n, charter=charter) for n in range(2)]
    assert len(run_locally(LocalGrid(nodes), tmp_path, 1, nodes=2)) == 4


def wide(context: Context) -> NodeTraining:
    return NodeTraining(training(context).data, lambda: build_model("mlp", SHAPE, 10, width=48))


def few_classes(context: Context) -> NodeTraining:
    data = training(context).data
    return NodeTraining(Dataset.from_arrays("three", data.inputs[:40], data.targets[:40] % 3), "mlp")


@pytest.mark.parametrize(
    ("train", "words"),
    [
        (wide, ("ward-2", "'prototypes'", "48", "32")),
        (few_classes, ("your data has 3 classes, and federation 'wards' has 10",)),
        (lambda context: NodeTraining(training(context).data, "mlp", {"epoch": 2}), ("epoch", "epochs")),
    ],
    ids=["model", "data", "settings"],
)
def test_a_node_whose_training_does_not_fit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, train: Callable[[Context], NodeTraining], words: tuple[str, ...]
) -> None:
    write_wards(tmp_path / "wards.toml")
    text = refused(tmp_path, member(tmp_path, 2, train), caplog)
    assert "ward-2 (node 1014) takes no part" in text
    for word in words:
        assert word in text


def test_a_client_app_that_is_not_of_the_bridge(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_wards(tmp_path / "wards.toml")
    text = refused(tmp_path, LocalNode(ClientApp(), ward(tmp_path, 2)), caplog)
    assert "it needs member_app() or join_federation(app) of consilience-flower" in text


def loop_app(reply: Callable[[Message], RecordDict]) -> ClientApp:
    """An app that introduces its node, and then replies with something else."""
    app = ClientApp()
    join_federation(app)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return Message(reply(message), reply_to=message)

    return app


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (lambda message: RecordDict(), "return what peer.reply() makes"),
        (lambda message: RecordDict({RECORD: ConfigRecord({"requests": "[1"})}), "has no requests of this bridge"),
        (
            lambda message: RecordDict({RECORD: pack_requests([RelayRequest("GET", "/metrics")])}),
            "GET '/metrics' is no request of a member",
        ),
        (
            lambda message: RecordDict({RECORD: pack_requests([RelayRequest("PUT", "/v1/rounds/1/../../x")])}),
            "is no request of a member",
        ),
        (
            lambda message: RecordDict(
                {RECORD: pack_requests([RelayRequest("PUT", "/v1/rounds/1", {"Content-Type": "a\r\nHost: b"})])}
            ),
            "has a header that is not plain text",
        ),
    ],
)
def test_replies_that_are_not_of_the_bridge(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, reply: Callable[[Message], RecordDict], words: str
) -> None:
    write_wards(tmp_path / "wards.toml")
    assert words in refused(tmp_path, LocalNode(loop_app(reply), ward(tmp_path, 2)), caplog)


def test_an_upload_that_the_relay_refuses_harms_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_wards(tmp_path / "wards.toml")
    wrong = RelayRequest("PUT", "/v1/rounds/1", {"Consilience-Upload": "prototypes"}, b"\0" * 17)
    app = loop_app(lambda message: RecordDict({RECORD: pack_requests([wrong])}))
    nodes = [member(tmp_path, 0), member(tmp_path, 1), LocalNode(app, ward(tmp_path, 2))]
    lines = run_locally(LocalGrid(nodes), tmp_path, 1, nodes=3)
    assert [line["bytes_up"] for line in lines if line["round"] == 1] == [2896, 2896, 0]
    assert "ward-2: its upload is refused" in caplog.text


def test_a_message_of_another_server_is_refused_by_the_node(tmp_path: Path) -> None:
    app = member_app(training)
    message = Message(RecordDict({"arrays": ConfigRecord({})}), 1, "train")
    reply = app(message, member(tmp_path, 0).context())
    assert "not from a ServerApp of consilience-flower" in str(reply.content[RECORD]["refused"])


# -- the server ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({}, "consilience-charter is None; give the path of a file"),
        ({"consilience-charter": "a.toml", "consilience-round": 3}, "did you mean consilience-rounds?"),
        ({"consilience-charter": "a.toml", "consilience-rounds": 0}, "consilience-rounds is 0; a whole number"),
        ({"consilience-charter": "a.toml", "consilience-nodes": True}, "consilience-nodes is True; a whole number"),
        ({"consilience-charter": "a.toml", "consilience-least": 3}, "consilience-least is 3, and consilience-nodes 2"),
        ({"consilience-charter": "a.toml", "consilience-timeout": -1}, "consilience-timeout is -1; seconds"),
        ({"consilience-charter": "a.toml", "consilience-evaluate": "no"}, "write true or false"),
    ],
)
def test_settings_that_cannot_be(config: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError) as found:
        FederationSettings.of(config)
    assert words in str(found.value)


def test_settings_and_their_defaults() -> None:
    found = FederationSettings.of({"consilience-charter": "wards.toml", "lr": 0.1})
    assert found == FederationSettings(Path("wards.toml"), Path("wards.db"))
    assert found.results == Path("wards.rounds.jsonl")
    assert FederationSettings.of({"consilience-charter": "wards.toml", "consilience-nodes": 1}).least == 1


def test_a_charter_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"nothing\.toml cannot be read.*consilience federation"):
        RelayGateway(tmp_path / "wards.db", tmp_path / "nothing.toml")
    assert not (tmp_path / "wards.db").exists()


def test_a_store_of_another_charter(tmp_path: Path) -> None:
    RelayGateway(tmp_path / "wards.db", write_wards(tmp_path / "wards.toml"))
    with pytest.raises(ConfigurationError, match=r"wards\.db was created with another charter than .*other\.toml"):
        RelayGateway(tmp_path / "wards.db", write_wards(tmp_path / "other.toml"))


def test_a_method_of_several_roles(tmp_path: Path) -> None:
    task = TaskShape(SHAPE, 10, learners=3, public=np.zeros((20, *SHAPE), dtype=np.float32))
    charter, starts = create_charter("roles", {"name": "flesd"}, task, ["lenet5"])
    write_charter(tmp_path / "roles.toml", charter, starts)
    with pytest.raises(ConfigurationError, match=r"has several roles or a public set.*one message at a time"):
        RelayGateway(tmp_path / "roles.db", tmp_path / "roles.toml")
    assert not (tmp_path / "roles.db").exists()


# -- records -------------------------------------------------------------------------------------------------------


def test_requests_and_responses_survive_their_record() -> None:
    requests = [RelayRequest("PUT", "/v1/rounds/3", {"A": "b"}, b"\0\xff"), RelayRequest("GET", "/v1/answers?round=3")]
    assert unpack_requests(pack_requests(requests)) == requests
    responses = {"GET /v1/federation": RelayResponse(200, {"etag": "x"}, b"\xfe")}
    assert unpack_responses(pack_responses(responses, {"round": 3})) == responses


def test_answers_are_found_in_whichever_round_they_were_asked_for() -> None:
    asked = RelayRequest("GET", "/v1/answers?round=3&channel=a&have=a%3A2")
    assert asked.key == RelayRequest("GET", "/v1/answers?round=4&channel=a&have=a%3A2").key
    assert asked.key != RelayRequest("GET", "/v1/answers?round=3&channel=a&have=a%3A3").key


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"requests": "[]", "bodies": [b"x"]},
        {"requests": "[[1, 2]]", "bodies": [b"x"]},
        {"requests": '[["GET", "/", 3]]', "bodies": [b"x"]},
        {"requests": json.dumps([["GET", "/", {}]]), "bodies": ["x"]},
        {"requests": "[" * 100_000, "bodies": [b"x"]},
    ],
)
def test_records_of_another_shape(content: dict[str, Any]) -> None:
    with pytest.raises(WireError, match="run the same version of consilience-flower"):
        unpack_requests(ConfigRecord(content))
    assert issubclass(WireError, ConsilienceError)
