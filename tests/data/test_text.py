"""Texts of several owners: windows, training and test split, partition by owner, and errors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from consilience import simulate
from consilience.config.config import make_config
from consilience.data import Dataset
from consilience.data.description import describe_dataset
from consilience.data.heterogeneity import heterogeneity_case, measure_heterogeneity
from consilience.data.local_datasets import make_local_datasets
from consilience.data.readers.text import character_name, text_windows
from consilience.errors import ConfigurationError, DataError
from consilience.simulation.records.provenance import describe_split, provenance
from consilience.simulation.setup.assign_data import concat_training_sets
from consilience.simulation.setup.inputs import select_samples

pytestmark = pytest.mark.usefixtures("one_thread")

ANN = "the cat sat on the mat. "  # 24 characters
BOB = "do re mi fa sol la ti. "  # 23


def songs(times: int = 5, **settings: Any) -> Dataset:
    """The texts of Ann (24 characters) and Bob (23 characters), repeated."""
    return Dataset.from_text("songs", {"ann": ANN * times, "bob": BOB * times}, **{"length": 6, "step": 4, **settings})


# --- samples


def test_text_windows_by_hand() -> None:
    # 10 characters, the last 40 % for tests: "abcabc" and "bcab". Three predict the fourth, with a step of two.
    data = Dataset.from_text("letters", {"x": "abcabcbcab"}, length=3, step=2, test_share=0.4)
    assert data.alphabet == "abc" and data.labels == ("a", "b", "c") and data.classes == 3
    assert [(data.text(i), data.text(t)) for i, t in zip(data.inputs, data.targets, strict=True)] == [
        ("abc", "a"),
        ("cab", "c"),
    ]
    assert [(data.text(i), data.text(t)) for i, t in zip(data.test_inputs, data.test_targets, strict=True)] == [
        ("bca", "b")
    ]
    assert data.inputs.dtype == np.float32 and data.inputs.tolist() == [[0, 1, 2], [2, 0, 1]]
    assert data.scaling.kind == "none"  # codes are categories and not scaled


def test_windows_do_not_cross_test_text_or_owners() -> None:
    letters = "".join(map(chr, range(0x4E00, 0x4E00 + 200)))  # every character once, so that positions are known
    texts = {"first": letters[:120], "second": letters[120:]}
    data = Dataset.from_text("once", texts, length=10, step=1)
    assert data.owners is not None and data.owner_names == ("first", "second")
    for owner, (first, size) in enumerate([(0, 120), (120, 80)]):
        mine = data.owners == owner
        places = np.column_stack([data.inputs[mine], data.targets[mine]])  # (samples, 11)
        assert places.min() == first and places.max() == first + size * 0.8 - 1
        assert (np.diff(places, axis=1) == 1).all() and len(places) == size * 0.8 - 10
    tests = np.column_stack([data.test_inputs, data.test_targets])
    assert sorted({*tests[:, 0]}) == [*range(96, 110), *range(184, 190)]


def test_codes_follow_the_order_of_a_given_alphabet() -> None:
    data = songs(alphabet="zyxwvutsrqponmlkjihgfedcba. ")
    assert data.classes == len(data.alphabet) == 28 and data.labels[-1] == "space"
    assert data.text(data.inputs[0]) == ANN[:6] and data.inputs[0, 0] == 6  # t is the seventh from the end


def test_character_labels_are_visible_and_unique() -> None:
    assert [character_name(c) for c in "a \n\t\r[\u00e9\x07"] == [
        "a",
        "space",
        "newline",
        "tab",
        "return",
        "[",
        "é",
        "U+0007",
    ]


def test_large_alphabets_have_unique_codes() -> None:
    letters = "".join(map(chr, range(0x100, 0x100 + 300)))
    raw = text_windows("letters", {"x": letters}, length=5, step=1)
    assert raw.inputs.dtype == np.uint16 and raw.test_inputs.max() == 298  # a byte is too small
    assert Dataset.from_raw("letters", raw).text(raw.test_inputs[-1]) == letters[294:299]


@pytest.mark.parametrize(
    ("texts", "settings", "said"),
    [
        ({}, {}, "there are no owners"),
        ([ANN * 9, BOB * 9], {}, "texts must be given by owner, such as .*, got list"),
        (ANN * 9, {}, "texts must be given by owner, such as .*, got str"),
        ({"ann": ANN * 9, "bob": ""}, {}, "owner 'bob' has no text"),
        ({"ann": ANN * 9, "bob": b"do"}, {}, "must be strings, got 'bob' with bytes"),
        (
            {"ann": ANN * 20, "bob": "do re"},
            {},
            r"owner 'bob' has 5 characters, 4 for training and 1 for tests.* at least 81",
        ),
        ({"ann": ANN * 16}, {}, r"owner 'ann' has 384 characters, 307 for training and 77 for tests"),
        ({"ann": "aaaa"}, {"length": 1}, "at least two characters, got 'a'"),
        ({"ann": ANN * 20}, {"alphabet": "eehtac"}, "'e' is in the alphabet twice"),
        ({"x": "ab" * 9, "ann": "abab" * 9 + "!"}, {"length": 1, "alphabet": "ab"}, "owner 'ann': character 36 is '!'"),
        ({"x": "ab" * 9}, {"length": 1, "alphabet": "bc"}, r"owner 'x': character 0 is 'a', .* alphabet of 2"),
    ],
)
def test_invalid_texts_are_refused(texts: Any, settings: Any, said: str) -> None:
    with pytest.raises(DataError, match=f"^data set 'mine': .*{said}"):
        Dataset.from_text("mine", texts, **settings)


@pytest.mark.parametrize("settings", [{"length": 0}, {"step": 0}, {"test_share": 0.0}, {"test_share": 1.0}])
def test_invalid_settings_are_refused(settings: Any) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(settings))):
        songs(**settings)


# --- the data set itself


@pytest.mark.parametrize("code", [-1.0, 0.5, 3.0])
@pytest.mark.parametrize("half", ["inputs", "test_inputs"])
def test_codes_outside_the_alphabet_are_refused(half: str, code: float) -> None:
    data = Dataset.from_text("letters", {"x": "abcabcbcab"}, length=3, step=2, test_share=0.4)
    wrong = getattr(data, half).copy()
    wrong[0, 1] = code
    with pytest.raises(DataError, match=r"characters outside the alphabet.* 0\.\.2"):
        replace(data, **{half: wrong})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"owners": np.zeros(3, dtype=np.int64)}, r"owners must be int64 of the shape \(45,\)"),
        ({"owners": np.zeros(45, dtype=np.int32)}, "owners must be int64"),
        ({"owners": np.full(45, 2)}, r"owners must lie in 0\.\.1 for 2 different names, got 2\.\.2"),
        ({"owner_names": ("ann", "ann")}, "name each owner once"),
        ({"owners": None}, "2 owner_names are given without owners"),
        ({"alphabet": "aa"}, "twice"),
    ],
)
def test_inconsistent_owners_or_alphabet_are_refused(change: dict[str, Any], said: str) -> None:
    data = songs()
    assert data.inputs.shape == (45, 6)  # of 96 and of 92 characters, every fourth that has seven from it on
    with pytest.raises(DataError, match=said):
        replace(data, **change)


def test_description_and_digest_include_owners_and_alphabet() -> None:
    data = songs()
    record = describe_dataset(data)
    assert record["owners"] == ["ann", "bob"] and record["alphabet"] == data.alphabet
    assert data.owners is not None
    others = [replace(data, owners=1 - data.owners), replace(data, alphabet=data.alphabet[::-1])]
    assert len({describe_dataset(each)["sha256"] for each in (data, *others)}) == 3
    nobody = replace(data, owners=None, owner_names=(), alphabet="")
    assert describe_dataset(nobody)["owners"] == [] and describe_dataset(nobody)["alphabet"] == ""


def test_subset_is_evenly_spaced_and_keeps_owners() -> None:
    data = songs(20)
    assert data.owners is not None
    few = select_samples(data, make_config({"train": 10, "test": 4}))
    assert few.owners is not None and few.owners.tolist() == [0] * 6 + [1] * 4  # Ann has a little more than half
    n = len(data.targets)
    where = [i * n // 10 for i in range(10)]
    assert np.array_equal(few.inputs, data.inputs[where]) and np.array_equal(few.targets, data.targets[where])
    assert len(few.test_targets) == 4 and few.test_inputs.tolist() != data.test_inputs[:4].tolist()
    raw = text_windows("songs", {"ann": ANN * 20, "bob": BOB * 20}, length=6, step=4)
    same = Dataset.from_raw("songs", raw.first("songs", 10, 4))
    assert describe_dataset(same)["sha256"] == describe_dataset(few)["sha256"]
    whole = select_samples(data, make_config({}))
    assert describe_dataset(whole)["sha256"] == describe_dataset(data)["sha256"]


def test_subset_without_owners_uses_only_the_first_samples() -> None:
    inputs = np.arange(12, dtype=np.float32).reshape(6, 2)
    data = Dataset("table", inputs, np.arange(6) % 2, inputs, np.arange(6) % 2, 2, shareable=np.arange(6) > 0)
    few = select_samples(data, make_config({"train": 3, "test": 2}))
    assert few.inputs.tolist() == inputs[:3].tolist() and few.test_inputs.tolist() == inputs[:2].tolist()
    assert few.shareable is not None and few.shareable.tolist() == [False, True, True] and few.owners is None


# --- partition by owner


def many_owners(owners: int = 5) -> Dataset:
    return Dataset.from_text("crowd", {f"o{i}": (ANN + BOB) * (i + 3) for i in range(owners)}, length=6, step=4)


def test_each_learner_is_one_owner() -> None:
    data = many_owners()
    assert data.owners is not None
    local = make_local_datasets(data, 5, partition="owners", seed=1)
    for who, part in enumerate(local.parts):
        assert np.array_equal(part, np.flatnonzero(data.owners == who))
    assert local.inputs is data.inputs and local.class_counts().sum() == len(data.targets)


def test_fewer_learners_than_owners_leave_samples_unassigned() -> None:
    data = many_owners()
    assert data.owners is not None
    found = set()
    for seed in range(20):
        local = make_local_datasets(data, 2, partition="owners", seed=seed)
        whose = [np.unique(data.owners[part]).tolist() for part in local.parts]
        assert all(len(mine) == 1 for mine in whose) and whose[0] < whose[1]
        assert local.class_counts().sum() == np.isin(data.owners, whose).sum() < len(data.targets)
        found.add((whose[0][0], whose[1][0]))
        again = make_local_datasets(data, 2, partition="owners", seed=seed)
        assert all(np.array_equal(a, b) for a, b in zip(local.parts, again.parts, strict=True))
    assert len(found) > 5  # of ten pairs


def test_single_learner_is_one_owner() -> None:
    data = many_owners()
    assert data.owners is not None
    local = make_local_datasets(data, 1, partition="owners", seed=0)
    assert len(np.unique(data.owners[local.parts[0]])) == 1 and not local.case.figure


def test_more_learners_than_owners_or_no_owners_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="6 learners, and the samples have 5 owners"):
        make_local_datasets(many_owners(), 6, partition="owners", seed=0)
    with pytest.raises(ConfigurationError, match=r"samples have owners.* these have none"):
        make_local_datasets(replace(many_owners(), owners=None, owner_names=()), 2, partition="owners", seed=0)


@pytest.mark.parametrize("shift", ["rotate(30)", "contrast(2)", "swap(0.5)+noise(1)"])
def test_feature_shifts_of_text_are_refused(shift: str) -> None:
    with pytest.raises(ConfigurationError, match="codes of characters"):
        make_local_datasets(many_owners(), 3, partition="owners", shift=shift, seed=0)


def test_label_shifts_of_text_keep_owners_for_every_seed() -> None:
    data = many_owners()
    local_datasets = [make_local_datasets(data, 2, partition="owners", shift="swap(1)", seed=seed) for seed in (0, 1)]
    local, parts = concat_training_sets(data, local_datasets, 2)
    assert data.owners is not None and local.owners is not None
    assert np.array_equal(local.owners, np.tile(data.owners, 2)) and len(local.targets) == 2 * len(data.targets)
    assert all(len(np.unique(local.owners[part])) == 1 for mine in parts for part in mine)
    assert not np.array_equal(local.targets[: len(data.targets)], data.targets)


def test_owners_differ_in_inputs_and_labels() -> None:
    assert heterogeneity_case("owners", "none").figure == "7i"
    # Ann and Bob have no word in common; Ann and her twin have them all.
    apart, alike = ({"ann": ANN * 99, "other": other * 99} for other in (BOB, ANN))
    for texts, differ in ((apart, True), (alike, False)):
        local = make_local_datasets(Dataset.from_text("two", texts, length=6, step=5), 2, partition="owners", seed=0)
        found = measure_heterogeneity(local, kinds=local.kinds)
        for gap, chance in ((found.inputs, found.noise.inputs), (found.labels, found.noise.labels)):
            assert gap > 3 * chance if differ else gap <= chance
        assert found.labels_given_inputs == 0


def test_unassigned_samples_do_not_count_in_heterogeneity() -> None:
    texts = {"ann": ANN * 99, "ann too": ANN * 99, "bob": BOB * 99}
    data = Dataset.from_text("three", texts, length=6, step=5)
    found = {}
    for seed in range(10):
        local = make_local_datasets(data, 2, partition="owners", seed=seed)
        assert data.owners is not None
        found[tuple(int(data.owners[part[0]]) for part in local.parts)] = measure_heterogeneity(
            local, kinds=local.kinds
        ).labels
    assert set(found) == {(0, 1), (0, 2), (1, 2)}
    assert found[0, 1] < 0.02 < found[0, 2] and found[0, 2] == pytest.approx(found[1, 2])


def test_provenance_names_the_owners() -> None:
    data, config = many_owners(), make_config({"learners": 2, "partition": "owners", "seed": 3})
    local = make_local_datasets(data, 2, partition="owners", seed=3)
    record = provenance(config, data, [local])
    assert data.owners is not None
    assert record["owners"] == {"3": [f"o{data.owners[part[0]]}" for part in local.parts]}
    assert record["case"]["figure"] == "7i"
    assert f"crowd: {len(np.concatenate(local.parts))} samples for 2 learners, owners" in describe_split(
        config, data, local
    )
    assert provenance(make_config({"learners": 2}), data, [make_local_datasets(data, 2, seed=0)])["owners"] == {"0": []}


def test_federation_of_owners_is_independent_of_other_seeds() -> None:
    data = many_owners()
    both = simulate(data=data, model="mlp", learners=3, partition="owners", rounds=2, seeds=2, method="fedavg")
    alone = simulate(data=data, model="mlp", learners=3, partition="owners", rounds=2, seed=1, method="fedavg")
    assert both.history.last("accuracy")[1] == pytest.approx(alone.history.last("accuracy")[0])
    pooled = simulate(data=data, model="mlp", learners=2, partition="owners", rounds=1, method="centralized")
    assert pooled.finished


def test_augmented_views_of_text_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"views are for images.*text"):
        simulate(
            data=many_owners(),
            model="mlp",
            learners=2,
            partition="owners",
            rounds=1,
            method="independent:objective=simclr",
        )
