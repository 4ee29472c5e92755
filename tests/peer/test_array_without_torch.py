"""A member runs where torch is not installed, nor anything else of the extra `learn` that it does not need."""

from __future__ import annotations

from pathlib import Path

from consilience.peer.array_charter import create_array_charter
from consilience.relay import admin
from tests.relay_tools import serving
from tests.test_layers import run

MEMBER = """
import sys
for name in ("torch", "sklearn", "scipy", "networkx", "pooch", "PIL", "starlette", "uvicorn", "httptools"):
    sys.modules[name] = None  # importing it would fail
import numpy as np
from consilience import join_arrays

url, token, folder = {given!r}
with join_arrays(url, token, folder=folder, timeout=20) as peer:
    assert not peer.targets().known.any()
    features = np.array([[1, 0], [3, 0], [0, 4], [0, 6]])
    assert peer.introduce(features=features, labels=[0, 0, 1, 1])
    assert peer.share_arrays(features=features * 2, labels=[0, 0, 1, 1])
    assert peer.refresh()
    targets = peer.targets()
    print(peer.name, peer.round, peer.waiting, peer.bytes_sent > 0, targets.means.tolist(), targets.counts.tolist())
    print(targets.observations.tolist(), [part.tolist() for part in targets.as_samples(2.0)])
"""
MISSING = """
import sys
sys.modules["httpcore"] = None
try:
    from consilience import join_arrays
except Exception as error:
    print(type(error).__name__, error)
"""


def test_a_member_joins_shares_and_gets_targets_without_torch(tmp_path: Path) -> None:
    method = {"name": "representation-sharing", "encoding": "float16"}
    (tmp_path / "small.toml").write_text(create_array_charter("small", method, 3, 2, bound=16.0).to_toml())
    store = tmp_path / "relay.db"
    admin.create(store, tmp_path / "small.toml")
    token = str(admin.invite(store, "ward-7"))
    with serving(store) as relay:
        known, drawn = run(MEMBER.format(given=(relay.url, token, str(tmp_path / "peer")))).splitlines()
    assert known == "ward-7 1 False True [[4.0, 0.0], [0.0, 10.0], [0.0, 0.0]] [2.0, 2.0, 0.0]"
    features = "[[4.0, 0.0], [0.0, 10.0], [4.0, 0.0], [0.0, 10.0]]"
    assert drawn == f"[[[4.0, 0.0], [0.0, 10.0], [0.0, 0.0]]] [{features}, [0, 1, 0, 1], [2.0, 2.0, 2.0, 2.0]]"


def test_what_is_missing_is_named_with_its_extra() -> None:
    assert run(MISSING) == "ConfigurationError members of a relay need httpcore: pip install -e '.[join]'"


WITH_TORCH = """
import sys
sys.modules["torch"] = None
import consilience
try:
    consilience.join
except Exception as error:
    print(type(error).__name__, error)
"""


def test_what_needs_torch_says_so_and_names_what_does_without() -> None:
    said = "pip install -e '.[learn]'; members without torch take part with consilience.join_arrays"
    assert run(WITH_TORCH) == f"ConfigurationError consilience.join needs torch: {said}"
