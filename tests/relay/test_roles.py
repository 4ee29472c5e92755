"""Roles at the relay: who may upload what, whom a moving mean waits for, and the public set."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from pathlib import Path

import httpx
import numpy as np

from consilience.relay import admin
from consilience.relay.restore import back_up
from consilience.relay.store import Store
from consilience.wire import codec
from consilience.wire.charter import message_of
from consilience.wire.headers import UPLOAD_HEADER, Part, format_parts
from consilience.wire.roles import encode_public_set
from tests.relay_tools import create_federation, serving
from tests.roles_tools import PUBLIC, create_small, small_charter

CHANNELS = small_charter()[0].channels
BODY = encode_public_set(PUBLIC)
ROWS = {"similarity.rows": np.full((1, 6, 2), 0.5, dtype=np.float32)}
CHANGE = {"weights.w": np.array([1.0, 2.0], dtype=np.float32)}
SIMILARITY = {"similarity": Part(entries=1, weight=1)}


def of(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def upload(url: str, token: str, round_: int, parts: dict[str, Part], tensors: dict[str, np.ndarray]) -> httpx.Response:
    body = codec.encode(message_of(CHANNELS, "up", parts), tensors)
    return httpx.put(
        f"{url}/v1/rounds/{round_}", content=body, headers=of(token) | {UPLOAD_HEADER: format_parts(parts)}
    )


def test_a_role_uploads_to_its_own_channels_only(tmp_path: Path) -> None:
    store, tokens = create_small(tmp_path)
    moved = {"weights": Part(version=0, weight=1)}
    with serving(store) as relay:
        refused = upload(relay.url, tokens[1], 1, moved, CHANGE)
        assert refused.status_code == 403 and refused.json()["code"] == "other-role"
        assert refused.json()["message"] == "weights: member 1 is learner and witness, and uploads to similarity only"
        assert upload(relay.url, tokens[0], 1, SIMILARITY, ROWS).json()["field"] == "similarity"
        both = upload(relay.url, tokens[2], 1, {**SIMILARITY, **moved}, {**ROWS, **CHANGE})
        assert both.status_code == 403
        status = httpx.get(f"{relay.url}/v1/federation", headers=of(tokens[1])).json()
        assert status["rounds"] == {"0": -1, "1": -1, "2": -1} and status["waiting"] == {"weights": 0}


def test_a_moving_mean_waits_for_those_who_upload_to_it(tmp_path: Path) -> None:
    """One distiller is enough, although at least two contributions are asked for where more can upload."""
    store, tokens = create_small(tmp_path, min_contributions=2, deadline=3600.0)
    with serving(store) as relay:
        receipt = upload(relay.url, tokens[0], 1, {"weights": Part(version=0, weight=1)}, CHANGE)
        assert receipt.json()["accepted"] == ["weights"]
        assert upload(relay.url, tokens[1], 1, SIMILARITY, ROWS).status_code == 200
        status = httpx.get(f"{relay.url}/v1/federation", headers=of(tokens[1])).json()
        assert status["versions"] == {"weights": 1} and status["rounds"] == {"0": 1, "1": 1, "2": -1}
        admin.revoke(store, "m2")
        for _ in range(100):
            status = httpx.get(f"{relay.url}/v1/federation", headers=of(tokens[1])).json()
            if status["rounds"] == {"0": 1, "1": 1}:
                break
            time.sleep(0.05)
        assert status["rounds"] == {"0": 1, "1": 1}  # nobody waits for a member that was revoked


def test_an_answer_says_how_many_entries_are_there(tmp_path: Path) -> None:
    store, tokens = create_small(tmp_path)
    query = {"round": "1", "channel": "similarity"}
    with serving(store) as relay:
        for there, token in enumerate(("", tokens[1], tokens[2])):
            if token:
                assert upload(relay.url, token, 1, SIMILARITY, ROWS).status_code == 200
            answer = httpx.get(f"{relay.url}/v1/answers", params=query, headers=of(tokens[0]))
            assert answer.headers["consilience-answer"] == f"similarity;entries=2;weight={there}"


# --- the public set


def test_the_host_uploads_the_public_set_and_members_download_it(tmp_path: Path) -> None:
    store, tokens = create_small(tmp_path)
    with serving(store) as relay:
        path = f"{relay.url}/v1/public-set"
        early = httpx.get(path, headers=of(tokens[1]))
        assert early.status_code == 404 and early.json()["code"] == "no-public-set"
        assert httpx.get(path).json()["code"] == "no-token"
        assert httpx.put(path, content=BODY, headers=of(tokens[1])).json()["code"] == "other-role"
        assert httpx.put(path, content=BODY[:-4], headers=of(tokens[0])).json()["code"] == "wrong-length"
        assert httpx.put(path, content=BODY + bytes(4), headers=of(tokens[0])).json()["code"] == "too-large"
        other = httpx.put(path, content=BODY[:-1] + b"\0", headers=of(tokens[0]))
        assert other.status_code == 409 and other.json()["code"] == "other-public-set"
        assert httpx.get(f"{relay.url}/v1/federation", headers=of(tokens[1])).json()["public_set"] is False
        for _ in range(2):  # the second time nothing is left to do
            assert httpx.put(path, content=BODY, headers=of(tokens[0])).status_code == 200
        assert httpx.get(path, headers=of(tokens[1])).content == BODY
    with serving(store) as relay:  # it is on disk
        assert httpx.get(f"{relay.url}/v1/federation", headers=of(tokens[1])).json()["public_set"] is True
        assert httpx.get(f"{relay.url}/v1/public-set", headers=of(tokens[2])).content == BODY
    back_up(store, tmp_path / "backup.db")
    with contextlib.closing(Store(tmp_path / "backup.db")) as copy:
        assert copy.public_sets.get(1) == BODY
        assert [entry.event for entry in copy.audit.entries(federation=1)].count("public-set") == 1


def test_a_damaged_public_set_is_never_served(tmp_path: Path) -> None:
    store, tokens = create_small(tmp_path)
    with serving(store) as relay:
        assert httpx.put(f"{relay.url}/v1/public-set", content=BODY, headers=of(tokens[0])).status_code == 200
    with contextlib.closing(sqlite3.connect(store)) as sql, sql:
        sql.execute("UPDATE public_sets SET body = ?", (BODY[:-1] + b"\7",))
    assert admin.verify(store)["damage"] == ["public_sets, federation 1: damaged"]
    with serving(store) as relay:
        path, codes = f"{relay.url}/v1/public-set", set()
        for _ in range(100):
            answer = httpx.get(path, headers=of(tokens[1]))
            assert answer.status_code != 200
            codes.add(answer.json()["code"])
            if answer.json()["code"] == "no-public-set":  # it was dropped, and the host may upload it again
                break
            time.sleep(0.05)
        assert codes <= {"damaged", "no-public-set"} and "no-public-set" in codes
        assert httpx.put(path, content=BODY, headers=of(tokens[0])).status_code == 200
        assert httpx.get(path, headers=of(tokens[1])).content == BODY
    assert admin.verify(store)["damage"] == []


def test_a_federation_without_a_public_set_has_no_place_for_one(tmp_path: Path) -> None:
    made = create_federation(tmp_path, members=1)
    with serving(made.store) as relay:
        answer = httpx.get(f"{relay.url}/v1/public-set", headers=of(made.tokens[0]))
        assert answer.status_code == 404 and answer.json()["code"] == "not-found"
