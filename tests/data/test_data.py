"""Data sets: their arrays, the search for their files, and errors."""

from __future__ import annotations

import dataclasses
import gzip
import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pooch
import pytest

import consilience.data
from consilience.data import DATASETS, Dataset, is_dataset_path, load
from consilience.data.description import describe_dataset
from consilience.data.download import CHECKSUMS, MIRRORS, ProgressLine
from consilience.data.raw_dataset import balanced_order
from consilience.data.readers import cifar10
from consilience.data.readers import digits as digits_reader
from consilience.data.readers.digits import read_digits
from consilience.errors import ConfigurationError, DataError, UnknownName

REAL = Path(os.environ.get("CONSILIENCE_DATA") or Path(__file__).parents[3] / "shared" / "data")
FILES = tuple(CHECKSUMS["mnist"])

MNIST_TRAIN = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
MNIST_TEST = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


def real_data_folder(name: str) -> Path:
    """The folder of the real files; skips the test if there is none."""
    if not (REAL / name / FILES[0]).is_file():
        pytest.skip(f"{name} is not in {REAL}; set CONSILIENCE_DATA to the folder that has it")
    return REAL


def idx_bytes(values: np.ndarray) -> bytes:
    """Unsigned bytes as an idx file, written by hand so that the reader is tested against the format alone."""
    header = [2048 + values.ndim, *values.shape]
    return b"".join(n.to_bytes(4, "big") for n in header) + values.astype(np.uint8).tobytes()


def tiny_files(train: int = 6, test: int = 4) -> dict[str, bytes]:
    """The files of a data set of 2x2 images, by name without .gz."""
    pixels = np.arange(train * 4).reshape(train, 2, 2) * 5
    return {
        "train-images-idx3-ubyte": idx_bytes(pixels),
        "train-labels-idx1-ubyte": idx_bytes(np.arange(train) % 10),
        "t10k-images-idx3-ubyte": idx_bytes(np.full((test, 2, 2), 255)),
        "t10k-labels-idx1-ubyte": idx_bytes(np.arange(test) % 10),
    }


def write(folder: Path, files: dict[str, bytes], compressed: bool = True) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, body in files.items():
        path = folder / (name + ".gz" if compressed else name)
        path.write_bytes(gzip.compress(body) if compressed else body)
    return folder


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """No configured data folder and no download."""

    def refuse(url: str, *args: Any, **kwargs: Any) -> str:
        raise AssertionError(f"a test tried to download {url}")

    monkeypatch.delenv("CONSILIENCE_DATA", raising=False)
    monkeypatch.delenv("CONSILIENCE_CACHE", raising=False)
    monkeypatch.setattr(pooch, "retrieve", refuse)


# --- digits


def test_digits_are_split_and_shaped_as_documented() -> None:
    digits = load("digits")
    assert (digits.name, digits.classes, digits.shape) == ("digits", 10, (1, 8, 8))
    assert digits.inputs.shape == (1000, 1, 8, 8) and digits.test_inputs.shape == (797, 1, 8, 8)
    assert digits.inputs.dtype == digits.test_inputs.dtype == np.float32
    assert digits.targets.dtype == digits.test_targets.dtype == np.int64
    assert np.bincount(digits.targets).tolist() == [100] * 10
    assert np.bincount(digits.test_targets).tolist() == [78, 82, 77, 83, 81, 82, 81, 79, 74, 80]


def test_digits_hold_every_sample_of_the_source_once() -> None:
    from sklearn.datasets import load_digits

    digits = load("digits")
    scaled = np.concatenate([digits.inputs, digits.test_inputs]).astype(np.float64)
    pixels = np.rint(digits.scaling.undo(scaled) * 16).reshape(1797, 64)
    labels = np.concatenate([digits.targets, digits.test_targets])
    source = load_digits()
    ours = sorted(map(tuple, np.column_stack([pixels, labels])))
    assert ours == sorted(map(tuple, np.column_stack([source.data, source.target])))


def test_digits_are_the_same_where_scikit_learn_keeps_them_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    from_file = read_digits()
    monkeypatch.setattr(digits_reader, "_bundled_file", lambda: None)
    for mine, theirs in zip(from_file[:4], read_digits()[:4], strict=True):
        assert mine.dtype == theirs.dtype and np.array_equal(mine, theirs)


