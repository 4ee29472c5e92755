"""A peer whose relay is unreachable, slow, or loses an acknowledgement: calls end in time, and nothing is lost."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import trustme

from consilience.errors import CheckpointError, RelayError, RelayUnreachable
from consilience.models import SplitModel
from consilience.peer.backoff import Backoff
from consilience.peer.peer import Peer
from tests.peer_tools import (
    SHARING,
    Founded,
    Line,
    answered,
    batches,
    federation,
    flat,
    line,
    net,
    residuals_of,
    same,
    seeded,
    train,
)
from tests.relay_tools import serve, serving, wait_until

MARGIN = 3.0  # extra seconds for a busy machine
pytestmark = pytest.mark.usefixtures("one_thread")


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    began = time.monotonic()
    return call(), time.monotonic() - began


def penalty_of(peer: Peer, model: SplitModel) -> float:
    inputs, targets = batches(7)[0]
    features = model.features(inputs)
    return peer.penalty(features, model.classifier(features), targets, model.classifier).item()


@contextmanager
def federation_over_proxy(
    folder: Path, method: dict[str, Any] | None = None, members: int = 2
) -> Iterator[tuple[Founded, Line]]:
    """A federation, and a controllable connection to its relay."""
    with (
        federation(folder, method or {"name": "consilience"}, members) as made,
        serving(made.store) as running,
        line(running.port) as way,
    ):
        yield made, way


# --- unreachable relay


def test_training_continues_offline_and_uploads_the_newest_later(tmp_path: Path) -> None:
    with federation(tmp_path, SHARING) as made:
        running = serve(made.store)
        try:
            peer, model = made.join(running.url, 0), seeded(net, 1)
            assert peer.share(model, batches(1)) and peer.refresh()
            running.kill()
            peer.connection.timeout = 0.6
            before = penalty_of(peer, model)
            for _ in range(3):
                changed, took = timed(peer.refresh)
                assert not changed and took < 0.6 + MARGIN
                shared, took = timed(lambda: peer.share(model, batches(1)))
                assert not shared and took < 0.6 + MARGIN
            assert penalty_of(peer, model) == before > 0
            pending = peer.connection.state.pending
            assert peer.waiting and pending is not None and pending.round == peer.round == 4
            assert not pending.may_have_arrived  # it was never sent, so the next one replaces it
            peer.connection.backoff.failed(30)
            assert sum(timed(peer.refresh)[1] for _ in range(20)) < MARGIN
            shared, took = timed(lambda: peer.share(model, batches(1)))
            assert not shared and took < MARGIN and made.round_of(0) == 1
            peer.connection.backoff.until, peer.connection.timeout = 0.0, 5.0
            running = serve(made.store, running.port)
            assert peer.refresh() or not peer.waiting
            wait_until(lambda: (peer.refresh(), not peer.waiting)[1])
            assert made.round_of(0) == 5 == peer.round
        finally:
            running.kill()


PAGE = answered(200, "Content-Type: text/html", body=b"<html>please sign in</html>")
MOVED = answered(302, "Location: https://portal.example/")
SPOILED: dict[str, tuple[str, bytes, bool]] = {
    "never answers": ("silent", b"", True),
    "answers a byte now and then": ("drip", b"", True),
    "closes in the middle": ("cut", answered(200)[:20], True),
    "closes in the middle of a body": ("cut", answered(200, body=bytes(99))[:-9], True),
    "a portal": ("cut", PAGE, True),
    "a portal elsewhere": ("cut", MOVED, True),
    "a gateway that waited": ("cut", answered(504), True),
    "too many requests": ("cut", answered(429, "Retry-After: 1"), False),
    "a while": ("cut", answered(503, "Retry-After: 99999999999"), False),
    "no room": ("cut", answered(507, "Retry-After: ²".encode().decode("latin-1")), False),
}


@pytest.fixture(scope="module")
def proxied_federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Founded, Line]]:
    with federation_over_proxy(tmp_path_factory.mktemp("lined"), SHARING, members=len(SPOILED)) as found:
        yield found


@pytest.mark.parametrize("how", SPOILED)
def test_no_call_exceeds_its_timeout_on_any_connection_fault(
    proxied_federation: tuple[Founded, Line], how: str
) -> None:
    (made, way), (mode, canned, may_have_arrived), me = proxied_federation, SPOILED[how], list(SPOILED).index(how)
    peer, model = made.join(way.url, me), seeded(net, 1)
    assert peer.introduce(model, batches(1)) and peer.refresh()
    way.now(mode, canned)
    peer.connection.timeout = 0.4
    shared, took = timed(lambda: peer.share(model, batches(1)))
    assert not shared and took < 0.4 + MARGIN
    state = peer.connection.state
    assert state.pending is not None and state.pending.may_have_arrived == may_have_arrived
    assert 0 < peer.connection.backoff.left <= 600
    changed, took = timed(lambda: peer.refresh(wait=0.5))
    assert not changed and took < 0.5 + MARGIN
    body = state.pending.body
    train(peer, model, batches(1))
    peer.share(model, batches(1))
    assert (state.pending.body == body) == may_have_arrived  # then the same bytes are sent again, and nothing else
    way.now("pass")
    peer.connection.backoff.until, peer.connection.timeout = 0.0, 5.0
    wait_until(lambda: (peer.refresh(), not peer.waiting)[1])
    assert made.round_of(me) == (1 if may_have_arrived else 2)
    assert peer.share(model, batches(1)) and made.round_of(me) == peer.round == 3


def test_refresh_waits_for_a_change_and_no_longer(tmp_path: Path) -> None:
    with federation(tmp_path, SHARING) as made, serving(made.store) as running:
        here, there = made.join(running.url, 0), made.join(running.url, 1)
        model, other = seeded(net, 1), seeded(net, 2)
        assert here.share(model, batches(1)) and here.refresh(wait=5)
        changed, took = timed(lambda: here.refresh(wait=0.7))
        assert not changed and 0.6 < took < 0.7 + MARGIN
        later = threading.Timer(0.7, lambda: there.share(other, batches(2)))
        later.start()
        changed, took = timed(lambda: here.refresh(wait=30))
        later.join()
        assert changed and 0.5 < took < 10


def test_waiting_for_an_unreachable_relay_does_not_spin(tmp_path: Path) -> None:
    with federation(tmp_path, SHARING) as made:
        with serving(made.store) as running:
            peer = made.join(running.url, 0, timeout=0.2)
        peer.refresh()
        busy = time.process_time()
        assert timed(lambda: peer.refresh(wait=1.5))[1] < 1.5 + MARGIN
        peer.connection.backoff.failed(60)
        assert timed(lambda: peer.refresh(wait=5))[1] < MARGIN  # no attempt is made in that time
        assert time.process_time() - busy < 0.5


def test_backoff_doubles_up_to_a_maximum() -> None:
    waits = []
    for _ in range(40):
        backoff = Backoff(first=1.0, longest=8.0)
        assert backoff.left == 0
        mine = []
        for _ in range(6):
            backoff.failed()
            mine.append(backoff.left)
        waits.append(mine)
        backoff.succeeded()
        assert backoff.left == 0 == backoff.failures
    means, several = np.mean(waits, axis=0), np.array(waits)
    np.testing.assert_allclose(means, [1, 2, 4, 8, 8, 8], rtol=0.25)
    assert (several >= 0.49 * np.array([1, 2, 4, 8, 8, 8])).all() and several.max() <= 12
    assert len(np.unique(several[:, 0].round(4))) > 30  # jitter: no two retry at once
    backoff.failed(at_least=1e12)
    assert 500 < backoff.left <= 600


# --- lost acknowledgements


def test_unacknowledged_upload_is_repeated_with_the_same_bytes(tmp_path: Path) -> None:
    with federation_over_proxy(tmp_path) as (made, way):
        model = made.common()
        peer = made.join(way.url, 0, model, timeout=1.0)
        peer.refresh()
        train(peer, model, batches(1))
        way.now("drop")
        assert not peer.share(model, batches(1))
        wait_until(lambda: made.round_of(0) == 1)  # it did arrive
        waiting = peer.connection.state.pending
        state = peer.connection.state
        assert waiting is not None and waiting.may_have_arrived and not state.residuals and not state.awaiting
        train(peer, model, batches(1))
        assert not peer.share(model, batches(1)) and peer.connection.state.pending is waiting and peer.round == 2
        way.now("pass")
        peer.connection.backoff.until = 0.0
        peer.refresh()
        assert not peer.waiting and peer.connection.state.round == 1 and made.round_of(0) == 1
        assert same(residuals_of(peer), flat(waiting.residuals_if_accepted)) and state.awaiting == {"weights": 0}
        assert peer.share(model, batches(1)) and made.round_of(0) == 3 == peer.round


@pytest.mark.parametrize("back", [True, False])
def test_restart_after_lost_acknowledgement_asks_the_relay(tmp_path: Path, back: bool) -> None:
    with federation_over_proxy(tmp_path) as (made, way):
        model = made.common()
        peer = made.join(way.url, 0, model, timeout=0.5)
        train(peer, model, batches(1))
        way.now("drop")
        assert not peer.share(model, batches(1))
        wait_until(lambda: made.round_of(0) == 1)
        waiting = peer.connection.state.pending
        assert waiting is not None
        way.now("pass" if back else "silent")
        peer.connection.disconnect()  # its process was killed
        again = made.join(way.url, 0, made.common(), timeout=0.5)
        assert again.round == 1
        if back:
            assert not again.waiting and again.connection.client.bytes_sent == 0
        else:
            assert again.connection.state.unconfirmed and again.connection.state.pending is not None
            assert again.connection.state.pending.body == waiting.body
            way.now("pass")
            again.connection.backoff.until = 0.0
            again.refresh()
        assert not again.waiting and again.connection.state.awaiting == {"weights": 0}
        assert residuals_of(again) and same(residuals_of(again), flat(waiting.residuals_if_accepted))
        assert again.share(model, batches(1), 20.0) and made.round_of(0) == 2 == again.round


def test_process_killed_while_uploading_resumes_as_unacknowledged(tmp_path: Path) -> None:
    with federation_over_proxy(tmp_path) as (made, way):
        model = made.common()
        peer = made.join(way.url, 0, model, timeout=0.5)
        put = peer.connection.client.upload

        def killed(*arguments: Any) -> None:
            put(*arguments)
            raise KeyboardInterrupt

        peer.connection.client.upload = killed  # type: ignore[method-assign, assignment]
        with pytest.raises(KeyboardInterrupt):
            peer.share(model, batches(1))
        peer.connection.disconnect()
        way.now("silent")
        again = made.join(way.url, 0, made.common(), timeout=0.3)
        assert again.connection.state.unconfirmed and made.round_of(0) == 1


# --- restarts


def test_restart_resumes_the_whole_state_with_and_without_the_relay(tmp_path: Path) -> None:
    with federation_over_proxy(tmp_path) as (made, way):
        models = [made.common(), made.common()]
        peers = [made.join(way.url, i, model, timeout=1.0) for i, model in enumerate(models)]
        for peer, model in zip(peers, models, strict=True):
            train(peer, model, batches(1))
            assert peer.share(model, batches(1))
        assert peers[0].refresh(wait=5)
        train(peers[0], models[0], batches(1))
        assert peers[0].share(models[0], batches(1))
        way.now("silent")
        peers[0].share(models[0], batches(1))
        first = peers[0].connection.state
        peers[0].close()
        offline = made.join(way.url, 0, seeded(net, 5), timeout=0.3)
        offline.connection.disconnect()
        way.now("pass")
        online = made.join(way.url, 0, seeded(net, 6), timeout=1.0)
        for again in (offline, online):
            now, me = again.connection.state, again.connection
            assert again.round == 3 == peers[0].round and (me.name, me.number) == ("m0", 0)
            assert now.awaiting == first.awaiting == {"weights": 1} and now.answers.keys() == first.answers.keys()
            for name, answer in now.answers.items():
                assert answer.version == first.answers[name].version
                assert answer.count.shape == first.answers[name].count.shape
                assert same(answer.tensors, first.answers[name].tensors)
            assert now.residuals and same(flat(now.residuals), flat(first.residuals))
            assert now.pending is not None and first.pending is not None and now.pending.body == first.pending.body
            model = again._context.require_model()
            common = now.answers["weights"].tensors
            assert all(torch.equal(p, torch.tensor(common[k])) for k, p in model.named_parameters())
        assert penalty_of(offline, offline._context.require_model()) > 0


def test_folder_that_is_damaged_or_of_another_member_is_refused(tmp_path: Path) -> None:
    with federation(tmp_path / "one", SHARING) as made, serving(made.store) as running:
        peer, model = made.join(running.url, 0), seeded(net, 1)
        assert peer.share(model, batches(1)) and peer.refresh()
        peer.close()
        folder = made.folder / "peer-0"
        file = folder / "peer" / "state.json"
        with pytest.raises(CheckpointError, match=r"peer-0/peer is of another federation or member \(m0\)"):
            made.join(running.url, 1, folder=folder)
        with (
            federation(tmp_path / "two", {**SHARING, "kd": 3.0}) as other,
            serving(other.store) as elsewhere,
            pytest.raises(RelayError, match=r"not signed with its key.*If the folder is of another relay, choose"),
        ):
            other.join(elsewhere.url, 0, folder=folder)
        good = file.read_bytes()
        for damaged in (b"", good[:40], good[:-2], good[:-3] + b"x\n", good.replace(b'"m0"', b'"m1"')):
            assert damaged != good
            file.write_bytes(damaged)
            with pytest.raises(CheckpointError, match=r"peer-0/peer is damaged: state.json.*delete that folder"):
                made.join(running.url, 0)
        file.write_bytes(good)
        for part in (file for file in folder.glob("peer/*") if file.name not in ("state.json", "receipts.jsonl")):
            whole = part.read_bytes()
            for broken in (b"", whole[:-1], whole[:-3] + b"\x07" + whole[-2:], None):
                part.unlink() if broken is None else part.write_bytes(broken)
                with pytest.raises(CheckpointError, match=rf"peer is damaged: .*{part.name}.*delete that folder"):
                    made.join(running.url, 0)
            part.write_bytes(whole)
        shutil.rmtree(folder)
        again = made.join(running.url, 0)
        assert again.round == 1 and again.introduce(model, batches(1))
        assert again.share(model, batches(1), 20.0) and made.round_of(0) == 2 == again.round


# --- TLS


def test_relay_certificate_is_verified(tmp_path: Path) -> None:
    authority, other = trustme.CA(), trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    past = datetime.now(UTC) - timedelta(days=1)
    made_for = {
        "": authority.issue_cert("127.0.0.1"),
        "unable to get local issuer": other.issue_cert("127.0.0.1"),
        "IP address mismatch": authority.issue_cert("relay.example"),
        "expired": authority.issue_cert("127.0.0.1", not_before=past - timedelta(days=1), not_after=past),
    }
    trusted = str(tmp_path / "authority.pem")
    with federation(tmp_path, SHARING) as made:
        for said, certificate in made_for.items():
            key, chain = tmp_path / "key.pem", tmp_path / "chain.pem"
            certificate.private_key_pem.write_to_path(key)
            chain.write_bytes(b"".join(blob.bytes() for blob in certificate.cert_chain_pems))
            program = (
                "import sys; from consilience.cli.main import main; "
                f"main([*sys.argv[1:], '--tls-cert', {str(chain)!r}, '--tls-key', {str(key)!r}])"
            )
            with serving(made.store, program=("-c", program)) as running:
                assert running.url.startswith("https://127.0.0.1")
                if not said:
                    peer = made.join(running.url, 0, ca_file=trusted)
                    assert peer.share(seeded(net, 1), batches(1))
                    peer.close()
                    with pytest.raises(RelayError, match="certificate is not trusted") as refused:
                        made.join(running.url, 1)
                else:
                    with pytest.raises(RelayError, match=said) as refused:
                        made.join(running.url, 1, ca_file=trusted)
                    again = made.join(running.url, 0, ca_file=trusted)  # joined before: it sends nothing
                    assert again.round == 1 and not again.refresh()
                    again.close()
                assert refused.value.code == "certificate" and not isinstance(refused.value, RelayUnreachable)
