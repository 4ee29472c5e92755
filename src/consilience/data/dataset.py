"""A data set: training and test arrays, checked to agree with each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from consilience.data.arrays import TEST_SHARE, GivenArrays, GivenInputs, raw_from_arrays
from consilience.data.dataset_checks import (
    check_codes,
    check_inputs,
    check_names,
    check_owners,
    check_sample_epsilons,
    check_shapes,
    check_shareable,
)
from consilience.data.raw_dataset import RawDataset
from consilience.data.readers.text import LENGTH, STEP, check_alphabet, text_windows
from consilience.data.readers.torch_dataset import read_samples
from consilience.data.readers.torch_samples import Samples
from consilience.data.scaling import UNSCALED, FieldScalings, Scaling, ScalingChoice, ScalingKind, measure_scaling
from consilience.data.stream import SampleStream, numbered_samples, open_stream
from consilience.data.targets import KindChoice, target_of
from consilience.errors import DataError
from consilience.input_fields import InputFields, InputShape
from consilience.kinds import kind_of
from consilience.kinds.regression import standardized
from consilience.task import SINGLE_LABEL, Target, TaskKind


@dataclass(frozen=True, eq=False)  # comparing by value would compare whole arrays
class Dataset:
    """Inputs ready to train on, scaled in the same way for training and test.

    Images are (channels, height, width), scaled by one mean and standard deviation; tables are (columns,), scaled by
    column; texts are codes of characters, (length,), and not scaled. Contradictory arrays are refused with a DataError
    when the data set is made.
    """

    name: str
    inputs: NDArray[np.float32]  # (n, *shape)
    targets: NDArray[Any]  # (n,) classes; (n, labels) of 0 and 1; (n,) standardized numbers
    test_inputs: NDArray[np.float32]  # (m, *shape)
    test_targets: NDArray[Any]  # as `targets`
    classes: int
    """The outputs of a model: one for each class or label, or one number."""
    scaling: Scaling = UNSCALED
    """How inputs were scaled; `scaling.apply(raw)` scales others in the same way."""
    labels: tuple[str, ...] = ()
    """Names of the classes or labels, or of the number that is predicted; empty where they have none."""
    shareable: NDArray[np.bool_] | None = None
    """(n,) False where a training sample must never be shared; None: all may be."""
    source: str = ""
    """Where it came from, for people to read."""
    owners: NDArray[np.int64] | None = None
    """(n,) the owner of each training sample, 0..k-1; None where samples have no owners."""
    owner_names: tuple[str, ...] = ()
    """One name per owner; some owners may have no samples left."""
    alphabet: str = ""
    """Where inputs are codes of characters: all characters, in the order of their codes."""
    columns: tuple[str, ...] = ()
    """Names of a table's columns; empty where they have none."""
    fields: InputFields | None = None
    """Where an input is several arrays: what its row of numbers, (n, numbers), is packed of."""
    stream: SampleStream | None = None
    """Where samples stay in torch data sets: what reads them. `inputs` are then their numbers, (n, 1)."""
    sample_epsilons: NDArray[np.float64] | None = None
    """(n,) the privacy budget of each training sample, inf where it has none of its own; None: none has."""
    target: Target = SINGLE_LABEL
    """What is predicted of a sample."""

    @classmethod
    def from_arrays(
        cls,
        name: str,
        inputs: GivenInputs,
        targets: ArrayLike,
        test_inputs: GivenInputs | None = None,
        test_targets: ArrayLike | None = None,
        *,
        test_share: float = TEST_SHARE,
        classes: int | None = None,
        labels: Sequence[str] = (),
        shareable: ArrayLike | None = None,
        owners: ArrayLike | None = None,
        sample_epsilons: ArrayLike | None = None,
        scaling: ScalingChoice | FieldScalings = "auto",
        kind: KindChoice = "auto",
    ) -> Dataset:
        """A data set of your own arrays: images in any layout, or a table, and targets.

        Targets are classes, whole numbers from 0, (n,); or labels, 0 or 1 for each, (n, labels); or numbers, (n,),
        which are standardized by those of the training part. `kind` says which: "single-label", "multi-label" or
        "regression"; "auto" finds out, and refuses what could be two of them.

        Images are (n, height, width), (n, channels, height, width) or (n, height, width, channels); where the second
        and the last axis could both be channels (1, 3 or 4 long), the second is used. Bytes are divided by 255. Images
        are scaled by one mean and standard deviation, those of the training part; a table by those of each column;
        whole numbers with two axes are tokens and not scaled. Without test arrays `test_share` of each class is kept
        for tests, the same samples every time. `shareable` is 0 for samples that must never be shared, `owners` the
        name or number of each training sample's owner, `sample_epsilons` the privacy budget of each training sample,
        inf where it has none of its own. Class numbers have no gaps, but where `classes` or `labels` says how many
        classes there are, some may have no samples.

        A dictionary or a tuple of arrays is several fields, which the model's forward takes by name or by position.
        Images and tables among them are scaled as above, with `scaling` by field; whole numbers and masks are not.

            >>> import numpy as np
            >>> Dataset.from_arrays("mine", np.arange(30).reshape(10, 3) / 10, np.arange(10) % 2).test_inputs.shape
            (2, 3)
        """
        if not isinstance(name, str):
            raise DataError(
                f"the first argument of from_arrays is the data set's name, got {type(name).__name__}; write "
                f'from_arrays("mine", inputs, targets)'
            )
        raw = raw_from_arrays(
            f"data set {name!r}",
            GivenArrays(inputs, targets, test_inputs, test_targets, shareable, owners, sample_epsilons),
            test_share=test_share,
            classes=classes,
            labels=tuple(labels),
            source="arrays",
            kind=kind,
        )
        return cls.from_raw(name, raw, None if scaling == "auto" else scaling)

    @classmethod
    def from_torch(
        cls,
        train: Samples,
        test: Samples | None = None,
        *,
        name: str | None = None,
        test_share: float = TEST_SHARE,
        classes: int | None = None,
        labels: Sequence[str] = (),
        label_key: str | None = None,
        kind: KindChoice = "auto",
    ) -> Dataset:
        """A data set of torch's kind: anything with a length that gives (input, label) pairs by number.

        Inputs may be tensors, arrays or PIL images, or dictionaries or tuples of them, labels numbers, or tensors of
        one number or of 0 and 1. A sample may also be one dictionary with a label: under `label_key`, or "label",
        "labels" or "target". Every sample is read once, so random transforms are drawn once. Otherwise as
        `from_arrays`; `train.classes`, a list of names as torchvision has it, names the classes.
        """
        type_name = type(train).__name__
        called = name or type_name
        names = tuple(labels) or _class_names(train)
        inputs, targets = read_samples(f"data set {called!r}, training", train, label_key)
        tests, test_labels = None, None
        if test is not None:
            tests, test_labels = read_samples(f"data set {called!r}, test", test, label_key)
        raw = raw_from_arrays(
            f"data set {called!r}",
            GivenArrays(inputs, targets, tests, test_labels),
            test_share=test_share,
            classes=classes,
            labels=names,
            source=f"{type_name}, sample by sample",
            kind=kind,
        )
        return cls.from_raw(called, raw)

    @classmethod
    def streamed(
        cls,
        train: Samples,
        test: Samples | None = None,
        *,
        targets: ArrayLike | tuple[ArrayLike, ...] | None = None,
        workers: int = 0,
        name: str | None = None,
        test_share: float = TEST_SHARE,
        classes: int | None = None,
        labels: Sequence[str] = (),
        owners: ArrayLike | None = None,
        label_key: str | None = None,
        kind: KindChoice = "auto",
    ) -> Dataset:
        """A data set whose samples stay in torch data sets and are read batch by batch, by `workers` processes.

        For data that do not fit into memory. Samples are as in `from_torch`, and not scaled: their transform does it.
        targets: those of the training samples, or a pair with those of the tests; None: all samples are read once for
        theirs. A sample is read again in every epoch, so that random transforms are drawn anew each time, and a run
        with them does not have the same bits twice. The loop engine alone streams, in one process.
        """
        called = name or type(train).__name__
        what = f"data set {called!r}"
        stream = open_stream(what, train, test, workers, label_key)
        raw = raw_from_arrays(
            what,
            numbered_samples(stream, targets)._replace(owners=owners),
            test_share=test_share,
            classes=classes,
            labels=tuple(labels) or _class_names(train),
            source=f"{type(train).__name__}, streamed",
            kind=kind,
        )
        return replace(cls.from_raw(called, raw, "none"), stream=stream, fields=stream.fields)

    @classmethod
    def from_text(
        cls,
        name: str,
        texts: Mapping[str, str],
        *,
        length: int = LENGTH,
        step: int = STEP,
        test_share: float = TEST_SHARE,
        alphabet: str | None = None,
    ) -> Dataset:
        """A data set of texts, one per owner: inputs are `length` characters, the label is the next one.

        The last `test_share` of each text is kept for tests. Samples begin every `step` characters, and none reaches
        from the training part into the test part. Inputs are codes, positions in the alphabet: `alphabet`, or
        all characters of the texts in sorted order. Partition "owners" gives each learner one owner's samples.

            >>> data = Dataset.from_text("songs", {"ann": "la " * 40, "bob": "do re " * 20}, length=8)
            >>> data.alphabet, data.inputs.shape, data.owner_names
            (' adelor', (18, 8), ('ann', 'bob'))
        """
        raw = text_windows(
            f"data set {name!r}",
            texts,
            length=length,
            step=step,
            test_share=test_share,
            alphabet=alphabet,
            source="text",
        )
        return cls.from_raw(name, raw)

    @classmethod
    def from_raw(
        cls,
        name: str,
        raw: RawDataset,
        scaling: Scaling | ScalingKind | FieldScalings | None = None,
        target: Target | None = None,
    ) -> Dataset:
        """The data set made of `raw`; scaling: one to use, or its kind; None: the one that suits the training part.

        target: one to use, such as a federation's; None: the one that suits the training part.
        """
        target = (
            target_of(f"training targets of data set {name!r}", raw.kind, raw.targets) if target is None else target
        )
        check_shapes(f"data set {name!r}", raw.inputs, raw.test_inputs)
        if isinstance(scaling, Scaling):
            scaling = _fitted(f"data set {name!r}", raw, scaling)
        else:
            scaling = measure_scaling(f"data set {name!r}", raw, scaling)
        return cls(
            name,
            scaling.apply(raw.inputs),
            standardized(target, raw.targets),
            scaling.apply(raw.test_inputs),
            standardized(target, raw.test_targets),
            raw.classes,
            scaling,
            raw.labels,
            raw.shareable,
            raw.source,
            raw.owners,
            raw.owner_names,
            raw.alphabet,
            raw.columns,
            raw.fields,
            sample_epsilons=raw.sample_epsilons,
            target=target,
        )

    def __post_init__(self) -> None:
        what = f"data set {self.name!r}"
        if self.classes < 1:
            raise DataError(f"{what}: classes must be at least 1, got {self.classes}")
        kind = kind_of(self.target)
        for half, inputs, targets in (
            ("training", self.inputs, self.targets),
            ("test", self.test_inputs, self.test_targets),
        ):
            check_inputs(f"{what}, {half}", inputs)
            kind.check(f"{what}, {half}", targets, len(inputs), self.classes)
        check_shapes(what, self.inputs, self.test_inputs)
        check_names(what, self.labels, self.classes)
        check_shareable(what, self.shareable, len(self.targets))
        check_sample_epsilons(what, self.sample_epsilons, len(self.targets))
        check_owners(what, self.owners, self.owner_names, len(self.targets))
        if self.alphabet:
            check_alphabet(what, self.alphabet)
            check_codes(f"{what}, training", self.inputs, self.alphabet)
            check_codes(f"{what}, test", self.test_inputs, self.alphabet)

    def __repr__(self) -> str:
        """How much there is, and of what shape, without the arrays."""
        counts = f"{len(self.inputs)} training and {len(self.test_inputs)} test samples"
        predicted = {"single-label": f"{self.classes} classes", "multi-label": f"{self.classes} labels"}
        return f"Dataset({self.name!r}: {counts} of {self.describe_shape()}, {predicted.get(self.kind, self.kind)})"

    def describe_shape(self) -> str:
        """The shape of one input in words, or its fields."""
        return f"the shape {self.shape}" if self.fields is None else self.fields.describe()

    @property
    def kind(self) -> TaskKind:
        """The kind of task."""
        return self.target.kind

    @property
    def groups(self) -> int:
        """How many groups of samples have a mean of their own: classes, labels or bins of a number."""
        return kind_of(self.target).groups(self.target, self.classes)

    @property
    def group_names(self) -> list[str]:
        """What groups are called: classes or labels by name or number, bins by the numbers between them."""
        return kind_of(self.target).group_names(self.target, self.classes, self.labels)

    def group_counts(self, targets: NDArray[Any]) -> NDArray[np.int64]:
        """How many of the samples with these targets are in each group, (groups,)."""
        return kind_of(self.target).counts(self.target, self.classes, targets)

    @property
    def strata(self) -> NDArray[np.int64]:
        """(n,) equal numbers for training samples that a partition treats alike: a class, a set of labels, a bin."""
        return kind_of(self.target).strata(self.target, self.targets)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input: (channels, height, width) of an image, (features,) of a table, (length,) of text."""
        return self.inputs.shape[1:] if self.stream is None else self.stream.shape

    @property
    def model_shape(self) -> InputShape:
        """The shape that a model is built for: of one input, or of its fields, by name or by position."""
        return self.shape if self.fields is None else self.fields.shape

    def text(self, codes: ArrayLike) -> str:
        """The characters that codes stand for, where inputs are text."""
        return "".join(self.alphabet[int(code)] for code in np.asarray(codes).reshape(-1))


def _class_names(samples: Samples) -> tuple[str, ...]:
    names = getattr(samples, "classes", None)
    return tuple(names) if isinstance(names, list | tuple) and all(isinstance(n, str) for n in names) else ()


def _fitted(what: str, raw: RawDataset, scaling: Scaling) -> Scaling:
    """A scaling measured elsewhere for these inputs: pixels are compared as fractions of their own maximum."""
    known = tuple((field.name, field.size) for field in scaling.fields)
    own = () if raw.fields is None else tuple((field.name, field.size) for field in raw.fields.fields)
    if known != own:
        said = [", ".join(f"{name} ({size})" for name, size in each) or "one array" for each in (own, known)]
        raise DataError(
            f"{what}: its inputs are {said[0]}, and the scaling to use is of {said[1]}; use the same fields"
        )
    if scaling.kind == "columns" and raw.inputs.shape[1:] != (len(scaling.mean),):
        raise DataError(
            f"{what}: its inputs have the shape {raw.inputs.shape[1:]}, and the scaling to use is of "
            f"{len(scaling.mean)} columns; use the same columns"
        )
    return scaling if scaling.kind in ("none", "fields") else replace(scaling, pixel_max=raw.pixel_max)