def test_digits_are_read_without_importing_scikit_learn() -> None:
    program = "import sys; from consilience.data import load; load('digits'); print('sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "False\n"


def test_digits_classes_are_interleaved() -> None:
    assert np.bincount(load("digits", train=50).targets).tolist() == [5] * 10
    assert np.bincount(load("digits", test=20).test_targets).tolist() == [2] * 10
    assert load("digits", train=30).targets[:10].tolist() != load("digits", train=30).targets[10:20].tolist()


def test_digits_are_deterministic() -> None:
    first, second = load("digits"), load("digits")
    assert np.array_equal(first.inputs, second.inputs) and np.array_equal(first.targets, second.targets)
    # Frozen: results of earlier versions stay comparable.
    assert first.targets[:12].tolist() == [5, 0, 1, 3, 6, 9, 4, 8, 2, 7, 0, 5]
    assert (round(first.scaling.mean[0], 9), round(first.scaling.std[0], 9)) == (0.306475586, 0.376414193)


def test_balanced_order_by_hand() -> None:
    targets = np.array([0, 0, 0, 1, 1, 2])
    order = balanced_order(targets, seed=3)
    assert sorted(order.tolist()) == [0, 1, 2, 3, 4, 5]
    even_turns = targets[order].tolist()
    assert sorted(even_turns[:3]) == [0, 1, 2] and sorted(even_turns[3:5]) == [0, 1] and even_turns[5] == 0


@pytest.mark.parametrize("train", [1, 7, 200, 1000])
def test_digits_are_scaled_by_training_statistics(train: int) -> None:
    digits = load("digits", train=train, test=3)
    inputs = digits.inputs.astype(np.float64)
    assert len(digits.targets) == train and len(digits.test_targets) == 3
    assert inputs.mean() == pytest.approx(0, abs=1e-6) and inputs.std() == pytest.approx(1, abs=1e-6)
    assert 0 < digits.scaling.mean[0] < 1 and 0 < digits.scaling.std[0] < 1


# --- MNIST and Fashion-MNIST


def test_mnist_has_the_known_class_counts() -> None:
    mnist = load("mnist", directory=real_data_folder("mnist"))
    assert (mnist.classes, mnist.shape) == (10, (1, 28, 28))
    assert np.bincount(mnist.targets).tolist() == MNIST_TRAIN
    assert np.bincount(mnist.test_targets).tolist() == MNIST_TEST
    assert mnist.scaling.of_pixels == pytest.approx((0.1307, 0.3081), abs=5e-5)
    assert mnist.targets[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]


def test_fashion_mnist_has_the_known_class_counts() -> None:
    fashion = load("fashion-mnist", directory=real_data_folder("fashion-mnist"))
    assert np.bincount(fashion.targets).tolist() == [6000] * 10
    assert np.bincount(fashion.test_targets).tolist() == [1000] * 10
    assert fashion.scaling.of_pixels == pytest.approx((0.2860, 0.3530), abs=5e-5)
    assert fashion.labels[0] == "T-shirt/top" and fashion.labels[9] == "Ankle boot"


def test_mnist_subset_is_scaled_by_its_own_statistics() -> None:
    folder = real_data_folder("mnist")
    mnist = load("mnist", directory=folder, train=1200, test=100)
    with gzip.open(folder / "mnist" / "train-images-idx3-ubyte.gz") as file:
        raw = file.read(16 + 1200 * 784)[16:]
    counts = [raw.count(value) for value in range(256)]  # integers, so that rounding cannot hide a mistake
    mean = sum(v * c for v, c in enumerate(counts)) / len(raw)
    variance = sum(v * v * c for v, c in enumerate(counts)) / len(raw) - mean**2
    assert mnist.scaling.mean[0] == pytest.approx(mean / 255, rel=1e-12)
    assert mnist.scaling.std[0] == pytest.approx(variance**0.5 / 255, rel=1e-10)
    assert mnist.inputs.shape == (1200, 1, 28, 28) and mnist.test_inputs.shape == (100, 1, 28, 28)
    place = raw.index(max(raw))
    assert mnist.inputs.reshape(-1)[place] == pytest.approx((max(raw) - mean) / variance**0.5, rel=1e-6)


# --- finding files


