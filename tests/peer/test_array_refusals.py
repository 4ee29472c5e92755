"""What a member without torch refuses: bad samples, and federations that need torch; each message names the way out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from consilience import ArrayPeer, join_arrays
from consilience.errors import ConfigurationError, ConsilienceError, UnknownName
from consilience.peer.array_charter import create_array_charter
from consilience.peer.array_exchanges import exchanges_of_charter
from consilience.peer.create_charter import TaskShape, create_charter
from consilience.wire.privacy import PrivacySettings
from tests.peer_tools import CLASSES, SHAPE, SHARING, WIDTH, Founded, federation, net
from tests.relay_tools import serving

X, Y = np.zeros((3, WIDTH), np.float32), np.array([0, 1, 2])
NAN, LARGE = X.copy(), X.copy()
NAN[1, 2], LARGE[2, 0] = np.nan, np.inf
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "nothing": ({}, r"no features were given; call share_arrays\(features=\.\.\., labels=\.\.\.\)"),
    "logits alone": ({"logits": np.zeros((3, 3)), "labels": Y}, "shares means of features, and no features were given"),
    "no labels": ({"features": X}, r"no labels were given.*give labels=\.\.\."),
    "another width": (
        {"features": X[:, :3], "labels": Y},
        "have width 3, .* shares features of width 4; .* projection",
    ),
    "lengths that differ": (
        {"features": X, "labels": Y[:2]},
        "3 rows of features and 2 labels; give one label per row",
    ),
    "no samples": ({"features": X[:0], "labels": Y[:0]}, "there are no samples"),
    "a class too many": (
        {"features": X, "labels": Y + 1},
        "from 1 to 3, .* has 3 classes, 0 to 2; number your classes",
    ),
    "negative labels": ({"features": X, "labels": Y - 1}, "labels are from -1 to 1"),
    "labels as floats": ({"features": X, "labels": Y * 1.0}, r"type float64; give one integer.*labels\.astype\(int\)"),
    "one-hot labels": ({"features": X, "labels": np.eye(3, dtype=int)}, r"shape \(3, 3\).*labels\.argmax\(axis=1\)"),
    "names as labels": ({"features": X, "labels": ["a", "b", "c"]}, "type <U1; give one integer for each sample"),
    "one sample as a row": ({"features": X[0], "labels": Y}, r"shape \(4,\).*one row of numbers.*\(samples, 4\)"),
    "NaN": (
        {"features": NAN, "labels": Y},
        "of 1 samples are NaN, .* first in row 1; leave these samples out, or fill",
    ),
    "infinite": ({"features": LARGE, "labels": Y}, "infinite or beyond float32, first in row 2"),
    "beyond float32": (
        {"features": np.full((3, WIDTH), 1e300), "labels": Y},
        "of 3 samples are NaN, infinite or beyond float32",
    ),
    "rows of unlike length": (
        {"features": [[1, 2], [3]], "labels": [0, 1]},
        "cannot be read as a NumPy array.*one length",
    ),
    "an object": (
        {"features": object(), "labels": Y},
        r"reads as objects; give plain numbers, .*features\.toarray\(\)",
    ),
    "masked features": (
        {"features": np.ma.masked_equal(X, 0), "labels": Y},
        r"12 values of features are masked: they are missing; .*features\.filled",
    ),
    "masked labels": ({"features": X, "labels": np.ma.masked_equal(Y, 2)}, "1 values of labels are masked"),
    "labels as objects": (
        {"features": X, "labels": np.array([0, 1, None])},
        r"labels are ndarray, .*objects.*labels\.astype\(int\)",
    ),
    "no time": ({"features": X, "labels": Y, "wait": float("nan")}, "wait is nan; it must be a finite number, 0 or"),
    "a time before now": ({"features": X, "labels": Y, "wait": -1}, "wait is -1; it must be a finite number, 0 or mor"),
    "beyond the bounds": (
        {"features": X + 9, "labels": Y * 0},
        r"of your features is 9, .* allows -1 to 1; scale your features as the other",
    ),
}


@pytest.fixture(scope="module")
def sharing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Founded, str, ArrayPeer]]:
    with (
        federation(tmp_path_factory.mktemp("sharing"), SHARING) as made,
        serving(made.store) as running,
        join_arrays(running.url, made.tokens[0], folder=made.folder / "peer-0") as peer,
    ):
        yield made, running.url, peer


@pytest.mark.parametrize("name", WRONG)
def test_bad_samples_are_refused_before_anything_is_sent(sharing: tuple[Founded, str, ArrayPeer], name: str) -> None:
    _, _, peer = sharing
    given, said = WRONG[name]
    for call in (peer.introduce, peer.share_arrays):
        with pytest.raises(ConfigurationError, match=said):
            call(**given)
        assert peer.bytes_sent == 0 and not peer.waiting


def test_logits_of_another_shape_are_refused(tmp_path: Path) -> None:
    with (
        federation(tmp_path, {"name": "federated-distillation"}) as made,
        serving(made.store) as running,
        join_arrays(running.url, made.tokens[0], folder=tmp_path / "peer") as peer,
    ):
        with pytest.raises(ConfigurationError, match=r"logits have width 4, .* width 3; give one logit for each class"):
            peer.share_arrays(logits=X, labels=Y)
        with pytest.raises(ConfigurationError, match=r"no logits were given; call share_arrays\(logits="):
            peer.share_arrays(features=X, labels=Y)
        assert peer.share_arrays(logits=np.eye(3)[Y], labels=Y, wait=20)


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ("fedavg", "shares 'weights', parameters of a model in torch"),
        ("consilience", "shares 'weights', parameters"),
        ("cluster-sharing", "uses the method 'cluster-sharing', which is written for torch|shares 'clusters'"),
        ("flesd", "have the roles learner, witness, distiller, which train models"),
    ],
)
def test_federations_that_need_torch_are_refused_by_what_they_share(method: str, said: str) -> None:
    shape = TaskShape(SHAPE, CLASSES, learners=3, public=np.zeros((8, *SHAPE), np.float32))
    charter, _ = create_charter("small", {"name": method}, shape, [net])
    with pytest.raises(ConfigurationError, match=said) as refused:
        exchanges_of_charter(charter)
    assert "take part with torch, consilience.join(...) or `consilience join`" in str(refused.value)
    assert "representation-sharing, fedproto, federated-distillation work" in str(refused.value)


@pytest.mark.parametrize("private", ["training", "fixed-encoder"])
def test_noise_of_single_samples_needs_torch(private: Any) -> None:
    privacy = PrivacySettings(private=private, epsilon=8.0, delta=1e-5, clip=1.0, uploads=5)
    charter = create_array_charter("small", {"name": "fedproto"}, CLASSES, WIDTH, privacy=privacy)
    with pytest.raises(
        ConfigurationError, match=f"'{private}', noise for single samples.*private = 'upload' does, too"
    ):
        exchanges_of_charter(charter)


@pytest.mark.parametrize(
    ("method", "error", "said"),
    [
        ({"name": "mine.py:spread"}, ConfigurationError, "the method 'mine.py:spread', which is written for torch"),
        ({**SHARING, "n_avg": "ten"}, ConfigurationError, "n_avg is 'ten'; it must be a whole number"),
        ({**SHARING, "weighting": "votes"}, UnknownName, "unknown weighting 'votes'"),
        (
            {**SHARING, "kdd": 3},
            UnknownName,
            "unknown setting 'kdd' of method 'representation-sharing'. Did you mean 'kd'",
        ),
        ({**SHARING, "encoding": "int4"}, ConfigurationError, "uploaded in int4 at one and float32 at the other"),
        ({**SHARING, "means": "seen"}, ConfigurationError, "has the channels prototypes, observations"),
        ({**SHARING, "min_count": 1}, ConfigurationError, "min_count is 1, and features of single samples would leave"),
        ({**SHARING, "n_avg": 1}, ConfigurationError, "n_avg is 1; .* an observation of one sample is that sample's"),
        ({**SHARING, "dimensions": 0.5}, ConfigurationError, "dimensions is 0.5, which is for simulations; leave"),
    ],
)
def test_charters_that_contradict_their_method_are_refused(
    method: dict[str, Any], error: type[ConsilienceError], said: str
) -> None:
    charter = create_array_charter("small", SHARING, CLASSES, WIDTH).model_copy(update={"method": method})
    with pytest.raises(error, match=said):
        exchanges_of_charter(charter)


@pytest.mark.parametrize(
    ("method", "more", "said"),
    [
        (
            {"name": "fedavg"},
            {},
            "method is 'fedavg'; federations of members without torch have representation-sharing",
        ),
        ({"name": "fedproto"}, {"width": 0}, "width is 0; it must be a whole number, 1 or more"),
        ({"name": "fedproto"}, {"bound": 0.0}, "bound is 0.0"),
        ({**SHARING, "min_count": 1}, {}, "min_count is 1, and features of single samples would leave the members"),
        ({**SHARING, "n_avg": 1}, {}, "n_avg is 1; .* an observation of one sample is that sample's features"),
    ],
)
def test_charters_that_cannot_work_are_not_made(method: dict[str, Any], more: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        create_array_charter("small", method, CLASSES, **{"width": WIDTH, **more})


def test_a_folder_has_one_member_at_a_time(sharing: tuple[Founded, str, ArrayPeer]) -> None:
    made, url, peer = sharing
    with pytest.raises(ConfigurationError, match="is used already"):
        join_arrays(url, made.tokens[0], folder=peer.connection.folder)


def test_the_token_comes_from_the_environment(
    sharing: tuple[Founded, str, ArrayPeer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, url, _ = sharing
    with pytest.raises(ConfigurationError, match="there is no token"):
        join_arrays(url, folder=tmp_path)
    monkeypatch.setenv("CONSILIENCE_TOKEN", made.tokens[1])
    with join_arrays(url, folder=tmp_path) as peer:
        assert peer.name == "m1"


@pytest.mark.parametrize("weight", [-1.0, float("nan")])
def test_a_weight_of_known_means_is_0_or_more(sharing: tuple[Founded, str, ArrayPeer], weight: float) -> None:
    with pytest.raises(ConfigurationError, match=f"weight is {weight}; it must be a finite number, 0 or more"):
        sharing[2].targets().as_samples(weight)


def test_a_closed_member_leaves_its_folder_to_others_and_still_has_its_targets(
    sharing: tuple[Founded, str, ArrayPeer], tmp_path: Path
) -> None:
    made, url, _ = sharing
    peer = join_arrays(url, made.tokens[1], folder=tmp_path / "peer")
    assert peer.share_arrays(features=X + 0.5, labels=Y * 0, wait=20) and peer.refresh()
    known = peer.targets()
    peer.close()
    with join_arrays(url, made.tokens[1], folder=tmp_path / "peer") as again:
        assert again.share_arrays(features=X, labels=Y * 0, wait=20)
        saved = (tmp_path / "peer" / "peer" / "state.json").read_bytes()
        calls: tuple[Callable[[], object], ...] = (
            lambda: peer.share_arrays(features=X, labels=Y * 0),
            lambda: peer.introduce(features=X, labels=Y * 0) and peer.refresh(),
            peer.refresh,
        )
        for call in calls:
            with pytest.raises(ConfigurationError, match=r"'m1' in federation .* is closed, .*; join again"):
                call()
        peer.close()
        assert (tmp_path / "peer" / "peer" / "state.json").read_bytes() == saved
    assert np.array_equal(peer.targets().counts, known.counts) and known.counts[0] >= 3
