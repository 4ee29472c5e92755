"""What a Lightning trainer cannot do in a federation is refused before it trains, with what to do instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from torch.nn.functional import cross_entropy

from consilience.errors import ConfigurationError
from consilience.lightning import ConsilienceCallback
from tests.peer_tools import SHARING, batches
from tests.trainer_tools import Served, flat, served
from tests.trainers.lightning_tools import QUIET, Mine, fit, join, of

pytestmark = [pytest.mark.usefixtures("one_thread"), *QUIET]


class ByHand(Mine):
    """Steps its optimizer itself."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False


class TwoOptimizers(ByHand):
    """Has several optimizers, which Lightning has stepped by hand."""

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(part.parameters(), lr=0.1) for part in (self.net.body, self.net.fc)]


def refused(place: Served, module: Mine, match: str, loader: Any = None, **more: Any) -> None:
    """A fit is refused, and nothing has changed."""
    before = flat(module)
    callback = ConsilienceCallback(more.pop("peer", None) or join(place, module), **more.pop("settings", {}))
    with pytest.raises(ConfigurationError, match=match):
        fit(module, of(batches(0)) if loader is None else loader, callback, **more)
    assert torch.equal(flat(module), before) and "training_step" not in vars(module)
    callback.peer.close()


def test_settings_that_cannot_be_meant_are_refused(tmp_path: Path) -> None:
    with served(tmp_path, SHARING) as place:
        peer = join(place, Mine())
        with pytest.raises(ConfigurationError, match=r"loss='mine' is unknown; it is 'module', .* or 'method'"):
            ConsilienceCallback(peer, loss="mine")
        for every in (0, 1.5, True):
            with pytest.raises(ConfigurationError, match=rf"every is {every}; it must be a whole number, 1 or more"):
                ConsilienceCallback(peer, every=every)  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match=r"wait=-1 seconds; it must be 0 or more"):
            ConsilienceCallback(peer, wait=-1)
        with pytest.raises(ConfigurationError, match=r"peer is of the type Mine; give what .*join\(url, model=model\)"):
            ConsilienceCallback(Mine())  # type: ignore[arg-type]


def test_manual_optimization_is_refused_with_the_calls_to_write(tmp_path: Path) -> None:
    with served(tmp_path, SHARING) as place:
        match = r"ByHand optimizes by hand .*leave ConsilienceCallback out.*peer.penalty\(targets\) .*manual_backward"
        refused(place, ByHand(), match)
        refused(place, TwoOptimizers(), r"TwoOptimizers optimizes by hand .*one optimizer or several")


class Several(Mine):
    """Returns what it was made with, for automatic optimization."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form

    def configure_optimizers(self) -> Any:
        made = [torch.optim.SGD(part.parameters(), lr=0.1) for part in (self.net.body, self.net.fc)]
        schedulers = [torch.optim.lr_scheduler.ConstantLR(each) for each in made]
        forms = {"list": made, "pair": (made, schedulers), "mappings": [{"optimizer": each} for each in made]}
        one = {"one": made[:1], "one of a pair": (made[:1], schedulers[:1]), "mapping": {"optimizer": made[0]}}
        return (forms | one)[self.form]


def test_several_optimizers_are_refused_before_lightning_does(tmp_path: Path) -> None:
    with served(tmp_path, SHARING) as place:
        match = r"of Several returned 2 optimizers, .* trains with one; return one, .*by hand .*before manual_backward"
        for form in ("list", "pair", "mappings"):
            module = Several(form)
            refused(place, module, match)
            assert "configure_optimizers" not in vars(module)
        for form in ("one", "one of a pair", "mapping"):
            module = Several(form)
            callback = ConsilienceCallback(join(place, module))
            fit(module, of(batches(0)), callback, epochs=1)
            assert not {"configure_optimizers", "training_step"} & vars(module).keys()
            callback.peer.close()


def test_models_that_the_peer_does_not_have_are_refused(tmp_path: Path) -> None:
    with served(tmp_path, SHARING) as place:
        match = r"trainer trains Mine, and the peer has another model: 'body.0.weight' is not .*give both the same"
        refused(place, Mine(), match, peer=join(place, Mine()))
        refused(place, Mine(), r"the peer does not know your model.*join\(url, model=model\)", peer=place.join(0, None))


def test_loaders_that_cannot_be_shared_are_refused(tmp_path: Path) -> None:
    class Pairs(Mine):
        def training_step(self, batch: Any, index: int) -> Any:
            return super().training_step(batch["a"], index)

    with served(tmp_path, SHARING) as place:
        pairs = {"a": of(batches(0)), "b": of(batches(1))}
        match = r"the training dataloaders are a dict of 2, .*ConsilienceCallback\(peer, loader=...\)"
        refused(place, Pairs(), match, pairs, settings={"loss": "method"})


def test_modules_that_share_could_not_call_or_train_are_refused(tmp_path: Path) -> None:
    class NoForward(Mine):
        forward = lightning.LightningModule.forward  # as where training_step calls the network itself

        def training_step(self, batch: Any, index: int) -> Any:
            return cross_entropy(self.net(batch[0]), batch[1])

    class NoOptimizer(Mine):
        def configure_optimizers(self) -> None:
            return None

    with served(tmp_path, {"name": "fedproto"}) as place:
        module = NoForward()
        match = r"NoForward has no forward, .*give join the network inside it, .*model=module\.network"
        refused(place, module, match, peer=place.join(0, module, layer="net.fc"))
        fit(module, of(batches(0)), ConsilienceCallback(join(place, module)), epochs=1)  # the network inside it
        place.made.peers[-1].close()
        with pytest.warns(UserWarning, match="`LightningModule.configure_optimizers` returned `None`"):
            refused(place, NoOptimizer(), r"of NoOptimizer returned no optimizer, .*leave the callback out")


def test_several_processes_are_refused(tmp_path: Path) -> None:
    """Two real ones, which gloo would connect."""
    with served(tmp_path, SHARING) as place:
        match = r"the trainer runs 2 processes, and a member is one process; use Trainer\(devices=1, num_nodes=1\)"
        with pytest.raises(Exception, match=match):  # of the kind that torch raises for a process that failed
            fit(
                module := Mine(),
                of(batches(0)),
                ConsilienceCallback(join(place, module)),
                devices=2,
                strategy="ddp_fork",
            )
