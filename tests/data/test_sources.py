"""Data as people have it: Parquet, Hugging Face folders, owners of arrays and folders, arrays and torch data sets."""

from __future__ import annotations

import io
import json
import logging
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import TensorDataset

from consilience import simulate
from consilience.data import Dataset, load
from consilience.data.own_data import to_dataset
from consilience.errors import ConfigurationError, DataError

pa = pytest.importorskip("pyarrow")
LABELS = np.arange(40) % 2
TABLE = np.random.default_rng(0).random((40, 3)) + LABELS[:, None]  # (40, 3)
OWNERS = np.array(["b", "a"])[np.arange(40) // 20]


def pictures(count: int = 40) -> np.ndarray:
    """Images (n, 1, 4, 4) of bytes, the odd ones bright."""
    values = np.random.default_rng(0).integers(0, 90, (count, 1, 4, 4))
    return (values + 100 * (np.arange(count) % 2)[:, None, None, None]).astype(np.uint8)


def png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels[0]).save(file, "png")
    return file.getvalue()


def save_to_disk(folder: Path, features: dict[str, Any], **columns: Any) -> None:
    """A folder as `datasets.Dataset.save_to_disk` writes it, in two files."""
    folder.mkdir(parents=True)
    table, files = pa.table(columns), ["data-00000-of-00002.arrow", "data-00001-of-00002.arrow"]
    half = len(table) // 2
    for name, part in zip(files, (table[:half], table[half:]), strict=True):
        with pa.ipc.new_stream(folder / name, table.schema) as stream:
            stream.write_table(part)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in files]}))
    (folder / "dataset_info.json").write_text(json.dumps({"features": features}))


# --- Parquet


def test_parquet_is_read_as_csv_is(tmp_path: Path) -> None:
    from pyarrow import parquet

    columns = {"a": TABLE[:, 0], "n": LABELS + np.arange(40), "kind": np.array(["x", "y"])[LABELS], "owner": OWNERS}
    parquet.write_table(pa.table(columns), tmp_path / "t.parquet")
    lines = ["a,n,kind,owner", *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    one, two = (load(tmp_path / name, label="kind", owners="owner") for name in ("t.parquet", "t.csv"))
    assert one.inputs.tolist() == two.inputs.tolist() and one.scaling == two.scaling
    assert one.owners is not None and one.owners.tolist() == two.owners.tolist()  # type: ignore[union-attr]
    assert (one.labels, one.owner_names, one.columns) == (("x", "y"), ("a", "b"), ("a", "n"))


def test_parquet_with_missing_cells_is_refused(tmp_path: Path) -> None:
    from pyarrow import parquet

    parquet.write_table(pa.table({"a": [1.0, None, 2.0, 3.0], "kind": [0, 1, 0, 1]}), tmp_path / "t.parquet")
    with pytest.raises(DataError, match="column 'a', row 2 is empty"):
        load(tmp_path / "t.parquet", label="kind")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 nothing")
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        load(tmp_path / "bad.parquet", label="kind")


def test_without_pyarrow_the_error_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "t.parquet").write_bytes(b"")
    with pytest.raises(ConfigurationError, match=r"Parquet files need pyarrow: pip install .*\[tables\]"):
        load(tmp_path / "t.parquet", label="kind")


# --- Hugging Face


