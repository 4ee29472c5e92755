"""Custom data: arrays, torch data sets, .npz files and folders of images, and errors."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch.utils.data import TensorDataset

from consilience.data import Dataset, load
from consilience.data.description import describe_dataset
from consilience.data.readers import image_folder as folders
from consilience.data.scaling import Scaling
from consilience.errors import ConfigurationError, DataError, UnknownName

TEN = np.arange(10) % 2  # labels of ten samples, five of each class
TABLE = np.eye(10) + np.arange(10.0)[:, np.newaxis]  # (10, 10)


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A separate cache folder for each test."""
    path = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("CONSILIENCE_CACHE", str(path))
    return path


def pixels_of(data: Dataset, test: bool = False) -> np.ndarray:
    """The original bytes of an image data set."""
    inputs = data.test_inputs if test else data.inputs
    found: NDArray[np.int64] = np.rint(data.scaling.undo(inputs.astype(np.float64)) * 255).astype(np.int64)
    return found


# --- arrays


@pytest.mark.parametrize(
    ("given", "shape"),
    [
        ((10, 7), (7,)),
        ((10, 5, 6), (1, 5, 6)),
        ((10, 5, 6, 3), (3, 5, 6)),
        ((10, 5, 6, 1), (1, 5, 6)),
        ((10, 5, 6, 4), (4, 5, 6)),
        ((10, 3, 5, 6), (3, 5, 6)),
        ((10, 3, 5, 3), (3, 5, 3)),  # both could be channels: the first is used
        ((10, 5, 6, 7), (5, 6, 7)),
        ((10, 2, 3, 4, 5), (2, 3, 4, 5)),
    ],
)
def test_channels_come_first_in_any_layout(given: tuple[int, ...], shape: tuple[int, ...]) -> None:
    assert Dataset.from_arrays("mine", np.random.RandomState(0).rand(*given), TEN).shape == shape


def test_channels_are_transposed_and_not_reshaped() -> None:
    images = np.zeros((10, 2, 2, 3), dtype=np.uint8)
    images[..., 0], images[..., 2] = 50, 250
    data = Dataset.from_arrays("mine", images, TEN, images, TEN)
    assert pixels_of(data)[4].tolist() == [[[50, 50], [50, 50]], [[0, 0], [0, 0]], [[250, 250], [250, 250]]]
    assert data.inputs.flags.c_contiguous


def test_arrays_are_scaled_by_training_statistics() -> None:
    data = Dataset.from_arrays("mine", [[1.0], [3.0]], [0, 1], [[5.0]], [1])  # mean 2, deviation 1
    assert data.scaling == Scaling("columns", (2.0,), (1.0,))
    assert (data.inputs.tolist(), data.test_inputs.tolist()) == ([[-1], [1]], [[3]])
    assert data.inputs.dtype == np.float32 and data.targets.dtype == np.int64 and data.source == "arrays"
    gray = np.array([[0], [255], [51]], dtype=np.uint8)
    data = Dataset.from_arrays("mine", gray[:2], [0, 1], gray[2:], [1])
    assert data.scaling == Scaling("pixels", (0.5,), (0.5,), 255)
    assert data.test_inputs.tolist() == [[pytest.approx(-0.6)]]


@pytest.mark.parametrize("dtype", [np.int8, np.int64, np.float16, np.float64, np.bool_, ">f4"])
def test_any_real_dtype_is_accepted(dtype: Any) -> None:
    data = Dataset.from_arrays("mine", np.array([[0], [1]], dtype=dtype), [0, 1], np.array([[1]], dtype=dtype), [0])
    assert data.inputs.tolist() == [[-1], [1]] and data.test_inputs.tolist() == [[1]]


def test_small_differences_of_large_numbers_are_kept() -> None:
    data = Dataset.from_arrays("mine", [[1e9], [1e9 + 2]], [0, 1], [[1e9 + 1]], [0])
    assert data.inputs.tolist() == [[-1], [1]] and data.test_inputs.tolist() == [[0]]


