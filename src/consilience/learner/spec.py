"""What a cohort's learners have in common: model, role, optimizer, precision and device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import nn

from consilience.functional.training_augmentation import Augmentation
from consilience.learner.private_uploads import LearnerPrivacy
from consilience.learner.stream_reader import StreamReader
from consilience.method import Role
from consilience.objectives import TwoAnswers
from consilience.optimizers import Optimizer
from consilience.task import SINGLE_LABEL, Public, Target

OPTIMIZER = "optimizer"
"""The owner of the optimizer's settings, where settings are named by their owner."""
AUGMENTATION = "training augmentation"
"""The owner of the augmentation's random numbers, where they are named by their owner."""


@dataclass(frozen=True)
class LearnerSpec:
    """Everything that learners of one cohort have in common."""

    build: Callable[[], nn.Module]
    role: Role
    optimizer: Optimizer
    shape: tuple[int, ...]
    model: str = "model"
    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    half: bool = False  # run the model in bfloat16; weights, losses and uploads keep their precision
    varied: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Settings of which every learner has its own value: fields by exchange, or of the "optimizer"."""
    scaling: tuple[float, float] = (0.0, 1.0)  # mean and standard deviation of the inputs before they were scaled
    public: Public | None = None  # set where the learner's samples are the public set
    augmentation: Augmentation | None = None  # of the samples of a mini-batch
    target: Target = SINGLE_LABEL  # what is predicted of a sample
    symbols: int = 0  # size of the alphabet where inputs are codes of characters
    named: bool = True  # whether `model` is a name or file by which the model can be built anywhere
    privacy: LearnerPrivacy | None = None  # how uploads are made private
    reader: StreamReader | None = None  # of samples that are streamed; inputs are then their numbers
    file_sha256: str = ""  # of the user's file, where the model comes from one
    frozen_sha256: str = ""  # of the model's frozen part, which must be the same wherever it is built; empty if unknown

    @property
    def own_head(self) -> bool:
        """Whether learners train a private head, which comes right after the model among their parameters."""
        return isinstance(self.role.objective, TwoAnswers) and self.role.objective.own_head

    @property
    def own_model(self) -> bool:
        """Whether learners train a model of their own, which comes after the model and the head in their states."""
        return self.role.objective.trains_own_model
