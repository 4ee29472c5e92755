"""A member without torch: its uploads are those of a torch member, bit for bit, and its targets what the relay has."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from consilience import join_arrays
from consilience.models import SplitModel
from consilience.peer.array_charter import create_array_charter
from consilience.peer.array_peer import ArrayPeer
from consilience.peer.create_charter import TaskShape, create_charter
from consilience.peer.peer import Peer
from consilience.privacy.plan import PrivacyPlan
from consilience.relay import admin
from consilience.relay.app import Limits, Relay
from consilience.wire.charter import Charter
from consilience.wire.headers import Parts
from consilience.wire.privacy import PrivacySettings
from tests.direct_tools import Wards
from tests.peer_tools import (
    CLASSES,
    SHAPE,
    SHARING,
    WIDTH,
    Batches,
    Founded,
    batches,
    decoded,
    federation,
    net,
    seeded,
)
from tests.relay_tools import in_a_thread, serving, wait_until

pytestmark = pytest.mark.usefixtures("one_thread")
METHODS: list[dict[str, Any]] = [
    SHARING,
    {**SHARING, "up": 3, "down": 2, "n_avg": 2},
    {**SHARING, "weighting": "equal", "n_avg": 3, "min_count": 8},
    {**SHARING, "means": "seen"},
    {**SHARING, "objective": "calibrated", "own_head": True},
    {"name": "fedproto"},
    {"name": "fedproto", "weighting": "equal"},
    {"name": "federated-distillation"},
]
ENCODINGS = ["float32", "float16", "int8", "int4", "bit"]
Recorded = list[tuple[int, Parts, bytes]]


@contextmanager
def running(made: Founded) -> Iterator[str]:
    with in_a_thread(Relay(made.store, Limits(rate=0))) as url:
        yield url


@contextmanager
def stored(folder: Path, charter: Charter, members: int = 2) -> Iterator[tuple[str, list[str]]]:
    """A relay with the federation of a charter; its URL and its members' tokens."""
    (folder / "small.toml").write_text(charter.to_toml())
    admin.create(folder / "relay.db", folder / "small.toml")
    tokens = [str(admin.invite(folder / "relay.db", f"m{number}")) for number in range(members)]
    with in_a_thread(Relay(folder / "relay.db", Limits(rate=0))) as url:
        yield url, tokens


def array_member(made: Founded, url: str, member: int, **more: Any) -> ArrayPeer:
    peer = join_arrays(url, made.tokens[member], folder=more.pop("folder", made.folder / f"peer-{member}"), **more)
    made.peers.append(peer)
    return peer


def record_uploads(peer: Peer | ArrayPeer) -> Recorded:
    """Round, parts and body of every further upload."""
    recorded: Recorded = []
    send = peer.connection.client.upload

    def record(round_: int, parts: Parts, body: bytes, seconds: float) -> Any:
        recorded.append((round_, parts, body))
        return send(round_, parts, body, seconds)

    peer.connection.client.upload = record  # type: ignore[method-assign]
    return recorded


