"""Power fails during a write: of what was not synced, the disk has any sectors. What was acknowledged is all there.

Files are compared before and after each commit, which ends with a sync, and each checkpoint. A torn image is the file
before with some of the sectors that the write changed. Between the header of a restarted log and its frames SQLite
syncs, so no image has new frames under an old header.
"""

from __future__ import annotations

import contextlib
import random
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from consilience.relay.integrity import check_store
from consilience.relay.store import Store
from tests.relay_tools import Contents, Federation, ManualWriter, contents, create_federation, manual_writer, often

SECTOR = 512
LOG_HEADER = 32  # bytes
MEMBERS = 3
IMAGES = often(45, 300)
PER_WRITE = 3  # images of one write
CHECKPOINT_EVERY = 5  # commits


@dataclass(frozen=True)
class Files:
    """A store and its log, as a program sees them."""

    store: bytes
    log: bytes

    @staticmethod
    def read(path: Path) -> Files:
        return Files(path.read_bytes(), path.with_name(path.name + "-wal").read_bytes())

    def write(self, path: Path) -> None:
        path.write_bytes(self.store)
        path.with_name(path.name + "-wal").write_bytes(self.log)


def torn(before: bytes, after: bytes, chance: random.Random) -> bytes:
    """The file before, with some of the sectors that differ; also its length may be any between the two."""
    share = chance.choice((0.1, 0.5, 0.9, 0.99))
    longest = before.ljust(len(after), b"\0")
    pieces = []
    for start in range(0, len(longest), SECTOR):
        old, new = longest[start : start + SECTOR], after[start : start + SECTOR]
        pieces.append(new if new and chance.random() < share else old)
    mixed = b"".join(pieces)
    sectors = max(len(mixed) - len(before), 0) // SECTOR
    return mixed[: len(before) + chance.randint(0, sectors) * SECTOR] if chance.random() < 0.5 else mixed


def torn_log(before: bytes, after: bytes, chance: random.Random) -> bytes:
    """The same of a log; its header is synced before the frames that belong to it."""
    if before[:LOG_HEADER] == after[:LOG_HEADER]:
        return torn(before, after, chance)
    with_header = after[:LOG_HEADER] + before[LOG_HEADER:]
    return chance.choice((before, with_header, torn(with_header, after, chance), torn(with_header, after, chance)))


def check_recovers(federation: Federation, image: Files, path: Path, *allowed: Contents) -> int:
    """A relay that is started on an image has one of the allowed contents, to the bit, and works; which of them."""
    image.write(path)
    found = contents(path)
    assert found in allowed, "not the records of any commit"
    here = Federation(path, federation.charter, federation.starts, federation.tokens)
    with contextlib.closing(Store(path)) as store:
        assert check_store(store).damage == []
    with manual_writer(here) as at:
        assert not at.writer.loaded.damage
        at.upload(0, 10_000, version=at.version, names=["prototypes"]).result(0)
    here.sums_are_right()
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink()
    return allowed.index(found)


def upload_batch(at: ManualWriter, round_: int, chance: random.Random) -> None:
    """One commit: some of the members' uploads; the last one of a round moves the common values."""
    names = ["prototypes", "observations"] if chance.random() < 0.5 else None
    members = chance.sample(range(MEMBERS), chance.randint(1, MEMBERS)) if names else range(MEMBERS)
    for receipt in at.write(*(at.queued(member, round_, at.version, names) for member in members)):
        receipt.result(0)


def test_torn_sectors_lose_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    federation, chance = create_federation(tmp_path, MEMBERS), random.Random(21)
    made, recovered, round_ = 0, {"before": 0, "after": 0, "checkpoint": 0}, 0
    with manual_writer(federation) as at:
        upload_batch(at, 0, chance)
        while made < IMAGES:
            round_ += 1
            before, had = Files.read(federation.store), contents(federation.store)
            if round_ % CHECKPOINT_EVERY == 0:
                with contextlib.closing(sqlite3.connect(federation.store)) as other:
                    assert other.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()[0] == 0
                after = Files.read(federation.store)
                assert after.store != before.store and after.log == before.log
                for _ in range(PER_WRITE):
                    image = Files(torn(before.store, after.store, chance), before.log)
                    check_recovers(federation, image, tmp_path / "torn.db", had)
                    recovered["checkpoint"] += 1
            else:
                upload_batch(at, round_, chance)
                after, has = Files.read(federation.store), contents(federation.store)
                assert after.store == before.store and has != had
                for _ in range(PER_WRITE):
                    image = Files(after.store, torn_log(before.log, after.log, chance))
                    kept = check_recovers(federation, image, tmp_path / "torn.db", had, has)
                    recovered["after" if kept else "before"] += 1
                check_recovers(federation, after, tmp_path / "torn.db", has)  # acknowledged: synced, all of it
            made += PER_WRITE
    print(recovered)
    assert min(recovered.values()) > 0
