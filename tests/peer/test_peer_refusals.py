"""Refusals of a peer and of its relay: URLs, tokens and models, by name and with advice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from consilience.errors import ConfigurationError, RelayError
from consilience.peer.peer import join
from consilience.relay import admin
from tests.peer_tools import batches, federation, net
from tests.relay_tools import serving


@pytest.fixture(scope="module")
def weighty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, str]]:
    with (
        federation(tmp_path_factory.mktemp("weighty"), {"name": "consilience"}, members=3) as made,
        serving(made.store) as running,
    ):
        yield made, running.url


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (None, r"shares weights: give your model"),
        (lambda: net(width=5), r"cannot share 'prototypes'.*\(3, 5\).*\(3, 4\)"),
        (lambda: net(classes=4), "has 4 classes, and federation 'small' has 3"),
        (lambda: net(hidden=9), r"cannot share 'weights'.*features.0.weight"),
        (lambda: nn.Sequential(nn.Flatten()), "has no torch.nn.Linear to compute the logits"),
    ],
)
def test_model_that_does_not_match_is_refused_in_each_call(weighty: tuple[Any, str], model: Any, said: str) -> None:
    made, url = weighty
    made_model = None if model is None else model()
    with pytest.raises(ConfigurationError, match=said):
        made.join(url, 0, made_model)
    if made_model is not None:
        peer = made.join(url, 1, made.common())
        for _ in range(2):
            with pytest.raises(ConfigurationError, match=said):
                peer.share(made_model, batches(1))
        peer.close()


@pytest.mark.parametrize("method", ["representation-sharing", "federated-distillation"])
def test_features_of_another_width_are_refused_if_shared(tmp_path: Path, method: str) -> None:
    inputs, targets = batches(1)[0]
    with federation(tmp_path, {"name": method}) as made, serving(made.store) as running:
        peer = made.join(running.url, 0)
        for width, hint in ((5, "have width 5.*shares features of width 4"), (4, "")):
            model = net(width=width)
            features = model.features(inputs)
            given = features, model.classifier(features), targets, model.classifier
            if hint and method == "representation-sharing":
                with pytest.raises(ConfigurationError, match=hint):
                    peer.penalty(*given)
            else:
                assert peer.penalty(*given).item() == 0  # logits do not depend on the width
        with pytest.raises(ConfigurationError, match=r"of penalty are torch.float32 of the shape \(3,\); .* integers"):
            peer.penalty(features[:3], given[1][:3], torch.zeros(3), model.classifier)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://relay.example:8443", "not encrypted"),
        ("http://127.1.example", "not encrypted"),
        ("relay.example", "not the address of a relay"),
        ("https://", "not the address of a relay"),
        ("https://relay.example:99999", "not the address of a relay"),
        ("https://relay.example:port", "not the address of a relay"),
        ("https://[::1", "not the address of a relay"),
        ("https://somebody:secret@relay.example", "not the address of a relay"),
        ("ftp://127.0.0.1", "not the address of a relay"),
    ],
)
def test_invalid_relay_url_is_refused(tmp_path: Path, url: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        join(url, f"cs1_1_{'a' * 43}", folder=tmp_path)


def test_invalid_token_is_refused_and_never_shown(weighty: tuple[Any, str], tmp_path: Path) -> None:
    made, url = weighty
    with pytest.raises(ConfigurationError, match=r"no token: .* CONSILIENCE_TOKEN"):
        join(url, folder=tmp_path)
    for token in ("secret", "cs1_zz_secret", f"{made.tokens[0]}\r\nX: y", f"cs1_1_{'ä' * 43}"):
        with pytest.raises(ConfigurationError, match="this is not a token") as refused:
            join(url, token, folder=tmp_path)
        assert "secret" not in str(refused.value)
    with pytest.raises(RelayError, match="unknown to this relay") as wrong:
        join(url, f"cs1_1_{'a' * 43}", made.common(), folder=tmp_path)
    assert wrong.value.code == "wrong-token"
    join(url, f" {made.tokens[0]}\n", made.common(), folder=tmp_path).close()


def test_revoked_member_is_refused_at_its_next_call(weighty: tuple[Any, str]) -> None:
    made, url = weighty
    model = made.common()
    peer = made.join(url, 2, model)
    assert peer.share(model, batches(1))
    admin.revoke(made.store, "m2")
    for call in (peer.refresh, lambda: peer.share(model, batches(1)), lambda: (peer.close(), made.join(url, 2, model))):
        with pytest.raises(RelayError) as refused:
            call()
        assert refused.value.code == "revoked"