def exact(model: SplitModel) -> SplitModel:
    """The model with features and logits of few bits: sums of them are exact in float32, in any order."""

    class Rounded(torch.nn.Module):
        def __init__(self, inner: torch.nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            rounded: torch.Tensor = (self.inner(x) * 256).round() / 256
            return rounded

    for parameter in model.classifier.parameters():
        parameter.data = (parameter.data * 16).round() / 16
    return SplitModel(Rounded(model.features), model.classifier, bound=1.0)


def seen_by(model: SplitModel, loader: Batches) -> dict[str, Any]:
    """Features, logits and labels as a library without torch would have them."""
    with torch.no_grad():
        features = torch.cat([model.features(inputs) for inputs, _ in loader])
        logits = model.classifier(features)
    labels = torch.cat([targets for _, targets in loader])
    return {"features": features.numpy(), "logits": logits.numpy(), "labels": labels.numpy()}


def uploads_of_both(folder: Path, method: dict[str, Any], model: SplitModel) -> tuple[Recorded, Recorded, Peer]:
    """What a torch member and an array member of the same number upload of the same samples, in three rounds."""
    loaders = [batches(seed, samples=23) for seed in range(3)]
    with federation(folder / "torch", method) as made, running(made) as url:
        peer = made.join(url, 1, timeout=20)
        theirs = record_uploads(peer)
        assert peer.introduce(model, loaders[0])
        assert all(peer.share(model, loader) for loader in loaders)
    with federation(folder / "arrays", method) as made, running(made) as url:
        member = array_member(made, url, 1, timeout=20)
        mine = record_uploads(member)
        assert member.introduce(**seen_by(model, loaders[0]))
        assert all(member.share_arrays(**seen_by(model, loader)) for loader in loaders)
        assert member.introduce(**seen_by(model, loaders[0])) and len(mine) == 4  # only before the first round
        assert (member.round, member.name, member.waiting) == (3, "m1", False)
        assert member.bytes_sent == peer.bytes_sent == sum(len(body) for _, _, body in mine)
    return theirs, mine, peer


# --- the same uploads as with torch


@pytest.mark.parametrize("method", METHODS, ids=lambda method: "-".join(map(str, method.values())))
def test_uploads_are_those_of_a_torch_member(tmp_path: Path, method: dict[str, Any]) -> None:
    theirs, mine, _ = uploads_of_both(tmp_path, method, exact(seeded(net, 1)))
    assert [round_ for round_, _, _ in mine] == [0, 1, 2, 3]
    assert mine == theirs


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("name", ["representation-sharing", "federated-distillation"])
def test_encoded_uploads_are_those_of_a_torch_member(tmp_path: Path, name: str, encoding: str) -> None:
    theirs, mine, peer = uploads_of_both(tmp_path, {"name": name, "encoding": encoding}, exact(seeded(net, 1)))
    assert mine == theirs
    assert peer.connection.state.residuals == {}  # only changes of common values leave any


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_uploads_of_any_features_differ_by_rounding_alone(tmp_path: Path, encoding: str) -> None:
    """Matrix products of torch and NumPy add in another order: by 1e-6 at most before encoding, one level after."""
    theirs, mine, peer = uploads_of_both(tmp_path, {**SHARING, "encoding": encoding}, seeded(net, 1))
    level = {"float32": 0, "float16": 1 / 1024, "int8": 1 / 127, "int4": 1 / 7, "bit": 0}[encoding]
    for (_, parts, body), (_, own_parts, own_body) in zip(theirs, mine, strict=True):
        assert parts == own_parts
        ours = decoded(peer, parts, own_body)
        for key, tensor in decoded(peer, parts, body).items():
            np.testing.assert_allclose(ours[key], tensor, rtol=0, atol=1e-6 + level)


# --- what it knows


def test_targets_are_what_the_relay_has(tmp_path: Path) -> None:
    """By hand: features of one class each, means over both members, counts, and observations of either member."""
    charter = create_array_charter("small", {**SHARING, "n_avg": 2, "down": 3}, CLASSES, 2, bound=8.0, seed=5)
    with stored(tmp_path, charter) as (url, tokens):
        peers = [join_arrays(url, token, folder=tmp_path / str(i), timeout=20) for i, token in enumerate(tokens)]
        before = peers[0].targets()
        assert before.means.shape == (3, 2) and before.observations.shape == (3, 3, 2) and before.logits.shape == (3, 0)
        assert not before.known.any() and not before.known_observations.any() and not before.counts.any()
        assert [len(part) for part in before.as_samples()] == [0, 0, 0]
        assert peers[0].share_arrays(features=[[1, 0], [3, 0], [5, 5]], labels=[0, 0, 1])
        assert peers[1].share_arrays(features=[[8, 2], [6, 2], [0, 1], [0, 3]], labels=[0, 0, 2, 2])
        assert peers[0].refresh() and not peers[0].refresh()
        targets = peers[0].targets()
        assert targets.means.tolist() == [[4.5, 1.0], [0.0, 0.0], [0.0, 2.0]]  # one sample of class 1 is not shared
        assert targets.counts.tolist() == [4, 0, 2] and targets.known.tolist() == [True, False, True]
        each = {(2.0, 2.0, 0.0): [[2, 0], [0, 0], [0, 0]], (2.0, 0.0, 2.0): [[7, 2], [0, 0], [0, 2]]}
        for entry, count in zip(targets.observations, targets.observation_counts, strict=True):
            assert entry.tolist() in each.values() and count.tolist() in ([2, 0, 0], [2, 0, 2])
        features, labels, weights = targets.as_samples(weight=6.0)
        seen = int(targets.known_observations[:, 2].sum())  # observations of class 2; all three have class 0
        assert features.shape == (2 + 3 + seen, 2) and labels.tolist().count(0) == 4
        assert weights[labels == 0].tolist() == [6.0, 2.0, 2.0, 2.0]
        assert weights[labels == 2].sum() == pytest.approx(12.0 if seen else 6.0)
        targets.means[:] = 7  # a copy, which may be changed
        assert peers[0].targets().means.tolist() == [[4.5, 1.0], [0.0, 0.0], [0.0, 2.0]]
        for peer in peers:
            peer.close()


def test_mean_logits_are_targets_too(tmp_path: Path) -> None:
    charter = create_array_charter("small", {"name": "federated-distillation", "weighting": "equal"}, CLASSES)
    with (
        stored(tmp_path, charter, members=1) as (url, tokens),
        join_arrays(url, tokens[0], folder=tmp_path / "p") as peer,
    ):
        logits = np.array([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0], [0.0, 4.0, 0.0], [2.0, 4.0, 0.0]])
        assert peer.share_arrays(logits=logits, features="ignored", labels=np.array([0, 0, 1, 1], np.uint8), wait=20)
        assert peer.refresh()
        targets = peer.targets()
        assert targets.logits.tolist() == [[2, 2, 2], [1, 4, 0], [0, 0, 0]]
        assert targets.logit_counts.tolist() == [1, 1, 0] and targets.known_logits.tolist() == [True, True, False]
        assert targets.means.shape == (3, 0) and targets.observations.shape == (0, 3, 0)
        assert [len(part) for part in targets.as_samples()] == [0, 0, 0]