def test_test_share_is_split_off_per_class() -> None:
    targets = np.repeat([0, 1, 2], [10, 5, 1])
    inputs = np.arange(16.0)[:, None]
    data = Dataset.from_arrays("mine", inputs, targets, shareable=np.arange(16) % 2)
    assert np.bincount(data.targets).tolist() == [8, 4, 1] and np.bincount(data.test_targets).tolist() == [2, 1]
    kept = np.rint(data.scaling.undo(data.inputs)[:, 0])
    tested = np.rint(data.scaling.undo(data.test_inputs)[:, 0])
    assert sorted([*kept, *tested]) == list(range(16)) and (np.diff(kept) > 0).all()
    assert data.shareable is not None and data.shareable.tolist() == (kept % 2 == 1).tolist()
    assert describe_dataset(data)["never_shared"] == np.sum(kept % 2 == 0)
    again = Dataset.from_arrays("mine", inputs, targets)
    assert np.array_equal(again.inputs, data.inputs)
    half = Dataset.from_arrays("mine", inputs, targets, test_share=0.5)
    assert np.bincount(half.test_targets).tolist() == [5, 3]


def test_every_class_keeps_a_training_sample() -> None:
    data = Dataset.from_arrays("mine", np.arange(6.0)[:, None], [0, 0, 0, 1, 1, 1], test_share=0.99)
    assert np.bincount(data.targets).tolist() == [1, 1] and np.bincount(data.test_targets).tolist() == [2, 2]


def test_named_classes_may_be_empty() -> None:
    data = Dataset.from_arrays("mine", TABLE, TEN * 2, labels=["a", "b", "c"])
    assert data.classes == 3 and data.labels == ("a", "b", "c")
    assert Dataset.from_arrays("mine", TABLE, TEN * 2, classes=5).classes == 5


def test_labels_may_be_integral_floats_booleans_or_tensors() -> None:
    for labels in (TEN.astype(np.float32), TEN.astype(np.bool_), torch.tensor(TEN), TEN.astype(np.uint8), list(TEN)):
        assert Dataset.from_arrays("mine", TABLE, labels, TABLE, TEN).targets.tolist() == TEN.tolist()


BAD = [
    ({"targets": [0, 1, 3] * 3 + [0]}, "training labels.*without gaps, but nothing is labeled 2.*highest label is 3"),
    ({"targets": [1, 2] * 5}, "nothing is labeled 0"),
    ({"targets": [0, 10**18] * 5}, "nothing is labeled 1"),
    ({"targets": [0, 1, 1, -1] * 2 + [0, 0]}, "label 3 is -1"),
    ({"targets": np.array([0, 1.5] * 5), "kind": "single-label"}, r"label 1 is 1\.5"),
    ({"targets": np.array([0, np.nan] * 5)}, "label 1 is nan.*without a label; for amounts say kind='regression'$"),
    ({"targets": np.array([0, -1.5] * 5), "kind": "single-label"}, r"label 1 is -1\.5.*say kind='regression'$"),
    ({"targets": ["cat", "dog"] * 5}, "whole numbers from 0, got <U3"),
    ({"targets": None}, "training labels are missing"),
    ({"targets": [0, 1]}, r"must have the shape \(10,\).*got \(2,\)"),
    ({"targets": np.eye(10)}, "argmax of one-hot"),
    ({"targets": TABLE}, "10 numbers per sample, and one is learned: choose one column"),
    ({"targets": np.zeros(10, dtype=int)}, "are all 0: one class cannot be learned"),
    ({"targets": TEN * 4, "classes": 4}, r"0\.\.3 for 4 classes, but label 1 is 4"),
    ({"test_inputs": TABLE}, "test labels are missing"),
    ({"test_targets": TEN}, "test inputs are missing"),
    ({"test_inputs": TABLE, "test_targets": [0, 1, 2] * 3 + [0]}, "label 2 is 2, which no training sample has"),
    ({"test_inputs": TABLE[:, :5], "test_targets": TEN}, r"shape \(10,\), test inputs \(5,\)"),
    ({"test_inputs": TABLE.astype(np.uint8), "test_targets": TEN}, "float64, test inputs uint8"),
    ({"inputs": np.ones(10)}, r"got the shape \(10,\); reshape"),
    ({"inputs": np.ones((0, 3)), "targets": []}, "not be empty"),
    ({"inputs": np.ones((10, 3))}, "columns 0, 1, 2 each have the same value in all 8 .* remove"),
    ({"inputs": np.full((10, 3, 3), 0.1)}, "are the same"),
    ({"inputs": np.ones((10, 3), dtype=complex)}, "real numbers, got complex128"),
    ({"inputs": [[1], [1, 2]]}, r"sequences of different lengths, 1 to 2; pad them .*pad_sequences"),
    ({"inputs": np.diag([1.0] * 9 + [np.nan])}, "1 values are not, the first of them in sample 9"),
    ({"inputs": TABLE * 1e200}, "too large"),
    ({"inputs": TABLE, "test_inputs": np.full((10, 10), 1e60), "test_targets": TEN}, "test inputs must be finite"),
    ({"shareable": [1] * 9}, "shareable must be 10 values of 0"),
    ({"shareable": [2] * 10}, "shareable must be 10 values of 0"),
    ({"labels": ["a", "a"]}, "different words"),
    ({"labels": ["a", "b", "c"], "classes": 2}, "2 different words"),
    ({"inputs": np.eye(4), "targets": [0, 0, 1, 1]}, r"test_share 0\.2 of 4 samples in 2 classes leaves none"),
]


