"""Settings of differential privacy: which mechanism noises uploads, and the budget of the whole run."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from consilience.config.parts import ConfigPart
from consilience.errors import ConfigurationError

Private = Literal["none", "upload", "training", "fixed-encoder"]
"""What is noised: nothing, the whole upload, every training step and class means, or class means of fixed features."""


class PrivacyConfig(ConfigPart):
    """Differential privacy of what learners upload."""

    heading = "Privacy: differential privacy of what is uploaded"

    private: Private = Field(
        "none",
        description="what is noised so that uploads are differentially private: upload (all of an upload, for a "
        "learner's whole data set), training (every step, and class means, for each sample), fixed-encoder (class "
        "means of a model whose encoder is frozen, for each sample) or none",
    )
    epsilon: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="with private, the budget of each learner over the whole run"
    )
    delta: float = Field(
        1e-5, gt=0, lt=1, allow_inf_nan=False, description="with private, the probability with which epsilon may fail"
    )
    clip: float = Field(
        1.0,
        alias="private_clip",
        gt=0,
        allow_inf_nan=False,
        description="with private, the largest norm of an upload, or of a sample's gradient and of its features; a "
        "longer one is shortened",
    )
    uploads: int | None = Field(
        None,
        alias="private_uploads",
        ge=1,
        description="with private, the number of uploads that the budget is for; by default all of the run's. After "
        "them a learner uploads nothing more and goes on learning",
    )

    @model_validator(mode="after")
    def _complete(self) -> PrivacyConfig:
        if self.private != "none" and self.epsilon is None:
            raise ConfigurationError(
                f"private is {self.private!r} and epsilon is not set; set the budget of the whole run, such as "
                f"epsilon=8"
            )
        if self.private == "none" and (self.epsilon is not None or self.uploads is not None):
            given = "epsilon" if self.epsilon is not None else "private_uploads"
            raise ConfigurationError(
                f"{given} is {self.epsilon if given == 'epsilon' else self.uploads} and private is 'none': no noise "
                f"would be added; set private to 'upload', 'training' or 'fixed-encoder', or leave {given} out"
            )
        return self
