"""Learners whose models take several inputs: both engines, stopping, files, exports and errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from consilience import Result, load_model, simulate
from consilience.errors import ConfigurationError
from consilience.models import SplitModel, cut, split

TOKENS, LENGTH = 12, 6


class MaskedMean(nn.Module):
    """Embeds tokens, averages those of the mask, and classifies."""

    def __init__(self, tokens: int = TOKENS, width: int = 8) -> None:
        super().__init__()
        self.embedding, self.hidden, self.fc = nn.Embedding(tokens, width), nn.Linear(width, width), nn.Linear(width, 2)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """(n, length), (n, length) -> (n, 2)."""
        assert (input_ids.dtype, attention_mask.dtype) == (torch.int64, torch.bool)
        mask = attention_mask[..., None].to(self.embedding.weight.dtype)
        mean = (self.embedding(input_ids) * mask).sum(1) / mask.sum(1).clamp(min=1)
        logits: Tensor = self.fc(torch.tanh(self.hidden(mean)))
        return logits


class Both(nn.Module):
    """Classifies an image together with a row of a table, given by position."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(1, 3, 3), nn.Linear(3 + 2, 2)

    def forward(self, image: Tensor, row: Tensor) -> Tensor:
        """(n, 1, 5, 5), (n, 2) -> (n, 2)."""
        seen = torch.tanh(self.conv(image)).mean((2, 3))
        logits: Tensor = self.fc(torch.cat([seen, torch.tanh(row)], dim=1))
        return logits


def token_arrays(samples: int = 90) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Sequences whose class is that of most tokens inside of the mask."""
    generator = np.random.default_rng(7)
    targets = np.arange(samples) % 2
    low = generator.integers(1, 7, (samples, LENGTH)) + 5 * (
        targets[:, None] * (generator.random((samples, LENGTH)) < 0.9)
    )
    mask = np.arange(LENGTH) < generator.integers(2, LENGTH + 1, samples)[:, None]
    return {"input_ids": np.where(mask, low, 0), "attention_mask": mask}, targets


def both_arrays(samples: int = 60) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
    generator = np.random.default_rng(8)
    targets = np.arange(samples) % 2
    images = generator.integers(0, 100, (samples, 5, 5, 1)) + 100 * (targets[:, None, None, None])
    return (images.astype(np.uint8), generator.normal(size=(samples, 2)) + targets[:, None]), targets


SETTINGS: dict[str, Any] = {"learners": 3, "rounds": 3, "workers": 0, "epochs": 2, "batch_size": 8, "lr": 0.01}


def run(**settings: Any) -> Result:
    given: dict[str, Any] = {"data": token_arrays(), "model": MaskedMean} | SETTINGS | settings
    return simulate(**given)


def agree(loop: Result, stack: Result) -> None:
    np.testing.assert_allclose(loop.history["accuracy"][-1], stack.history["accuracy"][-1], rtol=1e-9)
    for learner in range(3):
        mine, theirs = (each.model(learner).state_dict() for each in (loop, stack))
        for name, tensor in mine.items():
            np.testing.assert_allclose(tensor, theirs[name], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("method", ["fedavg", "consilience", "representation-sharing"])
@pytest.mark.parametrize(
    ("data", "model"),
    [(token_arrays(), MaskedMean), (both_arrays(), Both)],
    ids=["dictionary", "tuple"],
)
def test_loop_and_stack_agree(method: str, data: Any, model: Any) -> None:
    settings = {"model": model, "data": data, "method": method, "precision": "float64", "partition": "dirichlet(1)"}
    agree(*(run(engine=engine, **settings) for engine in ("loop", "stack")))


def test_loop_and_stack_agree_on_a_model_that_is_cut() -> None:
    def build() -> SplitModel:
        return cut(MaskedMean(), at="hidden")

    # Adam would turn the rounding of tokens that never occur into whole steps.
    settings = {"model": build, "method": "two-stage", "precision": "float64", "optimizer": "sgd"}
    agree(*(run(engine=engine, **settings) for engine in ("loop", "stack")))


def test_it_learns_and_the_model_is_the_user_s_own() -> None:
    result = run(rounds=8)
    assert result.history["accuracy"][-1].min() > 85
    model = result.model(0)
    assert type(model) is MaskedMean
    assert list(model.state_dict()) == list(MaskedMean().state_dict())
    fields, targets = token_arrays()
    logits = model(**{name: torch.from_numpy(values) for name, values in fields.items()})
    assert (logits.argmax(1).numpy() == targets).mean() > 0.85


def test_worker_processes_give_the_same_bits(tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    file.write_text(NET)
    alone, together = (run(model=f"{file}:net@fc", workers=workers, engine="loop") for workers in (0, 2))
    for name, tensor in alone.model(0).state_dict().items():
        assert torch.equal(tensor, together.model(0).state_dict()[name])


def test_stopped_and_resumed_gives_the_same_bits(tmp_path: Path) -> None:
    whole = run(model=MaskedMean, method="consilience", out=tmp_path / "whole")

    def stop(method: str, round_: int, rounds: int, history: Any) -> None:
        if round_ == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(model=MaskedMean, method="consilience", out=tmp_path / "part", on_round=stop)
    again = simulate(resume=tmp_path / "part", data=token_arrays(), model=MaskedMean)
    for name, tensor in whole.model(0).state_dict().items():
        assert torch.equal(tensor, again.model(0).state_dict()[name])


NET = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, tokens, width, classes):
        super().__init__()
        self.embedding, self.fc = nn.Embedding(tokens, width), nn.Linear(width, classes)

    def forward(self, input_ids, attention_mask):
        mask = attention_mask[..., None].to(self.embedding.weight.dtype)
        return self.fc(torch.tanh((self.embedding(input_ids) * mask).sum(1)))


def net(shape, num_classes, width=8):
    assert shape["input_ids"] == (6,), shape
    return Net(12, width, num_classes)
"""


