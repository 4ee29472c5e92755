"""Who has which samples, and as what: a data set dealt to learners and shifted in their hands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from consilience.data.dataset import Dataset
from consilience.data.heterogeneity import HeterogeneityCase
from consilience.data.local_shifts import (
    DataOverride,
    LearnerShift,
    apply_common_label_shifts,
    case_with_overrides,
    learner_shifts,
    shift_strengths,
)
from consilience.data.partition import Indices, class_counts, scheme_of
from consilience.data.partition import partition as partitioned
from consilience.data.readers.digits import balanced_order
from consilience.errors import ConfigurationError
from consilience.randomness import seed_of

_OF_TESTS = 2**31  # a seed that no deal has by default
_TEST_BYTES, _LEAST = 2**28, 50  # of all learners' own tests together; samples each has in any case


@dataclass(frozen=True, eq=False)  # comparing by value would compare whole arrays
class LocalDatasets:
    """The training samples as the learners have them. Arrays nobody changed are the data set's own, not copies."""

    inputs: NDArray[np.float32]  # (n, *shape)
    targets: Indices  # (n,) the labels given
    truth: Indices  # (n,) the labels the data came with
    parts: list[Indices]  # sorted indices of each learner's samples
    strength: NDArray[np.float64]  # (learners,) of the feature shifts, 0 to 1; above 1 of some's own
    case: HeterogeneityCase
    classes: int
    kinds: Indices | None = None
    """(n,) what stands for an input where distributions are compared: of a text its last character, else its class."""

    def table(self) -> Indices:
        """How many samples with each label each learner has, (learners, classes)."""
        return class_counts(self.targets, self.parts, self.classes)


def make_local_datasets(
    data: Dataset,
    learners: int,
    *,
    partition: str = "iid",
    shift: str = "none",
    seed: int,
    overrides: Mapping[int, DataOverride] | None = None,
) -> LocalDatasets:
    """Deal the training samples by `partition`, then let `shift` change them.

    A single learner gets all samples as they are; by "owners", those of one. The partition does not depend on the
    shift, but for an ambiguous one, which changes labels before they are dealt by. terms: learners with so many
    samples, drawn from all, of which only the rest is dealt, to the others; or with a shift of their own.
    """
    owned = scheme_of(partition).word == "owners"  # a misspelled setting is refused, needed or not
    own = overrides or {}
    hands = learner_shifts(learners, shift, own)
    if learners == 1:
        partition, shift = "iid", "none"
    _refuse_moving_text(data, hands)
    targets = apply_common_label_shifts(data.targets, data.classes, shift, seed)
    parts = _dealt(targets, data.owners, learners, "owners" if owned else partition, seed, own)
    return LocalDatasets(
        inputs=_moved(data.inputs, parts, hands, seed),
        targets=_renamed(targets, data.targets, parts, hands, data.classes, seed),
        truth=data.targets,
        parts=parts,
        strength=shift_strengths(hands),
        case=case_with_overrides(partition, shift, data.classes, learners, own),
        classes=data.classes,
        kinds=data.inputs[:, -1].astype(np.int64) if data.alphabet else None,
    )


def _refuse_moving_text(data: Dataset, hands: list[LearnerShift]) -> None:
    """Codes of characters are names: turned, stretched or noisy ones would stand for nothing, or for anything."""
    words = [word for mine in hands for word in mine.features]
    if data.alphabet and words:
        raise ConfigurationError(
            f"shift {words[0]!r} changes the values of inputs, and those of data set {data.name!r} are codes of "
            f"characters; take a shift of labels, or none"
        )