@pytest.mark.parametrize(("change", "says"), BAD)
def test_invalid_arrays_are_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(DataError, match=f"(?s)data set 'mine'.*{says}"):
        Dataset.from_arrays("mine", **({"inputs": TABLE, "targets": TEN} | change))


@pytest.mark.parametrize("share", [0, 1, -0.1, 1.5, float("nan"), "half", True])
def test_invalid_test_share_is_refused(share: Any) -> None:
    with pytest.raises(ConfigurationError, match="test_share"):
        Dataset.from_arrays("mine", TABLE, TEN, test_share=share)
    with pytest.raises(ConfigurationError, match="test_share"):
        load("digits", test_share=share)


@pytest.mark.parametrize("classes", [0, 1, True, 2.0])
def test_invalid_number_of_classes_is_refused(classes: Any) -> None:
    with pytest.raises(ConfigurationError, match="classes"):
        Dataset.from_arrays("mine", TABLE, TEN, classes=classes)


# --- torch data sets


class ListDataset:
    """The smallest torch data set."""

    def __init__(self, *pairs: Any) -> None:
        self.pairs = pairs

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> Any:
        return self.pairs[index]


def test_torch_dataset_is_read_sample_by_sample() -> None:
    inputs = torch.arange(10.0)[:, None, None, None].expand(10, 3, 2, 2)
    data = Dataset.from_torch(TensorDataset(inputs, torch.tensor(TEN)), TensorDataset(inputs[:2], torch.tensor([1, 0])))
    assert (data.name, data.shape, data.classes) == ("TensorDataset", (3, 2, 2), 2)
    assert data.targets.tolist() == TEN.tolist() and data.test_targets.tolist() == [1, 0]
    assert data.scaling.undo(data.inputs[:, 0, 0, 0]).tolist() == pytest.approx(range(10), abs=1e-6)


def test_torch_dataset_may_return_images_arrays_or_tensors_with_grad() -> None:
    red, gray = Image.new("RGB", (5, 4), (255, 0, 0)), Image.new("L", (5, 4), 9)
    palette = red.convert("P")
    colors = Dataset.from_torch(
        ListDataset((red, 0), (palette, 1)), ListDataset((red, 0)), name="reds", labels=("a", "b")
    )
    assert colors.name == "reds" and colors.shape == (3, 4, 5) and colors.labels == ("a", "b")
    assert pixels_of(colors)[:, :, 0, 0].tolist() == [[255, 0, 0], [255, 0, 0]]
    grays = ListDataset((gray, np.int64(0)), (np.zeros((4, 5), dtype=np.uint8), torch.tensor(1)))
    assert Dataset.from_torch(grays, grays).shape == (1, 4, 5)
    grown = ListDataset((torch.ones(2, requires_grad=True), 0), (torch.zeros(2), 1.0))
    assert Dataset.from_torch(grown, grown).targets.tolist() == [0, 1]


def test_class_names_are_read_from_torchvision_attributes() -> None:
    pairs = ListDataset(*((np.array([float(i)]), i % 2) for i in range(10)))
    pairs.classes = ["cat", "dog", "owl"]  # type: ignore[attr-defined]
    data = Dataset.from_torch(pairs)
    assert data.labels == ("cat", "dog", "owl") and data.classes == 3 and len(data.test_targets) == 2


