"""Similarity: each learner's similarities between the samples of a public set, distilled (FLESD, Shi et al. 2021)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, Self, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from consilience.config.schedules import Rate, as_number, constant_number, number_or_schedule
from consilience.errors import ConfigurationError
from consilience.exchanges.base import Contribution, Exchange, Received, State, View
from consilience.functional.augmentation import VIEWS, Views
from consilience.functional.similarity import (
    ensemble_similarities,
    kl_divergence,
    matrix_block,
    sharpened_similarities,
    similarity_thresholds,
    target_distributions,
    unit_rows,
)
from consilience.task import Public, Task
from consilience.validation import check_choice, check_integer
from consilience.wire import schema
from consilience.wire.encodings import FLOAT32, Encoding

Form = Literal["auto", "pool", "mean"]
_MOMENTUM = "momentum/"  # before the names of the momentum encoder's parameters in the state


@dataclass(frozen=True)
class Similarity(Exchange):
    """Upload the similarities of the samples of the public set; distill the mean of all learners' similarities.

    It belongs to roles whose data is the public set. form: "pool" uploads the representations themselves, as rows of
    length 1, and a download brings those of `down` learners, or with 0 those of all others; "mean" uploads the
    similarities exp((R R' - 1) / temperature), and a download is their mean; "auto" is the form with fewer bytes, both
    ways together. An absent learner counts with its last upload. width: of the representations on the wire, where those
    of learners differ: narrower ones are padded with zeros, which changes no similarity; 0 is the model's own. keep:
    the share of each sample's similarities, the largest, that count. distills: whether to learn from the download, with
    a student temperature, a momentum encoder and a queue of anchors (at most as many as the public set has samples).
    """

    name: str = field(default="similarity", kw_only=True)
    varies: ClassVar[tuple[str, ...]] = ("weight", "temperature", "student_temperature", "momentum")
    mismatch_hint: ClassVar[str] = (
        "Let the method fill representations up to the widest of all (width = ... in its settings), or share "
        "similarities themselves (form = 'mean')"
    )
    distills: bool = False
    weight: Rate = 1.0
    temperature: Rate = 0.1
    student_temperature: Rate = 0.1
    momentum: Rate = 0.999
    queue: int = 2048
    form: Form = "auto"
    down: int = 0
    width: int = 0
    keep: float = 1.0
    encoding: Encoding = FLOAT32
    views: Views = VIEWS

    def __post_init__(self) -> None:
        number_or_schedule("weight", self.weight)
        for what in ("temperature", "student_temperature"):
            number_or_schedule(what, getattr(self, what), low=1e-3)
        for what, least in (("queue", 2), ("down", 0), ("width", 0)):
            check_integer(what, getattr(self, what), low=least)
        check_choice("form", self.form, get_args(Form))
        number_or_schedule("momentum", self.momentum, high=1.0)
        constant_number("keep", self.keep)  # it decides what travels
        if not 0 < self.keep <= 1:
            raise ConfigurationError(f"keep is {self.keep!r}; it must be a share, above 0 and at most 1")
        if self.encoding.bits == 1:
            raise ConfigurationError(
                "representations of one bit have no similarities; use float32, float16, int8 or int4"
            )

    def for_federation(self, learners: int) -> Self:
        """With `down` 0, a download brings the entries of all other learners."""
        return self if self.down else replace(self, down=max(learners - 1, 1))

    # -- upload -------------------------------------------------------------------------------------------------------

    def channel(self, task: Task) -> schema.Channel:
        """A pool of representations, (samples, width) each, or the mean of the similarities of all pairs."""
        public = _public(task)
        width = self.width or task.width
        if width < task.width:
            raise ConfigurationError(
                f"{self.name}: width is {width}, and {task.model} has representations of width {task.width}; set "
                f"it to the width of the widest model, or more"
            )
        if self._pooled(task):
            rows = schema.Tensor((public.size, width), self.encoding, self.encoding, -1.01, 1.01)  # rounding
            floors = {"floor": schema.Tensor((public.size,), low=-2.0, high=1.01)} if self.keep < 1 else {}
            entries = {"rows": rows} | floors
            return schema.Pool(
                self.name, entries, public_set=public.fingerprint, keep=1, draw=max(self.down, 1), repeat=False
            )
        pairs = schema.Tensor((_pairs(public),), self.encoding, self.encoding, -0.01, 1.01)
        return schema.Mean(self.name, {"similar": pairs}, public_set=public.fingerprint)

    def _pooled(self, task: Task) -> bool:
        """Whether representations travel, and not similarities."""
        if self.form != "auto":
            return self.form == "pool"
        public = _public(task)
        return public.size * (self.width or task.width) * (1 + self.down) <= 2 * _pairs(public)

    def describe_upload(self) -> str:
        """What leaves the learner, in a few words."""
        return "how it represents the public set"

    def contribute(self, state: State, view: View, received: Received) -> Contribution:
        """Representations of the public set, of length 1, or the similarities of its pairs."""
        rows = unit_rows(view.features) * view.valid[:, None]  # (samples, width)
        floors = similarity_thresholds(rows, self.keep) if self.keep < 1 else None
        one = torch.ones((), dtype=rows.dtype, device=rows.device)
        if not self._pooled(view.task):
            return Contribution({"similar": sharpened_similarities(rows, as_number(self.temperature), floors)}, one)
        wide = F.pad(rows, (0, (self.width or view.task.width) - rows.shape[1]))
        tensors = {"rows": wide[None]} | ({} if floors is None else {"floor": floors[None]})
        return Contribution(tensors, one[None])

    # -- download -----------------------------------------------------------------------------------------------------

    @property
    def has_round_start(self) -> bool:
        """A learner that distills starts a round with a full queue."""
        return self.distills

    @property
    def has_batch_hook(self) -> bool:
        """A learner that distills has a momentum encoder and a queue."""
        return self.distills

    @property
    def batch_draws(self) -> int:
        """For the augmented view that the momentum encoder sees."""
        return self.views.draws if self.distills else 0

    @property
    def sample_draws(self) -> int:
        """To choose the first anchors."""
        return 1 if self.distills else 0

    def init_state(self, view: View) -> State:
        """The momentum encoder, the anchors and their positions in the public set."""
        if not self.distills:
            return {}
        anchors, like = min(self.queue, _public(view.task).size), next(iter(view.parameters.values()))
        return {f"{_MOMENTUM}{name}": parameter for name, parameter in view.parameters.items()} | {
            "queue": torch.zeros((anchors, view.task.width), dtype=like.dtype, device=like.device),
            "index": torch.zeros((anchors,), dtype=torch.int64, device=like.device),
        }

    def on_round_start(self, state: State, view: View, received: Received) -> State:
        """The momentum encoder starts as the student, and the queue with the student's features of random samples."""
        last = torch.where(view.valid > 0, view.draws[0], torch.full_like(view.draws[0], 2.0)).argsort()
        # Where there are fewer samples than anchors, samples are repeated.
        turns = torch.arange(len(state["index"]), device=last.device) % view.samples.long()
        index = last[turns]
        encoder = {f"{_MOMENTUM}{name}": parameter for name, parameter in view.parameters.items()}
        return encoder | {"queue": unit_rows(view.features)[index], "index": index}

    def on_batch(self, state: State, view: View) -> State:
        """Equation 10; then the momentum encoder's features of the batch replace the oldest in the queue."""
        slow = {k.removeprefix(_MOMENTUM): value for k, value in state.items() if k.startswith(_MOMENTUM)}
        slow = {name: value.lerp(view.parameters[name], 1 - as_number(self.momentum)) for name, value in slow.items()}
        anchors = unit_rows(view.batch.encode(slow, self.views.of(view.task, view.batch.source, view.draws)))
        moved = {f"{_MOMENTUM}{name}": value for name, value in slow.items()}
        size = len(state["index"])
        queue = torch.cat([anchors, state["queue"]])[:size]
        return moved | {"queue": queue, "index": torch.cat([view.batch.positions, state["index"]])[:size]}

    def penalty(self, state: State, view: View, received: Received) -> Tensor:
        """Equations 7 to 9: divergence of the batch's similarities to the anchors from the ensemble's."""
        queries, anchors = view.batch.positions, state["index"]
        if self._pooled(view.task):
            present = (received.count > 0).to(view.features.dtype)
            entries, floors = received.tensors["rows"], received.tensors.get("floor")
            similar = ensemble_similarities(entries, present, queries, anchors, as_number(self.temperature), floors)
        else:
            similar = matrix_block(received.tensors["similar"], _public(view.task).size, queries, anchors)
            # Removing old values from a mean can leave it slightly below 0.
            similar = similar.clamp(min=0) * (received.count > 0)
        return kl_divergence(
            target_distributions(similar), unit_rows(view.features), state["queue"], as_number(self.student_temperature)
        )


def _public(task: Task) -> Public:
    if task.public is None:
        raise ConfigurationError("similarity needs a public set; use it in a role with data='public'")
    if task.public.size < 2:
        raise ConfigurationError(
            f"the public set has {task.public.size} sample; similarities need at least two: give its host more "
            f"data, or set some aside with public = 100"
        )
    return task.public


def _pairs(public: Public) -> int:
    return public.size * (public.size - 1) // 2
