"""A LightningModule that takes part: the numbers of a loop written by hand, and nothing else of it changed."""

from __future__ import annotations

from pathlib import Path
from types import MethodType
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from consilience.lightning import ConsilienceCallback
from tests.peer_tools import SHARING, batches
from tests.trainer_tools import ALONE, AT_ONCE, Net, divided, flat, served, train_by_hand
from tests.trainers.lightning_tools import BOTH, QUIET, Mine, fit, join, of

pytestmark = [pytest.mark.usefixtures("one_thread"), *QUIET]


class ByHand:
    """The same training in a loop written by hand: its model, penalties and peer."""

    def __init__(self, folder: Path, method: dict[str, Any], epochs: int = 3, **more: Any) -> None:
        with served(folder, method, members=1, rules=ALONE) as hand:
            self.model = Net()
            self.peer = hand.join(0, self.model, layer="fc")
            self.penalties = train_by_hand(self.peer, self.model, batches(0), epochs, **more)


# --- a fit


@pytest.mark.parametrize(
    ("method", "more"),
    [(SHARING, {}), (SHARING, {"accumulate": 3}), (BOTH, {"method_loss": True})],
    ids=["sharing", "accumulated", "private head"],
)
def test_a_fit_has_the_numbers_of_a_loop_written_by_hand(
    tmp_path: Path, method: dict[str, Any], more: dict[str, Any]
) -> None:
    hand = ByHand(tmp_path / "hand", method, **more)
    with served(tmp_path / "fit", method, members=1, rules=ALONE) as place:
        module = Mine()
        peer = join(place, module)
        callback = ConsilienceCallback(peer, loss="method" if more.get("method_loss") else "module")
        trainer = fit(module, of(batches(0)), callback, accumulate_grad_batches=more.get("accumulate", 1))
        assert torch.equal(flat(module), flat(hand.model))
        assert peer.round == hand.peer.round == place.made.round_of(0) == 3
        assert all(map(torch.equal, peer.parameters(), hand.peer.parameters()))
        assert len(peer.parameters()) == (2 if method is BOTH else 0)
    metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
    assert metrics.pop("consilience/penalty") == pytest.approx(hand.penalties[-1], abs=1e-7)
    assert metrics == {"consilience/refreshed": 1, "consilience/acknowledged": 1, "consilience/round": 3}
    assert (hand.penalties[-1] > 0) == (method is SHARING)


def test_a_dictionary_keeps_its_other_entries_and_a_skipped_batch_is_skipped(tmp_path: Path) -> None:
    class Skips(Mine):
        def training_step(self, batch: Any, index: int) -> Any:
            loss = super().training_step(batch, index)
            return None if index == 0 else {"loss": loss, "rows": len(batch[1])}

        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            rows.append(outputs and outputs["rows"])

    rows: list[Any] = []
    with served(tmp_path, SHARING) as place:
        module = Skips()
        callback = ConsilienceCallback(join(place, module))
        with pytest.warns(UserWarning, match="`training_step` returned `None`"):
            trainer = fit(module, of(batches(0)), callback, epochs=2)
    assert rows == [None, 8, 8] * 2 or rows == [{}, 8, 8] * 2
    assert float(trainer.callback_metrics["consilience/penalty"]) > 0
    assert "training_step" not in vars(module)  # its own again


def test_evaluation_and_the_sanity_check_change_nothing(tmp_path: Path) -> None:
    class Evaluated(Mine):
        def validation_step(self, batch: Any, index: int) -> None:
            self.log("accuracy", (self(batch[0]).argmax(1) == batch[1]).float().mean())

    found = []
    for name, module in (("without", Mine()), ("with", Evaluated())):
        evaluation: dict[str, Any] = {"val": of(batches(5)), "num_sanity_val_steps": 2, "val_check_interval": 1}
        val = evaluation if name == "with" else {}
        with served(tmp_path / name, SHARING) as place:
            trainer = fit(module, of(batches(0)), ConsilienceCallback(join(place, module)), **val)
        found.append(flat(module))
    assert torch.equal(*found) and "accuracy" in trainer.callback_metrics


def test_sharing_leaves_modes_and_random_numbers_of_the_training_as_they_are(tmp_path: Path) -> None:
    """Without penalties, dropout, shuffled batches and a frozen part give the bits of a training alone."""

    class PartlyEvaluated(Mine):
        def on_train_epoch_start(self) -> None:
            self.modes = [module.training for module in self.modules()]
            self.net.body.eval()

    found = []
    for together in (False, True):
        torch.manual_seed(3)
        module, loader = PartlyEvaluated(dropout=0.5), DataLoader(of(batches(0)).dataset, 8, shuffle=True)
        with served(tmp_path / str(together), {**SHARING, "kd": 0.0, "contrast": 0.0}) as place:
            fit(module, loader, *([ConsilienceCallback(join(place, module))] if together else []))
        found.append((flat(module), torch.rand(1), module.modes))
        assert module.net.body.training is False and module.net.dropout.training is True
    (alone, draw, modes), (shared, other_draw, other_modes) = found
    assert torch.equal(alone, shared) and draw == other_draw and modes == other_modes


