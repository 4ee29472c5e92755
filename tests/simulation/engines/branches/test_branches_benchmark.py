"""The benchmark of the branches starts, and times every case; its numbers mean something on a GPU only."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks.branches import main


@pytest.mark.usefixtures("one_thread")
def test_quick_benchmark_times_every_case_and_shows_a_table_last(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["--device", "cpu", "--quick", "--out", str(tmp_path / "results")])
    found = json.loads((tmp_path / "results" / "branches.json").read_text())
    assert [(case["model"], case["learners"]) for case in found["cases"]] == [
        ("resnet9", 2),
        ("lenet5", 2),
        ("lenet5", 5),
        ("cnn with dropout", 2),
        ("lstm", 2),
    ]
    for case in found["cases"]:
        stacked = "dropout" not in case["model"] and case["model"] != "lstm"
        assert ("stack_us" in case) == stacked
        assert all(case[f"{name}_us"] > 0 for name in ("loop", "branches", "limit", *(["stack"] if stacked else [])))
        assert case["branches"]["plan"].startswith("branches: cpu has")
    lines = capsys.readouterr().out.splitlines()
    assert "one learner's step, microseconds" in lines[-6] and lines[-1].split()[0] == "lstm"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_benchmark_says_what_works() -> None:
    with pytest.raises(SystemExit, match="torch finds no GPU; --device cpu --quick"):
        main([])
