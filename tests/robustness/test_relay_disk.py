"""A full disk: uploads are refused as disk-full, downloads still work, and the first write with free space succeeds."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from consilience.relay.rejections import Rejection
from tests.relay_tools import (
    Federation,
    ManualWriter,
    Upload,
    channels,
    create_federation,
    manual_writer,
    often,
    serving,
    upload_headers,
    wait_until,
    wide,
)

SIZE = often(6, 24)  # MiB
MEMBERS = often(150, 800)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of a few MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SIZE}m", "tmpfs", str(place)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"a file system cannot be mounted here: {mounted.stderr.strip()[:100]}")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def upload_to(client: httpx.Client, federation: Federation, member: int, round_: int, upload: Upload) -> httpx.Response:
    return client.put(f"/v1/rounds/{round_}", content=upload.body, headers=upload_headers(federation, member, upload))


def fill(place: Path) -> Path:
    """A file that uses all free space, to the last byte."""
    filler = place / "filler"
    with filler.open("ab") as file, contextlib.suppress(OSError):
        while True:
            os.write(file.fileno(), b"0" * 4096)
    return filler


def test_full_disk_refuses_uploads_and_recovers(small_disk: Path) -> None:
    federation = create_federation(small_disk, MEMBERS, wide())
    with serving(federation.store) as relay, httpx.Client(base_url=relay.url, timeout=30) as client:
        taken = list[tuple[int, int, str]]()
        for member in range(MEMBERS // 10):
            upload = federation.upload(member, 1)
            assert upload_to(client, federation, member, 1, upload).status_code == 200
            taken.append((member, 1, upload.sha256))
        asks = {"url": "/v1/answers?round=3", "headers": federation.head(1)}
        before = client.get(**asks)  # type: ignore[arg-type]

        filler = fill(small_disk)
        upload = federation.upload(0, 2)
        while (answer := upload_to(client, federation, 0, len(taken), upload)).status_code == 200:
            taken.append((0, len(taken), upload.sha256))  # free pages within the store
            assert len(taken) < MEMBERS * 10
        if len(taken) == MEMBERS // 10:
            assert client.get(**asks).content == before.content  # type: ignore[arg-type]
        for _ in range(3):
            answer = upload_to(client, federation, 0, len(taken), upload)
            assert (answer.status_code, answer.json()["code"]) == (507, "disk-full")
            assert int(answer.headers["Retry-After"]) > 0
            assert client.get(**asks).status_code == 200  # type: ignore[arg-type]
            stands = client.get("/v1/federation", headers=federation.head(0))
            assert stands.json()["member"]["round"] == taken[-1][1]
        # it checks periodically, and having nothing to write does not count as success
        for _ in range(12):
            said = client.get("/health")
            assert (said.status_code, said.json()["status"]) == (503, "disk full")
            time.sleep(0.1)

        filler.unlink()
        wait_until(lambda: client.get("/health").status_code == 200, 3)
        answer = upload_to(client, federation, 0, len(taken), upload)
        assert answer.status_code == 200, "the first write with room"
        taken.append((0, len(taken), upload.sha256))
        relay.stop()
    assert federation.receipts() == sorted(taken)
    federation.sums_are_right()


def test_uploads_until_the_disk_is_full_keep_acknowledged_ones(small_disk: Path) -> None:
    """Bodies of new members until no more fit; all acknowledged ones are stored."""
    federation = create_federation(small_disk, MEMBERS + 400 * (SIZE // 6), wide())
    taken, refused = list[tuple[int, int, str]](), 0
    with serving(federation.store) as relay, httpx.Client(base_url=relay.url, timeout=30) as client:
        for member in range(len(federation.tokens)):
            upload = federation.upload(member, 1)
            answer = upload_to(client, federation, member, 1, upload)
            if answer.status_code == 200:
                taken.append((member, 1, upload.sha256))
                continue
            assert (answer.status_code, answer.json()["code"]) == (507, "disk-full")
            refused += 1
            if refused == 5:
                break
        assert refused == 5, "the disk was never full"
        assert client.get("/v1/answers?round=3", headers=federation.head(0)).status_code == 200
        relay.kill()
    assert federation.receipts() == taken
    federation.sums_are_right()


def most_pages(at: ManualWriter, more: int | None = None) -> None:
    """Let the store grow by this number of pages at most, or without limit."""
    (now,) = at.writer.store.sql.execute("PRAGMA page_count").fetchone()
    at.writer.store.sql.execute(f"PRAGMA max_page_count = {2**30 if more is None else now + more}")


def test_disk_full_during_a_write_leaves_nothing_of_the_batch(tmp_path: Path) -> None:
    """Nothing of a batch that did not fit remains in the store or in memory; the same bytes are accepted later."""
    federation = create_federation(tmp_path, 40, wide())
    with manual_writer(federation) as at:
        at.upload(0, 1).result(0)
        before, sums = at.service.snapshot, federation.state("prototypes")
        most_pages(at, 12)
        receipts = at.write(*(at.queued(member, 1) for member in range(1, 40)))
        refusals = [receipt.exception(0) for receipt in receipts]
        assert all(isinstance(error, Rejection) and error.code == "disk-full" for error in refusals)
        assert at.writer.full and at.service.snapshot is before
        assert [member for member, *_ in federation.receipts()] == [0]
        assert all(np.array_equal(value, sums[k]) for k, value in federation.state("prototypes").items())
        most_pages(at)
        for receipt in at.write(*(at.queued(member, 1) for member in range(1, 40))):
            receipt.result(0)
        assert not at.writer.full
    assert len(federation.receipts()) == 40
    federation.sums_are_right()


def test_disk_full_during_aggregation_keeps_the_round_open(tmp_path: Path) -> None:
    """The last contribution of a round does not fit: the round stays open until it is uploaded again."""
    federation = create_federation(tmp_path, 3, channels(width=5000))
    with manual_writer(federation) as at:
        refused = 0
        for round_ in range(1, 4):
            for member in range(2):
                at.upload(member, round_, round_ - 1).result(0)
            pages = 0
            while True:  # with more free space it fails at a later point of the same write
                most_pages(at, pages)
                error = at.upload(2, round_, round_ - 1).exception(0)
                if error is None:
                    break
                assert isinstance(error, Rejection) and error.code == "disk-full"
                assert (at.version, at.service.snapshot.waiting) == (round_ - 1, {"weights": 2})
                refused += 1
                pages += 1
            most_pages(at)
            assert (at.version, at.service.snapshot.waiting) == (round_, {"weights": 0})
        assert refused, "it never was full"
    moving = federation.moving()
    for round_ in range(1, 4):
        moving.expect(range(3))
        for member in range(3):
            tensors = {k: t[None] for k, t in federation.upload(member, round_, round_ - 1).of("weights").items()}
            moving.upload([member], tensors, np.array([10 * member + 3.5]), [round_ - 1])
        moving.aggregate()
    kept = federation.state("weights")
    assert all(np.array_equal(kept[f"common.{k}"], value) for k, value in moving.common.items())
    federation.sums_are_right()
