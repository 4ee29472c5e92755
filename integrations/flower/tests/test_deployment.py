"""A real Flower deployment: a SuperLink, SuperNodes with three architectures, and `flwr run`, all on loopback."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
from deployment import await_true, deployment
from federations import WARDS, held_answers, recorded_answers, results, simulate_wards, ward, write_wards

from consilience.relay import admin

ROUNDS, LONG = 2, 1200.0  # seconds: every message starts a process at each node, on a machine that may be busy


def test_three_nodes_give_the_simulator_s_bytes_and_bits(tmp_path: Path) -> None:
    charter = write_wards(tmp_path / "wards.toml")
    other = write_wards(tmp_path / "other.toml", "fedproto")
    with deployment(tmp_path) as made:
        for number in range(WARDS):
            made.start_node(f"node-{number}", ward(tmp_path, number, charter))
        made.start_node("stranger", ward(tmp_path, 0, other) | {"consilience-member": "x"})
        files = {"charter": str(charter), "store": str(tmp_path / "wards.db")}
        shown = made.run(LONG, **files, nodes=WARDS, rounds=ROUNDS, timeout=600)
    assert "of federation 'other' with method 'fedproto', and the server runs another one, 'wards'" in shown
    lines = results(tmp_path / "wards.rounds.jsonl")
    assert [(line["round"], line["member"]) for line in lines] == [
        (r, f"ward-{n}") for r in range(ROUNDS + 1) for n in range(WARDS)
    ], shown

    with recorded_answers() as simulated:
        result = simulate_wards(ROUNDS)
    records = result.history.records  # with that of the exchange before training
    assert len(records) == ROUNDS + 1
    for key, name in (("bytes_up", "bytes.up"), ("bytes_down", "bytes.down")):
        seen = np.array([line[key] for line in lines]).reshape(ROUNDS + 1, WARDS)
        np.testing.assert_array_equal(seen, np.stack([record[name][0] for record in records]))
        assert (seen == 2896).all()
    trained = [line for line in lines if line["round"] > 0]
    for key in ("accuracy", "loss.cross_entropy", "loss.prototypes", "loss.observations"):
        seen = np.array([line[key] for line in trained]).reshape(ROUNDS, WARDS)
        np.testing.assert_array_equal(seen, result.history[key][:, 0])
    for number in range(WARDS):
        held = held_answers(tmp_path / f"ward-{number}")
        assert held.keys() == {"prototypes", "observations"}
        for name, answers in simulated[number].items():
            for tensor, value in answers[-1].items():
                np.testing.assert_array_equal(held[name][tensor], value)


def test_a_node_that_is_killed_comes_back_as_the_member_it_was(tmp_path: Path) -> None:
    write_wards(tmp_path / "wards.toml")  # all paths are relative to where SuperLink and SuperNodes were started
    rounds, file = 7, tmp_path / "wards.rounds.jsonl"

    def newest(number: int) -> int:
        lines = results(file) if file.exists() else []
        return max((line["round"] for line in lines if line["member"] == f"ward-{number}"), default=-1)

    with deployment(tmp_path) as made:
        for number in range(WARDS):
            made.start_node(f"node-{number}", {"ward": number, "consilience-member": f"ward-{number}"})
        # A node that was killed is one to the SuperLink until two of its heartbeats are missing, for up to 60 s.
        run = made.start_run(charter="wards.toml", nodes=WARDS, rounds=rounds, evaluate=False, timeout=600)

        def log() -> str:
            return made.log("run")

        await_true(lambda: newest(2) >= 1 or run.poll() is not None, LONG, log)
        made.stop("node-2", signal.SIGKILL)
        await_true(lambda: newest(0) > newest(2) or run.poll() is not None, LONG, log)
        assert newest(0) < rounds, log()
        made.start_node("node-2", {"ward": 2, "consilience-member": "ward-2"})
        await_true(lambda: run.poll() is not None, LONG, log)
        shown = log()
    present = [line["round"] for line in results(file) if line["member"] == "ward-2"]
    assert present[-1] == rounds and len(present) < rounds + 1, shown
    assert [line["round"] for line in results(file) if line["member"] == "ward-0"] == list(range(rounds + 1)), shown
    assert [each.name for each in sorted((tmp_path / "peers").iterdir())] == [f"wards-ward-{n}" for n in range(WARDS)]
    (federation,) = admin.status(tmp_path / "wards.db")
    assert [(m["number"], m["name"]) for m in federation["members"]] == [(n, f"ward-{n}") for n in range(WARDS)]
    uploads = [m["round"] for m in federation["members"]]
    # What the killed node had saved and not sent, if anything, has arrived when it came back.
    assert uploads[:2] == [rounds, rounds] and uploads[2] - (len(present) - 1) in (0, 1), shown


def test_a_run_that_cannot_start_says_why(tmp_path: Path) -> None:
    with deployment(tmp_path) as made:
        shown = made.run(LONG, charter=str(tmp_path / "nothing.toml"), store=str(tmp_path / "wards.db"))
    assert "nothing.toml cannot be read" in shown and "write it with consilience federation" in shown
    assert not (tmp_path / "wards.db").exists()
