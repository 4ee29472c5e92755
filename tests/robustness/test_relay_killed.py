"""A relay that is killed, stopped or traced: acknowledged uploads are always on disk."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
import threading
import time
from pathlib import Path

import httpx
import numpy as np
import pytest

from consilience.relay.upload_queue import QueuedUpload
from consilience.relay.writer import Writer
from tests.relay_tools import (
    FULL,
    Federation,
    Upload,
    common_of,
    create_federation,
    often,
    serve,
    serving,
    upload_headers,
    wait_until,
)

PEERS = 3
KILLS = often(20, 100)
PIECES = often(1, 10)


class Peer(threading.Thread):
    """A member that uploads the same bytes until acknowledged, waits for all others, and continues."""

    def __init__(self, federation: Federation, number: int, url: str, names: list[str] | None = None) -> None:
        super().__init__(daemon=True)
        self.federation, self.number, self.url, self.names = federation, number, url, names
        self.acknowledged: dict[int, Upload] = {}
        self.unheard = 0
        self.wrong: list[str] = []
        self.enough = threading.Event()
        self.gives_up = False

    def run(self) -> None:
        with httpx.Client(base_url=self.url, timeout=10) as client:
            round_ = 0
            while not self.enough.is_set() and not self.wrong:
                round_ += 1
                upload = self.federation.upload(self.number, round_, round_ - 1, self.names)
                answer = self.asked(client, "PUT", f"/v1/rounds/{round_}", upload)
                if answer is None:
                    return
                if answer.json().get("sha256") != upload.sha256:
                    self.wrong.append(answer.text)
                    return
                self.acknowledged[round_] = upload
                while self.names is None:  # until all have uploaded, and the common values have moved
                    stands = self.asked(client, "GET", "/v1/federation")
                    if stands is None or stands.json()["versions"]["weights"] >= round_:
                        break
                    time.sleep(0.005)

    def asked(
        self, client: httpx.Client, method: str, path: str, upload: Upload | None = None
    ) -> httpx.Response | None:
        """The answer, after as many requests as needed; None if the peer is told to stop first."""
        head = (
            self.federation.head(self.number)
            if upload is None
            else upload_headers(self.federation, self.number, upload)
        )
        while True:
            try:
                answer = client.request(method, path, headers=head, content=upload.body if upload else None)
                if answer.status_code != 503:
                    return answer
            except httpx.TransportError:
                self.unheard += 1
            if self.gives_up and self.enough.is_set():
                return None
            time.sleep(0.02)


@pytest.mark.parametrize("piece", range(PIECES))
def test_relay_killed_during_writes_loses_no_acknowledged_upload(piece: int, tmp_path: Path) -> None:
    federation, chance = create_federation(tmp_path, PEERS), random.Random(piece)
    relay = serve(federation.store)
    peers = [Peer(federation, number, relay.url) for number in range(PEERS)]
    try:
        for peer in peers:
            peer.start()
        for _ in range(KILLS):
            time.sleep(chance.uniform(0.0, 0.3))
            relay.kill()
            relay = serve(federation.store, relay.port)
        rounds = max(len(peer.acknowledged) for peer in peers) + 2
        wait_until(lambda: all(len(peer.acknowledged) >= rounds or peer.wrong for peer in peers))
        for peer in peers:
            peer.enough.set()
        wait_until(lambda: [peer.is_alive() for peer in peers].count(True) < PEERS)
    finally:
        for peer in peers:
            peer.enough.set()
            peer.gives_up = True
        relay.kill()
        for peer in peers:
            peer.join(timeout=20)
    assert [peer.wrong for peer in peers] == [[]] * PEERS
    assert sum(peer.unheard for peer in peers) >= KILLS, "nobody was interrupted"
    kept = {(member, round_): sha256 for member, round_, sha256 in federation.receipts()}
    for peer in peers:
        assert all(kept[peer.number, r] == upload.sha256 for r, upload in peer.acknowledged.items())
    federation.sums_are_right()
    _assert_common_values(federation, peers)


def _assert_common_values(federation: Federation, peers: list[Peer]) -> None:
    """The common values equal those of a channel that was never interrupted."""
    moving, version = federation.moving(), int(federation.state("weights")["version"][0])
    for round_ in range(1, version + 1):
        moving.expect(range(PEERS))
        for number in range(PEERS):
            tensors = {k: t[None] for k, t in federation.upload(number, round_, round_ - 1).of("weights").items()}
            moving.upload([number], tensors, np.array([10 * number + 3.5]), [round_ - 1])
        moving.aggregate()
    with serving(federation.store) as relay:
        said = httpx.get(f"{relay.url}/v1/answers?channel=weights", headers=federation.head(0))
    assert version >= KILLS // 2
    assert all(np.array_equal(value, moving.common[k]) for k, value in common_of(federation, said.content).items())


def test_relay_stopped_during_uploads_loses_no_acknowledged_upload(tmp_path: Path) -> None:
    federation = create_federation(tmp_path, 8)
    relay = serve(federation.store)
    peers = [Peer(federation, number, relay.url, ["prototypes", "observations"]) for number in range(8)]
    with httpx.Client(base_url=relay.url, timeout=30) as listener:
        if FULL:  # an event stream stays open as long as allowed
            listener.send(listener.build_request("GET", "/v1/events", headers=federation.head(0)), stream=True)
        for peer in peers:
            peer.gives_up = True
            peer.start()
        try:
            wait_until(lambda: all(len(peer.acknowledged) > 3 for peer in peers))
            assert relay.stop() < 10
        finally:
            for peer in peers:
                peer.enough.set()
            relay.kill()
    for peer in peers:
        peer.join(timeout=20)
    kept = {(member, round_): sha256 for member, round_, sha256 in federation.receipts()}
    for peer in peers:
        assert not peer.wrong
        assert all(kept[peer.number, r] == upload.sha256 for r, upload in peer.acknowledged.items())
    federation.sums_are_right()


def test_cancelled_upload_does_not_affect_others(tmp_path: Path) -> None:
    """A request cancelled while it waits, as at shutdown, does not affect other requests."""
    federation = create_federation(tmp_path, 3)
    writer = Writer(federation.store)
    receipts = []
    for member in range(3):
        upload = federation.upload(member, 1, names=["prototypes"])
        receipts.append(writer.submit(QueuedUpload(member + 1, 1, upload.header, upload.body)))
    assert receipts[1].cancel()
    writer.start()
    assert [receipts[i].result(timeout=10)[:12] for i in (0, 2)] == ['{"round": 1,'] * 2
    writer.stop()
    assert [member for member, *_ in federation.receipts()] == [0, 2]


def test_store_is_served_by_one_relay_at_a_time(tmp_path: Path) -> None:
    """Two relays would overwrite each other's sums."""
    federation = create_federation(tmp_path, 1)
    with serving(federation.store) as first:
        with (
            pytest.raises(AssertionError, match="is served by another relay; stop that one first"),
            serving(federation.store),
        ):
            pass
        assert httpx.get(f"{first.url}/health").json()["status"] == "ok"
        first.kill()
    with serving(federation.store) as second:
        assert httpx.get(f"{second.url}/health").json()["status"] == "ok"


