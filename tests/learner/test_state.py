"""The state of a learner, single and stacked: rows, copies, and its form as dictionaries."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import vmap

from consilience.learner.state import LearnerState, stacked_shapes


def single(value: float = 1.0) -> LearnerState:
    return LearnerState(
        parameters=torch.full((3,), value),
        buffers=torch.full((2,), value),
        step=torch.tensor(int(value)),
        other_buffers={"int64": torch.tensor([int(value)])},
        optimizer={"first": torch.full((3,), value)},
        exchange_state={"a.b": {"x": torch.tensor(value)}, "c": {}},
        residuals={"weights": {"features.0.weight": torch.full((2, 2), value)}},
        settings={"optimizer": {"lr": torch.tensor(value)}},
    )


def stacked(*values: float) -> LearnerState:
    rows = [single(value).flatten() for value in values]
    return LearnerState.unflatten({path: torch.stack([row[path] for row in rows]) for path in rows[0]})


def test_flat_and_nested_forms_hold_the_same_tensors() -> None:
    state = single()
    flat = state.flatten()
    assert list(flat) == [
        ("parameters",),
        ("buffers",),
        ("step",),
        ("other_buffers", "int64"),
        ("optimizer", "first"),
        ("exchange_state", "a.b", "x"),
        ("residuals", "weights", "features.0.weight"),
        ("settings", "optimizer", "lr"),
    ]
    again = LearnerState.unflatten(flat).flatten()
    assert all(again[path] is tensor for path, tensor in flat.items())
    assert LearnerState.from_dict(state.as_dict()).as_dict() == state.as_dict()
    assert state.tensors() == list(flat.values())


def test_rows_are_views_and_copies_are_not() -> None:
    state = stacked(1.0, 2.0, 3.0)
    assert len(state) == 3
    state.row(1).parameters.fill_(9.0)
    state.rows(slice(2, 3)).residuals["weights"]["features.0.weight"].fill_(8.0)
    assert state.parameters[:, 0].tolist() == [1.0, 9.0, 3.0]
    assert state.residuals["weights"]["features.0.weight"][:, 0, 0].tolist() == [1.0, 2.0, 8.0]
    chosen = state.select(torch.tensor([2, 0]))
    chosen.parameters.zero_()
    state.clone().step.zero_()
    assert state.step.tolist() == [1, 2, 3] and state.parameters[0, 0] == 1.0


def test_rows_are_replaced_in_place() -> None:
    state = stacked(1.0, 2.0, 3.0)
    before = state.tensors()
    state.replace_rows(torch.tensor([2, 0]), stacked(5.0, 6.0))
    assert state.step.tolist() == [6, 2, 5] and state.settings["optimizer"]["lr"].tolist() == [6.0, 2.0, 5.0]
    state.copy_(stacked(7.0, 8.0, 9.0))
    assert state.step.tolist() == [7, 8, 9] and all(a is b for a, b in zip(before, state.tensors(), strict=True))


def test_shapes_of_a_stack() -> None:
    shapes = stacked_shapes(single(), 5)
    assert shapes["parameters",] == ((5, 3), torch.float32) and shapes["step",] == ((5,), torch.int64)
    empty = stacked(1.0, 2.0).stacked_empty(4, torch.device("cpu"))
    assert {path: tuple(t.shape) for path, t in empty.flatten().items()} == {
        path: shape for path, (shape, _) in stacked_shapes(single(), 4).items()
    }


def test_state_works_under_vmap() -> None:
    state = stacked(1.0, 2.0)

    def add(nested: dict[str, object]) -> Tensor:
        row = LearnerState.from_dict(nested)
        row.exchange_state["a.b"]["x"].add_(row.parameters.sum())
        return row.step * 10

    assert vmap(add)(state.as_dict()).tolist() == [10, 20]
    assert state.exchange_state["a.b"]["x"].tolist() == [4.0, 8.0]
