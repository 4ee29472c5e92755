"""Answers within a list of partners: what they are of, what the charter allows, and that other answers stay."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from consilience.wire import schema
from consilience.wire.charter import read_charter
from consilience.wire.headers import Part
from consilience.wire.rules import Rules
from tests.local_relay import BY_CLASS, Arrays, LocalRelay, StoredFederation, code, create_federation, running

POOL = {"seen": schema.Pool("seen", {"mean": schema.Tensor((3, 2))}, rows=(3,))}
ALLOWING = Rules(partners=2, partner_lists=2)


def federation(folder: Path, rules: Rules = ALLOWING) -> StoredFederation:
    return create_federation(folder, {**BY_CLASS, **POOL}, members=5, rules=rules)


def upload(relay: LocalRelay, who: int, counts: list[int]) -> None:
    table = np.full((3, 2), who, dtype=np.float32)
    tensors = {"prototypes.mean": table, "prototypes.count": np.array(counts)}
    tensors |= {"seen.mean": table[None], "seen.count": np.array([counts])}
    assert relay.upload(who, 1, {"prototypes": Part(), "seen": Part(entries=1)}, tensors).status_code == 200


def test_a_mean_is_over_the_partners_and_oneself_and_skips_rows_that_few_have(tmp_path: Path) -> None:
    with running(federation(tmp_path)) as relay:
        everybody = relay.ask(0, "/v1/answers?channel=prototypes")
        for who, counts in enumerate([[2, 2, 2], [2, 2, 0], [4, 0, 4], [1, 1, 1], [9, 9, 9]]):
            upload(relay, who, counts)
        before = relay.ask(0, "/v1/answers?channel=prototypes")
        _, found = relay.answers(0, "channel=prototypes&partner=1&partner=2")
        # Class 0: (0 x 2 + 1 x 2 + 2 x 4) / 8. Of classes 1 and 2 only one partner has samples.
        assert found["prototypes.mean"].tolist() == [[1.25, 1.25], [0, 0], [0, 0]]
        assert found["prototypes.count"].tolist() == [8, 0, 0]
        after = relay.ask(0, "/v1/answers?channel=prototypes")
        assert after.content == before.content != everybody.content and after.headers["etag"] == before.headers["etag"]


def test_observations_are_drawn_from_the_partners_and_oneself(tmp_path: Path) -> None:
    with running(federation(tmp_path)) as relay:
        for who in range(5):
            upload(relay, who, [2, 2, 2])
        drawn = {
            relay.answers(3, f"channel=seen&round={round_}&partner=0&partner=1")[1]["seen.mean"][0, 0, 0]
            for round_ in range(40)
        }
        assert drawn == {0.0, 1.0, 3.0}


def test_two_members_with_one_list_have_different_answers_and_tags(tmp_path: Path) -> None:
    with running(federation(tmp_path)) as relay:
        for who in range(5):
            upload(relay, who, [2, 2, 2])
        query = "/v1/answers?channel=prototypes&partner=1&partner=2"
        one, other = relay.ask(0, query), relay.ask(3, query)
        assert one.headers["etag"] != other.headers["etag"] and one.content != other.content
        known = {"If-None-Match": one.headers["etag"]}
        assert relay.ask(0, query, headers=known).status_code == 304
        upload_again: Arrays = {"prototypes.mean": np.zeros((3, 2), np.float32), "prototypes.count": np.ones(3)}
        relay.upload(1, 2, {"prototypes": Part()}, upload_again)
        assert relay.ask(0, query, headers=known).status_code == 200


def test_what_the_charter_does_not_allow_is_refused(tmp_path: Path) -> None:
    with running(federation(tmp_path)) as relay:
        assert code(relay.ask(0, "/v1/answers?partner=1")) == (403, "partners")
        assert code(relay.ask(0, "/v1/answers?partner=0&partner=1")) == (403, "partners")  # oneself does not count
        assert code(relay.ask(0, "/v1/answers?partner=1&partner=1")) == (400, "malformed-query")
        assert code(relay.ask(0, "/v1/answers?partner=one")) == (400, "malformed-query")
        for last in (2, 3, 2):
            assert relay.ask(0, f"/v1/answers?partner=1&partner={last}").status_code == 200
        refused = relay.ask(0, "/v1/answers?partner=1&partner=4")
        assert code(refused) == (403, "partners") and "2 different lists" in refused.text
        assert relay.ask(1, "/v1/answers?partner=0&partner=4").status_code == 200  # lists are counted by member


def test_without_the_rule_nobody_may_and_the_charter_says_nothing_of_it(tmp_path: Path) -> None:
    stored = federation(tmp_path, Rules(min_contributions=1))
    assert "partner" not in (tmp_path / "digits.toml").read_text()
    with running(stored) as relay:
        assert code(relay.ask(0, "/v1/answers?partner=1&partner=2")) == (403, "partners")
    (tmp_path / "allowing").mkdir()
    federation(tmp_path / "allowing")
    charter = read_charter((tmp_path / "allowing" / "digits.toml").read_text())
    assert (charter.rules.partners, charter.rules.partner_lists) == (2, 2)
