"""Crops, mirrors and transforms of one's own: pixels by hand, settings, and whole runs."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.func import vmap

from consilience import compare, simulate, sweep
from consilience.config.augment import AugmentSetting, parse_augment
from consilience.config.config import make_config
from consilience.errors import ConfigurationError, UnknownName
from consilience.functional.training_augmentation import CropAndFlip, OwnTransform, build_augmentation
from consilience.task import Task

SMALL: dict[str, Any] = {"learners": 3, "rounds": 2, "train": 60, "test": 20, "data": "digits"}
TRANSFORM = """
import torch
def noisy(image):
    assert 0 <= image.min() and image.max() <= 1.0001, "pixels before scaling"
    return image + 0.1 * torch.rand(image.shape)
def smaller(image):
    return image[:, 1:]
def broken(image):
    raise KeyError("nothing here")
number = 3
"""


def task(mean: float = 0.0, std: float = 1.0) -> Task:
    return Task(2, 4, (1, 2, 3), scaling=(mean, std))


def draws(*columns: tuple[float, float, float]) -> torch.Tensor:
    return torch.tensor(columns, dtype=torch.float64).T


pytestmark = pytest.mark.usefixtures("one_thread")
IMAGE = torch.tensor([[[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]]])
MIDDLE = 0.5  # of three places of a crop by one pixel


def test_a_mirror_by_hand() -> None:
    both = IMAGE.repeat(2, 1, 1, 1)
    flipped = CropAndFlip(flip=True)(task(), both, draws((0, 0, 0.49), (0, 0, 0.5)))
    assert flipped[0, 0].tolist() == [[3.0, 2.0, 1.0], [6.0, 5.0, 4.0]] and flipped[1].equal(both[1])


def test_a_crop_by_hand_is_filled_with_black() -> None:
    drawn = draws((0, MIDDLE, 0), (MIDDLE, 0.99, 0), (MIDDLE, MIDDLE, 0))
    cropped = CropAndFlip(crop=1)(task(mean=1.0, std=2.0), IMAGE.repeat(3, 1, 1, 1), drawn)
    assert cropped[0, 0].tolist() == [[-0.5, -0.5, -0.5], [1.0, 2.0, 3.0]]
    assert cropped[1, 0].tolist() == [[2.0, 3.0, -0.5], [5.0, 6.0, -0.5]]
    assert cropped[2].equal(IMAGE[0])


def test_a_crop_is_mirrored_after_it_was_cut() -> None:
    seen = CropAndFlip(crop=1, flip=True)(task(), IMAGE, draws((MIDDLE, 0.0, 0.0)))
    assert seen[0, 0].tolist() == [[2.0, 1.0, 0.0], [5.0, 4.0, 0.0]]


def test_offsets_are_all_equally_likely() -> None:
    each = (torch.arange(500, dtype=torch.float64) + 0.5) / 500
    images = torch.zeros(500, 1, 8, 8)
    images[:, :, 4, 4] = 1
    seen = CropAndFlip(crop=2)(task(), images, torch.stack([each, torch.full_like(each, MIDDLE), each]))
    rows = seen.sum((1, 3)).argmax(1)
    assert torch.bincount(rows).tolist() == [0, 0, 100, 100, 100, 100, 100]


def test_stacked_learners_see_what_each_sees_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(3, 5, 2, 8, 6, generator=generator)
    drawn = torch.rand(3, 3, 5, generator=generator, dtype=torch.float64)
    change = CropAndFlip(crop=0, flip=True)
    together = vmap(lambda i, d: change(task(0.2, 0.5), i, d))(images, drawn)
    for row in range(3):
        assert together[row].equal(change(task(0.2, 0.5), images[row], drawn[row]))


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("none", AugmentSetting()),
        ("crop", AugmentSetting(crop=0)),
        ("flip + crop(4)", AugmentSetting(crop=4, flip=True)),
        ("/mine/own.py:noisy", AugmentSetting(own="/mine/own.py:noisy")),
    ],
)
def test_the_setting_is_parsed(text: str, asked: AugmentSetting) -> None:
    assert parse_augment(text) == asked
    assert (build_augmentation(text) is None) == (text == "none")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rotate", "unknown augment 'rotate'"),
        ("crop(0.5)", "a whole number from 1"),
        ("flip+flip", "names 'flip' twice"),
        ("", "unknown augment ''"),
    ],
)
def test_what_cannot_be_done_is_refused(text: str, said: str) -> None:
    with pytest.raises((ConfigurationError, UnknownName), match=said):
        make_config({"augment": text})


def test_augmentation_changes_training_and_resumes_with_the_same_bits(tmp_path: Path) -> None:
    def run(augment: str, **more: Any) -> np.ndarray:
        found = simulate(method="fedavg", augment=augment, workers=0, **(SMALL | more))
        return found.history["loss.cross_entropy"]

    assert not np.allclose(run("none"), run("crop+flip"))
    whole = run("crop+flip")

    def stop(*seen: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run("crop+flip", out=tmp_path / "run", on_round=stop)
    resumed = simulate(resume=tmp_path / "run")
    assert np.array_equal(resumed.history["loss.cross_entropy"], whole)


@pytest.fixture
def own(tmp_path: Path) -> str:
    file = tmp_path / "own.py"
    file.write_text(TRANSFORM)
    return str(file)


def test_a_transform_of_ones_own_gives_the_same_numbers_in_any_process(own: str) -> None:
    here, there = (
        simulate(method="fedavg", augment=f"{own}:noisy", workers=workers, **SMALL).history["loss.cross_entropy"]
        for workers in (0, 2)
    )
    assert np.array_equal(here, there)
    plain = simulate(method="fedavg", workers=0, **SMALL).history["loss.cross_entropy"]
    assert not np.allclose(here, plain)
    assert pickle.loads(pickle.dumps(OwnTransform(f"{own}:noisy"))).function.__name__ == "noisy"


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        (
            "noisy",
            {"engine": "stack"},
            "cannot call; crop and flip run on every engine; run it with --engine loop",
        ),
        ("smaller", {}, r"returned a tensor of shape \(1, 7, 8\) for a sample of the shape \(1, 8, 8\)"),
        ("broken", {}, "broken failed .line 9.: KeyError"),
        ("missing", {}, "unknown transform 'missing'"),
        ("number", {}, "number is of type int and cannot be called"),
    ],
)
def test_transforms_that_cannot_work_are_refused(own: str, name: str, settings: dict[str, Any], said: str) -> None:
    with pytest.raises((ConfigurationError, UnknownName), match=said):
        simulate(method="fedavg", augment=f"{own}:{name}", workers=0, **(SMALL | settings))


def darker(image: torch.Tensor) -> torch.Tensor:
    return image * torch.rand(())


def test_a_function_of_the_program_is_an_augmentation(own: str, tmp_path: Path) -> None:
    noisy = OwnTransform(f"{own}:noisy").function
    named, given, module, drawn, plain = (
        simulate(method="fedavg", workers=0, augment=augment, **SMALL).history["loss.cross_entropy"]
        for augment in (f"{own}:noisy", noisy, torch.nn.Identity(), darker, "none")
    )
    assert np.array_equal(named, given) and not np.allclose(drawn, plain)
    assert module == pytest.approx(plain, rel=1e-5)
    settings: dict[str, Any] = {"augment": darker, **SMALL}
    found = compare(methods=["independent", "fedavg"], **settings)
    assert found.finished
    for call in (simulate, compare):
        with pytest.raises(ConfigurationError, match=r"'darker', an object of your program, which cannot be saved"):
            call(out=tmp_path / "run", **settings)
    with pytest.raises(ConfigurationError, match="'darker', an object of your program"):
        sweep(method="fedavg", grid={"lr": [0.1, 0.2]}, out=tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigurationError, match="augment: <lambda> failed: ZeroDivisionError"):
        simulate(augment=lambda image: 1 / 0, **SMALL)
    with pytest.raises(ConfigurationError, match="augment is 3; it must be a word or a function"):
        simulate(augment=3, **SMALL)  # type: ignore[arg-type]


def test_a_table_and_an_objective_without_labels_are_refused() -> None:
    unlabeled = {"method": {"name": "independent", "objective": "simclr"}, "augment": "flip"}
    with pytest.raises(ConfigurationError, match="augment is for training with labels"):
        simulate(make_config(unlabeled | SMALL))
    with pytest.raises(ConfigurationError, match="augment crops and flips images"):
        CropAndFlip(flip=True)(task(), torch.zeros(2, 30), draws((0, 0, 0), (0, 0, 0)))
