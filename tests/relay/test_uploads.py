"""Uploads over HTTP: rounds, receipts, and what is refused."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

from consilience.wire import codec
from consilience.wire.headers import UPLOAD_HEADER, upload_sha256
from tests.local_relay import (
    MEAN,
    MOVING,
    START,
    change,
    code,
    create_federation,
    logits,
    message,
    moved,
    running,
    weighs,
)


def test_upload_counts_once_and_gets_the_same_receipt_again(tmp_path: Path) -> None:
    with running(create_federation(tmp_path, MEAN)) as relay:
        first = relay.upload(0, 1, weighs(3), logits(1, 2))
        body = codec.encode(message(MEAN, weighs(3), "up"), logits(1, 2))
        epoch = relay.ask(0, "/v1/federation").json()["epoch"]
        sha256 = upload_sha256("logits;weight=3", body)
        assert first.status_code == 200
        said = {"round": 1, "sha256": sha256, "epoch": epoch, "accepted": ["logits"], "refused": {}, "after": -1}
        assert {key: first.json()[key] for key in said} == said
        assert first.json()["sha256"] == hashlib.sha256(b"logits;weight=3\n" + body).hexdigest()
        assert relay.upload(0, 1, weighs(3), logits(1, 2)).content == first.content
        spelled = {UPLOAD_HEADER: " logits;weight=3.0 "}  # the same, written differently
        assert relay.ask(0, "/v1/rounds/1", "PUT", spelled, content=body).content == first.content
        assert code(relay.upload(0, 1, weighs(3), logits(1, 3))) == (409, "other-bytes")
        assert code(relay.upload(0, 1, weighs(4), logits(1, 2))) == (409, "other-bytes")
        parts, tensors = relay.answers(0)
        assert parts["logits"].weight == 3  # it counts once
        assert tensors["logits.mean"].tolist() == [1, 2]


def test_rounds_increase_and_may_be_skipped(tmp_path: Path) -> None:
    with running(create_federation(tmp_path, MEAN)) as relay:
        assert relay.upload(0, 0, weighs(1), logits(1, 1)).status_code == 200
        assert relay.upload(0, 7, weighs(1), logits(2, 2)).status_code == 200
        assert code(relay.upload(0, 3, weighs(1), logits(3, 3))) == (409, "older-round")
        assert code(relay.upload(0, 0, weighs(1), logits(1, 1))) == (409, "older-round")
        assert relay.upload(1, 3, weighs(1), logits(3, 3)).status_code == 200  # others have their own
        assert relay.ask(1, "/v1/federation").json()["member"]["round"] == 3
        assert (
            relay.ask(1, "/v1/federation").json()["round"] == 1
        )  # one more with another member, even if rounds are skipped


def test_receipt_names_the_channels_refused_as_too_stale(tmp_path: Path) -> None:
    stale = {"weights": replace(MOVING["weights"], max_staleness=0)}
    with running(create_federation(tmp_path, {**MEAN, **stale}, START)) as relay:
        for i in (0, 1):
            assert relay.upload(i, 1, moved(0), change(i)).json()["accepted"] == ["weights"]
        said = weighs(2) | moved(0)
        receipt = relay.upload(0, 2, said, logits(1, 1) | change(3)).json()
        assert receipt["accepted"] == ["logits"]
        assert list(receipt["refused"]) == ["weights"]
        assert "version 0" in receipt["refused"]["weights"]
        assert relay.ask(0, "/v1/federation").json()["waiting"] == {"weights": 0}


def test_second_contribution_and_future_version_are_refused(tmp_path: Path) -> None:
    with running(create_federation(tmp_path, MOVING, START)) as relay:
        assert relay.upload(0, 1, moved(0), change(1)).status_code == 200
        assert code(relay.upload(0, 2, moved(0), change(2))) == (409, "already-uploaded")
        assert code(relay.upload(1, 1, moved(1), change(2))) == (409, "version-ahead")
        assert relay.ask(0, "/v1/federation").json()["waiting"] == {"weights": 1}
        assert relay.ask(0, "/v1/federation").json()["member"]["round"] == 1
