"""A model in a wrapper, compiled or of torch.nn.parallel: one copy is as the module itself, several are refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from consilience.errors import ConfigurationError
from tests.peer_tools import SHARING, batches, federation
from tests.relay_tools import serving
from tests.trainer_tools import Net

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("how", ["wrapper", "given to join", "in place", "one device", "one process"])
def test_a_model_in_a_wrapper_has_the_bits_of_the_module_itself(tmp_path: Path, how: str) -> None:
    found = []
    for wrapped in (False, True):
        with federation(tmp_path / str(wrapped), SHARING, 1) as made, serving(made.store) as running:
            model: nn.Module = Net()
            with wrapper(model, how if wrapped else "", tmp_path) as called:
                given = model if how in ("wrapper", "in place") else called
                with made.join(running.url, 0, given) as peer:
                    assert peer.model is model
                    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                    for _ in range(2):
                        for inputs, targets in batches(1):
                            called(inputs)
                            optimizer.zero_grad()
                            (peer.loss(targets) + peer.penalty(targets)).backward()  # type: ignore[no-untyped-call]
                            optimizer.step()
                        assert peer.share(batches(1))
            found.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    torch.testing.assert_close(*found)


@contextmanager
def wrapper(model: nn.Module, how: str, folder: Path) -> Iterator[Any]:
    """The model as its loop calls it."""
    if how == "in place":
        model.compile(backend="eager")
    if how != "one process":
        plain: dict[str, Any] = {"one device": nn.DataParallel(model), "": model, "in place": model}
        yield plain[how] if how in plain else torch.compile(model, backend="eager")
        return
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder / 'group'}", rank=0, world_size=1)
    try:
        yield nn.parallel.DistributedDataParallel(model)
    finally:
        torch.distributed.destroy_process_group()


def test_copies_on_several_devices_or_in_several_processes_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with federation(tmp_path, SHARING, 1) as made, serving(made.store) as running:
        on_two = nn.DataParallel(Net())
        on_two.device_ids = [0, 1]
        with pytest.raises(ConfigurationError, match=r"runs on 2 devices, .*model=model\.module\)"):
            made.join(running.url, 0, on_two)
        with wrapper(Net(), "one process", tmp_path) as called:
            monkeypatch.setattr(torch.distributed, "get_world_size", lambda group: 2)
            with pytest.raises(ConfigurationError, match=r"runs in 2 processes, .*let each process join as a member"):
                made.join(running.url, 0, called)
