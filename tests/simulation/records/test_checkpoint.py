"""Checkpoints have a layout number: one of another layout is refused, and the message says what to do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from consilience.errors import CheckpointError
from consilience.simulation.records.checkpoint import LAYOUT, Checkpoint, load_checkpoint, save_checkpoint
from consilience.simulation.records.run_folder import RunFolder


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    (tmp_path / "config.toml").write_text("")
    (tmp_path / "metrics.jsonl").write_text("")
    return RunFolder(tmp_path)


def test_checkpoint_round_trip_preserves_content(folder: RunFolder) -> None:
    assert load_checkpoint(folder) is None
    saved = Checkpoint({"channels.0.weights.sums": np.arange(3.0)}, {"round": 4})
    save_checkpoint(folder, saved, {"seconds": 1.5})
    found = load_checkpoint(folder)
    assert found is not None and found.round == 4 and found.numbers["layout"] == LAYOUT
    assert found.numbers["seconds"] == 1.5 and found.channel(0, "weights")["sums"].tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ({"round": 1}, f"has layout 1, and this version reads layout {LAYOUT}; an earlier version"),
        ({"round": 1, "layout": LAYOUT + 1}, f"has layout {LAYOUT + 1}, .* a newer version of consilience wrote it"),
    ],
    ids=["old", "new"],
)
def test_checkpoint_of_another_layout_is_refused(folder: RunFolder, numbers: dict[str, int], said: str) -> None:
    folder.save({"took_part": np.ones(1)}, numbers, 1)
    with pytest.raises(CheckpointError, match=said):
        load_checkpoint(folder)
