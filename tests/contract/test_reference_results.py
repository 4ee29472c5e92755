"""Results of an earlier version of this code: renaming and restructuring must not change numbers.

Recorded in float64 with one thread. Accuracies and byte counts are compared exactly, losses to 1e-9 of their size,
which leaves room for the rounding of another processor's matrix products.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from consilience import simulate

REFERENCE: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("reference_results.json").read_text("utf-8"))
SIZE: dict[str, Any] = {"data": "digits", "train": 200, "test": 200, "learners": 3, "rounds": 3, "workers": 0}
_ONE_ANSWER = "consilience:kd=1:scale=absolute:down=bit:objective=cross-entropy:own_head=false:step=1"
SETTINGS: dict[str, dict[str, Any]] = {
    "participation": {"method": _ONE_ANSWER, "participation": 0.7, "offline": 0.3},
    "participation, two answers": {"method": "consilience:step=1", "participation": 0.7, "offline": 0.3},
    "skewed and shifted": {"method": "representation-sharing", "partition": "dirichlet(0.5)", "shift": "rotate(60)"},
    "two seeds, sgd": {
        **{"method": "fedavg", "seeds": 2, "optimizer": "sgd", "momentum": 0.9, "weight_decay": 0.01, "lr": 0.05},
    },
    "unlike models": {"method": "representation-sharing", "model": "mlp,lenet5,mlp", "width": 32},
}
"""Cases that are more than a method's name with its settings."""


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("case", REFERENCE)
def test_results_equal_the_reference(case: str) -> None:
    name, _, engine = case.rpartition(", ")
    settings = SETTINGS.get(name) or {"method": name, **({"model": "mlp"} if name.startswith("two-stage") else {})}
    how: dict[str, Any] = {"engine": engine, "precision": "float64"}
    result = simulate(**SIZE, **settings, **how)
    history, expected = result.history, REFERENCE[case]
    assert result.accuracy.tolist() == expected["accuracy"]
    losses = {key: float(np.nansum(history[key])) for key in history if key.startswith("loss.")}
    assert losses == pytest.approx(expected["loss"], rel=1e-9, abs=1e-12)
    assert np.nansum(history["bytes.up"]) == expected["up"] and np.nansum(history["bytes.down"]) == expected["down"]
