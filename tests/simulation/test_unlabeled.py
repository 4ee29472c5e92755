"""Runs without labels: probes, their data, and settings that decide what is uploaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from consilience import simulate
from consilience.config.config import make_config
from consilience.data import Dataset, load
from consilience.errors import ConfigurationError
from consilience.exchanges import Prototypes, Weights
from consilience.method import Method, Role
from consilience.simulation import run as run_module
from consilience.simulation.records.history import History

SMALL: dict[str, Any] = {"learners": 3, "rounds": 2, "batch_size": 32, "workers": 0, "model": "mlp"}
ALONE = "independent:objective=simclr"


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load("digits", train=150, test=60)


@pytest.mark.parametrize("shift", ["none", "rotate(90)", "label-noise(0.5)"])
def test_probes_train_on_the_data_of_their_own_seed(digits: Dataset, shift: str) -> None:
    """If shifts change the data there is a copy for each seed, and no probe uses that of another seed."""
    one = simulate(data=digits, method=ALONE, shift=shift, **SMALL)
    three = simulate(data=digits, method=ALONE, shift=shift, seeds=3, **SMALL)
    for key in ("accuracy", "accuracy_scaled", "accuracy_knn"):
        np.testing.assert_array_equal(one.history.last(key)[0], three.history.last(key)[0])


def test_all_learners_are_probed_if_one_has_no_labels(digits: Dataset) -> None:
    groups = {"blind": {"learners": 0, "method": {"objective": "simclr"}}}
    result = simulate(data=digits, method="independent", groups=groups, **SMALL)
    np.testing.assert_array_equal(result.accuracy, result.history.last("accuracy_scaled"))
    assert result.summary()["accuracy_source"] == "scaled" and result.accuracy[0, 0] > 30
    supervised = simulate(data=digits, method="independent", **SMALL).summary()
    assert supervised["accuracy_source"] == "classifier" and supervised["probes"] == {}


def test_scaled_probe_beats_linear_probe_on_small_features(digits: Dataset) -> None:
    linear = simulate(data=digits, method=ALONE, probe="linear", **{**SMALL, "model": "lenet5"})
    scaled = simulate(data=digits, method=ALONE, probe="scaled", **{**SMALL, "model": "lenet5"})
    assert scaled.accuracy.mean() > linear.accuracy.mean() + 10


@pytest.mark.parametrize("form", ["pool", "mean"])
def test_keep_setting_of_flesd_cannot_be_a_variant_or_schedule(digits: Dataset, form: str) -> None:
    """It decides what is uploaded, so settings that differ in it are not variants of one run."""
    method = {"name": "flesd", "form": form, "distill_epochs": 1}
    variants = ({"method.keep": 1.0}, {"method.keep": 0.1})
    with pytest.raises(ConfigurationError, match="changes more than weights and rates"):
        simulate(make_config({**SMALL, "data": "digits", "train": 150, "method": method, "variants": variants}))
    with pytest.raises(ConfigurationError, match="cannot change with the rounds"):
        simulate(data=digits, method=f"flesd:form={form}:keep=ramp(0.1,1,2)", **SMALL)
    kept, all_of_it = (
        simulate(data=digits, method=f"flesd:form={form}:keep={keep}:distill_epochs=2", **SMALL) for keep in (0.1, 1)
    )
    assert kept.history.last("loss.similarity")[0, 0] != all_of_it.history.last("loss.similarity")[0, 0]
    sent = [result.history.last("bytes.up")[0, 1] for result in (kept, all_of_it)]
    assert (sent[0] > sent[1]) == (form == "pool"), "floors travel"


def test_flesd_ensemble_covers_all_learners_by_default(digits: Dataset) -> None:
    """Uploading representations or similarities changes the bytes, not the members of the ensemble."""
    more = SMALL | {"learners": 9, "rounds": 1, "precision": "float64"}
    pool, mean = (simulate(data=digits, method=f"flesd:distill_epochs=1:form={f}", **more) for f in ("pool", "mean"))
    few = simulate(data=digits, method="flesd:distill_epochs=1:form=pool:down=2", **more)
    losses = [result.history.last("loss.similarity")[0, 0] for result in (pool, mean, few)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-9) and losses[0] != pytest.approx(losses[2], rel=1e-3)


def test_group_cannot_change_the_roles_of_the_method(digits: Dataset) -> None:
    groups = {"odd": {"learners": 1, "method": {"distill": "distiller"}}}
    with pytest.raises(ConfigurationError, match="cannot differ between groups"):
        simulate(data=digits, method="flesd:distill=learner", groups=groups, **SMALL)


@pytest.mark.parametrize("scale", [16.0, 255.0])
def test_pixels_out_of_range_are_refused(scale: float, tmp_path: Path) -> None:
    images = np.random.default_rng(0).random((60, 1, 8, 8)) * scale
    data = Dataset.from_arrays("bright", images, np.arange(60) % 3)
    with pytest.raises(ConfigurationError, match="store them as bytes, or as fractions from 0 to 1"):
        simulate(data=data, method=ALONE, out=tmp_path / "run", **SMALL)
    assert not (tmp_path / "run").exists()
    simulate(data=data, method="independent", **SMALL)


def test_run_with_several_roles_resumes_bit_identically(
    digits: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between rounds a model is always in the cohort of its first role."""
    monkeypatch.setattr(run_module, "_SAVE_SECONDS", 0.0)
    monkeypatch.setattr(run_module, "_SAVE_SHARE", 1.0)  # however long it takes
    weights = Weights()
    roles = {
        "trainer": Role(exchanges=(weights,), uploads=()),
        "teller": Role(exchanges=(Prototypes(),), downloads=(), epochs=0),
        "boss": Role(exchanges=(weights,)),
    }
    method = Method("told", roles, members={0: "boss"}, usual=("trainer", "teller"))

    def stop(name: str, round_: int, of: int, history: History) -> None:
        if round_ == 3:
            raise KeyboardInterrupt

    settings = SMALL | {"rounds": 4}
    whole = simulate(data=digits, method=method, out=tmp_path / "whole", **settings)
    with pytest.raises(KeyboardInterrupt):
        simulate(data=digits, method=method, out=tmp_path / "half", on_round=stop, **settings)
    resumed = simulate(resume=tmp_path / "half", data=digits, method=method)
    np.testing.assert_array_equal(resumed.accuracy, whole.accuracy)
    np.testing.assert_array_equal(resumed.history["loss.cross_entropy"], whole.history["loss.cross_entropy"])