def test_idx_files_are_read_and_scaled_by_hand(tmp_path: Path) -> None:
    write(tmp_path, tiny_files())
    tiny = load("mnist", directory=tmp_path, train=1)  # pixels 0, 5, 10, 15: mean 7.5, variance 31.25
    assert tiny.scaling.mean[0] == pytest.approx(7.5 / 255) and tiny.scaling.std[0] == pytest.approx(31.25**0.5 / 255)
    expected = np.array([-7.5, -2.5, 2.5, 7.5]) / 31.25**0.5
    assert tiny.inputs.reshape(-1) == pytest.approx(expected, rel=1e-6)
    assert tiny.test_inputs.reshape(-1) == pytest.approx(np.full(16, 247.5 / 31.25**0.5), rel=1e-6)
    assert tiny.test_targets.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("inside", ["", "mnist"])
@pytest.mark.parametrize("by", ["argument", "text", "variable"])
def test_files_are_found_in_all_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str, inside: str, compressed: bool
) -> None:
    write(tmp_path / inside, tiny_files(), compressed)
    if by == "variable":
        monkeypatch.setenv("CONSILIENCE_DATA", str(tmp_path))
    given: dict[str, str | Path | None] = {"argument": tmp_path, "text": str(tmp_path), "variable": None}
    assert load("mnist", directory=given[by]).targets.tolist() == [0, 1, 2, 3, 4, 5]


def test_directory_argument_takes_precedence_over_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONSILIENCE_DATA", str(write(tmp_path / "other", tiny_files(train=3))))
    folder = write(tmp_path / "mine", tiny_files())
    assert len(load("mnist", directory=folder).targets) == 6
    assert len(load("mnist").targets) == 3


def test_folder_of_the_data_set_takes_precedence_over_its_parent(tmp_path: Path) -> None:
    write(tmp_path, tiny_files(train=3))
    write(tmp_path / "fashion-mnist", tiny_files(train=5))
    assert len(load("fashion-mnist", directory=tmp_path).targets) == 5
    assert len(load("mnist", directory=tmp_path).targets) == 3


@pytest.mark.parametrize("folder", ["", "not-there"])
def test_missing_file_is_named_with_all_searched_places(tmp_path: Path, folder: str) -> None:
    with pytest.raises(DataError) as caught:
        load("mnist", directory=tmp_path / folder)
    message = str(caught.value)
    for place in ("mnist/train-images-idx3-ubyte.gz", "mnist/train-images-idx3-ubyte", "train-images-idx3-ubyte.gz"):
        assert str(tmp_path / folder / place) in message
    assert "--data-dir" in message and "CONSILIENCE_DATA" in message


# --- downloads, simulated


def test_failed_download_error_names_all_mirrors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def fail(url: str, *args: Any, **kwargs: Any) -> str:
        tried.append(url)
        raise ConnectionError("no route to host")

    monkeypatch.setattr(pooch, "retrieve", fail)
    monkeypatch.setenv("CONSILIENCE_DATA", "")  # set but empty: the same as not set
    with pytest.raises(DataError, match="no route to host") as caught:
        load("mnist")
    assert tried == [mirror + "train-images-idx3-ubyte.gz" for mirror in MIRRORS["mnist"]] and len(tried) == 2
    for word in (*tried, "--data-dir", "CONSILIENCE_DATA"):
        assert word in str(caught.value)


def test_next_mirror_is_tried_after_a_wrong_checksum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write(tmp_path, tiny_files())
    asked: list[tuple[str, str]] = []

    def retrieve(url: str, known_hash: str, fname: str, path: Path, progressbar: Any) -> str:
        asked.append((url, known_hash))
        assert path.name == "mnist" and url.endswith(fname) and progressbar is False
        if url.startswith(MIRRORS["mnist"][0]):
            raise ValueError("checksum does not match")
        return str(source / fname)

    monkeypatch.setattr(pooch, "retrieve", retrieve)
    assert len(load("mnist").targets) == 6
    assert len(asked) == 8 and {known for _, known in asked} == {CHECKSUMS["mnist"][f] for f in FILES}
    assert all(known.startswith("sha256:") for _, known in asked)


def test_progress_is_shown_only_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write(tmp_path, tiny_files())

    def retrieve(url: str, known_hash: str, fname: str, path: Path, progressbar: Any) -> str:
        if progressbar:  # the calls pooch makes
            progressbar.total = 2000
            for step in (progressbar.update, progressbar.update):
                step(1024)
            progressbar.reset()
            progressbar.update(2000)
            progressbar.close()
        return str(source / fname)

    monkeypatch.setattr(pooch, "retrieve", retrieve)
    load("fashion-mnist")
    assert capsys.readouterr().err == ""
    load("fashion-mnist", progress=True)
    shown = capsys.readouterr()
    assert "train-images-idx3-ubyte.gz: 51 %" in shown.err and "100 %\n" in shown.err and shown.out == ""


