"""A member without torch: its uploads are those of a torch member, bit for bit, and its targets what the relay has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from consilience import join_arrays
from consilience.models import SplitModel
from consilience.peer.array_peer import ArrayPeer
from consilience.peer.peer import Peer
from consilience.relay.app import Limits, Relay
from consilience.wire.headers import Parts
from tests.peer_tools import SHARING, Batches, Founded, batches, decoded, federation, net, seeded
from tests.relay_tools import in_a_thread

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
            return (self.inner(x) * 256).round() / 256

    for parameter in model.classifier.parameters():
        parameter.data = (parameter.data * 16).round() / 16
    return SplitModel(Rounded(model.features), model.classifier, bound=1.0)  # type: ignore[arg-type]


def seen_by(model: SplitModel, loader: Batches) -> dict[str, np.ndarray]:
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
