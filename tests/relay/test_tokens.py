"""Members' tokens: they expire, are replaced, and a revoked member can be invited again."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import pytest

from consilience.errors import ConfigurationError, UnknownName
from consilience.relay import admin
from consilience.relay.operators import add_operator, remove_operator
from consilience.relay.restore import back_up, restore
from consilience.relay.rotate import rotate
from consilience.relay.store import Store
from consilience.relay.streams import OpenStream
from tests.local_relay import (
    MEAN,
    MOVING,
    START,
    change,
    code,
    create_federation,
    logits,
    moved,
    running,
    wait_until,
    weighs,
)

DAY = 86400


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The machine's clock, which a test may set: hours that it is ahead of the real one."""
    ahead, real = [0.0], time.time
    monkeypatch.setattr(time, "time", lambda: real() + 3600 * ahead[0])
    return ahead


def member(store: Path, name: str) -> dict[str, object]:
    return next(each for each in admin.status(store)[0]["members"] if each["name"] == name)


def test_expired_token_is_refused_and_nothing_else_is_changed(tmp_path: Path, clock: list[float]) -> None:
    stored = create_federation(tmp_path, MEAN)
    short = str(admin.invite(stored.store, "short", days=2))
    with running(stored) as relay:
        assert relay.upload(short, 1, weighs(1), logits(4, 4)).status_code == 200
        clock[0] = 47
        assert relay.ask(short, "/v1/federation").status_code == 200
        clock[0] = 49
        for path in ("/v1/federation", "/v1/answers", "/v1/events"):
            assert code(relay.ask(short, path)) == (403, "expired")
        assert code(relay.upload(short, 2, weighs(1), logits(1, 1))) == (403, "expired")
        assert member(stored.store, "short")["state"] == "expired"
        assert relay.ask(0, "/v1/federation").status_code == 200  # tokens without days never expire
        assert relay.answers(0)[1]["logits.mean"].tolist() == [4, 4]  # what it contributed still counts
        renewed = str(rotate(stored.store, "short"))
        assert relay.ask(renewed, "/v1/federation").json()["member"]["round"] == 1


def test_clock_that_jumps_changes_only_what_is_accepted_now(tmp_path: Path, clock: list[float]) -> None:
    """Whether a token has expired is decided at each request, and never written: a wrong clock leaves no trace."""
    stored = create_federation(tmp_path, MEAN)
    short = str(admin.invite(stored.store, "short", days=1))
    with running(stored) as relay:
        clock[0] = 24 * 365.0  # set forward by mistake
        assert code(relay.ask(short, "/v1/federation")) == (403, "expired")
        clock[0] = -24 * 365.0  # and back, too far
        assert relay.ask(short, "/v1/federation").status_code == 200
        assert relay.upload(short, 1, weighs(1), logits(1, 1)).status_code == 200
        clock[0] = 0
        assert relay.ask(short, "/v1/federation").status_code == 200
        old, new = stored.tokens[0], str(rotate(stored.store, "member-0"))
        clock[0] = -24 * 365.0  # a token that was replaced without grace stays refused whatever the clock says
        assert code(relay.ask(old, "/v1/federation")) == (403, "expired")
        assert relay.ask(new, "/v1/federation").status_code == 200


def test_rotated_token_replaces_the_old_one_at_once_or_after_its_grace(tmp_path: Path, clock: list[float]) -> None:
    stored = create_federation(tmp_path, MEAN)
    first = stored.tokens[0]
    with running(stored) as relay:
        relay.upload(first, 1, weighs(1), logits(4, 4))
        second = str(rotate(stored.store, "member-0"))
        refused = relay.ask(first, "/v1/federation")
        assert code(refused) == (403, "expired") and "replaced by a newer one" in refused.json()["message"]
        assert relay.ask(second, "/v1/federation").json()["member"] == {
            **relay.ask(second, "/v1/federation").json()["member"],
            "number": 0,
            "round": 1,
        }
        third = str(rotate(stored.store, "member-0", grace=2))
        assert [relay.ask(t, "/v1/federation").status_code for t in (first, second, third)] == [401, 200, 200]
        assert relay.upload(second, 2, weighs(1), logits(2, 2)).status_code == 200
        clock[0] = 2.1
        assert [relay.ask(t, "/v1/federation").status_code for t in (second, third)] == [403, 200]
        assert relay.answers(third)[1]["logits.mean"].tolist() == [2, 2]


