"""Nodes that vanish, come back, are slow or lose messages: the others go on, and nothing that was shared is lost."""

from __future__ import annotations

import contextlib
import json
import logging
from pathlib import Path

import numpy as np
import pytest
from consilience_flower.requests import RECORD, unpack_requests
from federations import alike, held_answers, member, run_locally, ward, write_wards
from flwr.app import Message
from local_grid import LocalGrid, LocalNode

from consilience.errors import ConfigurationError
from consilience.peer.state_folder import StateFolder
from consilience.relay import admin
from consilience.relay.store import Store
from consilience.wire.privacy import PrivacySettings
from consilience.wire.rules import Rules

pytestmark = pytest.mark.filterwarnings("error")


def own_rounds(folder: Path, number: int) -> list[int]:
    """The rounds that a ward has trained, as its own file says."""
    lines = [json.loads(line) for line in (folder / f"ward-{number}" / "rounds.jsonl").read_text().splitlines()]
    return [line["round"] for line in lines if "bytes_up" in line]


def test_a_node_that_vanishes_comes_back_as_the_member_it_was(tmp_path: Path) -> None:
    write_wards(tmp_path / "wards.toml")
    nodes = [member(tmp_path, n) for n in range(3)]
    grid = LocalGrid(nodes)

    def after(kind: str) -> None:
        steps = grid.steps.count("evaluate")  # one for each round, and one before training
        if kind == "evaluate" and steps == 2:
            del grid.nodes[nodes[2].id]
        if kind == "evaluate" and steps == 3:  # a SuperNode that was started again has another number at Flower
            grid.add(LocalNode(nodes[2].app, ward(tmp_path, 2), id=99))

    grid.after = after
    lines = run_locally(grid, tmp_path, 4, nodes=3)
    present = {r: [line["member"] for line in lines if line["round"] == r] for r in range(5)}
    everybody = ["ward-0", "ward-1", "ward-2"]
    assert present == {0: everybody, 1: everybody, 2: everybody[:2], 3: everybody, 4: everybody}
    assert own_rounds(tmp_path, 2) == [0, 1, 2, 3] and own_rounds(tmp_path, 0) == [0, 1, 2, 3, 4]
    assert all(line["bytes_up"] == line["bytes_down"] == 2896 for line in lines)
    (federation,) = admin.status(tmp_path / "wards.db")
    assert [(m["number"], m["name"], m["round"]) for m in federation["members"]] == [
        (0, "ward-0", 4),
        (1, "ward-1", 4),
        (2, "ward-2", 3),
    ]
    assert held_answers(tmp_path / "ward-2")["prototypes"]["count"].sum() > 0


def test_an_upload_whose_reply_is_lost_is_sent_again_with_the_same_bytes(tmp_path: Path) -> None:
    write_wards(tmp_path / "wards.toml")
    nodes = [member(tmp_path, n) for n in range(2)]
    grid, lost = LocalGrid(nodes), list[bytes]()
    sent: list[tuple[str, bytes]] = []

    def loses(what: str, message: Message) -> bool:
        trains = what == "reply" and message.metadata.message_type == "train"
        if trains and grid.steps.count("train") == 1 and not lost:
            pending = StateFolder(tmp_path / "ward-1").load()
            assert pending is not None and pending[1].pending is not None
            lost.append(pending[1].pending.body)
            return True
        return False

    nodes[1].loses = loses
    original = nodes[1].app

    def watched(message: Message, context: object) -> Message:
        reply = original(message, context)  # type: ignore[arg-type]
        if not reply.has_error() and message.metadata.message_type == "train":
            requests = unpack_requests(reply.content[RECORD])  # type: ignore[arg-type]
            sent.extend((each.path, each.body) for each in requests if each.method == "PUT")
        return reply

    nodes[1].app = watched  # type: ignore[assignment]
    lines = run_locally(grid, tmp_path, 2, nodes=2)
    assert [path for path, _ in sent] == ["/v1/rounds/0", "/v1/rounds/1", "/v1/rounds/1", "/v1/rounds/2"]
    assert sent[1][1] == sent[2][1] == lost[0]
    assert grid.steps.count("train") == 4  # the third one only had the receipt of what was lost
    assert [line["member"] for line in lines if line["round"] == 1] == ["ward-0"]
    assert [line["bytes_up"] for line in lines if line["round"] == 2] == [2896, 2 * 2896]
    (federation,) = admin.status(tmp_path / "wards.db")
    assert [each["round"] for each in federation["members"]] == [2, 2]


@pytest.mark.parametrize("missed", [1, 3])
def test_a_member_that_missed_moves_of_a_moving_mean_gets_the_common_values(tmp_path: Path, missed: int) -> None:
    write_wards(tmp_path / "wards.toml", "fedavg", alike=True, rules=Rules(deadline=2.0))
    nodes = [member(tmp_path, n, alike) for n in range(3)]
    grid = LocalGrid(nodes)
    nodes[2].loses = lambda what, message: what == "message" and 2 <= grid.steps.count("evaluate") < 2 + missed
    lines = run_locally(grid, tmp_path, missed + 3, nodes=3)
    trained = [line["round"] for line in lines if line["member"] == "ward-2"]
    assert trained == [0, 1, *range(2 + missed, missed + 4)]
    assert_common_values(tmp_path, 3)


