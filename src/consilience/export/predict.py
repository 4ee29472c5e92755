"""Predictions of an exported model, as a table."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from consilience.errors import ConfigurationError
from consilience.export.card import OWN_ANSWER, InputDescription
from consilience.export.load import check_answer, load_own_answer, load_split_model
from consilience.export.prediction_table import describe_known, outputs_of, prediction_rows
from consilience.export.samples import NamedSamples, read_new_samples
from consilience.task import AnswerKind

ANSWERS = {"common": "everybody's data", "own": "data like the learner's own"}
"""What each answer is for."""
_ROWS = 256  # samples in one forward pass


@dataclass(frozen=True, eq=False)  # comparing by value would compare whole arrays
class Predictions:
    """What is predicted of samples, their names, and what is known of them.

    probabilities: of the classes, (n, classes), or of each label, (n, labels); of a regression the numbers, (n, 1), in
    the user's unit.
    """

    samples: NamedSamples
    probabilities: np.ndarray
    inputs: InputDescription
    answer: AnswerKind | None = None
    """The one that predicted, of a model that has two."""

    @property
    def class_names(self) -> list[str]:
        """The names of the classes or labels."""
        return self.inputs.class_names

    @property
    def predicted(self) -> list[str]:
        """The most probable class of each sample."""
        return [self.class_names[number] for number in self.probabilities.argmax(1)]

    def csv(self) -> str:
        """One line for each sample: its name, what is predicted, and what is known of it; `prediction_rows` has all."""
        written = io.StringIO()
        table = csv.writer(written, lineterminator="\n")
        table.writerows(prediction_rows(self.samples, self.probabilities, self.inputs))
        return written.getvalue()

    def describe(self) -> str:
        """How many samples there are, how good the predictions of known ones are, and which answer predicted."""
        said = f"{len(self.samples.names)} samples{describe_known(self.samples, self.probabilities, self.inputs)}"
        return said if self.answer is None else f"{said}; answer: {self.answer}, for {ANSWERS[self.answer]}"


def predict_samples(
    folder: str | Path,
    data: str,
    *,
    directory: str | None = None,
    label: str | None = None,
    answer: AnswerKind | None = None,
) -> Predictions:
    """Predict the classes of samples with the model of a folder.

    data: a folder of images, an .npz file, a table, or the name of a data set, whose test samples are used.
    directory: with the files of a named data set. label: the column of a table with the class; by default the one the
    model was trained with, if the table has it. answer: "own", for data like the learner's own, or "common", for
    everybody's; by default the own one, if the folder has it.
    """
    folder = Path(folder)
    model, card = load_split_model(folder)
    if answer is None:
        answer = "own" if card.own_answer_sha256 and (folder / OWN_ANSWER).is_file() else "common"
    check_answer(answer)
    answering = model if answer == "common" else load_own_answer(folder, model, card)
    source = card.trained.get("accuracy_source", "classifier")
    if source != "classifier":
        raise ConfigurationError(
            f"{folder}: the classifier of this model was not trained, since it was learned without labels (its "
            f"accuracy is that of a probe, {source!r}); use its features: load_model(folder).features(inputs)"
        )
    used = answer if card.own_answer_sha256 else None
    samples = read_new_samples(data, card.inputs, directory, label, card.trained.get("label"))
    return Predictions(samples, _outputs(answering, samples.inputs, card.inputs), card.inputs, used)


@torch.no_grad()
def _outputs(model: nn.Module, inputs: np.ndarray, described: InputDescription) -> np.ndarray:
    """What the classifier gives, (n, outputs), whatever the module computes after it."""
    given: Tensor = torch.from_numpy(inputs).to(next(model.parameters()).dtype)
    logits = torch.cat([model(part) for part in torch.split(given, _ROWS)])
    return outputs_of(logits.double(), described).numpy()