def test_progress_bar_works_without_a_known_total(capsys: pytest.CaptureFixture[str]) -> None:
    bar = ProgressLine("file")
    bar.update(0)
    bar.close()
    assert "file: 0 %" in capsys.readouterr().err


# --- errors


def test_unknown_data_set_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UnknownName, match=r"unknown data set 'mnits'. Did you mean 'mnist'\?") as caught:
        load("mnits")
    assert caught.value.kind == "data set"


@pytest.mark.parametrize(("half", "available"), [("train", 1000), ("test", 797)])
@pytest.mark.parametrize("asked", [0, -1, 10_000, 1.5, True])
def test_invalid_sample_count_error_names_the_available_count(half: str, available: int, asked: Any) -> None:
    with pytest.raises(ConfigurationError, match=rf"'digits' has {available} .* and {asked} are to be used"):
        load("digits", train=asked) if half == "train" else load("digits", test=asked)


def test_all_samples_may_be_requested() -> None:
    assert len(load("digits", train=1000, test=797).targets) == 1000


def test_constant_images_are_refused(tmp_path: Path) -> None:
    write(tmp_path, tiny_files() | {"train-images-idx3-ubyte": idx_bytes(np.full((6, 2, 2), 9))})
    with pytest.raises(DataError, match="are the same"):
        load("mnist", directory=tmp_path)


def test_training_and_test_images_must_have_one_shape(tmp_path: Path) -> None:
    write(tmp_path, tiny_files() | {"t10k-images-idx3-ubyte": idx_bytes(np.zeros((4, 3, 2)))})
    with pytest.raises(DataError, match=r"\(1, 2, 2\).*\(1, 3, 2\)"):
        load("mnist", directory=tmp_path)


def valid_dataset() -> Dataset:
    inputs = np.zeros((3, 1, 2, 2), dtype=np.float32)
    return Dataset("mine", inputs, np.array([0, 1, 1]), inputs[:2], np.array([0, 1]), classes=2)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"inputs": np.zeros(3, dtype=np.float32)}, r"training inputs.*\(3,\)"),
        ({"inputs": np.zeros((3, 4), dtype=np.float32)}, r"shape \(4,\), test inputs \(1, 2, 2\)"),
        ({"inputs": np.zeros((3, 1, 2, 2))}, "training inputs.*float64"),
        ({"inputs": np.zeros((0, 1, 2, 2), dtype=np.float32), "targets": np.zeros(0, dtype=np.int64)}, "not empty"),
        ({"inputs": np.full((3, 1, 2, 2), np.nan, dtype=np.float32)}, "12 values"),
        ({"test_inputs": np.full((2, 1, 2, 2), np.inf, dtype=np.float32)}, "test inputs must be finite"),
        ({"test_inputs": np.zeros((2, 1, 3, 2), dtype=np.float32)}, r"\(1, 2, 2\).*\(1, 3, 2\)"),
        ({"targets": np.array([0, 1])}, r"training targets.*\(3,\).*\(2,\)"),
        ({"targets": np.zeros(3)}, "float64"),
        ({"targets": np.array([0, 1, 2])}, r"0\.\.1, got 0\.\.2"),
        ({"test_targets": np.array([-1, 0])}, r"test targets.*got -1\.\.0"),
        ({"classes": 0}, "at least 1, got 0"),
        ({"labels": ("a",)}, "2 different words.*'a'"),
        ({"labels": ("a", "a")}, "2 different words"),
        ({"labels": ("a", 1)}, "2 different words"),
        ({"shareable": np.ones(2, dtype=np.bool_)}, r"shareable must be bool of the shape \(3,\).*\(2,\)"),
        ({"shareable": np.ones(3)}, "shareable must be bool.*float64"),
    ],
)
def test_inconsistent_arrays_are_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(DataError, match=f"'mine'.*{says}"):
        dataclasses.replace(valid_dataset(), **change)


def test_data_set_is_frozen_and_compared_by_identity() -> None:
    one = valid_dataset()
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.name = "other"  # type: ignore[misc]
    assert one == one and one != valid_dataset()
    assert one.shape == (1, 2, 2)


