"""A relay of ten thousand members restarts with the same answers, and corrects wrong sums."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import httpx
import numpy as np
import pytest

from benchmarks.relay import Prefilled, prefill
from consilience.relay import admin
from consilience.relay.store import Store
from consilience.relay.upload_queue import QueuedUpload
from consilience.relay.writer import Writer
from consilience.wire.codec import Codec
from tests.relay_tools import RelayProcess, create_federation, serve, serving, wait_until, wide

MEMBERS = 10_000


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Prefilled:
    return prefill(tmp_path_factory.mktemp("many"), MEMBERS)


def asked(relay: RelayProcess, many: Prefilled, member: int) -> bytes:
    head = {"Authorization": f"Bearer {many.tokens[member]}"}
    answer = httpx.get(f"{relay.url}/v1/answers?round=7", headers=head)
    assert answer.status_code == 200, answer.text
    return answer.content


@pytest.mark.parametrize("killed", [False, True])
def test_answers_after_a_restart_are_the_same(many: Prefilled, killed: bool) -> None:
    with serving(many.store) as relay:
        before = [asked(relay, many, member) for member in range(3)]
        if not killed:
            relay.stop()
    with serving(many.store) as relay:
        assert [asked(relay, many, member) for member in range(3)] == before
        relay.stop()


def test_wrong_sums_in_the_store_are_corrected(many: Prefilled) -> None:
    with serving(many.store) as relay:
        right = asked(relay, many, 0)
        relay.stop()
    with contextlib.closing(Store(many.store)) as store, store.writing():
        state = store.channel_states.get(1, "prototypes")
        assert state is not None
        state["sums.mean"][3, 7] += 1000.0 * state["count"][3]
        state["count"][5] += 1
        store.channel_states.save(1, "prototypes", state)
    relay = serve(many.store)
    try:
        wait_until(lambda: asked(relay, many, 0) != right, 1)  # at first it answers from the saved sums
        wait_until(lambda: asked(relay, many, 0) == right, 120)
        relay.stop()
    finally:
        relay.kill()
    with contextlib.closing(Store(many.store)) as store:
        mended = store.channel_states.get(1, "prototypes")
    assert mended is not None and np.abs(mended["sums.mean"] - state["sums.mean"]).max() > 1000
    assert "sums of prototypes were wrong" in many.store.with_suffix(".log").read_text()


def test_damaged_store_is_named(tmp_path: Path) -> None:
    store = tmp_path / "relay.db"
    store.write_bytes(b"SQLite format 3\0" + bytes(4000))
    with pytest.raises(AssertionError, match="cannot be opened as a relay's store"):
        serve(store)
    with contextlib.closing(sqlite3.connect(tmp_path / "other.db")) as other:
        other.execute("PRAGMA user_version = 7")
    with pytest.raises(AssertionError, match="a store of layout 7"):
        serve(tmp_path / "other.db")


def test_sums_are_recomputed_after_a_huge_contribution_is_replaced(tmp_path: Path) -> None:
    """In a sum of 1e41 the others' digits are lost: after its removal they are summed again."""
    federation = create_federation(tmp_path, 3, wide())
    writer = Writer(federation.store)
    writer.start()

    def put(member: int, round_: int, mean: float | None = None) -> None:
        upload = federation.upload(member, round_)
        body = upload.body
        if mean is not None:
            values = np.full((10, 250), mean, np.float32)
            message = federation.charter.message("up")
            body = Codec(message).encode({**upload.tensors, "prototypes.mean": values})
        writer.submit(QueuedUpload(member + 1, round_, upload.header, body)).result(timeout=10)

    for member in (1, 2):
        put(member, 1)
    right = writer.federations[1].snapshot.standing["prototypes"].sums["mean"]
    put(0, 1, 3e38)
    put(0, 2, 0.0)
    assert np.abs(writer.federations[1].snapshot.standing["prototypes"].sums["mean"] - right).max() > 0.1
    wait_until(
        lambda: np.allclose(
            writer.federations[1].snapshot.standing["prototypes"].sums["mean"], right, rtol=1e-12, atol=1e-12
        ),
        5,
    )
    put(0, 3, 3e38)
    admin.revoke(federation.store, "m0")
    wait_until(lambda: writer.federations[1].snapshot.expected == 2, 5)
    wait_until(
        lambda: np.allclose(
            writer.federations[1].snapshot.standing["prototypes"].sums["mean"], right, rtol=1e-12, atol=1e-12
        ),
        5,
    )
    writer.stop()
    federation.sums_are_right()
