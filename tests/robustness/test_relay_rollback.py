"""Common values go back to an older version; members with newer ones download them in full."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pytest

from consilience.errors import ConfigurationError, ConsilienceError, UnknownName
from consilience.relay.rollback import roll_back, stored_versions
from consilience.relay.store import Store
from consilience.relay.tables import is_kept
from consilience.wire import schema
from tests.relay_tools import Federation, create_federation, manual_writer, wide

ROUNDS = 41


@pytest.fixture
def moved(tmp_path: Path) -> tuple[Federation, dict[int, dict[str, np.ndarray]]]:
    """A federation whose common values have moved many times, and what they were."""
    federation = create_federation(tmp_path, 2)
    common = dict[int, dict[str, np.ndarray]]()
    with manual_writer(federation) as at:
        for round_ in range(1, ROUNDS + 1):
            for member in (0, 1):
                at.upload(member, round_, round_ - 1, ["weights"]).result(0)
            common[at.version] = at.service.snapshot.moving["weights"].common
        at.upload(0, ROUNDS + 1, ROUNDS, ["weights"]).result(0)  # it waits
    return federation, common


def test_old_versions_thin_out_with_age() -> None:
    kept = set[int]()
    for newest in range(1000):
        kept = {version for version in {*kept, newest} if is_kept(version, newest)}
    behind = sorted(999 - version for version in kept)
    assert behind[0] == 0 and len(behind) == 9 and behind[-1] < 256
    assert all(2**power <= each < 2 ** (power + 1) for power, each in enumerate(behind[1:]))


def test_values_go_back_to_the_bit_and_continue_under_a_new_number(
    moved: tuple[Federation, dict[int, dict[str, np.ndarray]]],
) -> None:
    federation, common = moved
    channel, versions = stored_versions(federation.store, federation.charter.name)
    assert channel == "weights" and versions[-2:] == [ROUNDS - 1, ROUNDS] and len(versions) == 7
    done = roll_back(federation.store, federation.charter.name, versions[2])
    assert (done.channel, done.before) == ("weights", ROUNDS) and done.version > 2**20
    with manual_writer(federation) as at:
        now = at.service.snapshot.moving["weights"]
        assert at.version == done.version and at.service.snapshot.waiting["weights"] == 0
        assert all(np.array_equal(now.common[k], common[versions[2]][k]) for k in now.common)
        at.upload(0, ROUNDS + 2, done.version, ["weights"]).result(0)
        at.upload(1, ROUNDS + 2, done.version, ["weights"]).result(0)
        assert at.version == done.version + 1
    with contextlib.closing(Store(federation.store)) as store:
        assert store.channel_states.versions(1, "weights") == [done.version, done.version + 1]
    federation.sums_are_right()


def test_rollback_can_go_further_before_the_next_aggregation(
    moved: tuple[Federation, dict[int, dict[str, np.ndarray]]],
) -> None:
    federation, common = moved
    name = federation.charter.name
    _, versions = stored_versions(federation.store, name)
    roll_back(federation.store, name, versions[3])
    roll_back(federation.store, name, versions[1])
    with manual_writer(federation) as at:
        now = at.service.snapshot.moving["weights"].common
        assert all(np.array_equal(now[k], common[versions[1]][k]) for k in now)


def test_what_cannot_be_rolled_back_is_refused(
    moved: tuple[Federation, dict[int, dict[str, np.ndarray]]], tmp_path: Path
) -> None:
    federation, _ = moved
    name = federation.charter.name
    with pytest.raises(ConfigurationError, match=r"weights: version 2 is not stored; choose one of .*, 40, 41"):
        roll_back(federation.store, name, 2)
    with pytest.raises(UnknownName, match="federation 'other'"):
        roll_back(federation.store, "other", 40)
    with pytest.raises(UnknownName, match="moving mean 'prototypes'"):
        roll_back(federation.store, name, 40, "prototypes")
    with manual_writer(federation), pytest.raises(ConsilienceError, match="served by another relay; stop that one"):
        roll_back(federation.store, name, 40)
    standing = {k: c for k, c in wide().items() if not isinstance(c, schema.Mean) or not c.moving}
    (tmp_path / "other").mkdir()
    other = create_federation(tmp_path / "other", 2, standing)
    with pytest.raises(ConfigurationError, match=r"has no common values; .*relay revoke MEMBER"):
        roll_back(other.store, other.charter.name, 1)
