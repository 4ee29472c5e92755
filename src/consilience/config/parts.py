"""The parts of a configuration. A field is a key of the flat settings: its name, or its alias where it has one."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from consilience.config.augment import Transform, parse_augment
from consilience.config.counts import WithCounts
from consilience.config.groups import Rate
from consilience.config.reachable import parse_reachable
from consilience.errors import ConfigurationError, UnknownName
from consilience.user_code import absolute_name
from consilience.validation import is_integer
from consilience.wire.robustness import Robustness, build_robustness, parse_aggregation

DEFAULT_MODELS = {
    "digits": "mlp",
    "digit-pairs": "mlp",
    "diabetes": "mlp",
    "mnist": "lenet5",
    "fashion-mnist": "resnet9",
    "cifar10": "resnet18",
    "cifar100": "resnet18",
    "cifar100-coarse": "resnet18",
    "tiny-imagenet": "resnet18",
    "shakespeare": "lstm",
}
"""The model of a data set where none is asked for."""
OPTIMIZER_NAMES = ("adam", "adamw", "sgd", "sign-sgd")
"""The optimizers of `consilience.optimizers`, which imports torch."""


DEFAULT_LEARNERS = 5
DATA_SUFFIXES = (".csv", ".npz", ".parquet", ".tsv")
"""How the names of data files end."""
MetricName = Literal["top5", "f1", "auc", "confusion"]
METRIC_NAMES: tuple[str, ...] = get_args(MetricName)
"""Measures that are taken only where they are asked for."""


def _as_names(given: Any) -> Any:
    """Names separated by commas as a tuple of them, each once; an unknown one is refused with the nearest known one."""
    names = given.split(",") if isinstance(given, str) else given
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        return given
    found = tuple(dict.fromkeys(name.strip() for name in names if name.strip()))
    for name in found:
        if name not in METRIC_NAMES:
            raise UnknownName("metric", name, METRIC_NAMES)
    return found


def _known_aggregation(given: str) -> str:
    parse_aggregation(given)
    return given


def _known_reachable(given: str) -> str:
    parse_reachable(given)
    return given


class ConfigPart(WithCounts):
    """Some settings that belong together; frozen, and unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)
    heading: ClassVar[str]

    @classmethod
    def keys(cls) -> dict[str, str]:
        """The flat keys of the part, and the field that each one sets."""
        return {field.alias or name: name for name, field in cls.model_fields.items()}

    @classmethod
    def defaults(cls) -> Self:
        """The part with every setting left out."""
        return cls.model_validate({})

    def settings(self, *, exclude_none: bool = True) -> dict[str, Any]:
        """The part as flat settings."""
        return self.model_dump(by_alias=True, exclude_none=exclude_none)


class DataConfig(ConfigPart):
    """Which data is learned from."""

    heading = "Data"

    source: str = Field(
        "digits",
        alias="data",
        description="digits, digit-pairs, diabetes, mnist, fashion-mnist, cifar10, cifar100, cifar100-coarse, "
        "tiny-imagenet, shakespeare; a table (.csv, .parquet); an .npz file; a folder of images, one subfolder per "
        "class; a folder that Hugging Face's save_to_disk wrote",
    )
    folder: str | None = Field(None, alias="data_dir", description="folder with the files of a named data set")
    train: int | None = Field(
        None, ge=1, description="use only the first N training samples; spread over all owners, where samples have some"
    )
    test: int | None = Field(
        None, ge=1, description="use only the first N test samples; spread over all owners, where samples have some"
    )
    classes: int | None = Field(
        None, ge=2, description="use only the samples of the first N classes, before train and test are counted"
    )
    test_share: float = Field(
        0.2, gt=0, lt=1, description="share of the samples held out for tests, where the data has no test set"
    )
    image_size: int | None = Field(
        None, ge=1, description="resize the images of a folder to N pixels in width and height"
    )
    image_mode: Literal["gray", "color"] | None = Field(
        None, description="convert the images of a folder: gray or color"
    )
    label: str | None = Field(
        None,
        description="the column of a table that holds the class or the number to predict; several, separated by "
        "commas, are labels of 0 and 1 that a sample may have together",
    )
    kind: Literal["auto", "single-label", "multi-label", "regression"] = Field(
        "auto", description="what is predicted of a sample: one class, a set of labels, or a number; auto: as it looks"
    )
    owners: str | None = Field(
        None,
        description="for partition owners: the column of a table that holds the owner of each row; of a folder of "
        "images with OWNER/CLASS/*.png, the word folders",
    )
    drop: str | None = Field(None, description="columns of a table that are not used, separated by commas")
    test_data: str | None = Field(None, description="a second table, with the test samples")
    scaling: Literal["auto", "none", "pixels", "columns"] = Field(
        "auto",
        description="how inputs are scaled: pixels (one mean and standard deviation), columns (of a table, each by its "
        "own) or none; auto is columns for tables, pixels for images, none for text and tokens",
    )


