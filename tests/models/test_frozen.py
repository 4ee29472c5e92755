"""Which tensors of a model are frozen, and which layers stay in evaluation mode."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from consilience import simulate, split
from consilience.data import load
from consilience.errors import ConfigurationError
from consilience.exchanges import Weights
from consilience.models.frozen import frozen_names, frozen_norms
from consilience.task import Task


def frozen_layer(inputs: int, outputs: int) -> nn.Module:
    return nn.Linear(inputs, outputs).requires_grad_(False)


STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def test_statistics_of_a_norm_without_parameters_are_frozen_where_all_around_it_is() -> None:
    norm: Any = nn.BatchNorm1d(3, affine=False)
    backbone = nn.Sequential(frozen_layer(4, 3), norm)
    model = nn.Sequential(backbone, nn.Linear(3, 2))
    assert frozen_names(model) == {"0.0.weight", "0.0.bias", *(f"0.1.{name}" for name in STATISTICS)}
    assert list(frozen_norms(model)) == [norm]


def test_statistics_of_a_norm_between_frozen_and_trained_layers_are_trained() -> None:
    model = nn.Sequential(frozen_layer(4, 3), nn.BatchNorm1d(3, affine=False), nn.Linear(3, 2))
    assert frozen_names(model) == {"0.weight", "0.bias"}
    assert not list(frozen_norms(model))


def test_a_norm_that_is_trained_in_part_is_trained() -> None:
    norm = nn.BatchNorm1d(3)
    norm.weight.requires_grad_(False)
    assert frozen_names(norm) == {"weight"} and not list(frozen_norms(norm))


def test_other_buffers_are_frozen_with_any_parameter_of_their_module() -> None:
    """Such as positions and frequencies of a backbone to which adapters were added: they do not change."""
    model = nn.Sequential(frozen_layer(4, 3), nn.Linear(3, 2))
    model.register_buffer("frequencies", torch.ones(2))
    assert "frequencies" in frozen_names(model)
    assert not frozen_names(model.requires_grad_(True))


def test_a_norm_beside_frozen_layers_normalizes() -> None:
    """Its statistics move in training: with those of the start it would do nothing."""

    def network() -> nn.Module:
        return nn.Sequential(
            nn.Flatten(), nn.Linear(64, 6).requires_grad_(False), nn.BatchNorm1d(6, affine=False), nn.Linear(6, 6),
            nn.Tanh(), nn.Linear(6, 10),
        )  # fmt: skip

    data = load("digits", train=60, test=20)
    found: Any = simulate(method="fedavg", data=data, model=network, learners=2, rounds=2, workers=0).model(learner=0)
    assert found[2].running_mean.abs().min() > 0 and not torch.equal(found[2].running_var, torch.ones(6))


@pytest.mark.parametrize(
    ("frozen", "said"), [({"a", "b"}, "unfreeze some, or train adapters beside them$"), ({"a"}, "what is trained: b$")]
)
def test_a_part_without_anything_trained_names_what_is(frozen: set[str], said: str) -> None:
    task = Task(3, 2, parameters={"a": (2,), "b": (2,)}, frozen=frozenset(frozen))
    with pytest.raises(ConfigurationError, match=said):
        Weights(part="a").channel(task)


# Classifiers with adapters


class Added(nn.Module):
    """A layer with an adapter, as peft makes it."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.base_layer = layer.requires_grad_(False)
        self.lora_A = nn.ModuleDict({"default": nn.Linear(layer.in_features, 2, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(2, layer.out_features, bias=False)})

    def forward(self, x: torch.Tensor) -> Any:
        return self.base_layer(x) + self.lora_B["default"](self.lora_A["default"](x))


def adapted_network() -> nn.Module:
    model = nn.Sequential()
    model.add_module("dense", Added(nn.Linear(4, 8)))
    model.add_module("score", Added(nn.Linear(8, 3)))
    return model


@pytest.mark.parametrize("at", [None, "score", "score.base_layer", "score.lora_B.default"])
def test_a_classifier_with_an_adapter_is_no_linear_layer(at: str | None) -> None:
    """Else one matrix of the adapter, or the layer without it, would pass for the classifier."""
    with pytest.raises(ConfigurationError, match="one part of 'score', to which an adapter was added") as refused:
        split(adapted_network(), at=at)
    assert "LoraConfig(modules_to_save=['score']) of peft" in str(refused.value)


def test_a_classifier_after_layers_with_adapters_is_one() -> None:
    model = adapted_network()
    model.add_module("score", nn.Linear(8, 3))
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(split(model)(x), model(x)) and split(model).width == 8


@pytest.mark.parametrize("layer", [None, "base_model.model.1.modules_to_save.default"])
def test_a_classifier_that_peft_has_wrapped_is_found(layer: str | None) -> None:
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(
        nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3)),
        peft.LoraConfig(r=2, target_modules=["0"], modules_to_save=["1"]),
    )
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    divided = split(model, at=layer)
    assert torch.equal(divided(x), model(x))
    assert sum(p.numel() for p in divided.parameters() if p.requires_grad) == 4 * 2 + 2 * 8 + 8 * 3 + 3
    with pytest.raises(ConfigurationError, match=r"is a ModulesToSaveWrapper.*Linear: .*1\.modules_to_save\.default$"):
        split(model, at="base_model.model.1")
