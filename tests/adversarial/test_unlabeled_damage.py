"""Training without labels on input that is too small, constant or contradictory: refused by name, or finite."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor, nn

from consilience.data import Dataset, load
from consilience.data.local_datasets import make_local_datasets
from consilience.errors import ConfigurationError
from consilience.models import SplitModel
from consilience.simulation.result import Result
from consilience.simulation.simulate import simulate

SMALL = "distill_epochs=2:distill_batch=16:queue=20"
FLESD = f"flesd:{SMALL}"
each_engine = pytest.mark.parametrize("engine", ["loop", "stack"])

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def data() -> Dataset:
    return load("digits", train=80, test=40)


def table(data: Dataset) -> Dataset:
    """The same pixels as a table instead of images."""
    flat = {k: getattr(data, k).reshape(len(getattr(data, k)), -1) for k in ("inputs", "test_inputs")}
    return replace(data, **flat)


def run(data: Dataset, **settings: Any) -> Result:
    common: dict[str, Any] = {"method": FLESD, "learners": 4, "rounds": 2, "batch_size": 10, "workers": 0}
    return simulate(**(common | {"data": data, "probe": "knn"} | settings))


def assert_sound(result: Result) -> None:
    """Losses of learners that train, and all accuracies, are finite; no loss is infinite."""
    losses = [result.history[k] for k in result.history.records[0] if k.startswith("loss.")]
    assert result.finished and all(not np.isinf(values).any() for values in losses)
    assert np.isfinite(result.history["loss.similarity"][:, :, 0]).all(), "the host has distilled"
    assert np.isfinite(result.history["loss.simclr"][:, :, 1:]).all()
    assert np.isfinite(result.accuracy).all()


# Small, but allowed


@each_engine
@pytest.mark.parametrize(
    ("public", "distill", "form"),
    [
        *((19, "distiller", "pool"), (19, "learner", "mean")),  # below the queue
        *((3, "distiller", "mean"), (3, "learner", "pool")),  # below a batch
        *((2, "distiller", "pool"), (2, "distiller", "mean"), (2, "learner", "pool"), (2, "learner", "mean")),
    ],
)
def test_small_public_set_is_allowed(public: int, distill: str, form: str, engine: str, data: Dataset) -> None:
    result = run(data, public=public, method=f"{FLESD}:distill={distill}:form={form}", engine=engine)
    assert_sound(result)
    assert result.summary()["public_bytes"] == 3 * public * 64
    assert (result.history["loss.similarity"][:, :, 0] > 0).all()


def zero_encoder() -> SplitModel:
    """A model whose features are always zero."""

    class Zeros(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 5)

        def forward(self, x: Tensor) -> Tensor:
            features: Tensor = 0 * self.layer(x.flatten(1))
            return features

    return SplitModel(Zeros(), nn.Linear(5, 10))


@each_engine
@pytest.mark.parametrize(
    "more", ["form=pool", "form=mean:keep=0.3", "form=pool:keep=0.3:distill=learner:encoding=int8"]
)
def test_all_zero_features_give_finite_losses(more: str, engine: str, data: Dataset) -> None:
    result = run(data, model=zero_encoder, method=f"{FLESD}:{more}", engine=engine)
    assert_sound(result)
    assert len(np.unique(result.accuracy)) == 1, "nobody can tell anything"


@each_engine
def test_two_learners_can_train(engine: str, data: Dataset) -> None:
    assert_sound(run(data, learners=2, engine=engine))


@each_engine
def test_offline_learners_have_zero_similarity_loss_and_no_upload(engine: str, data: Dataset) -> None:
    result = run(data, offline=1.0, engine=engine)
    assert_sound(result)
    assert not result.history["loss.similarity"][:, 0, 0].any() and not result.history["bytes.up"].any()


# Refused


def wide(width: int) -> Callable[[], SplitModel]:
    def build() -> SplitModel:
        return SplitModel(nn.Sequential(nn.Flatten(), nn.Linear(64, width)), nn.Linear(width, 10))

    build.__name__ = f"wide{width}"
    return build


WIDTHS = [wide(4), wide(6), wide(8), wide(6)]
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a public set of one sample": ({"public": 1}, "the public set has 1 sample; similarities need at least two"),
    "a learner with one sample": (
        {"train": 8, "public": 4, "partition": "shares(0.2,0.2,0.6)"},
        "learner 1 has one sample, and objective 'simclr' needs two",
    ),
    "batches of one": (
        {"batch_size": 1},
        "batch_size is 1, and objective 'simclr' needs at least 2 samples in a batch",
    ),
    "batches of one without a public set": (
        {"batch_size": 1, "method": "fedavg:objective=simclr"},
        "batch_size is 1, and objective 'simclr' needs at least 2",
    ),
    "no batch to distill": ({"method": "flesd:distill_batch=0"}, "distill_batch is 0"),
    "no epoch to distill": ({"method": "flesd:distill_epochs=0"}, "distill_epochs is 0"),
    "epochs that rounds cannot share": ({"total_epochs": 7}, "total_epochs is 7, which is not a multiple of 2 rounds"),
    "epochs that contradict": (
        {"total_epochs": 8, "epochs": 3},
        "total_epochs is 8 in 2 rounds, and epochs is 3; give one of the two",
    ),
    "everything is public": ({"public": 80}, "public is 80, and there are 80 training samples for it and 3 learners"),
    "too much is public": ({"public": 78}, "public is 78, and there are 80 training samples for it and 3 learners"),
    "nothing is public": ({"public": 0}, "public is 0"),
    "one learner": ({"learners": 1}, "needs at least two learners"),
    "one learner and a public set": ({"learners": 1, "public": 5}, "needs at least two learners"),
    "nobody distills": ({"method": "flesd:distill=nobody"}, "unknown distill 'nobody'. Known: distiller, learner"),
    "nothing is kept": ({"method": "flesd:keep=0"}, "keep is 0; it must be a share, above 0 and at most 1"),
    "one bit": ({"method": "flesd:encoding=bit"}, "representations of one bit have no similarities"),
    "an objective nobody knows": ({"method": "flesd:objective=simclrr"}, "Did you mean 'simclr'?"),
    "narrower than the model": (
        {"method": "flesd:width=8"},
        "width is 8, and mlp has representations of width 32; set it to the width of the widest",
    ),
    "three widths": (
        {"method": "flesd:form=pool:distill=learner", "model": WIDTHS},
        "learners 0 (wide4, d' = 4) and 1 (wide6, d' = 6) cannot share 'similarity': 'rows' is (20, 4) at one and "
        "(20, 6) at the other. Let the method fill representations up to the widest of all (width = ... in its",
    ),
    "three widths and a distiller": (
        {"method": "flesd:form=pool:width=8", "model": WIDTHS},
        "learners 0 (wide4, d' = 4) and 1 (wide6, d' = 6) cannot share 'weights'",
    ),
    "a class of the host's is never to be shared": (
        {"groups": {"private": {"learners": [0], "never_share": [3]}}},
        "of the public set are marked never to be shared",
    ),
}


@pytest.mark.parametrize("what", list(REFUSED))
def test_invalid_settings_are_refused_by_name(what: str, data: Dataset, tmp_path: Path) -> None:
    settings, words = REFUSED[what]
    with pytest.raises(ConfigurationError) as refused:
        run(data, out=tmp_path / "run", **settings)
    assert words in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_refusal_to_share_weights_suggests_similarities(data: Dataset) -> None:
    with pytest.raises(ConfigurationError, match="similarities \\(flesd with distill = 'learner'\\) instead"):
        run(data, method="flesd:width=8", model=WIDTHS)


@each_engine
@pytest.mark.parametrize("more", ["form=pool:width=8", "form=mean"])
def test_encoders_of_three_widths_distill_from_each_other(more: str, engine: str, data: Dataset) -> None:
    result = run(data, method=f"{FLESD}:distill=learner:{more}", model=WIDTHS, engine=engine)
    assert_sound(result)
    assert (result.history["loss.similarity"] > 0).all()
    assert len(set(result.history["bytes.up"][-1, 0, 1:].tolist())) == 1


@pytest.mark.parametrize("method", ["flesd", "independent:objective=simclr", "fedavg:objective=nt-xent"])
@each_engine
def test_table_without_augmented_views_is_refused_before_training(
    engine: str, method: str, data: Dataset, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match="views are for images") as refused:
        run(table(data), method=method, engine=engine, out=tmp_path / "run")
    assert "64" in str(refused.value) and "Use an objective without views for a table" in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_public_set_with_never_share_samples_is_refused(data: Dataset, tmp_path: Path) -> None:
    marked = replace(data, shareable=np.arange(80) % 7 > 0)
    with pytest.raises(ConfigurationError, match=r"\d+ samples of the public set are marked never to be shared"):
        run(marked, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_never_share_marks_of_other_learners_do_not_matter(data: Dataset) -> None:
    """Learners train on their own marked samples; the public set belongs to the host."""
    free = np.zeros(80, dtype=bool)
    free[make_local_datasets(data, 4, seed=0).parts[0]] = True
    marked, plain = run(replace(data, shareable=free)), run(data)
    assert_sound(marked)
    assert np.array_equal(marked.accuracy, plain.accuracy)
    assert_sound(run(data, groups={"private": {"learners": [1, 2, 3], "never_share": [3]}}))


# The command


COMMANDS: dict[str, tuple[list[str], str]] = {
    "one learner": (["--method", "flesd", "--learners", "1"], "needs at least two learners"),
    "nobody distills": (["--method", "flesd", "--set", "method.distill=nobody"], "Known: distiller, learner"),
    "nothing is kept": (["--method", "flesd", "--set", "method.keep=0"], "keep is 0"),
    "one bit": (["--method", "flesd", "--set", "method.encoding=bit"], "representations of one bit"),
    "epochs that contradict": (
        ["--set", "total_epochs=7", "--rounds", "2"],
        "total_epochs is 7, which is not a multiple of 2",
    ),
    "too much is public": (["--method", "flesd", "--set", "public=60"], "public is 60, and there are 60 training"),
    "batches of one": (["--method", "flesd", "--batch-size", "1"], "objective 'simclr' needs at least 2"),
    "two architectures": (["--method", "flesd", "--model", "mlp,lenet5,mlp"], "Weights travel between equal"),
}


@pytest.mark.parametrize("what", list(COMMANDS))
def test_command_refuses_in_one_line(what: str, command: Any, tmp_path: Path) -> None:
    arguments, words = COMMANDS[what]
    small = ["--learners", "3", "--train", "60", "--test", "20"]
    code, out, err = command("run", *small, *arguments, "--out", "mine")
    assert code == 2 and out == ""
    assert err.startswith("error: ") and err.count("\n") == 1 and words in err
    assert list(tmp_path.iterdir()) == []


def test_command_refuses_a_table_before_training(command: Any, data: Dataset, tmp_path: Path) -> None:
    flat = table(data)
    noise = np.random.default_rng(0).random(flat.inputs.shape, dtype=np.float32)  # so that no column is constant
    np.savez(tmp_path / "table.npz", x=flat.inputs + noise, y=flat.targets)
    code, out, err = command("run", "--data", "table.npz", "--method", "flesd", "--out", "mine")
    assert code == 2 and out == "" and err.count("\n") == 1 and "views are for images" in err
    assert [file.name for file in tmp_path.iterdir()] == ["table.npz"]