def test_saved_images_are_read_with_their_test_split(tmp_path: Path) -> None:
    features = {"image": {"_type": "Image"}, "label": {"names": ["dark", "bright"], "_type": "ClassLabel"}}
    for split, count in (("train", 40), ("test", 10)):
        cells = [{"bytes": png(each), "path": None} for each in pictures(count)]
        save_to_disk(tmp_path / "set" / split, features, image=cells, label=LABELS[:count], site=OWNERS[:count])
    for split in ("train", "test"):
        file = tmp_path / "set" / split / "dataset_info.json"
        file.write_text(json.dumps({"features": features | {"site": {"dtype": "string", "_type": "Value"}}}))
    (tmp_path / "set" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    data = load(tmp_path / "set", owners="site")
    same = Dataset.from_arrays("set", pictures(), LABELS, pictures(10), LABELS[:10])
    assert (data.inputs == same.inputs).all() and (data.test_inputs == same.test_inputs).all()
    assert data.labels == ("dark", "bright") and data.owner_names == ("a", "b") and data.scaling == same.scaling
    assert load(tmp_path / "set", image_size=2).shape == (1, 2, 2)


def test_saved_lists_and_tables_are_read(tmp_path: Path) -> None:
    value = {"dtype": "float64", "_type": "Value"}
    save_to_disk(
        tmp_path / "lists", {"x": {"feature": value, "_type": "Sequence"}, "label": value}, x=list(TABLE), label=LABELS
    )
    save_to_disk(tmp_path / "table", {"a": value, "label": value}, a=TABLE[:, 0], label=LABELS)
    assert load(tmp_path / "lists").shape == (3,) and load(tmp_path / "table").columns == ("a",)
    with pytest.raises(ConfigurationError, match="unknown column 'kind'"):
        load(tmp_path / "table", label="kind")
    (tmp_path / "table" / "data-00000-of-00002.arrow").write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"data-00000-of-00002.arrow: cannot be read"):
        load(tmp_path / "table")


# --- owners


def test_arrays_may_have_owners(tmp_path: Path) -> None:
    data = Dataset.from_arrays("mine", TABLE, LABELS, owners=OWNERS)
    assert data.owners is not None and data.owner_names == ("a", "b")
    assert np.bincount(data.owners).tolist() == [16, 16] and np.bincount(data.test_targets).tolist() == [4, 4]
    np.savez(tmp_path / "t.npz", x=TABLE, y=LABELS, owners=OWNERS)
    assert load(tmp_path / "t.npz").owners.tolist() == data.owners.tolist()  # type: ignore[union-attr]
    with pytest.raises(DataError, match=r"owners must be 40 names or numbers, one for each training sample.*\(3,\)"):
        Dataset.from_arrays("mine", TABLE, LABELS, owners=[1, 2, 3])


def test_folders_may_be_owners(tmp_path: Path) -> None:
    for number, pixels in enumerate(pictures()):
        place = tmp_path / ("ann" if number < 22 else "bob") / ("odd" if number % 2 else "even")
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[0]).save(place / f"{number}.png")
    data = load(tmp_path, owners="folders")
    assert data.labels == ("even", "odd") and data.owner_names == ("ann", "bob") and data.owners is not None
    assert len(data.targets) == 32 and np.bincount(data.owners)[0] in (17, 18)
    bright = data.scaling.undo(data.inputs).mean((1, 2, 3)) > 95 / 255
    assert (bright == (data.targets == 1)).all()
    with pytest.raises(ConfigurationError, match="owners is 'hospital'; of a folder of images it is 'folders'"):
        load(tmp_path, owners="hospital")


# --- straight into simulate


def test_arrays_and_torch_data_sets_are_data() -> None:
    whole = to_dataset((TABLE, LABELS))
    halves = to_dataset((TABLE[:30], LABELS[:30], TABLE[30:], LABELS[30:]))
    pairs = TensorDataset(torch.tensor(TABLE), torch.tensor(LABELS))
    assert isinstance(whole, Dataset) and isinstance(halves, Dataset)
    assert len(whole.targets) == 32 and len(halves.test_targets) == 10
    for given in (pairs, (pairs, pairs)):
        found = to_dataset(given)
        assert isinstance(found, Dataset) and found.shape == (3,)
    assert simulate(data=(TABLE, LABELS), learners=2, rounds=1, workers=0).accuracy.shape == (1, 2)
    with pytest.raises(ConfigurationError, match="data is of type int; give a name, a path, a Dataset"):
        simulate(data=3)  # type: ignore[arg-type]


