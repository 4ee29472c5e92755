"""A member whose token expires: a clear error, training goes on without the relay, and a new token continues."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import pytest

from consilience.errors import RelayError
from consilience.relay import admin
from consilience.relay.app import Limits, Relay
from consilience.relay.rotate import rotate
from tests.peer_tools import SHARING, batches, federation, net, train
from tests.relay_tools import in_a_thread


def test_expired_token_lets_training_continue_until_a_new_one_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ahead, real = 0.0, time.time
    monkeypatch.setattr(time, "time", lambda: real() + ahead)
    with federation(tmp_path / "f", SHARING, members=1) as made, in_a_thread(Relay(made.store, Limits(rate=0))) as url:
        made.tokens.append(str(admin.invite(made.store, "m1", days=1)))
        model, loader = net(), batches(1)
        peer = made.join(url, 1, model)
        train(peer, model, loader)
        assert peer.share(model, loader)
        ahead = 86400.0 * 2
        train(peer, model, loader)
        with caplog.at_level(logging.WARNING, "consilience.peer"):
            assert not peer.share(model, loader)
        assert "the relay refuses (expired): this token has expired; ask the operator" in caplog.text
        assert "Join again with the new token, in the same folder" in caplog.text
        assert peer.waiting
        train(peer, model, loader)  # no error, with the answers it has
        assert not peer.refresh()
        peer.close()
        with pytest.raises(RelayError, match=r"\(expired\): this token has expired") as refused:
            made.join(url, 1, net(), folder=tmp_path / "new")  # nothing to continue from
        assert refused.value.code == "expired"
        offline = made.join(url, 1, model)  # its folder is enough to train
        assert offline.waiting
        offline.close()
        made.tokens[1] = str(rotate(made.store, "m1"))
        again = made.join(url, 1, model)
        again.refresh()
        assert (again.waiting, again.round, made.round_of(1)) == (False, 2, 2)