# --- the package


def test_public_names_are_exact() -> None:
    assert consilience.data.__all__ == sorted(consilience.data.__all__)
    assert set(consilience.data.__all__) == {
        "DATASETS",
        "Dataset",
        "Scaling",
        "class_counts",
        "describe_dataset",
        "is_dataset_path",
        "load",
        "pad_sequences",
        "partition_samples",
    }
    assert all(hasattr(consilience.data, name) for name in consilience.data.__all__)
    assert sorted(DATASETS) == [
        "cifar10",
        "cifar100",
        "cifar100-coarse",
        "diabetes",
        "digit-pairs",
        "digits",
        "fashion-mnist",
        "mnist",
        "shakespeare",
        "tiny-imagenet",
    ]


def test_importing_data_does_not_import_slow_modules() -> None:
    code = "import sys, consilience.data; print([m for m in ('torch', 'sklearn', 'pooch', 'PIL') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


# --- CIFAR-10


@pytest.fixture
def few_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """CIFAR-10 files of 4 records instead of 10,000."""
    monkeypatch.setattr(cifar10, "RECORDS", 4)


def batch(number: int) -> bytes:
    """Four records: labels number .. number + 3; a red plane of `number`, a green of 100, a blue that counts up."""
    planes = bytes([number]) * 1024 + bytes([100]) * 1024 + bytes(range(256)) * 4
    return b"".join(bytes([number + i]) + planes for i in range(4))


def binary_files() -> dict[str, bytes]:
    return {f"data_batch_{n}.bin": batch(n) for n in range(1, 6)} | {"test_batch.bin": batch(6)}


def cifar10_archive(files: dict[str, bytes], folder: str = "cifar-10-batches-bin/") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, body in {"readme.html": b"hello", **files}.items():
            member = tarfile.TarInfo(folder + name)
            member.size = len(body)
            archive.addfile(member, io.BytesIO(body))
    return out.getvalue()


def write_cifar10(folder: Path, form: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if form == "archive":
        (folder / "cifar-10-binary.tar.gz").write_bytes(cifar10_archive(binary_files()))
    elif form == "npz":
        for name, numbers in {"train-20.npz": range(1, 6), "test.npz": range(6, 7)}.items():
            records = np.frombuffer(b"".join(map(batch, numbers)), dtype=np.uint8).reshape(-1, 3073)
            images = records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)  # (n, 32, 32, 3)
            np.savez_compressed(folder / name, images=images, labels=records[:, 0].astype(np.int64))
    else:
        write(folder / "cifar-10-batches-bin" if form == "inside" else folder, binary_files(), compressed=False)


@pytest.mark.usefixtures("few_records")
@pytest.mark.parametrize("inside", ["", "cifar10"])
@pytest.mark.parametrize("form", ["files", "inside", "archive", "npz"])
def test_cifar10_is_read_equally_from_every_file_form(tmp_path: Path, form: str, inside: str) -> None:
    write_cifar10(tmp_path / inside, form)
    data = load("cifar10", directory=tmp_path)
    assert data.shape == (3, 32, 32) and data.labels[0] == "airplane" and data.labels[9] == "truck"
    assert data.targets.tolist() == [n + i for n in range(1, 6) for i in range(4)]
    assert data.test_targets.tolist() == [6, 7, 8, 9]
    pixels = np.rint(data.scaling.undo(data.inputs.astype(np.float64)) * 255)
    assert pixels[:, 0].reshape(20, -1).tolist() == [[n] * 1024 for n in range(1, 6) for _ in range(4)]
    assert (pixels[:, 1] == 100).all() and pixels[7, 2, 3].tolist() == list(range(96, 128))
    # Red 1..5 on average 3, green 100, blue 0..255 on average 127.5; and the variance about their mean.
    mean = (3 + 100 + 127.5) / 3
    square = (11 + 100**2 + sum(v * v for v in range(256)) / 256) / 3
    assert data.scaling.mean[0] == pytest.approx(mean / 255, rel=1e-12)
    assert data.scaling.std[0] == pytest.approx((square - mean**2) ** 0.5 / 255, rel=1e-12)