def test_a_new_member_starts_from_the_common_values_as_they_are(tmp_path: Path) -> None:
    write_wards(tmp_path / "wards.toml", "fedavg", alike=True)
    nodes = [member(tmp_path, n, alike) for n in range(3)]
    grid = LocalGrid(nodes[:2])
    versions: list[int] = []

    def after(kind: str) -> None:
        if kind == "evaluate" and grid.steps.count("evaluate") == 4:
            grid.add(LocalNode(nodes[2].app, ward(tmp_path, 2), id=99))
        loaded = StateFolder(tmp_path / "ward-2").load() if (tmp_path / "ward-2").exists() else None
        if loaded is not None and "weights" in loaded[1].answers:
            versions.append(loaded[1].answers["weights"].version)

    grid.after = after
    run_locally(grid, tmp_path, 5, nodes=2)
    assert versions[:1] == [0] and versions[1] == 3  # of the rounds before it, before it trains
    assert own_rounds(tmp_path, 2) == [1, 2]
    assert_common_values(tmp_path, 3)


def test_a_new_member_has_what_the_others_share_before_it_trains(tmp_path: Path) -> None:
    write_wards(tmp_path / "wards.toml")
    grid = LocalGrid([member(tmp_path, n) for n in range(2)])

    def after(kind: str) -> None:
        if kind == "evaluate" and grid.steps.count("evaluate") == 2:
            grid.add(member(tmp_path, 2))

    grid.after = after
    lines = run_locally(grid, tmp_path, 2, nodes=2)
    (first,) = [line for line in lines if line["member"] == "ward-2"]
    assert first["round"] == 2 and first["loss.prototypes"] > 0


def assert_common_values(folder: Path, members: int) -> None:
    """All members hold the relay's common values, to the bit."""
    with contextlib.closing(Store(folder / "wards.db")) as store:
        kept = store.channel_states.get(1, "weights") or {}
    common = {k.removeprefix("common."): v for k, v in kept.items() if k.startswith("common.")}
    assert common
    for number in range(members):
        held = held_answers(folder / f"ward-{number}")["weights"]
        for name, value in common.items():
            np.testing.assert_array_equal(held[name], value)


def test_a_node_that_is_busy_is_asked_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_wards(tmp_path / "wards.toml")
    nodes = [member(tmp_path, n) for n in range(2)]
    grid = LocalGrid(nodes)
    lock = StateFolder(tmp_path / "ward-1")

    def after(kind: str) -> None:
        if kind == "evaluate" and grid.steps.count("evaluate") == 1:
            lock.lock()
        if kind == "evaluate" and grid.steps.count("evaluate") == 2:
            lock.unlock()

    grid.after = after
    lines = run_locally(grid, tmp_path, 2, nodes=2)
    assert [line["round"] for line in lines if line["member"] == "ward-1"] == [0, 2]
    assert "ward-1 is used already" in caplog.text


def test_without_enough_nodes_the_run_ends_with_how_many_there_are(tmp_path: Path) -> None:
    write_wards(tmp_path / "wards.toml")
    nodes = [member(tmp_path, n) for n in range(2)]
    grid = LocalGrid(nodes)
    grid.after = lambda kind: grid.nodes.pop(nodes[1].id, None) if kind == "evaluate" else None  # type: ignore[assignment]
    with pytest.raises(ConfigurationError, match=r"1 nodes take part, and 2 are needed, after 0.5 s"):
        run_locally(grid, tmp_path, 2, nodes=2, timeout=0.5)


def test_members_are_numbered_by_their_names_in_whichever_order_nodes_come(tmp_path: Path) -> None:
    write_wards(tmp_path / "wards.toml")
    late = member(tmp_path, 0)
    grid = LocalGrid([member(tmp_path, 1)])
    grid.after = lambda kind: None if late.id else grid.add(late)  # type: ignore[assignment]
    run_locally(grid, tmp_path, 1, nodes=2)
    assert grid.steps[:3] == ["query.consilience", "query.consilience", "train"]
    (federation,) = admin.status(tmp_path / "wards.db")
    assert [(m["number"], m["name"]) for m in federation["members"]] == [(0, "ward-0"), (1, "ward-1")]


def test_a_private_member_uploads_no_more_often_than_its_budget_allows(tmp_path: Path) -> None:
    privacy = PrivacySettings(private="upload", epsilon=50.0, delta=1e-5, clip=0.5, uploads=2)
    write_wards(tmp_path / "wards.toml", "fedproto", privacy=privacy)
    lines = run_locally(LocalGrid([member(tmp_path, n) for n in range(2)]), tmp_path, 3, nodes=2)
    uploaded = [line["round"] for line in lines if line["member"] == "ward-0" and line["bytes_up"]]
    loaded = StateFolder(tmp_path / "ward-0").load()
    assert loaded is not None
    assert len(uploaded) == 2 == loaded[1].spent["uploads"]


def test_two_nodes_with_one_name_are_one_member(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_wards(tmp_path / "wards.toml")
    with caplog.at_level(logging.ERROR), pytest.raises(ConfigurationError, match=r"1 nodes take part, and 2 are"):
        run_locally(LocalGrid([member(tmp_path, 0), member(tmp_path, 0)]), tmp_path, 1, nodes=2, timeout=0.5)
    assert "a newer node is called 'ward-0' too" in caplog.text


def test_a_second_run_continues_with_the_same_members(tmp_path: Path) -> None:
    write_wards(tmp_path / "wards.toml")
    run_locally(LocalGrid([member(tmp_path, n) for n in range(2)]), tmp_path, 1, nodes=2)
    run_locally(LocalGrid([member(tmp_path, n) for n in range(2)]), tmp_path, 2, nodes=2)
    assert own_rounds(tmp_path, 0) == [0, 1, 1, 2, 3]  # the second one's first message only asks for what is new
    (federation,) = admin.status(tmp_path / "wards.db")
    assert [(m["name"], m["round"]) for m in federation["members"]] == [("ward-0", 3), ("ward-1", 3)]