def test_a_list_has_one_data_set_for_each_learner() -> None:
    parts = [(TABLE[:10], LABELS[:10]), (TABLE[10:16], 0 * LABELS[:6]), (TABLE[16:], LABELS[16:])]  # one has one class
    result = simulate(data=parts, method="independent", rounds=1, workers=0)
    assert result.accuracy.shape == (1, 3) and result.config.federation.partition == "owners"
    joined = to_dataset(parts)
    assert isinstance(joined, Dataset) and joined.owner_names == ("learner 0", "learner 1", "learner 2")
    assert joined.inputs.mean(0) == pytest.approx([0, 0, 0], abs=1e-6)  # scaled once, over all learners
    whole = Dataset.from_arrays("mine", TABLE, LABELS)
    again = to_dataset([whole, whole])
    assert isinstance(again, Dataset) and again.inputs[:32] == pytest.approx(whole.inputs, abs=1e-5)
    with pytest.raises(DataError, match=r"learner 1 has inputs of float64 of the shape \(2,\)"):
        to_dataset([(TABLE, LABELS), (TABLE[:, :2], LABELS)])
    with pytest.raises(DataError, match="learner 0 has no test samples, and others have"):
        to_dataset([(TABLE, LABELS), (TABLE, LABELS, TABLE, LABELS)])


def test_data_sets_of_a_list_keep_their_marks_and_their_scaling() -> None:
    marked = Dataset.from_arrays("mine", TABLE, LABELS, TABLE, LABELS, shareable=np.arange(40) % 2)
    plain = Dataset.from_arrays("mine", TABLE, LABELS, TABLE, LABELS)
    joined = to_dataset([plain, marked])
    assert isinstance(joined, Dataset) and joined.shareable is not None
    assert joined.shareable.tolist() == [True] * 40 + [i % 2 == 1 for i in range(40)]
    tokens = Dataset.from_arrays("mine", np.arange(80).reshape(40, 2), LABELS)
    both = to_dataset([tokens, tokens])
    assert isinstance(both, Dataset) and both.scaling.kind == "none"
    texts = Dataset.from_text("songs", {"ann": "do re mi fa " * 20, "bob": "la ti do re " * 20}, length=10, step=5)
    again = to_dataset([texts, texts])
    assert isinstance(again, Dataset) and again.alphabet == texts.alphabet


def test_data_sets_of_a_list_have_one_task() -> None:
    cats, dogs = (
        Dataset.from_arrays("mine", TABLE, LABELS, labels=names) for names in (["cat", "dog"], ["dog", "fox"])
    )
    with pytest.raises(DataError, match=r"learner 1 has the labels \('dog', 'fox'\), and learner 0 \('cat', 'dog'\)"):
        to_dataset([cats, dogs])
    with pytest.raises(DataError, match=r"learner 0 is the name or path 'a.csv'; load it first: load\('a.csv'\)"):
        to_dataset(["a.csv", "b.csv"])
    whole = Dataset.from_arrays("mine", TABLE, LABELS, scaling="none")
    with pytest.raises(DataError, match="inputs are scaled by columns and by none; give all the same scaling"):
        to_dataset([whole, Dataset.from_arrays("mine", TABLE, LABELS)])


def test_owners_that_a_partition_ignores_are_named(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("consilience"), "propagate", True)  # commands switch it off
    caplog.set_level(logging.WARNING)
    data = Dataset.from_arrays("visits", TABLE, LABELS, owners=OWNERS)
    simulate(data=data, learners=2, rounds=1, workers=0)
    assert "visits: samples have 2 owners, and partition iid ignores them" in caplog.text
    caplog.clear()
    simulate(data=data, partition="owners", rounds=1, workers=0)
    assert not caplog.records


def test_tokens_are_not_scaled_and_a_scaling_may_be_chosen() -> None:
    tokens = np.arange(80).reshape(40, 2)
    assert Dataset.from_arrays("mine", tokens, LABELS).scaling.kind == "none"
    assert Dataset.from_arrays("mine", tokens, LABELS, scaling="columns").scaling.kind == "columns"
