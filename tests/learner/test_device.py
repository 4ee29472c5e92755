"""A device without float64, as Apple's GPU is: the CPU in its place, with every float64 in a learner's work refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from consilience import simulate
from consilience.errors import ConfigurationError
from consilience.learner.device import seeded, state_device, widest_float
from consilience.learner.session import LearnerSession
from consilience.wire import encodings

pytestmark = pytest.mark.usefixtures("one_thread")
SMALL: dict[str, Any] = {"learners": 3, "rounds": 2, "train": 60, "test": 20, "workers": 0}


class WithoutFloat64(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses operations with a float64 result, except of numbers made by NumPy, which are there before they move."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if function is torch.ops.aten.lift_fresh.default:
            return result
        for each in result if isinstance(result, tuple | list) else (result,):
            if isinstance(each, torch.Tensor) and each.dtype == torch.float64:
                raise TypeError(f"{function} in float64")
        return result


@pytest.fixture
def no_float64(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(encodings, "WITHOUT_FLOAT64", encodings.WITHOUT_FLOAT64)
    encodings.WITHOUT_FLOAT64.add("cpu")
    for name in ("train", "upload", "receive", "evaluate"):
        monkeypatch.setattr(LearnerSession, name, refusing(getattr(LearnerSession, name)))
    yield
    encodings.WITHOUT_FLOAT64.remove("cpu")


def refusing(work: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(work)
    def done(*args: Any, **named: Any) -> Any:
        with WithoutFloat64():  # type: ignore[no-untyped-call]
            return work(*args, **named)

    return done


@pytest.mark.parametrize("method", ["consilience", "fedavg", "representation-sharing", "two-stage"])
def test_a_learner_s_work_needs_no_float64(method: str, no_float64: None) -> None:
    more: dict[str, Any] = {"augment": "crop+flip", "optimizer": "adamw", "clip": 1.0, "metrics": "f1"}
    found = simulate(method=method, **SMALL, **more)
    assert widest_float(torch.device("cpu")) == torch.float32
    assert np.isfinite(found.history["accuracy"]).all() and found.engine == "loop"


def test_the_same_run_gives_nearly_the_same_numbers(request: pytest.FixtureRequest) -> None:
    usual = simulate(method="fedavg", **SMALL).history["loss.cross_entropy"]
    request.getfixturevalue("no_float64")
    np.testing.assert_allclose(simulate(method="fedavg", **SMALL).history["loss.cross_entropy"], usual, rtol=1e-5)


@pytest.mark.parametrize(
    ("settings", "said"),
    [({"engine": "stack"}, "runs on the loop engine only"), ({"precision": "float64"}, "does not have; use cpu")],
)
def test_what_it_cannot_do_is_refused(settings: dict[str, Any], said: str, no_float64: None) -> None:
    with pytest.raises(ConfigurationError, match=said):
        simulate(method="fedavg", **SMALL, **settings)


def test_a_refusal_can_fail(no_float64: None) -> None:
    with pytest.raises(TypeError, match="float64"), WithoutFloat64():  # type: ignore[no-untyped-call]
        torch.zeros(2).double()


@pytest.mark.skipif(torch.backends.mps.is_available(), reason="there is such a device")
def test_a_machine_without_such_a_device_refuses_it() -> None:
    with pytest.raises(ConfigurationError, match="it is for a Mac with an Apple GPU; use cpu"):
        simulate(method="fedavg", device="mps", **SMALL)
    assert state_device(torch.device("mps")) == torch.device("cpu")


def test_random_numbers_follow_the_seed_and_are_as_before_afterward() -> None:
    before = torch.default_generator.get_state()
    with seeded(torch.device("cpu"), 3):
        first = torch.rand(2)
    with seeded(torch.device("cpu"), 3):
        assert torch.rand(2).equal(first)
    assert torch.default_generator.get_state().equal(before)