def test_grace_never_extends_the_life_of_the_old_token(tmp_path: Path, clock: list[float]) -> None:
    stored = create_federation(tmp_path, MEAN)
    short = str(admin.invite(stored.store, "short", days=1))
    new = str(rotate(stored.store, "short", grace=48, days=30))
    with running(stored) as relay:
        clock[0] = 23
        assert relay.ask(short, "/v1/federation").status_code == 200
        clock[0] = 25
        assert code(relay.ask(short, "/v1/federation")) == (403, "expired")
        assert relay.ask(new, "/v1/federation").status_code == 200


def test_wrong_days_grace_and_members_are_named(tmp_path: Path) -> None:
    stored = create_federation(tmp_path, MEAN)
    for days in (0, -1, float("nan"), float("inf"), 1e9):
        with pytest.raises(ConfigurationError, match=r"days is .*; a token is valid for more than 0 days"):
            admin.invite(stored.store, "x", days=days)
    for grace in (-1.0, float("nan"), 1e9):
        with pytest.raises(ConfigurationError, match=r"grace is .* hours; allowed is 0"):
            rotate(stored.store, "member-0", grace=grace)
    with pytest.raises(UnknownName, match=r"unknown member 'membr-0'\. Did you mean 'member-0'"):
        rotate(stored.store, "membr-0")
    with pytest.raises(ConfigurationError, match="consilience relay rotate member-0"):
        admin.invite(stored.store, "member-0")
    admin.revoke(stored.store, "member-0")
    with pytest.raises(ConfigurationError, match="is revoked and has no token; accept it again"):
        rotate(stored.store, "member-0")


@pytest.mark.parametrize("served", [True, False], ids=["while-served", "while-stopped"])
def test_revoked_member_is_invited_again_without_what_it_contributed(tmp_path: Path, served: bool) -> None:
    """The same number and rounds, a new token; its old contributions are gone also if no relay saw the revocation."""
    stored = create_federation(tmp_path, {**MEAN, **MOVING}, START, members=3)
    old = stored.tokens[1]
    with running(stored) as relay:
        for i in range(2):
            assert relay.upload(i, 5, weighs(1) | moved(0), logits(i, i) | change(i)).status_code == 200
        if served:
            admin.revoke(stored.store, "member-1")
            stored.tokens[1] = stored.invite("member-1")
    if not served:
        admin.revoke(stored.store, "member-1")
        stored.tokens[1] = stored.invite("member-1")
    assert member(stored.store, "member-1")["state"] == "active"
    with running(stored) as relay:
        assert code(relay.ask(old, "/v1/federation")) == (401, "wrong-token")
        wait_until(lambda: relay.answers(0, "channel=logits")[1]["logits.mean"].tolist() == [0, 0])
        said = relay.ask(1, "/v1/federation").json()
        assert (said["member"]["number"], said["member"]["round"]) == (1, 5)
        assert (said["expected"], said["waiting"]) == (3, {"weights": 1})
        assert code(relay.upload(1, 4, weighs(1), logits(9, 9))) == (409, "older-round")
        again = relay.upload(1, 6, weighs(1) | moved(0), logits(3, 3) | change(1))
        assert again.json()["accepted"] == ["logits", "weights"]
        assert relay.answers(0, "channel=logits")[1]["logits.mean"].tolist() == [1.5, 1.5]
        admin.revoke(stored.store, "member-1")
        assert code(relay.ask(1, "/v1/federation")) == (403, "revoked")
        wait_until(lambda: relay.answers(0, "channel=logits")[1]["logits.mean"].tolist() == [0, 0])


def test_restore_asks_about_tokens_that_were_replaced_since_the_backup(tmp_path: Path) -> None:
    stored = create_federation(tmp_path, MEAN)
    back_up(stored.store, tmp_path / "backup.db")
    rotate(stored.store, "member-1")
    with pytest.raises(
        ConfigurationError, match=r"revoked after the backup was made: member-1\. .*replaced by a newer"
    ):
        restore(tmp_path / "backup.db", stored.store)
    assert restore(tmp_path / "backup.db", stored.store, "revoke").revoked == ["member-1"]
    again = stored.invite("member-1")
    with running(stored) as relay:
        assert code(relay.ask(1, "/v1/federation")) == (401, "wrong-token")
        assert relay.ask(again, "/v1/federation").status_code == 200


