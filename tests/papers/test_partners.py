"""The reproductions of partners and of peer to peer: their cells, and their tables of saved results."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from consilience.papers import Scale
from consilience.papers.finished_cells import FINISHED
from consilience.papers.partners import PARTNERS
from consilience.papers.run import run_reproduction
from consilience.papers.thesis.peer_to_peer import PEER_TO_PEER, RELAY

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def test_every_cell_is_a_valid_run_and_has_its_own_name() -> None:
    for reproduction in (PARTNERS, PEER_TO_PEER):
        for scale in (Scale(), Scale(quick=True)):
            cells = reproduction.cells(scale)
            assert len({cell.name for cell in cells}) == len(cells)
            assert all(cell.config.evaluation.every == cell.config.training.rounds for cell in cells)


def test_ways_to_choose_differ_in_partners_only() -> None:
    cells = [cell for cell in PARTNERS.cells(Scale()) if cell.labels["method"] == "consilience"]
    shifts = [{who: group.shift for who, (_, group) in cell.config.groups_by_learner().items()} for cell in cells]
    assert all({who for who, shift in each.items() if shift} == set(range(5, 10)) for each in shifts)
    assert {cell.config.network.partners for cell in cells} == {
        *("everybody", "listed", "similar(4)", "similar(2)", "useful(4)")
    }


def test_saved_cells_show_groups_found_and_points_gained(tmp_path: Path) -> None:
    shutil.copy(RESULTS / "partners" / FINISHED, tmp_path)
    (section,) = run_reproduction(PARTNERS, Scale(), tmp_path, saved_only=True).sections
    lines = {(line["method"], line["partners"]): line for line in section.table}
    chosen, everybody = lines["consilience", "similar(4)"], lines["consilience", "everybody"]
    assert chosen["Rand index"] == "1.00" and everybody["Rand index"] is None
    saved = {
        (line["labels"]["method"], line["labels"]["partners"]): line["summary"]["accuracy_own"]["by_seed"]
        for line in map(json.loads, (tmp_path / FINISHED).read_text().splitlines())
    }
    pairs = zip(saved["consilience", "similar(4)"], saved["consilience", "everybody"], strict=True)
    gains = [ours - theirs for ours, theirs in pairs]
    assert len(gains) == 5 and min(gains) > 5
    assert chosen["against everybody"].startswith(f"{sum(gains) / 5:+.1f} (")


def test_graphs_are_compared_with_the_relay(tmp_path: Path) -> None:
    shutil.copy(RESULTS / "thesis-p2p" / FINISHED, tmp_path)
    names = [json.loads(line)["labels"]["network"] for line in (tmp_path / FINISHED).read_text().splitlines()]
    assert RELAY in names and "4-regular" in names
    only = [("network", name) for name in names]
    (section,) = run_reproduction(PEER_TO_PEER, Scale(only=only), tmp_path, saved_only=True).sections
    lines = {line["network"]: line for line in section.table}
    assert lines[RELAY]["against the relay"] is None
    difference = float(lines["4-regular"]["against the relay"].split()[0])
    assert difference > -2  # four neighbors are enough
    assert lines["4-regular"]["bytes"] == 4 * lines[RELAY]["bytes"]
