"""Refused uploads of a peer: it continues from the relay's state, or raises the refusal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from consilience.errors import RelayError
from consilience.relay.rejections import STATUS
from tests.peer_tools import batches, federation, train
from tests.relay_tools import serving

pytestmark = pytest.mark.usefixtures("one_thread")


def test_second_process_of_a_member_continues_from_the_relay_state(tmp_path: Path) -> None:
    with federation(tmp_path, {"name": "consilience"}) as made, serving(made.store) as running:
        models = [made.common() for _ in range(3)]
        first, second, third = (
            made.join(running.url, 0, model, folder=tmp_path / str(i)) for i, model in enumerate(models)
        )
        assert first.share(models[0], batches(1)) and made.round_of(0) == 1
        train(second, models[1], batches(2))
        assert not second.share(models[1], batches(2))  # other-bytes: the first process has uploaded round 1
        assert not second.waiting and second.connection.state.round == 1
        assert not second.share(models[1], batches(2))  # already-uploaded: the weights of round 1 wait for the others
        assert not second.waiting and second.connection.state.awaiting == {"weights": 0}
        assert second.share(models[1], batches(2)) and made.round_of(0) == second.round == 3
        assert not third.share(models[2], batches(3))  # older-round
        assert not third.waiting and third.connection.state.round == 3
        assert not third.share(models[2], batches(3)) and third.share(models[2], batches(3))
        assert made.round_of(0) == third.round == 5


@pytest.mark.parametrize("code", ["version-ahead", "wrong-weight"])
def test_unrecoverable_refusal_drops_the_upload_and_is_raised(tmp_path: Path, code: str) -> None:
    with federation(tmp_path, {"name": "fedavg"}) as made, serving(made.store) as running:
        model = made.common()
        peer = made.join(running.url, 0, model)
        assert "weights" in peer.connection.state.answers

        def refuse(*_: Any) -> Any:
            raise RelayError("refused", code=code)

        peer.connection.client.upload = refuse  # type: ignore[method-assign, assignment]
        if code == "version-ahead":  # the relay was restored from a backup: the common values are downloaded again
            assert not peer.share(model, batches(1)) and not peer.connection.state.answers
            assert peer.refresh() and "weights" in peer.connection.state.answers
        else:
            with pytest.raises(RelayError, match="refused"):
                peer.share(model, batches(1))
        assert not peer.waiting


def test_codes_handled_by_a_peer_exist_at_the_relay() -> None:
    assert {"already-uploaded", "version-ahead", "older-round", "other-bytes", "no-such-reply"} <= set(STATUS)
