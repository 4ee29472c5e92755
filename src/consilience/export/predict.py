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
from consilience.export.card import OWN_ANSWER
from consilience.export.load import check_answer, load_own_answer, load_split_model
from consilience.export.samples import NamedSamples, read_new_samples
from consilience.task import AnswerKind

ANSWERS = {"common": "everybody's data", "own": "data like the learner's own"}
"""What each answer is for."""
_ROWS = 256  # samples in one forward pass


@dataclass(frozen=True, eq=False)  # comparing by value would compare whole arrays
class Predictions:
    """The probability of each class for each sample, and the samples' names and labels."""

    samples: NamedSamples
    probabilities: np.ndarray  # (n, classes)
    class_names: list[str]
    answer: AnswerKind | None = None
    """The one that predicted, of a model that has two."""

    @property
    def predicted(self) -> list[str]:
        """The most probable class of each sample."""
        return [self.class_names[number] for number in self.probabilities.argmax(1)]

    def csv(self) -> str:
        """One line for each sample: its name, the predicted class, that class's probability, and the label if known."""
        written = io.StringIO()
        table = csv.writer(written, lineterminator="\n")
        labels = self.samples.labels
        table.writerow(["sample", "predicted", "probability", *(["label"] if labels else [])])
        for i, (name, predicted) in enumerate(zip(self.samples.names, self.predicted, strict=True)):
            row = [name, predicted, f"{self.probabilities[i].max():.6f}"]
            table.writerow([*row, labels[i]] if labels else row)
        return written.getvalue()

    def describe(self) -> str:
        """How many samples there are, how many predictions agree with their labels, and which answer predicted."""
        count, labels = len(self.samples.names), self.samples.labels
        known = [(label, predicted) for label, predicted in zip(labels, self.predicted, strict=False) if label]
        said = f"{count} samples"
        if known:
            correct = sum(label == predicted for label, predicted in known)
            said += f", {100 * correct / len(known):.2f} % of {len(known)} labels predicted correctly"
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
    return Predictions(samples, _probabilities(answering, samples.inputs), card.inputs.class_names, used)


@torch.no_grad()
def _probabilities(model: nn.Module, inputs: np.ndarray) -> np.ndarray:
    """(n, classes), from the logits of the classifier, whatever the module computes after it."""
    given: Tensor = torch.from_numpy(inputs).to(next(model.parameters()).dtype)
    logits = torch.cat([model(part) for part in torch.split(given, _ROWS)])
    found: np.ndarray = logits.double().softmax(1).numpy()
    return found