def test_a_model_of_a_file_is_exported_loaded_and_predicts(tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    file.write_text(NET)
    result = run(model=f"{file}:net@fc", out=tmp_path / "run")
    model = Result.load(tmp_path / "run").model(1)
    for name, tensor in result.model(1).state_dict().items():
        assert torch.equal(tensor, model.state_dict()[name])
    result.export(tmp_path / "exported", learner=1)
    loaded = load_model(tmp_path / "exported")
    fields = {name: torch.from_numpy(values) for name, values in token_arrays()[0].items()}
    assert torch.equal(loaded(**fields), model(**fields))


class TooFew(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(LENGTH, 2)

    def forward(self, input_ids: Tensor) -> Tensor:
        logits: Tensor = self.fc(input_ids.float())
        return logits


class TooMany(MaskedMean):
    def forward(  # type: ignore[override]
        self, input_ids: Tensor, attention_mask: Tensor, position: Tensor | None = None, *, more: Tensor
    ) -> Tensor:
        return super().forward(input_ids, attention_mask)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"model": TooFew}, r"forward of TooFew takes input_ids, .*does not take 'attention_mask'; name fields as"),
        (
            {"model": TooMany},
            r"forward of TooMany takes .*'more' is missing; add it to the data, or give",
        ),
        ({"model": TooFew, "data": both_arrays()}, r"forward of TooFew takes input_ids, .*does not take '1'"),
        ({"model": "mlp"}, r"model 'mlp' takes one array, and the data has several fields, .*such as net.py:Net@fc"),
        ({"model": None}, r"model 'mlp' takes one array"),
        ({"augment": "crop"}, r"augment .* fields input_ids .*; leave it out, or augment"),
        ({"shift": "rotate(60)"}, r"shift 'rotate' changes the values of inputs, .*input_ids .*use a shift of labels"),
        ({"method": "independent", "objective": "simclr"}, r"simclr.* fields"),
    ],
)
def test_what_fields_cannot_do_is_refused(settings: dict[str, Any], said: str) -> None:
    objective = settings.pop("objective", None)
    if objective:
        settings = settings | {"method": f"independent:objective={objective}"}
    with pytest.raises(ConfigurationError, match=said):
        run(**settings)


def test_the_module_that_splits_a_model_takes_fields_and_rows() -> None:
    inner = MaskedMean()
    whole: SplitModel = split(inner)
    fields, _ = token_arrays(4)
    tensors = {name: torch.from_numpy(values) for name, values in fields.items()}
    assert torch.equal(whole(**tensors), inner(**tensors))


def test_own_features_and_classifier_take_the_fields() -> None:
    class Features(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(TOKENS, 4)

        def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
            return torch.tanh((self.embedding(input_ids) * attention_mask[..., None]).sum(1))

    loop, stack = (
        run(model=lambda: SplitModel(Features(), nn.Linear(4, 2), 1.0), engine=engine, precision="float64")
        for engine in ("loop", "stack")
    )
    for name, tensor in loop.model(2).state_dict().items():
        np.testing.assert_allclose(tensor, stack.model(2).state_dict()[name], rtol=1e-9)
    assert set(loop.model(2).state_dict()) == {"features.embedding.weight", "classifier.weight", "classifier.bias"}