@pytest.mark.parametrize(
    ("train", "says"),
    [
        (
            ListDataset((np.ones(2), 0), (np.ones(3), 1)),
            r"training: sample 1 is float64 of the shape \(3,\), but sample 0",
        ),
        (ListDataset((np.ones(2), 0), (np.ones(2, dtype=np.uint8), 1)), "sample 1 is uint8"),
        (
            ListDataset((np.ones(2), 0), (np.ones(2), [0, 1])),
            r"label of sample 1 has the shape \(2,\), and that of sample 0 \(\); give all one number, or all 0 or 1",
        ),
        (
            ListDataset((np.ones(2), "cat")),
            "label of sample 0 must be a whole number, .* or a number to predict, got 'cat'; number the classes",
        ),
        (
            ListDataset(*((np.ones(2), number % 2 + (number == 1) / 2) for number in range(20))),
            r"whole numbers but for 1 of 20, the first of them 1\.5 of sample 1; .*kind='regression' for amounts",
        ),
        (ListDataset((np.ones(2), 0), (np.ones(2), 0.5)), r"test_share 0\.2 of 2 samples in 2 bins leaves none"),
        (
            ListDataset((np.ones(2), torch.zeros(9, 9))),
            r"sample 0 must be .*, got .{40,60}\.\.\. of the shape \(9, 9\); segmentation is not supported",
        ),
        (ListDataset((np.ones(2), 0), (np.ones(2), float("inf"))), "label of sample 1.*got inf"),
        (ListDataset((np.ones(2), 0), np.ones(2)), r"sample 1 must be a pair \(input, label\), got ndarray"),
        (ListDataset((np.ones(2), 0), (torch.ones(2, dtype=torch.bfloat16), 1)), "sample 1 cannot be read as an array"),
        (ListDataset(), "is empty"),
        (iter([]), "a length and numbered samples.*list_iterator"),
    ],
)
def test_inconsistent_sample_is_named_by_its_index(train: Any, says: str) -> None:
    with pytest.raises(DataError, match=f"data set '.*{says}"):
        Dataset.from_torch(train)


# --- .npz files


def save(path: Path, **arrays: Any) -> str:
    np.savez(path, **arrays)
    return str(path)


