"""The record of the newest forward pass: when it is made and dropped, what it holds alive, and what is refused."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import weakref

import pytest
import torch
from torch import Tensor, nn

from consilience.errors import ConfigurationError
from consilience.peer.forward_record import ForwardRecord, not_recorded

TARGETS = torch.tensor([0, 1])
X = torch.arange(8.0).reshape(2, 4)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.fc = nn.Linear(4, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.fc(input=self.body(x))
        return logits.softmax(-1)


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net()


@pytest.fixture
def record(net: Net) -> ForwardRecord:
    return ForwardRecord(net.fc, "fc")


def test_features_and_logits_are_of_the_newest_pass_with_gradients(net: Net, record: ForwardRecord) -> None:
    net(X + 1)
    net(X)
    with torch.no_grad():
        net(X[:1])
    with torch.inference_mode():
        net(X[:1])
    with not_recorded(net.fc):
        net.fc(torch.zeros(5, 3))
    features, logits = record.use("penalty", TARGETS)
    assert torch.equal(features, net.body(X)) and torch.equal(logits, net.fc(net.body(X)))
    assert features.requires_grad and logits.requires_grad


@pytest.mark.parametrize("calls", [("loss", "penalty"), ("penalty", "loss")])
def test_one_pass_serves_one_loss_and_one_penalty_in_either_order(
    net: Net, record: ForwardRecord, calls: tuple[str, str]
) -> None:
    for _ in range(2):
        net(X)
        first, second = (record.use(call, TARGETS) for call in calls)
        assert first[0] is second[0] and first[1] is second[1]
        for call in calls:
            with pytest.raises(ConfigurationError, match=rf"peer\.{call}\(targets\) was called twice.*torch.no_grad"):
                record.use(call, TARGETS)


def test_without_a_pass_the_way_out_is_named(net: Net, record: ForwardRecord) -> None:
    with torch.no_grad():
        net(X)
    said = r"'fc' was not called.*Call the model before penalty, outside of torch\.no_grad\(\).*join\(\.\.\., layer="
    with pytest.raises(ConfigurationError, match=said):
        record.use("penalty", TARGETS)
    net(X)
    record.drop()
    with pytest.raises(ConfigurationError, match=said):
        record.use("penalty", TARGETS)


def test_other_numbers_of_rows_are_refused(net: Net, record: ForwardRecord) -> None:
    net(X[:1])
    net(X[:1])
    said = r"'fc' read 1 rows .* last forward pass, and penalty was given 2 targets.*after each.*, peer\.penalty"
    with pytest.raises(ConfigurationError, match=said):
        record.use("penalty", TARGETS)
    net(torch.zeros(2, 5, 4))
    said = r"features of the shape \(2, 5, 3\) for targets of the shape \(2,\).*each position of a sequence.*pool"
    with pytest.raises(ConfigurationError, match=said):
        record.use("loss", TARGETS)
    net(X)
    with pytest.raises(ConfigurationError, match=r"read 2 rows .* was given one targets"):
        record.use("penalty", torch.tensor(1))
    record.use("penalty", TARGETS)  # a refusal has not used it up


def test_nothing_of_a_used_pass_stays_alive(net: Net, record: ForwardRecord) -> None:
    net(X)
    features = record.use("loss", TARGETS)[0]
    node = weakref.ref(features)
    record.use("penalty", TARGETS)
    del features
    gc.collect()
    assert node() is None
    net(X)
    before = weakref.ref(record.use("penalty", TARGETS)[0])
    net(X)  # replaces it
    gc.collect()
    assert before() is None


def test_copies_and_pickles_of_the_model_know_nothing_of_the_record(net: Net, record: ForwardRecord) -> None:
    keys = list(net.state_dict())
    net(X)
    for copied in (copy.deepcopy(net), pickle.loads(pickle.dumps(net)), _saved_and_loaded(net)):
        assert list(copied.state_dict()) == keys == ["body.weight", "body.bias", "fc.weight", "fc.bias"]
        assert torch.equal(copied(X), net(X))
        copied(X[:1])
        record.use("penalty", TARGETS)  # still two rows
    assert b"consilience" not in pickle.dumps(net.fc)  # whoever loads it needs no library
    record.close()
    assert not net.fc._forward_hooks


def _saved_and_loaded(net: Net) -> Net:
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    loaded: Net = torch.load(file, weights_only=False)
    return loaded


def test_compiled_models_are_recorded(net: Net, record: ForwardRecord) -> None:
    compiled = torch.compile(net, backend="eager", fullgraph=True)
    for step in range(12):
        compiled(X + step)
        features, logits = record.use("penalty", TARGETS)
        torch.testing.assert_close(features, net.body(X + step))
        assert features.requires_grad and logits.grad_fn is not None