def test_event_stream_ends_when_its_token_expires_or_is_replaced(tmp_path: Path, clock: list[float]) -> None:
    stored = create_federation(tmp_path, MEAN)
    token = admin.invite(stored.store, "short", days=1)
    with running(stored) as relay:
        inside = relay.relay

        def opened(number: int, sent: object) -> OpenStream:
            member = inside.store.members.get(number)
            assert member is not None
            return OpenStream(member, f"Bearer {sent}")

        short, other = opened(3, token), opened(1, stored.tokens[0])
        assert not inside._has_ended(short) and not inside._has_ended(other)
        rotate(stored.store, "member-0", grace=1)
        late = opened(1, stored.tokens[0])  # opened with the old token, while that is accepted
        assert not inside._has_ended(other) and not inside._has_ended(late)
        clock[0] = 1.1
        assert inside._has_ended(other) and inside._has_ended(late) and not inside._has_ended(short)
        clock[0] = 25
        assert inside._has_ended(short)


def test_second_old_token_is_not_promised(tmp_path: Path, clock: list[float]) -> None:
    stored = create_federation(tmp_path, MEAN)
    rotate(stored.store, "member-0", grace=2)
    with pytest.raises(ConfigurationError, match=r"accepted until .*; only one old token is kept"):
        rotate(stored.store, "member-0", grace=2)
    clock[0] = 2.1
    rotate(stored.store, "member-0", grace=2)
    rotate(stored.store, "member-0")


def test_restore_asks_about_operators_and_about_members_that_were_invited_again(tmp_path: Path) -> None:
    stored = create_federation(tmp_path, MEAN)
    admin.revoke(stored.store, "member-1")
    again = stored.invite("member-1")  # no relay has removed its old contributions yet
    anna, _ = add_operator(stored.store, "anna"), add_operator(stored.store, "ben")
    back_up(stored.store, tmp_path / "backup.db")
    admin.revoke(stored.store, "member-1")
    remove_operator(stored.store, "anna")
    with pytest.raises(ConfigurationError, match=r"revoked after the backup was made: member-1, operator anna\."):
        restore(tmp_path / "backup.db", stored.store)
    assert restore(tmp_path / "backup.db", stored.store, "revoke").revoked == ["member-1", "operator anna"]
    with contextlib.closing(Store(stored.store)) as store:
        assert [each.name for each in store.operators.all()] == ["ben"]
        assert [entry.event for entry in store.audit.entries(last=2)] == ["revoked", "operator-removed"]
    with running(stored) as relay:
        assert code(relay.ask(again, "/v1/federation")) == (403, "revoked")
        assert code(relay.ask(str(anna), "/v1/operator/status")) == (401, "wrong-token")


def test_last_seen_is_saved_with_uploads_and_in_batches(tmp_path: Path, clock: list[float]) -> None:
    stored = create_federation(tmp_path, MEAN, members=3)
    assert member(stored.store, "member-0")["seen"] is None
    with running(stored) as relay:
        relay.upload(0, 1, weighs(1), logits(1, 1))
        uploaded = member(stored.store, "member-0")["seen"]
        assert uploaded is not None
        relay.ask(1, "/v1/federation")
        assert member(stored.store, "member-1")["seen"] is None  # noted in memory only
        clock[0] = 1
        relay.ask(0, "/v1/federation")
    assert member(stored.store, "member-1")["seen"] is not None  # saved at the stop, at the latest
    assert member(stored.store, "member-0")["seen"] != uploaded
    assert member(stored.store, "member-2")["seen"] is None


def test_saved_time_of_an_earlier_request_does_not_replace_that_of_a_later_upload(tmp_path: Path) -> None:
    stored = create_federation(tmp_path, MEAN)
    with contextlib.closing(Store(stored.store)) as store, store.writing():
        for saved, given, then in ((0, 1000, 1000), (1000, 955, 1000), (1000, 1001, 1001), (1001, 500, 500)):
            assert store.members.of(1)[0].seen == saved
            store.members.set_seen({1: given})  # of 500: the clock was set back
            assert store.members.of(1)[0].seen == then