@pytest.mark.usefixtures("few_records")
def test_cifar10_prefers_binary_files_then_the_archive(tmp_path: Path) -> None:
    write_cifar10(tmp_path, "npz")
    assert ".npz" in load("cifar10", directory=tmp_path).source
    write_cifar10(tmp_path, "archive")
    assert load("cifar10", directory=tmp_path).source.endswith("cifar-10-binary.tar.gz")
    write_cifar10(tmp_path, "files")
    assert load("cifar10", directory=tmp_path).source == f"binary files in {tmp_path}"


@pytest.mark.usefixtures("few_records")
def test_cifar10_is_downloaded_with_its_published_checksum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_cifar10(tmp_path, "archive")

    def retrieve(url: str, known_hash: str, fname: str, path: Path, progressbar: Any) -> str:
        assert url == "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
        assert known_hash == "md5:c32a1d4ab5d03f1284b67883e8d87530" and path == tmp_path / "cache" / "cifar10"
        return str(tmp_path / fname)

    monkeypatch.setattr(pooch, "retrieve", retrieve)
    monkeypatch.setenv("CONSILIENCE_CACHE", str(tmp_path / "cache"))
    assert len(load("cifar10").targets) == 20


@pytest.mark.parametrize("pickled", ["cifar-10-python.tar.gz", "cifar-10-batches-py/data_batch_1"])
def test_pickled_cifar10_is_refused(tmp_path: Path, pickled: str) -> None:
    (tmp_path / pickled).parent.mkdir(exist_ok=True)
    (tmp_path / pickled).write_bytes(b"cos\nsystem\n")
    with pytest.raises(DataError, match=r"pickled Python objects.*download the binary version, cifar-10-binary.tar.gz"):
        load("cifar10", directory=tmp_path)


def test_missing_cifar10_error_names_every_form_and_place(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        load("cifar10", directory=tmp_path)
    for word in ("data_batch_1.bin", "cifar-10-binary.tar.gz", "train*.npz", str(tmp_path / "cifar10"), "--data-dir"):
        assert word in str(caught.value)


def test_real_cifar10_starts_with_the_published_pixels() -> None:
    if not list((REAL / "cifar10").glob("*")):
        pytest.skip(f"cifar10 is not in {REAL}; set CONSILIENCE_DATA to the folder that has it")
    data = load("cifar10", directory=REAL, train=10_000, test=100)
    assert data.targets[:10].tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]
    assert np.bincount(data.targets).tolist() == [1005, 974, 1032, 1016, 999, 937, 1030, 1001, 1025, 981]
    assert data.test_targets[:5].tolist() == [3, 8, 8, 0, 6]
    first = np.rint(data.scaling.undo(data.inputs[0].astype(np.float64)) * 255)
    assert first[:, 0, 0].tolist() == [59, 62, 63]  # red, green and blue of the first frog's first pixel


# --- descriptions


def test_describe_dataset_is_json_serializable() -> None:
    said = describe_dataset(load("digits", train=20, test=10))
    assert json.loads(json.dumps(said)) == said
    assert said["source"] == "the digits of scikit-learn" and said["shape"] == [1, 8, 8] and said["never_shared"] == 0
    assert said["class_counts"] == [2] * 10 and said["test_class_counts"] == [1] * 10
    assert (said["samples"], said["test_samples"], said["classes"], said["labels"]) == (20, 10, 10, [])


def test_digest_depends_on_every_array() -> None:
    one = valid_dataset()
    other = [
        {"targets": np.array([0, 1, 0])},
        {"test_targets": np.array([1, 1])},
        {"inputs": one.inputs + 1},
        {"test_inputs": one.test_inputs + 1},
        {"shareable": np.array([True, False, True])},
        {"inputs": one.inputs.reshape(3, 2, 1, 2), "test_inputs": one.test_inputs.reshape(2, 2, 1, 2)},
    ]
    digests = {describe_dataset(dataclasses.replace(one, **change))["sha256"] for change in [{}, *other]}  # type: ignore[arg-type]
    assert len(digests) == 7 and describe_dataset(valid_dataset())["sha256"] in digests


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("digits", False),
        ("cifar10", False),
        ("mnits", False),
        ("", False),
        ("x" * 5000, False),
        ("mine.npz", True),
        ("a/b", True),
        ("./digits", True),
        ("here", True),
        (".", True),
    ],
)
def test_paths_are_distinguished_from_data_set_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, is_one: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("here", "digits"):
        (tmp_path / folder).mkdir()
    assert is_dataset_path(name) is is_one