def test_npz_file_is_a_data_set_named_after_the_file(tmp_path: Path) -> None:
    images = np.arange(10 * 12, dtype=np.uint8).reshape(10, 2, 2, 3)
    names, marks = np.array(["left", "right"]), np.arange(10) > 2
    path = save(tmp_path / "mine.npz", images=images, labels=TEN, classes=names, shareable=marks)
    data = load(path, test_share=0.4)
    assert (data.name, data.shape, data.labels, data.source) == ("mine", (3, 2, 2), ("left", "right"), path)
    assert len(data.targets) == 6 and len(data.test_targets) == 4 and data.shareable is not None
    rows = [pixels[0, 0, 0] // 12 for pixels in pixels_of(data)]
    assert data.shareable.tolist() == [row > 2 for row in rows] and data.targets.tolist() == [row % 2 for row in rows]
    first = load(path, test_share=0.4, train=4, test=1)
    assert (
        len(first.targets) == 4
        and first.shareable is not None
        and first.shareable.tolist() == data.shareable[:4].tolist()
    )
    assert first.inputs.mean() == pytest.approx(0, abs=1e-6) and len(first.test_targets) == 1


def test_npz_file_may_have_test_arrays_and_short_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = np.asfortranarray(np.arange(20.0).reshape(10, 2))
    save(tmp_path / "t.npz", x=table, y=TEN, test_x=table[:3], test_y=TEN[:3], other=np.array(["ignored"]))
    monkeypatch.chdir(tmp_path)
    data = load("t.npz")
    assert data.shape == (2,) and data.labels == () and data.test_targets.tolist() == [0, 1, 0]
    assert data.scaling.undo(data.inputs).tolist() == [pytest.approx(row, abs=1e-6) for row in table.tolist()]


# --- folders of images


Draw = Callable[..., Path]


@pytest.fixture
def draw(tmp_path: Path) -> Draw:
    """Writes an image of one color under the folder `birds`."""

    def call(where: str, color: Any = 0, mode: str = "L", size: tuple[int, int] = (4, 3)) -> Path:
        path = tmp_path / "birds" / where
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new(mode, size, color).save(path)
        return path

    return call


def birds(draw: Draw) -> Path:
    """Ten wrens of gray 0..9 and five robins of gray 100..104."""
    for number in range(10):
        path = draw(f"wren/{number}.png", number)
    for number in range(5):
        draw(f"robin/{number}.PNG", 100 + number)
    return path.parents[1]


def test_folder_of_images_is_a_data_set(draw: Draw) -> None:
    folder = birds(draw)
    (folder / "wren" / "notes.txt").write_text("not an image")
    (folder / "wren" / ".hidden.png").write_text("not an image either")
    (folder / ".thumbnails").mkdir()
    data = load(str(folder))
    assert (data.name, data.labels, data.shape, data.classes) == ("birds", ("robin", "wren"), (1, 3, 4), 2)
    assert data.source == f"images in {folder}" and data.shareable is None
    assert np.bincount(data.targets).tolist() == [4, 8] and np.bincount(data.test_targets).tolist() == [1, 2]
    gray = pixels_of(data)[:, 0, 0, 0]
    assert ((gray >= 100) == (data.targets == 0)).all()
    assert sorted([*gray, *pixels_of(data, test=True)[:, 0, 0, 0]]) == [*range(10), *range(100, 105)]
    assert np.bincount(load(str(folder), train=6).targets).tolist() == [3, 3]  # classes are interleaved


@pytest.mark.parametrize("half", ["test", "val", "valid"])
def test_folder_may_have_a_test_set(draw: Draw, half: str) -> None:
    for name, gray in {"wren": 10, "robin": 20}.items():
        draw(f"train/{name}/1.png", gray)
        folder = draw(f"{half}/{name}/1.png", gray + 1).parents[2]
    if half != "test":
        draw(f"{half}/wren/2.png", 99)
    data = load(str(folder))
    assert sorted(zip(pixels_of(data)[:, 0, 0, 0], data.targets, strict=True)) == [(10, 1), (20, 0)]
    expected = [(11, 1), (21, 0)] + [(99, 1)] * (half != "test")
    assert sorted(zip(pixels_of(data, test=True)[:, 0, 0, 0], data.test_targets, strict=True)) == expected


def test_folder_test_takes_precedence_over_val(draw: Draw) -> None:
    for number in range(5):
        for name in ("wren", "robin"):
            folder = draw(f"train/{name}/{number}.png", number).parents[2]
    assert len(load(str(folder)).test_targets) == 2
    draw("val/wren/1.png")
    assert len(load(str(folder)).test_targets) == 1
    for number in range(3):
        draw(f"test/wren/{number}.png", number)
    assert len(load(str(folder)).test_targets) == 3


MIXED = [
    ("L", 7, 1, 7),
    ("1", 1, 1, 255),
    ("LA", (7, 255), 1, 7),
    ("I;16", 7 * 256 + 200, 1, 7),
    ("RGB", (7, 8, 9), 3, 7),
    ("RGBA", (7, 8, 9, 0), 3, 7),
    ("P", 0, 3, 0),
    ("CMYK", (248, 0, 0, 0), 3, 7),
]


@pytest.mark.parametrize(("mode", "color", "channels", "value"), MIXED)
def test_every_image_mode_becomes_gray_or_color(draw: Draw, mode: str, color: Any, channels: int, value: int) -> None:
    for number in range(5):
        for name in ("wren", "robin"):
            suffix = "tif" if mode == "CMYK" else "png"
            folder = draw(f"{name}/{number}.{suffix}", color, mode).parents[1]
    draw(
        f"wren/5.{suffix}", 0 if isinstance(color, int) else (0,) * len(color), mode
    )  # constant images cannot be scaled
    if mode == "P":
        palette = Image.new("P", (4, 3), 1)
        palette.putpalette([0, 0, 0, 255, 255, 255])
        palette.save(folder / "wren" / "5.png", transparency=b"\0\1")
    data = load(str(folder))
    assert data.shape == (channels, 3, 4)
    assert np.median(pixels_of(data)[:, 0]) == value


def test_images_are_converted_to_the_given_size_and_mode(draw: Draw) -> None:
    folder = birds(draw)
    draw("wren/large.jpg", (255, 255, 255), "RGB", (40, 60))
    with pytest.raises(
        DataError, match=r'robin/0.PNG is gray, but .*wren/large.jpg is color; set image_mode to "gray"'
    ):
        load(str(folder))
    sizes = r"robin/0.PNG has 4 x 3 pixels, but .*large.jpg has 40 x 60; set image_size \(--image-size N\)"
    with pytest.raises(DataError, match=sizes):
        load(str(folder), image_mode="gray")
    assert load(str(folder), image_size=8, image_mode="gray").shape == (1, 8, 8)
    data = load(str(folder), image_size=2, image_mode="color")
    assert data.shape == (3, 2, 2)
    everything = np.concatenate([pixels_of(data), pixels_of(data, test=True)])
    assert sorted(everything[:, 2, 1, 1]) == [*range(10), *range(100, 105), 255]


def test_downsizing_averages_all_pixels(draw: Draw) -> None:
    folder = birds(draw)
    stripes = np.zeros((30, 40), dtype=np.uint8)
    stripes[:, ::2] = 240
    Image.fromarray(stripes).save(folder / "wren" / "stripes.png")
    data = load(str(folder), image_size=4)
    assert max(pixels_of(data).max(), pixels_of(data, test=True).max()) == pytest.approx(120, abs=5)


def test_gray_images_beyond_16_bits_or_with_floats_are_refused(draw: Draw) -> None:
    folder = birds(draw)
    for kind, says in ((np.int32, "70000"), (np.float32, "floats")):
        Image.fromarray(np.full((3, 4), 70_000, dtype=kind)).save(folder / "wren" / "deep.tif")
        with pytest.raises(DataError, match=rf"deep.tif: .*{says}.*\.npz"):
            load(str(folder), image_mode="gray")


@pytest.mark.parametrize(
    ("lines", "never"),
    [
        ("wren/3.png", {3}),
        ("# remarks\n\n  wren/3.png  \nrobin/4.PNG\n", {3, 104}),
        ("wren/[0-4].png", {0, 1, 2, 3, 4}),
        ("robin", {100, 101, 102, 103, 104}),
        ("robin/\nwren/9*", {9, 100, 101, 102, 103, 104}),
        ("*", {*range(10), *range(100, 105)}),
        ("# nothing", set()),
    ],
)
def test_samples_listed_in_never_share_file_are_marked(draw: Draw, lines: str, never: set[int]) -> None:
    folder = birds(draw)
    (folder / "never-share.txt").write_text(lines, encoding="utf-8")
    data = load(str(folder))
    assert data.shareable is not None
    marked = {gray for gray, may in zip(pixels_of(data)[:, 0, 0, 0], data.shareable, strict=True) if not may}
    assert marked == never - set(pixels_of(data, test=True)[:, 0, 0, 0])


def test_unmatched_line_of_never_share_file_is_named(draw: Draw) -> None:
    folder = birds(draw)
    (folder / "never-share.txt").write_text("wren/*\n# fine\nwren/33.png\n")
    with pytest.raises(DataError, match=r"never-share.txt, line 3: 'wren/33.png' matches no image"):
        load(str(folder))
    (folder / "never-share.txt").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(DataError, match=r"never-share.txt: cannot be read as text"):
        load(str(folder))


def test_invalid_image_folders_are_refused(draw: Draw) -> None:
    folder = draw("wren/1.png").parents[1]
    with pytest.raises(DataError, match="'wren' is the only class"):
        load(str(folder))
    (folder / "robin").mkdir()
    with pytest.raises(DataError, match=r"class folder 'robin' holds no image.*\.png"):
        load(str(folder))
    (folder / "wren" / "1.png").rename(folder / "1.png")
    with pytest.raises(DataError, match=r"no folder in it holds images.*\.png"):
        load(str(folder))


def test_test_class_missing_in_training_is_refused(draw: Draw) -> None:
    for name in ("train/wren", "train/robin", "test/owl"):
        folder = draw(f"{name}/1.png").parents[2]
    with pytest.raises(DataError, match=r"the class 'owl' is not in .*robin, wren"):
        load(str(folder))
    (folder / "test" / "owl" / "1.png").unlink()
    with pytest.raises(DataError, match="test: no image in it"):
        load(str(folder))


# --- the cache


def test_decoded_pixels_are_cached(draw: Draw, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = birds(draw)
    first = load(str(folder))
    assert len(list(cache.rglob("*"))) == 2  # a folder and one file in it
    monkeypatch.setattr(folders, "decode_all", lambda *args, **kwargs: pytest.fail("decoded again"))
    assert np.array_equal(load(str(folder)).inputs, first.inputs)


@pytest.mark.parametrize("change", ["content", "name", "settings"])
def test_changed_images_are_decoded_again(draw: Draw, change: str) -> None:
    folder = birds(draw)
    before = load(str(folder))
    path = folder / "wren" / "3.png"
    stat = path.stat()
    if change == "content":
        draw("wren/3.png", 250)
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    elif change == "name":
        path.rename(path.with_name("x.png"))
    after = load(str(folder), image_size=5) if change == "settings" else load(str(folder))
    assert before.inputs.shape != after.inputs.shape or not np.array_equal(before.inputs, after.inputs)


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04 rubbish", None])
def test_damaged_cache_is_decoded_again(draw: Draw, cache: Path, damage: bytes | None) -> None:
    folder = birds(draw)
    first = load(str(folder))
    (path,) = cache.rglob("*.npz")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] if damage is None else damage)
    assert np.array_equal(load(str(folder)).inputs, first.inputs)
    assert path.read_bytes() == whole  # repaired


