"""Checkpoints of Lightning: resuming gives the bits of a training without a stop; interruptions harm nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from consilience.lightning import ConsilienceCallback
from consilience.peer.peer import Peer
from tests.peer_tools import SHARING, batches
from tests.trainer_tools import ALONE, Served, flat, served
from tests.trainers.lightning_tools import BOTH, QUIET, Mine, fit, join, of

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty:UserWarning"),
    *QUIET,
]


class Validated(Mine):
    """Checkpoints of a module with validation are saved before the epoch ends, unless they are told otherwise."""

    def validation_step(self, batch: Any, index: int) -> None:
        self.log("accuracy", (self(batch[0]).argmax(1) == batch[1]).float().mean())


def train(place: Served, build: type[Mine], epochs: int, loss: str, path: Path | None = None) -> tuple[Mine, Peer]:
    """Train to an epoch, from a checkpoint if there is one, in a process that has just started as far as it knows."""
    module = build()
    peer = join(place, module)
    keep = ModelCheckpoint(place.made.folder / "kept", save_last=True, every_n_epochs=1)
    val = of(batches(7)) if build is Validated else None
    found = {"enable_checkpointing": True, "ckpt_path": path, "val": val, "num_sanity_val_steps": 0}
    fit(module, of(batches(0)), ConsilienceCallback(peer, loss=loss), keep, epochs=epochs, **found)
    peer.close()
    return module, peer


@pytest.mark.parametrize("build", [Mine, Validated])
@pytest.mark.parametrize(("method", "loss"), [(SHARING, "module"), (BOTH, "method")], ids=["sharing", "private head"])
def test_resuming_gives_the_bits_of_a_training_without_a_stop(
    tmp_path: Path, build: type[Mine], method: dict[str, Any], loss: str
) -> None:
    found = []
    for stop in (False, True):
        with served(tmp_path / str(stop), method, members=1, rules=ALONE) as place:
            if stop:
                train(place, build, 2, loss)
            last = place.made.folder / "kept" / "last.ckpt" if stop else None
            module, peer = train(place, build, 4, loss, last)
            found.append((flat(module), peer))
    assert torch.equal(found[0][0], found[1][0])
    assert all(map(torch.equal, found[0][1].parameters(), found[1][1].parameters()))
    assert [peer.round for _, peer in found] == [4, 4]
