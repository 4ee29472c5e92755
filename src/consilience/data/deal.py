"""Who has which samples, and as what: a data set dealt to learners and shifted in their hands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from consilience.data.dataset import Dataset
from consilience.data.digits import balanced_order
from consilience.data.discrepancy import Case, case_of
from consilience.data.partition import Indices, class_table, scheme_of
from consilience.data.partition import partition as partitioned
from consilience.data.shifts import ConceptShift, FeatureShift, shifts_of
from consilience.errors import ConfigurationError
from consilience.randomness import key, seed_of

_OF_TESTS = 2**31  # a seed that no deal has by default
_TEST_BYTES, _LEAST = 2**28, 50  # of all learners' own tests together; samples each has in any case


@dataclass(frozen=True, eq=False)  # comparing by value would compare whole arrays
class Deal:
    """The training samples as the learners have them. Arrays nobody changed are the data set's own, not copies."""

    inputs: NDArray[np.float32]  # (n, *shape)
    targets: Indices  # (n,) the labels given
    truth: Indices  # (n,) the labels the data came with
    parts: list[Indices]  # sorted indices of each learner's samples
    strength: NDArray[np.float64]  # (learners,) of the feature shifts, 0 to 1
    case: Case
    classes: int

    def table(self) -> Indices:
        """How many samples with each label each learner has, (learners, classes)."""
        return class_table(self.targets, self.parts, self.classes)


def deal(
    data: Dataset,
    learners: int,
    *,
    partition: str = "iid",
    shift: str = "none",
    seed: int,
    public: int | None = None,
) -> Deal:
    """Deal the training samples by `partition`, then let `shift` change them.

    A single learner gets all samples as they are. The partition does not depend on the shift, but for an ambiguous one,
    which changes labels before they are dealt by. public: learner 0 has so many samples, drawn from all, and only the
    rest is dealt, to the others.
    """
    scheme_of(partition)  # a misspelt setting is refused, needed or not
    shifts = {word: each for word, each in shifts_of(shift).items() if not each.idle}
    if learners == 1:
        partition, shift, shifts = "iid", "none", {}
    concepts = {word: each for word, each in shifts.items() if isinstance(each, ConceptShift)}
    features = {word: each for word, each in shifts.items() if isinstance(each, FeatureShift)}
    targets = _confused(data.targets, data.classes, concepts, seed)
    parts = _dealt(targets, learners, partition, seed, public)
    strength = np.arange(learners) / max(1, learners - 1)  # (learners,)
    return Deal(
        inputs=_moved(data.inputs, parts, strength, features, seed),
        targets=_renamed(targets, parts, strength, concepts, data.classes, seed),
        truth=data.targets,
        parts=parts,
        strength=strength if features else np.zeros(learners),
        case=case_of(partition, shift, data.classes),
        classes=data.classes,
    )


def _dealt(targets: Indices, learners: int, partition: str, seed: int, public: int | None) -> list[Indices]:
    """Sorted positions of each learner's samples."""
    generator = np.random.default_rng(seed_of("partition", seed))
    if public is None or learners == 1:
        return partitioned(targets, learners, partition, generator)
    if not 1 <= public <= len(targets) - (learners - 1):
        raise ConfigurationError(
            f"public is {public}, and there are {len(targets)} training samples for it and {learners - 1} learners; "
            f"take fewer"
        )
    order = np.random.default_rng(seed_of("public", seed)).permutation(len(targets))
    rest = np.sort(order[public:])
    others = partitioned(targets[rest], learners - 1, partition, generator)
    return [np.sort(order[:public]), *(rest[part] for part in others)]


@dataclass(frozen=True, eq=False)
class OwnTests:
    """Test samples as each learner would have them: turned as its own are, and called as it calls them."""

    inputs: NDArray[np.float32]  # (learners, samples, *shape), or (1, ...) where inputs are the same for all
    targets: Indices  # (learners, samples)
    classes: int

    def counts(self) -> Indices:
        """How many samples of each class each learner is tested on, (learners, classes)."""
        everybody = list(np.arange(self.targets.size).reshape(self.targets.shape))
        return class_table(self.targets.reshape(-1), everybody, self.classes)


def own_tests(data: Dataset, learners: int, *, shift: str, most: int = 1000) -> OwnTests | None:
    """Some test samples as `shift` has them at each learner; None where nothing is shifted.

    They are `most` at most, fewer where learners are many; of every class in turn; and the same whatever the seed.
    """
    shifts = {word: each for word, each in shifts_of(shift).items() if not each.idle}
    if not shifts or learners == 1:
        return None
    concepts = {word: each for word, each in shifts.items() if isinstance(each, ConceptShift)}
    features = {word: each for word, each in shifts.items() if isinstance(each, FeatureShift)}
    views = learners if features else 1
    room = max(_LEAST, _TEST_BYTES // (views * data.test_inputs[0].nbytes))
    chosen = np.sort(balanced_order(data.test_targets, _OF_TESTS)[: min(most, room)])
    tests = replace(data, test_inputs=data.test_inputs[chosen], test_targets=data.test_targets[chosen])
    inputs = np.empty((views, *tests.test_inputs.shape), dtype=np.float32)
    targets = np.empty((learners, len(chosen)), dtype=np.int64)
    everything, called = [np.arange(len(chosen))], _confused(tests.test_targets, data.classes, concepts, _OF_TESTS)
    for who in range(learners):
        strength = np.array([who / (learners - 1)])
        targets[who] = _renamed(called, everything, strength, concepts, data.classes, _OF_TESTS)
        if who < views:
            inputs[who] = _moved(tests.test_inputs, everything, strength, features, _OF_TESTS)
    return OwnTests(inputs, targets, data.classes)


def _confused(targets: Indices, classes: int, concepts: Mapping[str, ConceptShift], seed: int) -> Indices:
    """Labels, (n,), after the shifts that concern everybody's samples at once."""
    for word, shift in concepts.items():
        if shift.everywhere:
            targets = shift.labels(targets, classes, 1.0, _generator(word, seed, 0))
    return targets


def _renamed(
    targets: Indices,
    parts: list[Indices],
    strength: NDArray[np.float64],
    concepts: Mapping[str, ConceptShift],
    classes: int,
    seed: int,
) -> Indices:
    """Labels, (n,), after the shifts that learners make, in the order they were written."""
    own = {word: shift for word, shift in concepts.items() if not shift.everywhere}
    renamed = targets.copy() if own else targets
    for word, shift in own.items():
        for who, part in enumerate(parts):
            renamed[part] = shift.labels(renamed[part], classes, strength[who], _generator(word, seed, who))
    return renamed


def _moved(
    inputs: NDArray[np.float32],
    parts: list[Indices],
    strength: NDArray[np.float64],
    features: Mapping[str, FeatureShift],
    seed: int,
) -> NDArray[np.float32]:
    """Inputs, (n, *shape), after the shifts that learners make, in the order they were written."""
    moved = inputs.copy() if features else inputs
    for word, shift in features.items():
        for who in np.flatnonzero(strength).tolist():
            part = parts[who]
            moved[part] = shift.inputs(moved[part], strength[who], _generator(word, seed, who))
    return moved


def _generator(word: str, seed: int, who: int) -> np.random.Generator:
    """One for each shift and learner, so that neither a further shift nor another learner changes what is drawn."""
    return np.random.default_rng(seed_of("shift", seed, key(word), who))
