"""A flipped bit in a store at rest is never served: what it damaged is dropped, rebuilt or refused, and reported."""

from __future__ import annotations

import contextlib
import json
import logging
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from consilience.errors import ConfigurationError, StorageError
from consilience.relay import admin
from consilience.relay.answers import AnswerRequest
from consilience.relay.app import Relay
from consilience.relay.checksums import DamagedRecord
from consilience.relay.integrity import check_store
from consilience.relay.recount import recount
from consilience.relay.rejections import Rejection
from consilience.relay.restore import back_up
from consilience.relay.store import Store
from consilience.relay.upload_queue import QueuedUpload
from consilience.wire.charter import encode_start_values, start_values_file
from tests.relay_tools import (
    Federation,
    ManualWriter,
    channels,
    contents,
    create_federation,
    in_a_thread,
    manual_writer,
    often,
    upload_headers,
    wait_until,
)

MEMBERS = 4
ROUNDS = 3
FLIPS = often(60, 1000)
NAMES = ("prototypes", "observations", "weights")


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    """A federation at rest: three aggregations behind it, and one contribution that waits for the next."""
    federation = create_federation(tmp_path_factory.mktemp("sound"), MEMBERS)
    with manual_writer(federation) as at:
        for round_ in range(ROUNDS):
            for member in range(MEMBERS):
                at.upload(member, round_, version=at.version).result(0)
        at.upload(0, ROUNDS, version=at.version).result(0)
    with contextlib.closing(sqlite3.connect(federation.store)) as sql:
        for statement in ("journal_mode = DELETE", "page_size = 512"):  # small pages: few bytes hold nothing
            sql.execute(f"PRAGMA {statement}")
        sql.execute("VACUUM")
        sql.execute("PRAGMA journal_mode = WAL")
    assert check_store_at(federation.store) == []
    return federation


def check_store_at(path: Path) -> list[str]:
    with contextlib.closing(Store(path)) as store:
        return check_store(store).damage


def verified(path: Path) -> list[str] | None:
    """What `relay verify` finds; None if the file is refused as a whole."""
    try:
        return check_store_at(path)
    except (StorageError, ConfigurationError):
        return None


def copied(federation: Federation, folder: Path, name: str) -> Federation:
    store = folder / name
    store.write_bytes(federation.store.read_bytes())
    return Federation(store, federation.charter, federation.starts, federation.tokens)