class FederationConfig(ConfigPart):
    """Who learns together, with which part of the data, and who takes part in a round."""

    heading = "Federation: who has which part of the data, and who takes part in a round"

    learner_count: int | None = Field(
        None,
        alias="learners",
        ge=1,
        description="number of learners; by default 5, with partition owners as many as there are owners",
    )
    partition: str = Field(
        "iid",
        description="how the data is split between learners: iid, dirichlet(ALPHA), shards(K), quantity(ALPHA), "
        "shares(A, B, ...) or owners",
    )
    shift: str = Field(
        "none",
        description="how learners' data differ beyond that: rotate(DEGREES), contrast(FACTOR), noise(SD), "
        "label-noise(P), swap(P), relabel(P), prefer(P), ambiguous, joined by +",
    )
    public: int | None = Field(
        None,
        ge=1,
        description="number of samples of learner 0, drawn from all, for a method with a public set; by default it "
        "has its part of the partition",
    )
    participation: float = Field(1.0, gt=0, le=1, description="share of learners that take part in a round")
    aggregation: Annotated[str, AfterValidator(_known_aggregation)] = Field(
        "mean",
        description="how uploads are averaged: mean; trimmed(SHARE), each value without that share of the learners' at "
        "each end; or median, of each value",
    )
    clip_norm: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="largest norm of an upload to a mean; a longer one is shortened"
    )
    clip_ratio: float | None = Field(
        None,
        ge=1,
        allow_inf_nan=False,
        description="the same, as a multiple of the median norm of the uploads it is averaged with",
    )
    weight_cap: int | None = Field(None, ge=1, description="most samples that an upload counts for in a mean")
    offline: float = Field(0.0, ge=0, le=1, description="probability that a learner cannot be reached in a round")
    reachable: Annotated[str, AfterValidator(_known_reachable)] = Field(
        "all",
        description="who can be reached in a round, but for offline: all; fixed(K), always the first K learners; or "
        "turns(K), K learners in turn, the next K in the next round; others train on with their last download",
    )
    seed: int = Field(0, ge=0, le=2**53, description="the first seed")
    seeds: int = Field(1, ge=1, description="number of seeds to run")

    @property
    def robustness(self) -> Robustness:
        """How means resist a bad learner."""
        return build_robustness(self.aggregation, self.clip_norm, self.clip_ratio, self.weight_cap)

    @property
    def learners(self) -> int:
        """The number of learners, where it does not depend on the data."""
        return self.learner_count or DEFAULT_LEARNERS


class ModelConfig(ConfigPart):
    """The learners' models."""

    heading = "Models"

    name: str | None = Field(
        None,
        alias="model",
        description="lenet5, mlp, resnet9, resnet18, encoder18, encoder50, cnn, cnn5, cnn5-small, device-cnn, "
        "device-cnn-medium, device-cnn-large, lstm, device-lstm, or FILE.py:FUNCTION; one for all learners or, "
        "separated by commas, one for each; by default one that suits the data",
    )
    width: int | None = Field(None, ge=1, description="feature width d'; by default the model's own")