# --- a member's life


def test_it_shares_a_federation_with_torch_members(tmp_path: Path) -> None:
    with federation(tmp_path, SHARING) as made, running(made) as url:
        torch_peer, member = made.join(url, 0, timeout=20), array_member(made, url, 1, timeout=20)
        model = seeded(net, 1)
        assert torch_peer.share(model, batches(1)) and member.share_arrays(**seen_by(model, batches(2)))
        assert torch_peer.refresh() and member.refresh(wait=5)
        theirs = torch_peer.connection.state.answers["prototypes"]
        np.testing.assert_array_equal(member.targets().means, theirs.tensors["mean"])
        assert member.targets().counts.tolist() == theirs.count.tolist() == [16.0] * CLASSES
        receipt = member.connection.state.receipt
        assert receipt["round"] == 1 and receipt["signature"]


def test_without_the_relay_it_keeps_its_upload_and_its_targets(tmp_path: Path) -> None:
    given: dict[str, Any] = {"features": np.eye(WIDTH, dtype=np.float32)[[0, 0, 1, 1]], "labels": [0, 0, 1, 1]}
    with federation(tmp_path, SHARING) as made, serving(made.store) as relay:
        peer = array_member(made, relay.url, 0)
        assert peer.share_arrays(**given, wait=20) and peer.refresh()
        known = peer.targets().means
        relay.kill()
        assert not peer.refresh() and not peer.share_arrays(**given) and peer.waiting
        np.testing.assert_array_equal(peer.targets().means, known)
        peer.close()
        again = array_member(made, relay.url, 0)
        assert (again.waiting, again.round, again.name) == (True, 2, "m0")
        np.testing.assert_array_equal(again.targets().means, known)
        with serving(made.store, relay.port):
            wait_until(lambda: again.refresh() or not again.waiting, 30)
            assert made.round_of(0) == 2 and not again.waiting


def test_private_uploads_have_noise_no_counts_and_a_budget(tmp_path: Path) -> None:
    privacy = PrivacySettings(private="upload", epsilon=50.0, delta=1e-5, clip=0.5, uploads=2)
    with federation(tmp_path, SHARING, privacy=privacy) as made, running(made) as url:
        peer, model = array_member(made, url, 0, timeout=20), seeded(net, 1)
        recorded = record_uploads(peer)
        for _ in range(2):
            assert peer.share_arrays(**seen_by(model, batches(1)))
        first, second = (decoded(peer, parts, body) for _, parts, body in recorded)
        assert (first["prototypes.mean"] != second["prototypes.mean"]).all()
        assert first["prototypes.count"].tolist() == [1, 1, 1] == first["observations.count"][0].tolist()
        plan = PrivacyPlan("upload", 50.0, 1e-5, 0.5, 2, True)
        assert peer.privacy_spent == pytest.approx(plan.spent(2, 0, None)) and peer.privacy_spent <= 50
        peer.share_arrays(**seen_by(model, batches(1)))
        assert len(recorded) == 2  # the budget is spent


def test_without_a_relay_members_send_each_other_their_means(tmp_path: Path) -> None:
    wards = Wards(tmp_path / "wards", ("north", "south"))
    wards.write(create_array_charter("wards", {"name": "fedproto"}, CLASSES, 2, bound=8.0))

    def member(name: str) -> list[list[float]]:
        with join_arrays(wards.network(name), folder=tmp_path / name, timeout=5) as peer:
            value = 2.0 if name == "north" else 6.0
            peer.share_arrays(features=np.full((2, 2), value), labels=[1, 1])
            peer.refresh(wait=30)
            found: list[list[float]] = peer.targets().means.tolist()
            return found

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(member, wards.names)) == [[[0, 0], [4, 4], [0, 0]]] * 2


# --- charters without torch


@pytest.mark.parametrize("method", METHODS, ids=lambda method: "-".join(map(str, method.values())))
def test_a_charter_made_without_torch_is_that_of_a_model_of_this_width(method: dict[str, Any]) -> None:
    theirs, _ = create_charter("small", method, TaskShape(SHAPE, CLASSES), [net], seed=5)
    assert create_array_charter("small", method, CLASSES, WIDTH, bound=1.0, seed=5).to_toml() == theirs.to_toml()
