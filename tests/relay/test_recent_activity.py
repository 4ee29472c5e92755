"""What a relay counts for its operators, with a clock of the test's own."""

from __future__ import annotations

from consilience.relay.recent_activity import MINUTES, RecentActivity


class Clock:
    def __init__(self) -> None:
        self.now = 6_000_000.0  # the start of a minute

    def __call__(self) -> float:
        return self.now


def test_uploads_are_counted_by_minute_and_rounds_by_hour() -> None:
    clock = Clock()
    activity = RecentActivity(clock)
    activity.pace(1).note_round(-1)
    for _ in range(3):
        activity.answer(1, 7, uploaded=True)
    clock.now += 90
    activity.answer(1, 7, uploaded=False)
    activity.answer(1, 8, uploaded=True)
    activity.pace(1).note_round(2)
    described = activity.pace(1).describe(clock.now, activity.started)
    assert described == {"minutes": [3, 1], "uploads_per_minute": 2.7, "rounds_per_hour": 120.0}  # 4 and 3 in 90 s
    assert activity.pace(2).describe(clock.now, activity.started)["minutes"] == [0]
    clock.now += 60 * (MINUTES - 1)
    described = activity.pace(1).describe(clock.now, activity.started)
    assert (len(described["minutes"]), sum(described["minutes"])) == (MINUTES, 1)  # the first minute is forgotten
    assert described["uploads_per_minute"] == 0.0
    assert described["rounds_per_hour"] == round(3 / (59.5 / 60), 1)
    clock.now += 60.0 * 10 * MINUTES
    assert sum(activity.pace(1).describe(clock.now, activity.started)["minutes"]) == 0


def test_a_clock_that_goes_back_and_a_restored_round_count_nothing() -> None:
    clock = Clock()
    activity = RecentActivity(clock)
    activity.answer(1, 7, uploaded=True)
    activity.pace(1).note_round(9)
    clock.now -= 3600
    activity.answer(1, 7, uploaded=True)
    activity.pace(1).note_round(4)
    described = activity.pace(1).describe(clock.now, activity.started)
    assert (described["minutes"], described["rounds_per_hour"]) == ([2], 0.0)


def test_who_was_seen_and_who_uploaded_is_taken_once() -> None:
    clock = Clock()
    activity = RecentActivity(clock)
    activity.answer(1, 7, uploaded=False)
    assert not activity.changed.is_set()
    activity.answer(1, 8, uploaded=True)
    assert activity.changed.is_set()
    assert (activity.take_uploaded(), activity.take_uploaded()) == ({8}, set())
    assert (activity.take_seen(), activity.take_seen()) == ({7: 6_000_000, 8: 6_000_000}, {})


def test_refusals_are_counted_by_code_and_the_last_kept_by_member() -> None:
    activity = RecentActivity(Clock())
    for _ in range(3):
        activity.refuse("older-round", "too old", "PUT /v1/rounds/1", 1, 7)
    activity.refuse("older-round", "x" * 5000, "PUT /v1/rounds/2", 1, 8)
    assert activity.refused == {"older-round": 4}
    newest, older = activity.last_refusals()
    assert (newest.member, newest.times, len(newest.message)) == (8, 1, 300)
    assert (older.member, older.times) == (7, 3)
    for member in range(100, 200):
        activity.refuse("revoked", "", "", 1, member)
    kept = activity.last_refusals()
    assert (len(kept), kept[0].member, activity.refused["revoked"]) == (30, 199, 100)