def flip(path: Path, bit: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[bit // 8] ^= 1 << bit % 8
    path.write_bytes(raw)


def answer(at: ManualWriter, member: int, channel: str) -> dict[str, np.ndarray]:
    """What a member gets from one channel, decoded; common values in full."""
    service = at.service
    wanted = service.answers.check(AnswerRequest((channel,), 9, {}, {}))
    built = service.answers.build(at.writer.store, service.snapshot, member, wanted)
    return service.messages.codec_for("down", built.parts).read(built.body)


def stored_numbers(at: ManualWriter, channel: str) -> list[int]:
    return [stored.number for stored in at.writer.store.contributions.all(1, channel)]


def newest(federation: Federation, member: int, channel: str) -> dict[str, np.ndarray]:
    """The tensors of a member's last upload to a channel."""
    round_ = ROUNDS if member == 0 else ROUNDS - 1
    return federation.upload(member, round_, version=ROUNDS if member == 0 else ROUNDS - 1).of(channel)


def check_answers(at: ManualWriter, right: dict[str, Any]) -> None:
    """Every answer is right for the contributions that are in the store, or is refused."""
    federation = at.federation
    for member in range(MEMBERS):
        got = answer(at, member, "prototypes")
        mine = [newest(federation, number, "prototypes") for number in stored_numbers(at, "prototypes")]
        count = sum((each["count"] for each in mine), np.zeros(3))
        total = sum((each["count"][:, None].astype(float) * each["mean"] for each in mine), np.zeros((3, 4)))
        mean = total / np.maximum(count, 1)[:, None]
        np.testing.assert_allclose(got["prototypes.mean"], mean, atol=1e-5)
        np.testing.assert_array_equal(got["prototypes.count"], count)
        for name, values in right["common"].items():
            np.testing.assert_array_equal(answer(at, member, "weights")[name], values)
        drawn = answer(at, member, "observations")
        pool = [newest(federation, number, "observations") for number in range(MEMBERS) if number != member]
        known = [
            np.where((count > 0)[:, None], mean, 0)
            for each in pool
            for mean, count in zip(each["mean"], each["count"], strict=True)
        ]
        for entry in drawn["observations.mean"]:
            assert not entry.any() or any(np.array_equal(entry, each) for each in known)


def test_flipped_bits_are_noticed_and_never_served(
    sound: Federation, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "consilience.relay")
    with manual_writer(copied(sound, tmp_path, "right.db")) as at:
        right = {"common": answer(at, 0, "weights"), "contents": contents(sound.store)}
    rng, ends = np.random.default_rng(21), {"refused": 0, "repaired": 0, "nothing": 0}
    for number in range(FLIPS):
        federation = copied(sound, tmp_path, f"flipped-{number}.db")
        flip(federation.store, int(rng.integers(8 * federation.store.stat().st_size)))
        found = verified(federation.store)
        if found == [] and contents(federation.store) != right["contents"]:
            pytest.fail(f"flip {number}: other records, and `relay verify` finds nothing")
        end = how_it_ends(federation, right)
        harmless = ("receipts", "leases")  # a receipt is not read again, and every start writes the lease
        assert end != "nothing" or (found is not None and all(line.startswith(harmless) for line in found))
        ends[end] += 1
        for file in tmp_path.glob(f"flipped-{number}.db*"):
            file.unlink()
    print(ends)
    assert ends["repaired"] > FLIPS // 10


def how_it_ends(federation: Federation, right: dict[str, Any]) -> str:
    """Serve a damaged store: refused with a clear error, repaired and reported, or nothing was damaged."""
    try:
        at = ManualWriter(federation)
    except (StorageError, ConfigurationError) as error:
        assert str(federation.store) in str(error)
        return "refused"
    with contextlib.closing(at):
        if 1 in at.writer.loaded.lost:
            return "refused"
        for attempt in range(2):  # what is damaged in a body is found when it is read, and repaired then
            try:
                check_answers(at, right)
                assert recount(at.service, at.writer.store) == {}
            except DamagedRecord:
                assert attempt == 0
                at.writer.request_repair()
                at.poll()
        at.writer.recounter._check_uploads()
        at.poll()
        if 1 in at.writer.loaded.lost:
            return "refused"
        check_answers(at, right)
        later(at)
        noticed = bool(at.writer.loaded.damage)
    if noticed:
        assert [line for line in check_store_at(federation.store) if "receipts" not in line] == []
        return "repaired"
    return "nothing"


def later(at: ManualWriter) -> None:
    """Members go on: what they upload is accepted or refused with a reason, and sums stay right."""
    for member in range(MEMBERS):
        receipt = at.upload(member, ROUNDS + 1, names=("prototypes", "observations"))
        error = receipt.exception(0)
        assert error is None or isinstance(error, Rejection), error
    at.poll()
    assert recount(at.service, at.writer.store) == {}


def change(path: Path, statement: str) -> None:
    """Change a record behind the store's back, so that its checksum does not match."""
    with contextlib.closing(sqlite3.connect(path)) as sql, sql:
        assert sql.execute(statement).rowcount > 0


def test_damaged_common_values_are_rebuilt_to_the_bit(sound: Federation, tmp_path: Path) -> None:
    federation = copied(sound, tmp_path, "relay.db")
    with manual_writer(federation) as at:
        before = answer(at, 0, "weights")
    change(federation.store, f"UPDATE channel_states SET state = zeroblob(900) WHERE version = {ROUNDS}")
    with manual_writer(federation) as at:
        assert any(line.endswith("were rebuilt") for line in at.writer.loaded.damage)
        after = answer(at, 0, "weights")
        assert at.version == ROUNDS and all(np.array_equal(after[name], before[name]) for name in before)
        for member in range(1, MEMBERS):  # member 0's contribution waits: the next aggregation works
            at.upload(member, ROUNDS + 1, version=ROUNDS).result(0)
        assert at.version == ROUNDS + 1


def test_federation_without_sound_common_values_is_refused_and_others_are_served(
    sound: Federation, tmp_path: Path
) -> None:
    federation = copied(sound, tmp_path, "relay.db")
    change(federation.store, "UPDATE channel_states SET state = zeroblob(900) WHERE channel = 'weights'")
    with in_a_thread(Relay(federation.store)) as url:
        refused = httpx.get(f"{url}/v1/answers", headers=federation.head(0))
        assert (refused.status_code, refused.json()["code"]) == (503, "damaged")
        assert "common values of weights" in refused.json()["message"]
        assert httpx.get(f"{url}/health").status_code == 200
    assert check_store_at(federation.store) == [
        "channel_states, federation 1, channel 'weights': its common values are gone"
    ]
    with pytest.raises(StorageError, match="its common values are gone"):
        back_up(federation.store, tmp_path / "backup.db")


@pytest.mark.parametrize(("column", "value"), [("revoked", 1), ("token_hash", "zeroblob(32)"), ("number", 77)])
def test_member_with_damaged_record_is_revoked(
    sound: Federation, tmp_path: Path, column: str, value: int | str
) -> None:
    federation = copied(sound, tmp_path, "relay.db")
    change(federation.store, f"UPDATE members SET {column} = {value} WHERE name = 'm2'")
    with in_a_thread(Relay(federation.store)) as url:
        refused = httpx.get(f"{url}/v1/federation", headers=federation.head(2))
        assert refused.status_code in (401, 403)
        assert httpx.get(f"{url}/v1/federation", headers=federation.head(1)).json()["expected"] == MEMBERS - 1
    assert check_store_at(federation.store) == []


def test_damaged_body_in_a_pool_is_dropped_and_its_member_uploads_again(sound: Federation, tmp_path: Path) -> None:
    federation = copied(sound, tmp_path, "relay.db")
    change(federation.store, "UPDATE uploads SET body = zeroblob(length(body)) WHERE member = 3")
    relay = Relay(federation.store)
    with in_a_thread(relay) as url:
        wait_until(lambda: bool(relay.writer.loaded.damage))
        wait_until(lambda: stored(federation, "observations") == [0, 1, 3])
        again = federation.upload(2, ROUNDS + 1, names=("prototypes", "observations"))
        put = httpx.put(
            f"{url}/v1/rounds/{ROUNDS + 1}", content=again.body, headers=upload_headers(federation, 2, again)
        )
        assert put.status_code == 200, put.text
        assert stored(federation, "observations") == [0, 1, 2, 3]
    assert check_store_at(federation.store) == []
    federation.sums_are_right()


def stored(federation: Federation, channel: str) -> list[int]:
    with contextlib.closing(Store(federation.store)) as store:
        return [each.number for each in store.contributions.all(1, channel)]


def test_pool_whose_upload_is_gone_is_repaired_and_not_answered_with_zeros(sound: Federation, tmp_path: Path) -> None:
    federation = copied(sound, tmp_path, "moved.db")
    with manual_writer(federation) as at:
        at.writer.store.sql.execute("UPDATE uploads SET id = id + 1000000")
        with pytest.raises(DamagedRecord):
            answer(at, 0, "observations")


def test_state_of_a_standing_mean_under_another_version_goes_with_the_next_upload(
    sound: Federation, tmp_path: Path
) -> None:
    federation = copied(sound, tmp_path, "version.db")
    with manual_writer(federation) as at:
        at.writer.store.sql.execute("UPDATE channel_states SET version = 64 WHERE channel = 'prototypes'")
        at.upload(1, ROUNDS, version=at.version, names=["prototypes"]).result(0)
        assert at.writer.store.channel_states.versions(1, "prototypes") == [0]
    assert check_store_at(federation.store) == []


def test_saved_sum_that_is_not_a_number_is_counted_again(sound: Federation, tmp_path: Path) -> None:
    federation = copied(sound, tmp_path, "relay.db")
    with contextlib.closing(Store(federation.store)) as store, store.writing():
        state = store.channel_states.get(1, "prototypes")
        assert state is not None
        state["sums.mean"][1, 2] = np.nan
        store.channel_states.save(1, "prototypes", state)
    with manual_writer(federation) as at:
        at.writer.recounter.request(1)
        at.writer.recounter.recount_requested()
        at.poll()
        assert np.isfinite(answer(at, 0, "prototypes")["prototypes.mean"]).all()
    federation.sums_are_right()


def test_common_values_continue_from_an_older_version_with_new_numbers(sound: Federation, tmp_path: Path) -> None:
    federation = copied(sound, tmp_path, "relay.db")
    change(federation.store, f"UPDATE channel_states SET state = zeroblob(900) WHERE version = {ROUNDS}")
    change(federation.store, f"UPDATE replies SET body = zeroblob(9) WHERE version = {ROUNDS}")
    with manual_writer(federation) as at:
        version = at.version
        assert version > 2**20 and 1 not in at.writer.loaded.lost
    with manual_writer(federation) as at:  # nothing is left to repair, and the numbers are the same
        assert at.version == version and at.writer.loaded.damage == []


@pytest.mark.parametrize("bodies", ["one body", "a body and a contribution"])
def test_damaged_body_that_is_needed_at_the_start_is_dropped(tmp_path: Path, bodies: str) -> None:
    federation = create_federation(tmp_path, MEMBERS, channels(by_row=True))
    with manual_writer(federation) as at:
        for member in range(MEMBERS):
            at.upload(member, 0).result(0)
    change(federation.store, "UPDATE uploads SET body = zeroblob(length(body)) WHERE member = 3")
    if bodies != "one body":
        change(federation.store, "UPDATE contributions SET entries = 77 WHERE number = 0 AND channel = 'observations'")
    with manual_writer(federation) as at:
        assert stored_numbers(at, "prototypes") == [0, 1, 3]
    federation.sums_are_right()


def test_damaged_receipts_are_dropped_and_members_go_on(sound: Federation, tmp_path: Path) -> None:
    federation = copied(sound, tmp_path, "relay.db")
    change(federation.store, f"UPDATE receipts SET receipt = '{{}}' WHERE member = 2 AND round = {ROUNDS - 1}")
    change(federation.store, f"UPDATE receipts SET round = {ROUNDS + 1} WHERE member = 3 AND round = 1")

    def status(url: str) -> int:
        return httpx.get(f"{url}/v1/federation", headers=federation.head(1)).status_code

    with in_a_thread(Relay(federation.store)) as url:
        assert status(url) == 503
        wait_until(lambda: status(url) == 200)
        for member in (2, 3):
            again = federation.upload(member, ROUNDS + 1, names=("prototypes",))
            head = upload_headers(federation, member, again)
            assert httpx.put(f"{url}/v1/rounds/{ROUNDS + 1}", content=again.body, headers=head).status_code == 200
    assert check_store_at(federation.store) == []


def test_correction_from_before_a_repair_is_not_applied(sound: Federation, tmp_path: Path) -> None:
    federation = copied(sound, tmp_path, "relay.db")
    with contextlib.closing(Store(federation.store)) as store, store.writing():
        state = store.channel_states.get(1, "prototypes")
        assert state is not None
        state["sums.mean"][1, 2] += 50
        store.channel_states.save(1, "prototypes", state)
    with manual_writer(federation) as at:
        at.writer.recounter.request(1)
        at.writer.recounter.recount_requested()
        assert len(at.writer.recounter.corrections) == 1
        change(federation.store, "UPDATE contributions SET entries = 77 WHERE number = 1 AND channel = 'observations'")
        at.writer.request_repair()
        at.poll()
        at.poll()
    federation.sums_are_right()


def test_federation_lost_while_served_stops_nobody_else(sound: Federation, tmp_path: Path) -> None:
    federation = copied(sound, tmp_path, "relay.db")
    other = tmp_path / "other.toml"
    other.write_text(federation.charter.to_toml().replace('name = "digits"', 'name = "other"'))
    start_values_file(other).write_bytes(encode_start_values(federation.charter, federation.starts))
    admin.create(federation.store, other)
    admin.invite(federation.store, "ward", "other")
    with manual_writer(federation) as at:
        assert at.service.snapshot.waiting["weights"] == 1  # a deadline is noted
        change(federation.store, "UPDATE channel_states SET state = zeroblob(900) WHERE federation = 1")
        at.writer.request_repair()
        at.poll()
        assert list(at.writer.loaded.lost) == [1]
        upload = federation.upload(0, 0)
        queued = QueuedUpload(MEMBERS + 1, 0, upload.header, upload.body)
        at.poll(later=7200)
        assert at.write(queued)[0].exception(0) is None
        refused = at.upload(1, ROUNDS + 3, names=("prototypes",)).exception(0)
        assert isinstance(refused, Rejection) and refused.code == "damaged"
    change(federation.store, "UPDATE federations SET round = 77 WHERE id = 1")
    assert [each["federation"] for each in admin.status(federation.store)] == ["other"]
    admin.revoke(federation.store, "ward")


def test_revoking_a_member_whose_body_is_damaged_removes_its_contributions(sound: Federation, tmp_path: Path) -> None:
    federation = copied(sound, tmp_path, "relay.db")
    with manual_writer(federation) as at:
        change(federation.store, "UPDATE uploads SET body = zeroblob(length(body)) WHERE member = 3")
        admin.revoke(federation.store, "m2")
        for _ in range(3):
            at.poll()
        assert stored_numbers(at, "prototypes") == [0, 1, 3]
    federation.sums_are_right()


def test_damaged_epoch_begins_a_new_one_and_a_damaged_number_is_not_continued(
    sound: Federation, tmp_path: Path
) -> None:
    federation = copied(sound, tmp_path, "relay.db")
    with contextlib.closing(Store(federation.store)) as store:
        before = store.epochs.current()
    change(federation.store, "UPDATE epochs SET reason = 'other'")
    change(federation.store, f"UPDATE members SET number = {2**30} WHERE name = 'm3'")
    with manual_writer(federation) as at:
        assert at.service.epoch not in (0, before)
    admin.invite(federation.store, "late")
    assert admin.status(federation.store)[0]["members"][-1]["number"] <= MEMBERS
    assert check_store_at(federation.store) == []


def test_tables_of_a_backup_tool_are_no_damage(sound: Federation, tmp_path: Path) -> None:
    federation = copied(sound, tmp_path, "relay.db")
    with contextlib.closing(sqlite3.connect(federation.store)) as sql:
        sql.execute("CREATE TABLE _litestream_seq (id INTEGER PRIMARY KEY, seq INTEGER)")
        sql.execute("ANALYZE")
    assert check_store_at(federation.store) == []


def test_verify_lists_records_and_names_the_damaged_ones(sound: Federation, tmp_path: Path) -> None:
    federation = copied(sound, tmp_path, "relay.db")
    command = [sys.executable, "-m", "consilience", "relay", "verify", "--store", str(federation.store)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout.endswith("relay.db: sound\n"), done.stdout + done.stderr
    change(federation.store, "UPDATE receipts SET receipt = '{}' WHERE member = 2 AND round = 1")
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=60)
    found = json.loads(done.stdout)
    assert done.returncode == 1 and found["damage"] == ["receipts, member 2, round 1: damaged"]
    assert found["records"]["members"] == MEMBERS


def test_file_that_is_cut_is_refused_with_a_clear_error(sound: Federation, tmp_path: Path) -> None:
    federation = copied(sound, tmp_path, "relay.db")
    raw = federation.store.read_bytes()
    federation.store.write_bytes(raw[: len(raw) // 2])
    with pytest.raises(StorageError, match=r"relay\.db.*damaged|relay\.db cannot be opened"):
        ManualWriter(federation)


@pytest.mark.parametrize("layout", [2, 3, 4])
def test_store_with_bodies_of_an_older_protocol_is_refused_and_unchanged(
    layout: int, sound: Federation, tmp_path: Path
) -> None:
    """Receipts sign the bodies as they were acknowledged: none of them can be written in another form."""
    federation = copied(sound, tmp_path, "relay.db")
    with contextlib.closing(sqlite3.connect(federation.store)) as sql:
        sql.execute(f"PRAGMA user_version = {layout}")
    before = federation.store.read_bytes()
    said = rf"layout {layout}, which an older version.* reads layout 5\. Serve it with the version that wrote it, or"
    for use in (ManualWriter, lambda made: admin.verify(made.store), lambda made: admin.status(made.store)):
        with pytest.raises(ConfigurationError, match=said):
            use(federation)
    assert federation.store.read_bytes() == before
