"""A peer's state on disk: changes are written once, and a process killed at any write can resume."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from consilience.errors import CheckpointError
from consilience.files import replace_file
from consilience.models import SplitModel
from consilience.peer import state_folder
from consilience.peer.peer import Peer
from consilience.peer.state import ChannelUpload
from consilience.wire.rules import Rules
from tests.peer_tools import SHARING, Founded, batches, federation, flat, net, residuals_of, same, seeded, train
from tests.relay_tools import serving, wait_until

AT_ONCE = Rules(min_contributions=1, deadline=0.05)
INDEX = "state.json"
pytestmark = pytest.mark.usefixtures("one_thread")


def large() -> SplitModel:
    return net(hidden=400)


@contextmanager
def recorded_writes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, int]]]:
    """Name and length of every file that is written."""
    written: list[tuple[str, int]] = []

    def watch(path: Path, content: bytes) -> None:
        written.append((path.name, len(content)))
        replace_file(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(state_folder, "replace_file", watch)
        yield written


def test_round_writes_each_changed_large_part_exactly_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        federation(tmp_path, {"name": "consilience"}, models=[large], rules=AT_ONCE) as made,
        serving(made.store) as running,
    ):
        model = made.common(large)
        peer = made.join(running.url, 0, model)
        state = peer.connection.state

        def play_round() -> None:
            version = state.answers["weights"].version
            train(peer, model, batches(1))
            assert peer.share(model, batches(1))
            wait_until(lambda: (peer.refresh(), state.answers["weights"].version > version)[1])

        play_round()
        with recorded_writes(monkeypatch) as written:
            play_round()
        counts = Counter(name for name, _ in written)
        assert max(counts[name] for name in counts if name != INDEX) == 1
        weights = sum(t.nbytes for t in state.answers["weights"].tensors.values())
        # The residual where the upload is accepted, the one where it is refused, and the new weights.
        assert len([size for _, size in written if size > weights / 2]) == 3
        # The body has one bit per weight, and prototypes and observations are small.
        assert sum(size for name, size in written if name != INDEX) < 3.5 * weights
        assert all(size < weights / 3 for name, size in written if name == INDEX)
        used = {file.name for file in (made.folder / "peer-0" / "peer").iterdir()}
        # Index, receipts and charter, class shares and head; nothing is left behind.
        assert len(used) <= 3 + len(state.answers) + len(state.residuals) + bool(state.private)
        for again in ({INDEX}, set()):  # asked with the new version, the relay answers the same once more
            with recorded_writes(monkeypatch) as written:
                assert peer.refresh() == bool(again)
            assert {name for name, _ in written} == again


class Killed(BaseException):
    """The process ends here."""


def run_rounds(made: Founded, url: str, member: int, sent: dict[int, dict[str, np.ndarray]]) -> None:
    """Two rounds of a member; `sent` collects the residuals that each upload leaves where the relay accepts it."""
    model = seeded(net, member)
    peer = made.join(url, member, model)
    queue = peer.connection.outbox.queue

    def noted(round_: int, uploads: Mapping[str, ChannelUpload]) -> bool:
        queued = queue(round_, uploads)
        sent[round_] = flat({name: upload.residuals for name, upload in uploads.items()})
        return queued

    peer.connection.outbox.queue = noted  # type: ignore[method-assign]
    for _ in range(2):
        train(peer, model, batches(member))
        assert peer.share(model, batches(member)) and peer.refresh(wait=5)


def test_process_killed_at_any_write_resumes_with_matching_residuals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = {"name": "fedavg-1bit"}
    with federation(tmp_path, method, members=1, rules=AT_ONCE) as made, serving(made.store) as running:
        with recorded_writes(monkeypatch) as written:
            run_rounds(made, running.url, 0, {})
        assert 12 < len(written) < 30
        for at, (name, _) in enumerate(written):
            for whole in (False, True) if name == INDEX else (False,):
                made.invite(f"killed-{at}-{whole}".lower())
                member, count, sent = len(made.tokens) - 1, 0, dict[int, dict[str, np.ndarray]]()

                def kill(path: Path, content: bytes, at: int = at, whole: bool = whole) -> None:
                    nonlocal count
                    count += 1
                    if count <= at:
                        return replace_file(path, content)
                    if whole:
                        replace_file(path, content)
                    else:
                        path.with_name(f"{path.name}.new").write_bytes(content[: len(content) // 2])
                    raise Killed

                with monkeypatch.context() as patch, pytest.raises(Killed):
                    patch.setattr(state_folder, "replace_file", kill)
                    run_rounds(made, running.url, member, sent)
                for peer in made.peers:
                    peer.connection.disconnect()
                again = made.join(running.url, member, seeded(net, member))
                check_resumed(made, again, member, sent, f"killed at write {at} ({name}), whole: {whole}")


def check_resumed(made: Founded, peer: Peer, member: int, sent: dict[int, dict[str, np.ndarray]], when: str) -> None:
    peer.refresh()
    assert not peer.waiting, when
    acknowledged = made.round_of(member)
    expected = sent.get(acknowledged, {})
    assert same(residuals_of(peer), expected), when
    model = peer._context.require_model()
    train(peer, model, batches(member))
    assert (peer.share(model, batches(member)) and made.round_of(member) == acknowledged + 1) or peer.refresh(wait=5), (
        when
    )
    peer.close()


def test_state_of_another_layout_is_refused_with_advice(tmp_path: Path) -> None:
    with federation(tmp_path, SHARING) as made, serving(made.store) as running:
        peer = made.join(running.url, 0)
        peer.close()
        folder = made.folder / "peer-0"
        text, _, _ = (folder / "peer" / INDEX).read_text().rstrip("\n").rpartition("\n")
        for layout in (2, 4):
            other = json.dumps({**json.loads(text), "layout": layout})
            (folder / "peer" / INDEX).write_text(f"{other}\n{hashlib.sha256(other.encode()).hexdigest()}\n")
            said = rf"layout {layout}, and this version reads layout 3.*or delete that folder"
            with pytest.raises(CheckpointError, match=said):
                made.join(running.url, 0)
        old = made.folder / "old"
        old.mkdir()
        (old / "peer.safetensors").write_bytes(b"")
        with pytest.raises(CheckpointError, match=r"peer.safetensors.*layout 1.*reads layout 3.*or delete the file"):
            made.join(running.url, 0, folder=old)
