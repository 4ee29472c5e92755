"""Members: invited, revoked, of several federations, and after a restart."""

from __future__ import annotations

from pathlib import Path

from consilience.relay import admin
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


def test_federations_in_one_store_do_not_see_each_other(tmp_path: Path) -> None:
    first = create_federation(tmp_path, MEAN)
    second = create_federation(tmp_path, {**MEAN, **MOVING}, START, name="letters")
    with running(first) as relay:
        relay.upload(0, 1, weighs(1), logits(1, 1))
        relay.stored = second
        assert relay.ask(0, "/v1/federation").json()["member"] == {
            "number": 0,
            "name": "member-0",
            "round": -1,
            "sha256": None,
        }
        assert relay.answers(0, "channel=logits")[0]["logits"].weight == 0
        relay.upload(0, 1, weighs(5), logits(9, 9))
        assert 'name = "letters"' in relay.ask(0, "/v1/federation").json()["charter"]
        relay.stored = first
        assert 'name = "digits"' in relay.ask(0, "/v1/federation").json()["charter"]
        assert relay.answers(0)[1]["logits.mean"].tolist() == [1, 1]
        assert code(relay.ask(0, "/v1/answers?channel=weights")) == (400, "unknown-channel")
        assert code(relay.ask(0, "/v1/channels/weights/replies/1")) == (404, "no-such-reply")


def test_new_members_and_federations_are_known_within_a_second(tmp_path: Path) -> None:
    stored = create_federation(tmp_path, MOVING, START)
    with running(stored) as relay:
        late = stored.invite("late")
        assert relay.ask(late, "/v1/federation").json()["member"]["number"] == 2
        wait_until(lambda: relay.ask(0, "/v1/federation").json()["expected"] == 3)
        other = create_federation(tmp_path, MEAN, name="letters")
        wait_until(lambda: relay.ask(other.tokens[0], "/v1/federation").status_code == 200)
        relay.stored = other
        assert relay.upload(0, 1, weighs(2), logits(1, 1)).status_code == 200


def test_revoked_token_is_refused_at_once_and_contributions_removed(tmp_path: Path) -> None:
    stored = create_federation(tmp_path, {**MEAN, **MOVING}, START, members=3)
    with running(stored) as relay:
        for i in range(2):
            tensors = logits(i, i) | change(i)
            assert relay.upload(i, 1, weighs(1) | moved(0), tensors).status_code == 200
        assert relay.answers(0)[1]["logits.mean"].tolist() == [0.5, 0.5]
        admin.revoke(stored.store, "member-1")
        for path in ("/v1/federation", "/v1/answers", "/v1/events", "/v1/channels/weights/replies/1"):
            assert code(relay.ask(1, path)) == (403, "revoked")
        assert code(relay.upload(1, 2, weighs(1), logits(1, 1))) == (403, "revoked")
        wait_until(lambda: relay.answers(0)[1]["logits.mean"].tolist() == [0, 0])
        assert relay.ask(0, "/v1/federation").json()["expected"] == 2
        # the moving mean waits for the remaining member, not for the revoked one
        assert relay.ask(0, "/v1/federation").json()["waiting"] == {"weights": 1}
        admin.revoke(stored.store, "member-2")
        wait_until(lambda: relay.ask(0, "/v1/federation").json()["versions"] == {"weights": 1})


def test_restarted_relay_gives_the_same_answers(tmp_path: Path) -> None:
    stored = create_federation(tmp_path, {**MEAN, **MOVING}, START)
    with running(stored) as relay:
        relay.upload(0, 1, weighs(1) | moved(0), logits(1, 2) | change(1))
        relay.upload(1, 1, moved(0), change(2))
        before = relay.ask(0, "/v1/answers").content
    with running(stored) as relay:
        assert relay.ask(0, "/v1/answers").content == before
        assert relay.ask(0, "/v1/federation").json()["member"]["round"] == 1
        assert relay.upload(0, 1, weighs(1) | moved(0), logits(1, 2) | change(1)).json()["accepted"] == [
            "logits",
            "weights",
        ]