def test_bfloat16_is_close_to_float32(tmp_path: Path) -> None:
    found = {}
    for precision in ("32-true", "bf16-mixed", "bf16-true"):
        with served(tmp_path / precision, SHARING) as place:
            module = Mine()
            trainer = fit(module, of(batches(0)), ConsilienceCallback(join(place, module)), precision=precision)
            found[precision] = flat(module).float(), float(trainer.callback_metrics["consilience/penalty"])
    for precision in ("bf16-mixed", "bf16-true"):
        torch.testing.assert_close(found[precision][0], found["32-true"][0], atol=0.05, rtol=0.05)
        assert found[precision][1] == pytest.approx(found["32-true"][1], rel=0.2) and found[precision][1] > 0


def test_a_training_step_of_the_instance_is_given_back(tmp_path: Path) -> None:
    """A compiled module has one, as an attribute of its own."""
    module = Mine()
    step = module.training_step = MethodType(Mine.training_step, module)  # type: ignore[method-assign]
    with served(tmp_path, SHARING) as place:
        peer = join(place, module)
        fit(module, of(batches(0)), ConsilienceCallback(peer), epochs=1)
    assert module.training_step is step and peer.round == 1


# --- what is shared, and when


def test_workers_that_the_training_keeps_are_left_to_it(tmp_path: Path) -> None:
    found = []
    for kept in (False, True):
        with served(tmp_path / str(kept), SHARING) as place:
            module = Mine()
            peer = join(place, module)
            loader = DataLoader(of(batches(0)).dataset, 8, num_workers=int(kept), persistent_workers=kept)
            fit(module, loader, ConsilienceCallback(peer), epochs=2)  # the untrained model is shared, too
            assert peer.round == 2
            found.append(flat(module))
    assert torch.equal(*found)


def test_uploads_have_the_samples_that_the_trainer_takes_or_those_of_the_loader(tmp_path: Path) -> None:
    counts = []
    for name, loader, limit in (("all", None, 1.0), ("limited", None, 2), ("other", batches(1)[:1], 1.0)):
        with served(tmp_path / name, SHARING) as place:
            module = Mine()
            peer = join(place, module)
            fit(module, of(batches(0)), ConsilienceCallback(peer, loader=loader), epochs=1, limit_train_batches=limit)
            peer.refresh()
            counts.append(float(peer.connection.state.answers["prototypes"].count.sum()))
    assert counts == [24, 16, 8]


def test_every_second_epoch_uploads_and_every_epoch_downloads(tmp_path: Path) -> None:
    with served(tmp_path, SHARING) as place:
        module = Mine()
        peer = join(place, module)
        trainer = fit(module, of(batches(0)), ConsilienceCallback(peer, every=2), epochs=5)
        assert peer.round == 2
        assert float(trainer.callback_metrics["consilience/acknowledged"]) == 1  # of the fourth epoch
        assert float(trainer.callback_metrics["consilience/refreshed"]) == 1


def test_shared_weights_end_the_same_and_the_optimizer_keeps_its_state(tmp_path: Path) -> None:
    class Remembers(Mine):
        def on_train_epoch_start(self) -> None:
            states = self.optimizers().state  # type: ignore[union-attr]
            momenta.append([float(states[p]["momentum_buffer"].sum()) for p in self.parameters() if p in states])

    momenta: list[list[float]] = []
    with served(tmp_path, {"name": "fedavg"}, rules=AT_ONCE) as place:
        modules = [Remembers(), Remembers()]
        peers = [join(place, module, i) for i, module in enumerate(modules)]
        assert torch.equal(flat(modules[0]), flat(modules[1]))
        for i, (module, peer) in enumerate(zip(modules, peers, strict=True)):
            fit(module, of(batches(i)), ConsilienceCallback(peer, wait=10), epochs=2)
        assert not torch.equal(flat(modules[0]), flat(modules[1]))
        while any([peer.refresh(wait=1) for peer in peers]):
            pass
        assert torch.equal(flat(modules[0]), flat(modules[1]))
    assert momenta[0] == momenta[2] == [] and all(momenta[1]) and all(momenta[3])


def test_votes_move_a_part_as_in_a_loop_written_by_hand(tmp_path: Path) -> None:
    method, only = {"name": "two-stage", "delta": 0.25}, {"members": 1, "rules": ALONE}
    found = []
    for name in ("hand", "fit"):
        with served(tmp_path / name, method, divided, **only) as place:
            module = Mine()
            module.net = divided()  # type: ignore[assignment]
            peer = place.join(0, module.net)
            if name == "hand":
                train_by_hand(peer, module.net, batches(0), 3)
            else:
                fit(module, of(batches(0)), ConsilienceCallback(peer))
        found.append(flat(module))
    assert torch.equal(*found)
    start = flat(divided())
    assert bool(((found[0] - start).abs() > 0.2).any())  # votes have moved the part