def _dealt(
    targets: Indices,
    owners: Indices | None,
    learners: int,
    partition: str,
    seed: int,
    overrides: Mapping[int, DataOverride],
) -> list[Indices]:
    """Sorted positions of each learner's samples; where all have so many of their own, some may be nobody's."""
    generator = np.random.default_rng(seed_of("partition", seed))
    own = {who: each.samples for who, each in sorted(overrides.items()) if each.samples is not None}
    if not own:
        return partitioned(targets, learners, partition, generator, owners=owners)
    others = [who for who in range(learners) if who not in own]
    asked, most = sum(own.values()), max(own, key=lambda who: own[who])
    if asked > len(targets) - len(others):
        together = f", {asked} for {len(own)} learners," if len(own) > 1 else ","
        raise ConfigurationError(
            f"{overrides[most].named} is {own[most]}{together} and there are {len(targets)} training samples for it "
            f"and {len(others)} learners; take fewer"
        )
    order = np.random.default_rng(seed_of("public", seed)).permutation(len(targets))
    *drawn, rest = np.split(order, np.cumsum(list(own.values())))
    rest = np.sort(rest)
    left = None if owners is None else owners[rest]
    dealt = partitioned(targets[rest], len(others), partition, generator, owners=left) if others else []
    found = dict(zip(own, map(np.sort, drawn), strict=True))
    found |= {who: rest[part] for who, part in zip(others, dealt, strict=True)}
    return [found[who] for who in range(learners)]


@dataclass(frozen=True, eq=False)
class LocalTestSets:
    """Test samples as each learner would have them: turned as its own are, and called as it calls them."""

    inputs: NDArray[np.float32]  # (learners, samples, *shape), or (1, ...) where inputs are the same for all
    targets: Indices  # (learners, samples)
    classes: int

    def counts(self) -> Indices:
        """How many samples of each class each learner is tested on, (learners, classes)."""
        everybody = list(np.arange(self.targets.size).reshape(self.targets.shape))
        return class_counts(self.targets.reshape(-1), everybody, self.classes)


def local_test_sets(
    data: Dataset, learners: int, *, shift: str, most: int = 1000, overrides: Mapping[int, DataOverride] | None = None
) -> LocalTestSets | None:
    """Some test samples as shifts have them at each learner; None where nothing is shifted.

    They are `most` at most, fewer where learners are many; of every class in turn; and the same whatever the seed.
    """
    hands = learner_shifts(learners, shift, overrides or {})
    if not any(mine.features or mine.concepts for mine in hands):
        return None
    views = learners if any(mine.features for mine in hands) else 1
    room = max(_LEAST, _TEST_BYTES // (views * data.test_inputs[0].nbytes))
    chosen = np.sort(balanced_order(data.test_targets, _OF_TESTS)[: min(most, room)])
    shown, truth = data.test_inputs[chosen], data.test_targets[chosen]
    called = apply_common_label_shifts(truth, data.classes, shift if learners > 1 else "none", _OF_TESTS)
    inputs = np.empty((views, *shown.shape), dtype=np.float32)
    targets = np.empty((learners, len(chosen)), dtype=np.int64)
    for who, mine in enumerate(hands):  # all with the draws of learner 0: they differ by their shifts alone
        targets[who] = mine.renamed(truth if mine.own else called, data.classes, _OF_TESTS, 0)
        if who < views:
            inputs[who] = mine.moved(shown, _OF_TESTS, 0)
    return LocalTestSets(inputs, targets, data.classes)


def _renamed(
    targets: Indices, truth: Indices, parts: list[Indices], hands: list[LearnerShift], classes: int, seed: int
) -> Indices:
    """Labels, (n,), after the shifts that learners make; truth: those the data came with."""
    if not any(mine.renames or (mine.own and targets is not truth) for mine in hands):
        return targets
    renamed = targets.copy()
    for who, (part, mine) in enumerate(zip(parts, hands, strict=True)):
        renamed[part] = mine.renamed((truth if mine.own else targets)[part], classes, seed, who)
    return renamed


def _moved(
    inputs: NDArray[np.float32], parts: list[Indices], hands: list[LearnerShift], seed: int
) -> NDArray[np.float32]:
    """Inputs, (n, *shape), after the shifts that learners make."""
    if not any(mine.features for mine in hands):
        return inputs
    moved = inputs.copy()
    for who, (part, mine) in enumerate(zip(parts, hands, strict=True)):
        if mine.features and mine.strength:
            moved[part] = mine.moved(inputs[part], seed, who)
    return moved
