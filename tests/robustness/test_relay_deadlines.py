"""Which members a relay waits for, how long, and the weight of late, stale and returning contributions."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path

import httpx
import numpy as np
import pytest

from consilience.relay import admin
from consilience.relay.rejections import Rejection
from consilience.relay.store import Store
from consilience.wire.rules import Rules
from tests.relay_tools import (
    Federation,
    ManualWriter,
    channels,
    create_federation,
    manual_writer,
    serving,
    upload_headers,
    wait_until,
)

MOVING = ["weights"]
A_MINUTE = Rules(deadline=60.0)


def away(federation: Federation) -> list[int]:
    (each,) = admin.status(federation.store)
    return [member["number"] for member in each["members"] if member["state"] == "away"]


def common(at: ManualWriter) -> np.ndarray:
    return np.array(at.service.snapshot.moving["weights"].common["b"])


def test_absent_member_is_waited_for_once(tmp_path: Path) -> None:
    federation = create_federation(tmp_path, 3, rules=A_MINUTE)
    with manual_writer(federation) as at:
        at.upload(0, 1, 0, MOVING).result(0)
        at.poll(later=20)
        at.upload(1, 1, 0, MOVING).result(0)
        at.poll(later=39.9)  # of the first contribution
        assert (at.version, away(federation)) == (0, [])
        at.poll(later=0.2)
        assert (at.version, away(federation), at.service.snapshot.expected) == (1, [2], 2)
        for round_ in (2, 3):  # it is not waited for any more
            at.upload(0, round_, round_ - 1, MOVING).result(0)
            assert at.version == round_ - 1
            at.upload(1, round_, round_ - 1, MOVING).result(0)
            assert at.version == round_
        at.upload(2, 1, 3, MOVING).result(0)  # it is back, and waited for again
        assert (away(federation), at.service.snapshot.expected) == ([], 3)
        for member in (0, 1):
            assert at.version == 3
            at.upload(member, 4, 3, MOVING).result(0)
        assert at.version == 4
        at.upload(0, 5, 4, MOVING).result(0)
        at.upload(1, 5, 4, MOVING).result(0)
        at.poll(later=59)
        assert at.version == 4
        at.poll(later=2)
        assert (at.version, away(federation)) == (5, [2])


def test_upload_to_a_standing_mean_does_not_end_absence(tmp_path: Path) -> None:
    federation = create_federation(tmp_path, 3, rules=A_MINUTE)
    with manual_writer(federation) as at:
        at.upload(0, 1, 0, MOVING)
        at.upload(1, 1, 0, MOVING)
        at.poll(later=61)
        at.upload(2, 1, names=["prototypes"]).result(0)
        assert away(federation) == [2]


def test_too_few_contributions_are_not_aggregated(tmp_path: Path) -> None:
    federation = create_federation(tmp_path, 4, rules=Rules(deadline=60.0, min_contributions=3))
    with manual_writer(federation) as at:
        for member in (0, 1):
            at.upload(member, 1, 0, MOVING).result(0)
        for _ in range(3):
            at.poll(later=100)
            assert (at.version, away(federation)) == (0, [])
        at.upload(2, 1, 0, MOVING).result(0)  # the deadline has long passed
        at.poll()
        assert (at.version, away(federation)) == (1, [3])


def test_single_member_waits_for_another(tmp_path: Path) -> None:
    federation = create_federation(tmp_path, 1, rules=A_MINUTE)
    with manual_writer(federation) as at:
        at.upload(0, 1, 0, MOVING).result(0)
        at.poll(later=1000)
        assert at.version == 0
        refusal = at.upload(0, 2, 0, MOVING).exception(0)
        assert isinstance(refusal, Rejection) and refusal.code == "already-uploaded"


def test_quorum_aggregates_early_and_late_upload_counts_next_time(tmp_path: Path) -> None:
    federation = create_federation(tmp_path, 3, channels(quorum=2), A_MINUTE)
    with manual_writer(federation) as at:
        at.upload(0, 1, 0, MOVING).result(0)
        assert at.version == 0
        at.upload(1, 1, 0, MOVING).result(0)
        assert (at.version, away(federation)) == (1, [])
        at.upload(2, 1, 0, MOVING).result(0)
        assert (at.version, at.service.snapshot.waiting["weights"]) == (1, 1)
        at.upload(0, 2, 1, MOVING).result(0)
        assert at.version == 2


def test_round_that_starts_as_another_ends_has_its_own_deadline(tmp_path: Path) -> None:
    """Both in one batch: the first contribution of the new round has its own arrival time."""
    federation = create_federation(tmp_path, 4, channels(quorum=2), Rules(deadline=60.0, min_contributions=1))
    with manual_writer(federation) as at:
        at.upload(0, 1, 0, MOVING).result(0)
        at.poll(later=59)
        for receipt in at.write(at.queued(1, 1, 0, MOVING), at.queued(2, 1, 0, MOVING)):
            receipt.result(0)
        assert (at.version, at.service.snapshot.waiting["weights"]) == (1, 1)
        at.poll(later=2)
        assert (at.version, away(federation)) == (1, []), "it was closed by the deadline of the round before"
        at.poll(later=59)
        assert (at.version, away(federation)) == (2, [0, 1, 3])


def test_aggregation_past_the_deadline_does_not_end_the_next_round(tmp_path: Path) -> None:
    federation = create_federation(tmp_path, 4, channels(quorum=2), Rules(deadline=60.0, min_contributions=1))
    with manual_writer(federation) as at:
        at.upload(0, 1, 0, MOVING).result(0)
        at.now += 61  # before the next check, one batch completes the round and starts the next
        for receipt in at.write(at.queued(1, 1, 0, MOVING), at.queued(2, 1, 0, MOVING)):
            receipt.result(0)
        assert (at.version, at.service.snapshot.waiting["weights"], away(federation)) == (1, 1, [])


def test_stale_changes_have_less_weight(tmp_path: Path) -> None:
    """A change made s versions ago counts by (1 + s) ** -0.75, and the mean is divided by the whole weight."""
    federation = create_federation(tmp_path, 3, channels(quorum=2), A_MINUTE)
    with manual_writer(federation) as at:
        for round_ in range(1, 4):
            for member in (0, 1):
                at.upload(member, round_, round_ - 1, MOVING).result(0)
        before = common(at)
        at.upload(0, 4, 3, MOVING).result(0)
        at.upload(2, 1, 0, MOVING).result(0)  # 3 versions old
        assert at.version == 4
        fresh, stale = (federation.upload(*which, MOVING).of("weights")["b"] for which in ((0, 4, 3), (2, 1, 0)))
        weights = 3.5, 23.5 / (1 + 3) ** 0.75
        mean = (weights[0] * fresh.astype(np.float64) + weights[1] * stale) / (3.5 + 23.5)
        sent = mean.astype(np.float32).astype(np.float16).astype(np.float32)
        assert np.array_equal(common(at), before + sent)


def test_too_stale_contribution_is_refused_for_that_channel_only(tmp_path: Path) -> None:
    federation = create_federation(tmp_path, 3, channels(quorum=2, max_staleness=2), A_MINUTE)
    with manual_writer(federation) as at:
        for round_ in range(1, 4):
            for member in (0, 1):
                at.upload(member, round_, round_ - 1, MOVING).result(0)
        assert at.version == 3
        receipt = json.loads(at.upload(2, 1, 0).result(0))
        assert receipt["accepted"] == ["prototypes", "observations"]
        assert list(receipt["refused"]) == ["weights"] and "made from version 0" in receipt["refused"]["weights"]
        assert at.service.snapshot.waiting["weights"] == 0
        assert json.loads(at.upload(2, 1, 0).result(0)) == receipt, "the same again, the same receipt"
        assert json.loads(at.upload(2, 2, 1).result(0))["accepted"] == ["prototypes", "observations", "weights"]
        refusal = at.upload(2, 3, 9).exception(0)
        assert isinstance(refusal, Rejection) and refusal.code == "version-ahead"
    federation.sums_are_right()


@pytest.mark.parametrize("by_row", [False, True])
def test_contributions_of_inactive_members_expire(tmp_path: Path, by_row: bool) -> None:
    federation = create_federation(tmp_path, 3, channels(by_row=by_row), Rules(expire=3, round_seconds=0))
    both = ["prototypes", "observations"]
    with manual_writer(federation) as at:
        for member in range(3):
            at.upload(member, 1, names=both).result(0)
        for round_ in range(1000, 1020):  # one member alone expires no other, however far and often it skips rounds
            at.upload(0, round_, names=both).result(0)
        assert at.service.snapshot.present["observations"][:3].all(axis=1).tolist() == [True] * 3
        for round_ in (2002, 2003):
            at.upload(1, round_, names=both).result(0)
            at.upload(0, round_, names=both).result(0)
        assert at.service.snapshot.present["observations"][:3].all(axis=1).tolist() == [True, True, False], (
            "2 was silent"
        )
        left = [federation.upload(0, 2003).of("prototypes"), federation.upload(1, 2003).of("prototypes")]
        counts = sum(each["count"].astype(np.float64) for each in left)
        assert np.array_equal(at.service.snapshot.standing["prototypes"].count, counts)
        at.upload(2, 2, names=both).result(0)
        assert at.service.snapshot.present["observations"][:3].all(), "it is back"
    federation.sums_are_right()


def test_two_members_cannot_make_the_contributions_of_others_expire_at_once(tmp_path: Path) -> None:
    federation = create_federation(tmp_path, 4, rules=Rules(expire=3, round_seconds=30))
    both = ["prototypes", "observations"]
    with manual_writer(federation) as at:

        def present() -> list[bool]:
            return [bool(each.all()) for each in at.service.snapshot.present["observations"][:4]]

        for member in range(4):
            at.upload(member, 1, names=both).result(0)
        for round_ in range(2, 102):
            at.write(*(at.queued(member, round_, names=both) for member in (0, 1)))
        assert present() == [True] * 4 and at.service.snapshot.round == 0
        for round_ in range(102, 112):  # after five minutes, members that were silent all the time are gone
            at.now += 30
            at.upload(round_ % 2, round_, names=both).result(0)
            if round_ < 105:
                at.upload(2, round_, names=both).result(0)
            assert at.service.snapshot.round == round_ - 101 and present()[2] == (round_ < 108)
        assert present() == [True, True, False, False]
    federation.sums_are_right()


def test_member_that_comes_and_goes_delays_others_less_and_less(tmp_path: Path) -> None:
    federation = create_federation(tmp_path, 3, rules=A_MINUTE)
    delays = 0
    with manual_writer(federation) as at:
        for round_ in range(1, 101):
            version = at.version
            if round_ % 2:  # it uploads every other time
                at.upload(2, round_, version, MOVING).result(0)
            for member in (0, 1):
                at.upload(member, round_, version, MOVING).result(0)
            if at.version == version:
                delays += 1
                at.poll(later=61)
            assert at.version == version + 1
    assert delays == 6  # after 1, 2, 4, 8, 16 and 32 uploads of its own; not in every other round
    federation.sums_are_right()


def test_member_revoked_in_the_store_is_removed_from_channels(tmp_path: Path) -> None:
    federation = create_federation(tmp_path, 3)
    with manual_writer(federation) as at:
        for member in range(3):
            at.upload(member, 1, names=["prototypes", "observations"]).result(0)
        at.upload(0, 2, 0, MOVING).result(0)
        at.upload(1, 2, 0, MOVING).result(0)
        admin.revoke(federation.store, "m2")  # a member that was waited for
        at.poll()
        assert (at.version, at.service.snapshot.expected) == (1, 2)
        left = [federation.upload(member, 1).of("prototypes")["count"].astype(np.float64) for member in range(2)]
        assert np.array_equal(at.service.snapshot.standing["prototypes"].count, left[0] + left[1])
        assert not at.service.snapshot.present["observations"][2].any()
        at.upload(0, 3, 1, MOVING).result(0)
        admin.revoke(federation.store, "m0")  # and one that has uploaded
        at.poll()
        assert (at.version, at.service.snapshot.waiting["weights"], at.service.snapshot.expected) == (1, 0, 1)
        refusal = at.upload(0, 4, 1, MOVING).exception(0)
        assert isinstance(refusal, Rejection) and refusal.code == "revoked"
    federation.sums_are_right()


def test_member_revoked_from_another_process_is_removed(tmp_path: Path) -> None:
    federation = create_federation(tmp_path, 3)
    with serving(federation.store) as relay, httpx.Client(base_url=relay.url) as client:
        for member in range(3):
            upload = federation.upload(member, 1, names=["prototypes"])
            head = upload_headers(federation, member, upload)
            assert client.put("/v1/rounds/1", content=upload.body, headers=head).status_code == 200
        asks = "/v1/answers?channel=prototypes"
        before = client.get(asks, headers=federation.head(0))
        other = multiprocessing.get_context("spawn").Process(target=admin.revoke, args=(federation.store, "m2"))
        other.start()
        other.join(20)
        answer = client.get(asks, headers=federation.head(2))
        assert (answer.status_code, answer.json()["code"]) == (403, "revoked")
        wait_until(lambda: client.get(asks, headers=federation.head(0)).headers["etag"] != before.headers["etag"], 3)
        assert client.get("/v1/federation", headers=federation.head(0)).json()["expected"] == 2
        federation.invite("m3")
        assert client.get(asks, headers=federation.head(3)).status_code == 200
        wait_until(lambda: client.get("/v1/federation", headers=federation.head(0)).json()["expected"] == 3, 3)
        relay.stop()
    store = Store(federation.store)
    assert [entry.number for entry in store.contributions.all(1, "prototypes")] == [0, 1]
    store.close()
    federation.sums_are_right()