class TrainingConfig(ConfigPart):
    """How long and how learners train."""

    heading = "Training"

    rounds: int = Field(50, ge=1, description="communication rounds")
    epochs: int = Field(1, ge=1, description="passes over the local data in a round")
    total_epochs: int | None = Field(
        None, ge=1, description="passes over the local data in all rounds; epochs = total_epochs / rounds"
    )
    batch_size: int = Field(32, ge=1, description="samples in a mini-batch")
    optimizer: str = Field("adam", description="adam, adamw (weight decay apart from the gradient), sgd or sign-sgd")
    optimizer_state: Literal["keep", "reset"] = Field("keep", description="optimizer state between rounds: keep, reset")
    lr: Rate = Field(1e-3, description="learning rate, or a schedule of it such as 'cosine(0.001, 0, 100)'")
    momentum: float = Field(0.0, ge=0, lt=1, description="momentum of sgd")
    nesterov: bool = Field(False, description="Nesterov's form of the momentum of sgd")
    weight_decay: float = Field(0.0, ge=0, description="weight decay")
    clip: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="largest norm of a learner's gradient; a longer one is shortened"
    )

    augment: str | Transform = Field(
        "none",
        description="random changes of images in training: crop, crop(PIXELS), flip, joined by +; or FILE.py:NAME, a "
        "function of one sample; in Python also the function itself",
    )

    @field_validator("augment")
    @classmethod
    def _known_augmentation(cls, given: str | Transform) -> str | Transform:
        parse_augment(given)
        return absolute_name(given) if isinstance(given, str) else given

    @field_validator("optimizer")
    @classmethod
    def _known_optimizer(cls, name: str) -> str:
        if name not in OPTIMIZER_NAMES:
            raise UnknownName("optimizer", name, OPTIMIZER_NAMES)
        return name

    @model_validator(mode="before")
    @classmethod
    def _share_total_epochs(cls, given: Any) -> Any:
        """Epochs of a round, where those of all rounds are given."""
        total = given.get("total_epochs") if isinstance(given, dict) else None
        rounds = given.get("rounds", cls.model_fields["rounds"].default) if total is not None else None
        if not is_integer(total) or not is_integer(rounds) or total < 1 or rounds < 1:
            return given  # nothing to divide, or refused by the fields themselves
        if total % rounds:
            raise ConfigurationError(
                f"total_epochs is {total}, which is not a multiple of {rounds} rounds; choose a multiple"
            )
        if given.get("epochs", total // rounds) != total // rounds:
            raise ConfigurationError(
                f"total_epochs is {total} in {rounds} rounds, and epochs is {given['epochs']}; give one of the two"
            )
        return {**given, "epochs": total // rounds}


class EvaluationConfig(ConfigPart):
    """When models are evaluated, and how."""

    heading = "Evaluation"

    every: int = Field(1, alias="eval_every", ge=1, description="evaluate every N rounds, and after the last")
    validation: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="share of each learner's own training samples held out for validation: sweep ranks settings by "
        "them, the models after the evaluated round with the highest mean validation accuracy are kept as well, and "
        "learners with a private head or an own model choose by them how much of the common answer enters their own; 0 "
        "holds out none",
    )
    probe: Literal["auto", "none", "linear", "scaled", "knn", "both"] = Field(
        "auto",
        description="evaluate representations by a classifier trained on them: linear as published, scaled (linear, "
        "with features scaled to deviation 1), knn (nearest training samples), both (linear and knn) or none; auto is "
        "scaled and knn where learners learn without labels",
    )
    ensemble: Literal["auto", "on", "off"] = Field(
        "auto",
        description="also evaluate the mean of all learners' logits, as a new device would query them all: on, off, or "
        "auto, which is on where a part of the model is private and the rest is common",
    )
    metrics: Annotated[tuple[MetricName, ...], BeforeValidator(_as_names)] = Field(
        (),
        description="further measures of every learner at every evaluation, separated by commas: top5 (accuracy of the "
        "five most likely classes), f1 (macro F1), auc (area under the ROC curve, one against the rest), confusion "
        "(the confusion matrix)",
    )
    watch: str | None = Field(
        None,
        description="a layer whose distance correlation with the inputs is measured at every evaluation: a module's "
        "name such as features.conv1, features, or cut",
    )


class ExecutionConfig(ConfigPart):
    """How a run is computed."""

    heading = "Execution"

    engine: Literal["auto", "loop", "stack", "branches"] = Field(
        "auto",
        description="how learners are run: loop, one after the other; stack, all in one step; branches, each in its "
        "own step, many side by side on an NVIDIA GPU (new, and tested on a CPU only); or auto, which is loop or stack",
    )
    device: str = Field("cpu", description="cpu, cuda, cuda:NUMBER, or mps (Apple; loop engine)")
    workers: int | None = Field(
        None,
        ge=0,
        description="worker processes of the loop; by default one per core. On a cluster the processes of a run there, "
        "each with a CPU, or with a GPU where device is cuda; by default as many as the cluster has",
    )
    cluster: str | None = Field(
        None,
        description="run on a Ray cluster: local, which is started on this machine; auto, the one that this machine is "
        "part of; or HOST:PORT. `run` spreads its learners over it, `compare`, `sweep` and `reproduce` their runs",
    )
    precision: Literal["auto", "float32", "bf16", "float64"] = Field(
        "auto",
        description="precision of the model's arithmetic: float32, bf16 (weights stay float32) or float64; auto is "
        "float32, but bf16 on a GPU where learners learn without labels",
    )
    deterministic: bool = Field(
        False,
        description="on a GPU, the same bits every time, somewhat slower; torch warns where it has no such operation",
    )

    @model_validator(mode="after")
    def _fits_the_cluster(self) -> ExecutionConfig:
        if self.cluster is None:
            return self
        if self.cluster not in ("local", "auto") and not re.fullmatch(r"[^\s:/]+:\d{1,5}", self.cluster):
            raise ConfigurationError(
                f"cluster is {self.cluster!r}; it must be local, auto or the address HOST:PORT of a Ray cluster"
            )
        if self.workers == 0:
            raise ConfigurationError(
                f"workers is 0, which keeps all learners in this process, and cluster is {self.cluster!r}, which gives "
                f"them to others; leave one of the two out"
            )
        if self.device not in ("cpu", "cuda"):
            raise ConfigurationError(
                f"device is {self.device!r}, a device of this machine, and cluster is {self.cluster!r}; on a cluster "
                f"it must be cpu or cuda, and every process gets a GPU of its own"
            )
        return self
