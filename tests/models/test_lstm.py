"""Recurrent models: outputs by definition, in one part and in two, and that they are not stacked."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from consilience import simulate
from consilience.config.config import make_config
from consilience.data import Dataset
from consilience.errors import ConfigurationError
from consilience.methods import build_method
from consilience.models import SplitModel, build_model, model_size
from consilience.models.cut import cut_shape
from consilience.simulation.engines import choose
from consilience.simulation.engines.choose import choose_engine
from consilience.simulation.setup.setup import build_setup

pytestmark = pytest.mark.usefixtures("one_thread")

NAMES = ["lstm", "device-lstm"]


def made(name: str, length: int = 12, classes: int = 9, **settings: Any) -> SplitModel:
    torch.manual_seed(0)
    return build_model(name, (length,), classes, **settings)


def codes(samples: int = 4, length: int = 12, classes: int = 9) -> Tensor:
    return torch.randint(0, classes, (samples, length), generator=torch.Generator().manual_seed(1)).float()


def lstm_by_hand(x: Tensor, state: dict[str, Tensor], layer: str) -> Tensor:
    """An LSTM layer, gate by gate: (n, length, inputs) -> (n, length, width)."""
    weights = [state[name.format(layer)] for name in ("weight_ih_{}", "weight_hh_{}", "bias_ih_{}", "bias_hh_{}")]
    width = weights[1].shape[1]
    h = c = torch.zeros(len(x), width)
    outputs = []
    for place in range(x.shape[1]):
        gates = x[:, place] @ weights[0].T + h @ weights[1].T + weights[2] + weights[3]  # (n, 4 x width)
        enter, forget, cell, out = gates.chunk(4, dim=1)
        c = torch.sigmoid(forget) * c + torch.sigmoid(enter) * torch.tanh(cell)
        h = torch.sigmoid(out) * torch.tanh(c)
        outputs.append(h)
    return torch.stack(outputs, dim=1)


def within(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}


# --- sizes and outputs


@pytest.mark.parametrize(("name", "parameters"), [("lstm", 817_800), ("device-lstm", 637_640)])
def test_parameter_counts_for_shakespeare(name: str, parameters: int) -> None:
    # lstm: 72 x 8; 4 x 256 x (8 + 256 + 2); 4 x 256 x (256 + 256 + 2); 72 x 257. device-lstm: 64 wide between, and
    # 64 x 257 for the linear layer.
    assert model_size(name, (80,), 72) == {"parameters": parameters, "width": 256}
    assert made(name).bound == 1.0


def test_lstm_equals_its_definition() -> None:
    model, x = made("lstm", width=5), codes()
    state = dict(model.state_dict())
    embedded = state["features.characters.weight"][x.long()]  # (4, 12, 8)
    layers = within(state, "features.sequence.lstm.")
    expected = lstm_by_hand(lstm_by_hand(embedded, layers, "l0"), layers, "l1")[:, -1]  # (4, 5)
    torch.testing.assert_close(model.features(x), expected)
    torch.testing.assert_close(model(x), expected @ state["classifier.weight"].T + state["classifier.bias"])


def test_device_lstm_equals_its_definition() -> None:
    model, x = made("device-lstm", width=5), codes()
    state = dict(model.state_dict())
    embedded = state["features.device.characters.weight"][x.long()]
    first = lstm_by_hand(embedded, within(state, "features.device.sequence.lstm."), "l0")  # (4, 12, 256)
    z = first @ state["features.device.narrow.weight"].T + state["features.device.narrow.bias"]  # (4, 12, 64)
    torch.testing.assert_close(model.get_submodule("features.device")(x), z)
    expected = lstm_by_hand(z, within(state, "features.server.sequence.lstm."), "l0")[:, -1]  # (4, 5)
    torch.testing.assert_close(model.features(x), expected)


def test_cut_is_between_device_and_server() -> None:
    model = made("device-lstm")
    assert model.cut == "features.device" and cut_shape(model, (12,), "device-lstm") == (12, 64)
    assert {name.split(".")[1] for name in model.parts["device"]} == {"device"}
    assert {name.split(".")[0] for name in model.parts["server"]} == {"features", "classifier"}
    assert not any(".device." in name for name in model.parts["server"])


@pytest.mark.parametrize("name", NAMES)
def test_features_are_bounded_and_every_parameter_gets_a_gradient(name: str) -> None:
    model, x = made(name), codes(20)
    with torch.no_grad():
        for weight in model.features.parameters():
            weight.mul_(50)
    features = model.features(x)
    assert features.shape == (20, 256) and features.abs().max() <= 1.0
    model = made(name)
    loss = nn.functional.cross_entropy(model(x), torch.arange(20) % 9)
    names, values = zip(*model.named_parameters(), strict=True)
    for key, value in zip(names, torch.autograd.grad(loss, values), strict=True):
        assert value.abs().sum() > 0, key


@pytest.mark.parametrize("name", NAMES)
def test_codes_may_be_floats_or_integers_and_order_matters(name: str) -> None:
    model, x = made(name, width=6).eval(), codes()
    assert torch.equal(model(x), model(x.long())) and not torch.allclose(model(x), model(x.flip(1)))
    torch.testing.assert_close(made(name, width=6).double()(x.double()).float(), model(x))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(1, 28, 28), (4, 9)])
def test_inputs_that_are_not_text_are_refused(name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigurationError, match=f"model '{name}' takes text.*{shape[-1]}"):
        build_model(name, shape, 10)


# --- training


def rhymes() -> Dataset:
    return Dataset.from_text("rhymes", {"ann": "abc " * 60, "bob": "cba " * 60}, length=8, step=3)


@pytest.mark.parametrize("name", NAMES)
def test_stack_engine_is_refused_with_the_name_of_the_lstm_layer(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"model '{name}' reads sequences.*LSTM in 'features.*engine loop"):
        simulate(data=rhymes(), model=name, learners=2, partition="owners", rounds=1, width=4, engine="stack")


@pytest.mark.parametrize("name", ["mlp", "lstm"])
def test_many_small_lstms_use_the_loop(name: str) -> None:
    texts = {f"o{i}": "abc " * 30 for i in range(16)}  # enough learners that perceptrons are stacked
    data = Dataset.from_text("many", texts, length=8, step=20)
    config = make_config({"learners": 16, "partition": "owners", "model": name, "width": 4})
    setup = build_setup(config, build_method("independent"), data, [name])
    assert choose_engine(config, setup) == ("stack" if name == "mlp" else "loop")


@pytest.mark.parametrize(("branches", "engine"), [(False, "loop"), (True, "branches")])
@pytest.mark.parametrize("name", ["mlp", *NAMES])
def test_lstms_on_a_gpu_are_not_stacked_and_the_log_says_so(
    name: str, branches: bool, engine: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choose, "_AUTO_BRANCHES", branches)
    config = make_config({"learners": 2, "partition": "owners", "model": name, "width": 4})
    setup = build_setup(config, build_method("independent"), rhymes(), [name])
    # The choice depends on the requested device, not on an available one.
    with caplog.at_level("INFO", "consilience"):
        assert choose_engine(config.replace(device="cuda"), setup) == ("stack" if name == "mlp" else engine)
    assert (f"using the {engine} engine" in caplog.text and "LSTM in" in caplog.text) == (name != "mlp")


@pytest.mark.parametrize("name", NAMES)
def test_lstm_learns_the_next_character(name: str) -> None:
    result = simulate(
        data=rhymes(),
        model=name,
        learners=2,
        partition="owners",
        rounds=6,
        epochs=5,
        batch_size=8,
        lr=0.005,
        width=16,
        method="fedavg",
        workers=0,
    )
    # The rhymes are reversed: after "abc" comes " " for Ann, and after "cba" for Bob.
    assert result.history.last("accuracy").min() > 95


def test_lstm_refuses_tables() -> None:
    table = torch.randn(40, 6, generator=torch.Generator().manual_seed(0)).numpy()
    data = Dataset.from_arrays("table", table, [0, 1] * 20)
    with pytest.raises(ConfigurationError, match="model 'lstm' reads text, and data set 'table' is not text"):
        simulate(data=data, model="lstm", learners=2, rounds=1)


def test_lstm_refuses_an_alphabet_larger_than_its_classes() -> None:
    data = rhymes()
    fewer = Dataset(
        "vowels", data.inputs, data.targets % 2, data.test_inputs, data.test_targets % 2, 2, alphabet=data.alphabet
    )
    with pytest.raises(ConfigurationError, match=r"knows 2 characters.* 'vowels' has 4"):
        simulate(data=fewer, model="lstm", learners=2, rounds=1)
