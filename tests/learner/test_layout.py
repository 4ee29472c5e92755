"""Named tensors in one flat vector: their positions, and views that are not copies."""

from __future__ import annotations

import pytest
import torch

from consilience.learner.layout import Layout

SHAPES = {"kernel": (2, 3, 1, 2), "matrix": (2, 2), "number": (), "none": (0, 4), "row": (3,)}
both_orders = pytest.mark.parametrize("channels_last", [False, True])


def numbered() -> dict[str, torch.Tensor]:
    """Tensors whose values are all different."""
    start, tensors = 0, {}
    for name, shape in SHAPES.items():
        size = torch.Size(shape).numel()
        tensors[name] = torch.arange(start, start + size).reshape(shape)
        start += size
    return tensors


def test_tensors_are_contiguous_in_order() -> None:
    layout = Layout({"a": (2, 2), "b": (), "c": (1,)})
    flat = layout.flat({"c": torch.tensor([6]), "b": torch.tensor(5), "a": torch.tensor([[1, 2], [3, 4]])})
    assert flat.tolist() == [1, 2, 3, 4, 5, 6]  # in the layout's order
    assert layout.size == 6
    assert {k: v.tolist() for k, v in layout.views(flat).items()} == {"a": [[1, 2], [3, 4]], "b": 5, "c": [6]}


@both_orders
def test_views_return_the_original_tensors(channels_last: bool) -> None:
    layout, tensors = Layout(SHAPES, channels_last), numbered()
    flat = layout.flat(tensors)
    assert sorted(flat.tolist()) == list(range(layout.size)) == list(range(20))
    for name, view in layout.views(flat).items():
        assert torch.equal(view, tensors[name]), name


def test_channels_last_stores_kernel_channels_innermost() -> None:
    kernel = torch.arange(12).reshape(2, 3, 1, 2)  # outputs, inputs, height, width
    assert Layout({"k": (2, 3, 1, 2)}, channels_last=True).flat({"k": kernel}).tolist() == [
        *(0, 2, 4, 1, 3, 5),
        *(6, 8, 10, 7, 9, 11),
    ]
    view = Layout({"k": (2, 3, 1, 2)}, channels_last=True).views(torch.arange(12))["k"]
    assert view.is_contiguous(memory_format=torch.channels_last)


@both_orders
def test_views_are_not_copies(channels_last: bool) -> None:
    layout = Layout(SHAPES, channels_last)
    flat = torch.zeros(layout.size)
    views = layout.views(flat)
    views["kernel"][1, 2, 0, 1] = 7.0
    views["number"].fill_(5.0)
    views["row"] += 1.0
    assert flat.sum() == 7 + 5 + 3
    flat.zero_()
    assert not any(view.any() for view in views.values())


@both_orders
def test_row_of_a_stacked_matrix_is_a_model(channels_last: bool) -> None:
    layout, stacked = Layout(SHAPES, channels_last), torch.zeros(3, 20)
    layout.views(stacked[1])["matrix"].fill_(2.0)
    assert stacked.sum(1).tolist() == [0.0, 8.0, 0.0]


@both_orders
def test_mask_marks_the_values_of_the_given_names(channels_last: bool) -> None:
    layout = Layout(SHAPES, channels_last)
    mask = layout.mask({"matrix", "none", "row", "somebody else's"})
    assert mask.dtype == torch.bool
    marked = {name: bool(view.all()) for name, view in layout.views(mask).items() if view.numel()}
    assert marked == {"kernel": False, "matrix": True, "number": False, "row": True}
    assert int(mask.sum()) == 7


def test_empty_layout_is_valid() -> None:
    layout = Layout({})
    assert (layout.size, layout.flat({}).numel(), layout.views(torch.empty(0))) == (0, 0, {})
    mask = layout.mask({"a"})
    assert (mask.dtype, mask.numel()) == (torch.bool, 0)
