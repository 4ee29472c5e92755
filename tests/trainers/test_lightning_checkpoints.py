"""Checkpoints of Lightning: resuming gives the bits of a training without a stop; interruptions harm nothing."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from consilience.errors import CheckpointError
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


def train(
    place: Served, build: type[Mine], epochs: int, loss: str, path: Path | None = None, member: int = 0
) -> tuple[Mine, Peer]:
    """Train to an epoch, from a checkpoint if there is one, in a process that has just started as far as it knows."""
    module = build()
    peer = join(place, module, member)
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


def test_a_checkpoint_has_the_private_head_and_another_member_s_is_refused(tmp_path: Path) -> None:
    with served(tmp_path, BOTH, rules=ALONE) as place:
        _, peer = train(place, Mine, 1, "method")
        path = place.made.folder / "kept" / "last.ckpt"
        state = torch.load(path, weights_only=True)["callbacks"]["ConsilienceCallback"]
        assert (state["federation"], state["member"]) == ("small", "m0")
        assert all(map(torch.equal, state["modules"]["cross_entropy"].values(), peer.parameters()))
        message = "of member 'm0' in federation 'small', and the peer is 'm1' in 'small'; join with the token"
        with pytest.raises(CheckpointError, match=message):
            train(place, Mine, 2, "method", path, member=1)


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_interrupted_training_leaves_module_and_folder_as_after_the_last_upload(
    tmp_path: Path, error: type[BaseException]
) -> None:
    class Stops(Mine):
        def training_step(self, batch: Any, index: int) -> Any:
            if self.current_epoch == 2 and index == 1:
                raise error
            return super().training_step(batch, index)

    with served(tmp_path, SHARING, members=1, rules=ALONE) as place:
        module = Stops()
        peer = join(place, module)
        with pytest.raises((SystemExit, error)):  # Lightning ends the program after Ctrl-C
            fit(module, of(batches(0)), ConsilienceCallback(peer))
        assert "training_step" not in vars(module)
        assert peer.round == place.made.round_of(0) == 2 and not peer.waiting
        peer.close()
        again = Mine()
        peer = join(place, again)
        fit(again, of(batches(0)), ConsilienceCallback(peer), epochs=1)
        assert peer.round == place.made.round_of(0) == 3


def test_training_continues_while_the_relay_is_away(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with served(tmp_path, SHARING, members=1, rules=ALONE) as place:
        module = Mine()
        peer = join(place, module, timeout=0.5)
        place.relay.kill()
        before = flat(module)
        trainer = fit(module, of(batches(0)), ConsilienceCallback(peer))
    assert trainer.current_epoch == 3 and not torch.equal(flat(module), before)
    metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
    expected = {"penalty": 0, "refreshed": 0, "acknowledged": 0, "round": 3}
    assert metrics == {f"consilience/{name}": value for name, value in expected.items()} and peer.waiting
    levels = [record.levelno for record in caplog.records if record.name == "consilience.peer"]
    assert levels[0] == logging.WARNING and set(levels[1:]) <= {logging.INFO}  # later attempts are not warned of again
