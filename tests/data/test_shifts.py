"""Shifts: how inputs and labels of learners change, and whole local data sets."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consilience.data.dataset import Dataset
from consilience.data.local_datasets import LocalDatasets, make_local_datasets
from consilience.data.partition import partition_samples
from consilience.data.shifts import (
    Ambiguous,
    ConceptShift,
    Contrast,
    LabelNoise,
    Noise,
    Prefer,
    Relabel,
    Rotate,
    Swap,
    parse_shifts,
    rotate_images,
)
from consilience.errors import ConfigurationError, UnknownName
from consilience.randomness import seed_of

SETTINGS = settings(max_examples=50, deadline=None)
SHARES = st.sampled_from([0.0, 1.0]) | st.floats(0, 1)
LABELS = st.lists(st.integers(0, 6), max_size=60).map(lambda labels: np.array(labels, dtype=np.int64))


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def pictures(targets: np.ndarray, classes: int, shape: tuple[int, ...] = (1, 3, 3)) -> Dataset:
    inputs = rng(99).standard_normal((len(targets), *shape), dtype=np.float32)
    return Dataset("pictures", inputs, targets, inputs[:1], targets[:1], classes)


def counts(labels: np.ndarray) -> list[int]:
    return [int(np.sum(labels == label)) for label in range(7)]


# --- rotate


def test_rotation_by_90_degrees_is_exact_and_counterclockwise() -> None:
    tiny = np.array([[[[1, 2], [3, 4]]]], dtype=np.float32)
    assert rotate_images(tiny, 90).tolist() == [[[[2, 4], [1, 3]]]]
    images = rng().standard_normal((2, 3, 5, 5), dtype=np.float32)
    for quarters in (-3, -2, -1, 1, 2, 3):
        assert np.array_equal(rotate_images(images, 90 * quarters), np.rot90(images, quarters, axes=(2, 3)))


@pytest.mark.parametrize("degrees", [0, 360, -360])
def test_rotation_by_zero_is_the_identity(degrees: float) -> None:
    images = np.array([[[[-0.0, 1e-45], [3e38, 0.1]]]], dtype=np.float32)
    assert rotate_images(images, degrees).tobytes() == images.tobytes()


def test_rotation_by_45_degrees_by_hand() -> None:
    image = np.zeros((1, 1, 3, 3), dtype=np.float32)
    image[0, 0, 0, 1] = 1  # above the middle
    turned = rotate_images(image, 45)[0, 0]
    near, far = 1 - np.sqrt(0.5), np.sqrt(0.5)  # fractions of row and column of a pixel's origin
    # The upper left pixel comes from (1, 1) + sqrt(2) * (-1, 0), cut to row 0; the one above the middle from (1, 1) +
    # (-1, 1) * sqrt(1/2), and the one to the left of it from (1, 1) + (-1, -1) * sqrt(1/2).
    assert turned[0, 0] == pytest.approx(1)
    assert turned[0, 1] == turned[1, 0] == pytest.approx(near * far)
    assert turned[1, 1] == turned[2, 2] == 0


def test_rotation_extends_border_pixels() -> None:
    image = np.full((1, 1, 4, 6), 2.5, dtype=np.float32)
    assert rotate_images(image, 33) == pytest.approx(image)


def test_rotation_refuses_inputs_that_are_not_images() -> None:
    with pytest.raises(ConfigurationError, match=r"shift 'rotate\(60\)' rotates images .* inputs of the shape \(5,\)"):
        Rotate(60).inputs(np.zeros((2, 5), dtype=np.float32), 0.5, rng())


# --- contrast and noise


def test_contrast_by_hand() -> None:
    inputs = np.array([[1, 3], [10, 10]], dtype=np.float32)
    assert Contrast(3).inputs(inputs, 1.0, rng()).tolist() == [[-1, 5], [10, 10]]
    assert Contrast(3).inputs(inputs, 0.5, rng()).tolist() == [[0, 4], [10, 10]]  # halfway from 1 to 3
    assert Contrast(0.5).inputs(inputs, 1.0, rng()).tolist() == [[1.5, 2.5], [10, 10]]
    assert Contrast(3).inputs(inputs, 0.0, rng()) is inputs


def test_contrast_keeps_the_mean_of_each_image() -> None:
    images = rng().standard_normal((5, 2, 4, 4), dtype=np.float32)
    changed = Contrast(0.2).inputs(images, 1.0, rng())
    assert changed.mean(axis=(1, 2, 3)) == pytest.approx(images.mean(axis=(1, 2, 3)), abs=1e-6)
    assert changed.std(axis=(1, 2, 3)) == pytest.approx(0.2 * images.std(axis=(1, 2, 3)), rel=1e-5)
    assert changed.dtype == np.float32


def test_noise_has_the_given_standard_deviation() -> None:
    inputs = np.full((100, 10, 10), 3, dtype=np.float32)
    drawn = Noise(2).inputs(inputs, 0.25, rng()) - inputs
    assert drawn.dtype == np.float32
    assert drawn.mean() == pytest.approx(0, abs=0.02) and drawn.std() == pytest.approx(0.5, rel=0.03)
    assert np.array_equal(Noise(2).inputs(inputs, 0.0, rng()), inputs)


def test_strongest_shifts_give_finite_values() -> None:
    inputs = rng().standard_normal((4, 1, 3, 3), dtype=np.float32)
    data = Dataset("strong", inputs, np.arange(4), inputs, np.arange(4), 4)
    local = make_local_datasets(data, 2, shift="noise(1000)+contrast(1000)+rotate(-360)", seed=0)
    assert np.isfinite(local.inputs).all()


# --- labels


@SETTINGS
@given(LABELS, SHARES, SHARES, st.integers(0, 99))
def test_label_noise_and_swap_keep_class_counts(labels: np.ndarray, share: float, strength: float, seed: int) -> None:
    before = labels.copy()
    for shift in (LabelNoise(share), Swap(share)):
        changed = shift.labels(labels, 7, strength, rng(seed))
        assert counts(changed) == counts(before) and changed.dtype == np.int64
        assert (
            np.sum(changed != before) <= round(share * strength * len(labels)) + 2 * 3
        )  # one of each pair by rounding
    assert np.array_equal(labels, before)  # the given labels are unchanged


def test_label_noise_shuffles_a_share() -> None:
    labels = np.arange(1000)  # all different, so that a shuffled label shows
    changed = LabelNoise(0.5).labels(labels, 1000, 0.6, rng())
    assert 290 <= np.sum(changed != labels) <= 300


def test_swap_by_hand() -> None:
    labels = np.array([0] * 10 + [1] * 4 + [2] * 3)  # the third class has no partner
    for strength, wrong in ((0.0, 0), (0.5, 1), (1.0, 2)):  # half of the four of class 1 at most
        changed = Swap(0.5).labels(labels, 3, strength, rng())
        assert np.sum(changed[:10] == 1) == np.sum(changed[10:14] == 0) == wrong
        assert (changed[14:] == 2).all()


def test_relabel_by_hand() -> None:
    labels = np.array([0] * 10 + [1] * 4 + [2] * 6 + [3] * 2 + [4] * 3)
    changed = Relabel(0.5).labels(labels, 5, 1.0, rng())
    assert counts(changed)[:5] == [5, 9, 3, 5, 3]
    assert np.array_equal(changed[10:14], labels[10:14]) and np.array_equal(changed[20:], labels[20:])
    assert Relabel(0.5).labels(labels, 5, 0.0, rng()).tolist() == labels.tolist()


def test_prefer_draws_labels_within_pairs() -> None:
    labels = np.repeat([0, 1, 2, 3, 4], 2000)
    for strength, chance in ((0.0, 0.2), (0.5, 0.5), (1.0, 0.8)):
        changed = Prefer(0.8).labels(labels, 5, strength, rng(1))
        assert np.array_equal(changed // 2, labels // 2) and (changed[labels == 4] == 4).all()
        for label in range(4):
            assert np.mean(changed[labels == label] % 2) == pytest.approx(chance, abs=0.04)
    assert (Prefer(1).labels(labels, 5, 1.0, rng())[labels < 4] % 2 == 1).all()
    assert (Prefer(1).labels(labels, 5, 0.0, rng())[labels < 4] % 2 == 0).all()


def test_ambiguous_labels_are_independent_within_pairs() -> None:
    labels = np.repeat([0, 1, 2], [3000, 1000, 10])
    changed = Ambiguous().labels(labels, 3, 1.0, rng())
    assert counts(changed) == counts(labels) and (changed[labels == 2] == 2).all()
    for label in (0, 1):
        assert np.mean(changed[labels == label]) == pytest.approx(0.25, abs=0.04)


@SETTINGS
@given(LABELS, st.sampled_from([LabelNoise(1), Swap(1), Relabel(1), Prefer(1), Ambiguous()]), SHARES)
def test_labels_stay_among_the_classes(labels: np.ndarray, shift: ConceptShift, strength: float) -> None:
    changed = shift.labels(labels, 7, strength, rng())
    assert changed.shape == labels.shape and changed.dtype == np.int64
    assert not labels.size or 0 <= changed.min() <= changed.max() < 7
    if not isinstance(shift, LabelNoise):
        assert np.array_equal(changed // 2, labels // 2)


@pytest.mark.parametrize("shift", [LabelNoise(1), Swap(1), Relabel(1), Prefer(1), Ambiguous()])
def test_single_class_keeps_its_labels(shift: ConceptShift) -> None:
    assert shift.labels(np.zeros(9, dtype=np.int64), 1, 1.0, rng()).tolist() == [0] * 9


# --- spelling


def test_shifts_are_parsed_in_order() -> None:
    assert parse_shifts("none") == {}
    assert list(parse_shifts(" swap(0.5) + rotate:60 ").values()) == [Swap(0.5), Rotate(60)]
    assert parse_shifts("ambiguous") == parse_shifts("ambiguous()") == {"ambiguous": Ambiguous()}
    expected = {"noise": Noise(10), "label-noise": LabelNoise(0.5)}
    assert parse_shifts("noise(1e+1)+label-noise(+5e-1)") == parse_shifts("noise:1e+1+label-noise:0.5") == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("swap(1.5)", r"shift 'swap\(1.5\)': P must be a number from 0 to 1, got '1.5'"),
        ("rotate(60)+relabel(-0.1)", r"shift 'relabel\(-0.1\)': P must be a number from 0 to 1, got '-0.1'"),
        ("label-noise(nan)", "P must be a number from 0 to 1, got 'nan'"),
        ("prefer(0.5)", "P must be a number above 0.5, at most 1, got '0.5'"),
        ("prefer(1.01)", "above 0.5, at most 1"),
        ("contrast(0)", "FACTOR must be a number above 0, at most 1000, got '0'"),
        ("contrast(inf)", "FACTOR must be"),
        ("noise(-1)", "SD must be a number from 0 to 1000, got '-1'"),
        ("rotate(361)", "DEGREES must be a number from -360 to 360, got '361'"),
        ("rotate(left)", "got 'left'"),
        ("rotate()", "DEGREES must be a number from -360 to 360, got ''"),
        ("rotate(1, 2)", r"rotate takes 1 number, got 2; write rotate\(DEGREES\)"),
        ("ambiguous(1)", "ambiguous takes no numbers, got 1; write ambiguous"),
        ("swap(0.5)+noise(1)+swap(0.5)", "swap is given twice"),
        ("none+swap(0.5)", "'none' cannot be combined"),
    ],
)
def test_invalid_shift_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        parse_shifts(text)


@pytest.mark.parametrize(
    ("text", "nearest"),
    [
        ("rotation(60)", "rotate"),
        ("swap(0.5)+swop(0.5)", "swap"),
        ("rotate", "rotate(DEGREES)"),
        ("labelnoise(0.5)", "label-noise"),
        ("", None),
        ("swap(0.5)+", None),
        ("xyzzy", None),
    ],
)
def test_unknown_shift_is_refused(text: str, nearest: str | None) -> None:
    with pytest.raises(UnknownName, match="unknown shift") as caught:
        parse_shifts(text)
    assert caught.value.kind == "shift" and caught.value.nearest == nearest


# --- local data sets


def owners(local: LocalDatasets) -> np.ndarray:
    owner = np.empty(len(local.original_targets), dtype=np.int64)
    for who, part in enumerate(local.parts):
        owner[part] = who
    return owner


def test_no_copy_is_made_without_a_shift() -> None:
    data = pictures(np.arange(60) % 5, 5)
    for shift in ("none", "rotate(0)+contrast(1)+noise(0)+swap(0)+label-noise(0)+relabel(0)"):
        local = make_local_datasets(data, 3, shift=shift, seed=1)
        assert local.inputs is data.inputs and local.targets is data.targets and local.original_targets is data.targets
        assert local.strength.tolist() == [0, 0, 0] and local.case.figure == "" and local.classes == 5
    assert make_local_datasets(data, 3, shift="noise(1)", seed=1).targets is data.targets
    assert make_local_datasets(data, 3, shift="swap(1)", seed=1).inputs is data.inputs


@pytest.mark.parametrize("how", ["iid", "dirichlet(0.3)", "shards(2)", "quantity(1)"])
def test_shift_does_not_change_the_partition(how: str) -> None:
    data = pictures(np.arange(200) % 5, 5)
    expected = partition_samples(data.targets, 4, how, rng(seed_of("partition", 7)))
    for shift in ("none", "prefer(0.9)", "rotate(30)+label-noise(0.5)"):
        parts = make_local_datasets(data, 4, partition=how, shift=shift, seed=7).parts
        assert [part.tolist() for part in parts] == [part.tolist() for part in expected]


def test_partition_uses_ambiguous_labels() -> None:
    data = pictures(np.arange(400) % 4, 4)
    local = make_local_datasets(data, 2, partition="shards(2)", shift="ambiguous", seed=3)
    assert sorted(local.class_counts().ravel().tolist()) == [0, 0, 0, 0, 100, 100, 100, 100]
    assert counts(local.targets) == counts(data.targets)
    assert (local.targets != data.targets).any() and np.array_equal(local.targets // 2, data.targets // 2)


def test_shift_strength_grows_linearly_from_zero() -> None:
    data = pictures(np.zeros(5000, dtype=np.int64), 1, (4,))
    local = make_local_datasets(data, 5, shift="noise(2)", seed=3)
    assert local.strength.tolist() == [0, 0.25, 0.5, 0.75, 1]
    for part, strength in zip(local.parts, local.strength, strict=True):
        assert np.std(local.inputs[part] - data.inputs[part]) == pytest.approx(2 * strength, rel=0.05)
    assert np.array_equal(local.inputs[local.parts[0]], data.inputs[local.parts[0]])


def test_rotation_angle_grows_with_the_learner() -> None:
    data = pictures(np.arange(30) % 3, 3)
    local = make_local_datasets(data, 3, shift="rotate(180)", seed=0)
    for part, quarters in zip(local.parts, (0, 1, 2), strict=True):
        assert np.array_equal(local.inputs[part], np.rot90(data.inputs[part], quarters, axes=(2, 3)))


def test_prefer_keeps_inputs_and_partition() -> None:
    data = pictures(np.arange(4000) % 4, 4)
    plain, tossed = make_local_datasets(data, 5, seed=2), make_local_datasets(data, 5, shift="prefer(0.9)", seed=2)
    assert np.array_equal(owners(plain), owners(tossed)) and tossed.inputs is data.inputs
    second = [np.mean(tossed.targets[part] % 2) for part in tossed.parts]
    assert second == pytest.approx([0.1, 0.3, 0.5, 0.7, 0.9], abs=0.06)
    assert tossed.strength.tolist() == [0] * 5  # inputs are unchanged


def test_swap_keeps_class_counts_of_every_learner() -> None:
    data = pictures(rng(1).integers(0, 5, 300), 5)
    plain = make_local_datasets(data, 4, partition="dirichlet(0.5)", seed=2)
    for shift in ("swap(0.7)", "label-noise(0.7)"):
        changed = make_local_datasets(data, 4, partition="dirichlet(0.5)", shift=shift, seed=2)
        assert np.array_equal(plain.class_counts(), changed.class_counts()) and plain.class_counts().shape == (4, 5)
        wrong = [int(np.sum(changed.targets[part] != data.targets[part])) for part in plain.parts]
        assert wrong[0] == 0 and wrong[-1] > 0


def test_local_data_depend_only_on_the_seed() -> None:
    data = pictures(np.arange(100) % 4, 4)

    def local(seed: int) -> tuple[bytes, bytes]:
        result = make_local_datasets(data, 3, shift="noise(1)+label-noise(1)", seed=seed)
        return result.inputs.tobytes(), result.targets.tobytes()

    assert local(5) == local(5)
    assert local(5)[0] != local(6)[0] and local(5)[1] != local(6)[1]


def test_added_shift_does_not_change_draws_of_another() -> None:
    data = pictures(np.arange(100) % 4, 4)
    alone, both = (make_local_datasets(data, 3, shift=shift, seed=5) for shift in ("swap(0.5)", "noise(1)+swap(0.5)"))
    assert np.array_equal(alone.targets, both.targets)


def test_every_learner_has_independent_draws() -> None:
    data = pictures(np.zeros(60, dtype=np.int64), 2)
    local = make_local_datasets(data, 3, shift="noise(1)+prefer(0.6)", seed=5)
    _, half, full = (local.inputs[part] - data.inputs[part] for part in local.parts)
    assert np.corrcoef(half.ravel(), full.ravel())[0, 1] == pytest.approx(0, abs=0.3)
    tosses = [local.targets[part] for part in local.parts]
    assert (tosses[0] > tosses[1]).any()  # with shared draws, labels of later learners would never be smaller


def test_single_learner_gets_unshifted_data() -> None:
    data = pictures(np.arange(10) % 2, 2, (4,))
    local = make_local_datasets(data, 1, partition="shares(1, 2)", shift="rotate(60)+prefer(1)+ambiguous", seed=0)
    assert local.inputs is data.inputs and local.targets is data.targets
    assert [part.tolist() for part in local.parts] == [list(range(10))] and local.case.figure == ""
    for dealt_by, shifted in (("idd", "none"), ("iid", "swop(1)")):
        with pytest.raises(UnknownName):
            make_local_datasets(data, 1, seed=0, partition=dealt_by, shift=shifted)


def test_rotation_of_tables_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="rotate"):
        make_local_datasets(pictures(np.arange(10) % 2, 2, (4,)), 2, shift="rotate(60)", seed=0)