# System calls

_CALL = re.compile(r"^(\d+) +(?:<\.\.\. )?(\w+)(?:\(| resumed>)(.*)")


def traceable() -> bool:
    if not shutil.which("strace"):
        return False
    return subprocess.run(["strace", "-e", "trace=none", "true"], capture_output=True).returncode == 0


def calls(log: Path) -> list[tuple[str, str]]:
    """System calls that have returned, in the order in which they did: name and arguments."""
    begun, done = dict[tuple[str, str], str](), []
    for line in log.read_text(errors="replace").splitlines():
        found = _CALL.match(line)
        if not found:
            continue
        pid, name, said = found.groups()
        if said.endswith("<unfinished ...>"):
            begun[pid, name] = said
        else:
            done.append((name, begun.pop((pid, name), "") + said))
    return done


@pytest.mark.skipif(not traceable(), reason="strace is not installed, or may not trace here")
def test_disk_sync_precedes_each_acknowledgement(tmp_path: Path) -> None:
    federation, log = create_federation(tmp_path, 2), tmp_path / "calls"
    trace = ["strace", "-D", "-f", "-y", "-s", "48", "-o", str(log)]
    trace += ["-e", "trace=fdatasync,fsync,pwrite64,recvfrom,sendto"]
    rounds = often(6, 60)
    with serving(federation.store, before=trace) as relay, httpx.Client(base_url=relay.url, timeout=30) as client:
        for round_ in range(1, rounds + 1):
            for member in range(2):
                upload = federation.upload(member, round_, round_ - 1)
                answer = client.put(
                    f"/v1/rounds/{round_}", content=upload.body, headers=upload_headers(federation, member, upload)
                )
                assert answer.status_code == 200, answer.text
        relay.stop()
    wait_until(lambda: "exited with" in log.read_text(errors="replace").splitlines()[-1])
    acknowledged, seen = 0, list[str]()
    for name, said in calls(log):
        if name == "recvfrom" and '"PUT /v1/rounds/' in said:
            seen = ["asked"]
        elif name == "pwrite64" and "-wal>" in said:
            seen.append("written")
        elif name in ("fdatasync", "fsync") and "-wal>" in said and said.endswith("= 0"):
            seen.append("synced")
        elif name == "sendto" and '"HTTP/1.1 200 OK' in said:
            assert seen[0] == "asked"
            assert seen[-1] == "synced" and "written" in seen, seen
            acknowledged += 1
    assert acknowledged == 2 * rounds