def test_unwritable_cache_is_no_error(draw: Draw, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "taken").write_text("a file where the folder should be")
    monkeypatch.setenv("CONSILIENCE_CACHE", str(tmp_path / "taken"))
    assert len(load(str(birds(draw))).targets) == 12


def test_failed_cache_write_leaves_no_file(draw: Draw, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("consilience.data.cache.os.replace", fail)
    load(str(birds(draw)))
    assert [path for path in cache.rglob("*") if path.is_file()] == []


def test_progress_is_shown_only_on_request(draw: Draw, capsys: pytest.CaptureFixture[str]) -> None:
    folder = birds(draw)
    load(str(folder))
    assert capsys.readouterr().err == ""
    load(str(folder), image_size=4, progress=True)
    assert capsys.readouterr().err.endswith("birds: 100 %\n")


# --- names and settings


def test_unknown_data_set_error_mentions_paths() -> None:
    with pytest.raises(UnknownName, match=r"'cifar-10'. Did you mean 'cifar10'\?.*an \.npz file or a folder"):
        load("cifar-10")


def test_missing_path_is_refused(tmp_path: Path) -> None:
    for name in ("not-there.npz", "not/there", "~nobody-of-this-name/x", "x" * 5000 + ".npz"):
        with pytest.raises(DataError, match="there is no such file or folder"):
            load(name)
    (tmp_path / "table.xls").write_text("1,2")
    with pytest.raises(DataError, match=r"table.xls: not a file that can be read; .* ends in \.npz, \.csv"):
        load(str(tmp_path / "table.xls"))


@pytest.mark.parametrize("name", ["", "mnits"])
def test_unknown_name_is_reported_before_invalid_settings(name: str) -> None:
    with pytest.raises(UnknownName, match="unknown data set"):
        load(name, image_size=4)


def test_image_settings_are_validated_and_only_for_folders(tmp_path: Path, draw: Draw) -> None:
    folder = str(birds(draw))
    for size in (0, -1, 2.5, True):
        with pytest.raises(ConfigurationError, match="image_size"):
            load(folder, image_size=size)  # type: ignore[arg-type]
    with pytest.raises(UnknownName, match=r"unknown image_mode 'grey'. Did you mean 'gray'"):
        load(folder, image_mode="grey")
    archive = save(tmp_path / "mine.npz", x=TABLE, y=TEN)
    for name in ("digits", archive):
        with pytest.raises(ConfigurationError, match="is for folders of images"):
            load(name, image_size=8)


def test_data_set_of_a_relative_folder_has_the_folder_name(draw: Draw, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(birds(draw))
    assert load(".").name == "birds"
    assert load("../birds/").name == "birds" and load(Path("../birds")).name == "birds"
