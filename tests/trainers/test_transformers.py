"""A Hugging Face Trainer that takes part: the numbers of a loop written by hand, and nothing else of it changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import Trainer

from consilience.transformers import ConsilienceTrainer
from tests.peer_tools import SHARING, batches
from tests.trainer_tools import ALONE, AT_ONCE, divided, flat, served
from tests.trainers.transformers_tools import (
    BOTH,
    RATE,
    InOrder,
    Mine,
    Texts,
    arguments,
    bert,
    federation_of,
    joined,
    train_by_hand,
)

pytestmark = pytest.mark.usefixtures("one_thread")


# --- training


@pytest.mark.parametrize(
    ("method", "loss", "accumulate", "samples"),
    [(SHARING, "module", 1, 24), (SHARING, "module", 3, 24), (SHARING, "module", 2, 21), (BOTH, "method", 1, 24)],
    ids=["sharing", "accumulated", "last batch is smaller", "private head"],
)
def test_training_has_the_numbers_of_a_loop_written_by_hand(
    tmp_path: Path, method: dict[str, Any], loss: str, accumulate: int, samples: int
) -> None:
    """Batches of 8 that are accumulated give the steps of a loop with one large batch for each step."""
    data, head = Texts(samples), loss == "method"
    with federation_of(tmp_path / "hand", method) as place:
        by_hand = bert()
        hand = joined(place, by_hand)
        train_by_hand(hand, by_hand, data, 3, 8 * accumulate, head)
    with federation_of(tmp_path / "trainer", method) as place:
        model = bert()
        peer = joined(place, model)
        trainer = Mine(
            model, arguments(tmp_path, gradient_accumulation_steps=accumulate), train_dataset=data, peer=peer, loss=loss
        )
        trainer.train()
        assert peer.round == hand.round == place.made.round_of(0) == 3
    torch.testing.assert_close(flat(model), flat(by_hand), atol=2e-6, rtol=1e-5)
    assert (flat(model) - flat(bert())).abs().max() > 0.005
    assert len(peer.parameters()) == (2 if head else 0)
    torch.testing.assert_close(peer.parameters(), hand.parameters(), atol=2e-6, rtol=1e-5)
    logs = [log for log in trainer.state.log_history if "consilience/round" in log]
    assert [log["consilience/round"] for log in logs] == [1, 2, 3] and logs[2]["consilience/refreshed"] == 1
    assert (logs[2]["consilience/penalty"] > 0) == (not head) and logs[2]["consilience/acknowledged"] == 1


def test_a_trainer_s_usual_schedule_and_clipping_have_the_numbers_of_a_loop_written_by_hand(tmp_path: Path) -> None:
    """AdamW, a rate that decays to 0, and gradients clipped to 1, with a penalty by another member's logits."""
    data, found = Texts(), []
    usual: dict[str, Any] = {"optim": "adamw_torch", "lr_scheduler_type": "linear", "max_grad_norm": 1.0}
    for by_hand in (True, False):
        with federation_of(tmp_path / str(by_hand), {"name": "federated-distillation"}, members=2) as place:
            other = bert()
            other.classifier.bias.data += torch.tensor([3.0, -3.0, 0.0])
            assert joined(place, other, 1).share(Texts(seed=1).batches())
            model = bert()
            peer = joined(place, model)
            if by_hand:
                optimizer = torch.optim.AdamW(model.parameters(), lr=RATE / 10, weight_decay=0.0)
                schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=9)
                peer.introduce(data.batches())
                for _ in range(3):
                    peer.refresh()
                    for batch in data.batches():
                        (model(**batch).loss + peer.penalty(batch["labels"])).backward()
                        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                        optimizer.step()
                        schedule.step()
                        optimizer.zero_grad()
                    peer.share(data.batches())
            else:
                trainer = Mine(
                    model, arguments(tmp_path, **usual, learning_rate=RATE / 10), train_dataset=data, peer=peer
                )
                trainer.train()
                first = next(log["consilience/penalty"] for log in trainer.state.log_history)
                assert first > 1
        found.append(flat(model))
    torch.testing.assert_close(found[0], found[1], atol=2e-6, rtol=1e-5)
    assert (found[0] - flat(bert())).abs().max() > 0.005


def normalized(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
    """A user's compute_loss_func, as transformers asks for it."""
    return cross_entropy(outputs.logits, labels, reduction="sum") / num_items_in_batch


@pytest.mark.parametrize(
    "more",
    [{"label_smoothing_factor": 0.1}, {"compute_loss_func": normalized}, {}],
    ids=["label smoothing", "compute_loss_func", "the model's"],
)
def test_accumulated_batches_give_the_step_of_one_large_batch(tmp_path: Path, more: dict[str, Any]) -> None:
    """With penalties, and with the losses that a trainer knows; the last batch of 21 samples is smaller."""
    given = {k: v for k, v in more.items() if k == "compute_loss_func"}
    settings = {k: v for k, v in more.items() if k not in given}
    found, losses = [], []
    for size, accumulate in ((24, 1), (8, 3)):
        data = Texts(21)
        with federation_of(tmp_path / str(size), SHARING) as place:
            model = bert()
            peer = joined(place, model)
            peer.share(data.batches())
            sizes = {"per_device_train_batch_size": size, "gradient_accumulation_steps": accumulate, **settings}
            trainer = Mine(model, arguments(tmp_path, 1, **sizes), train_dataset=data, peer=peer, **given)
            losses.append(trainer.train().training_loss)
        found.append(flat(model))
    moved = (found[0] - flat(bert())).abs().max()
    assert (found[0] - found[1]).abs().max() < 1e-5 * moved + 1e-7 < 0.01 < moved
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_a_smaller_loss_of_ones_own_trainer_is_kept(tmp_path: Path) -> None:
    """Its compute_loss says that it is a mean of a batch, as transformers asks of such trainers."""

    class Halved(InOrder):
        loss_is_scaled_for_ga = False

        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, *rest: Any, **kwargs: Any) -> Any:
            outputs = model(**inputs)
            loss = 0.5 * outputs.loss
            return (loss, outputs) if return_outputs else loss

    found = []
    for together in (False, True):
        with federation_of(tmp_path / str(together), {**SHARING, "kd": 0.0, "contrast": 0.0}) as place:
            model = bert()
            kind = type("Joined", (Mine.__bases__[0], Halved), {}) if together else Halved
            more: dict[str, Any] = {"peer": joined(place, model)} if together else {}
            settings = arguments(tmp_path, 2, gradient_accumulation_steps=3)
            kind(model, settings, train_dataset=Texts(), **more).train()
        found.append(flat(model))
    torch.testing.assert_close(found[0], found[1], atol=1e-7, rtol=1e-6)


# --- nothing else of a training changes


def test_without_penalties_a_training_has_the_bits_of_one_without_a_federation(tmp_path: Path) -> None:
    """Shuffled batches and dropout: the pass that shares draws nothing of the trainer's random numbers."""
    found = []
    for together in (False, True):
        with federation_of(tmp_path / str(together), {**SHARING, "kd": 0.0, "contrast": 0.0}) as place:
            model = bert(dropout=0.3)
            more: dict[str, Any] = {"peer": joined(place, model)} if together else {}
            (ConsilienceTrainer if together else Trainer)(
                model, arguments(tmp_path), train_dataset=Texts(), **more
            ).train()
        found.append((flat(model), model.training, torch.rand(1)))
    assert torch.equal(found[0][0], found[1][0]) and found[0][1:] == found[1][1:]


def test_evaluation_changes_nothing_and_has_no_penalty(tmp_path: Path) -> None:
    found = []
    for evaluates in (False, True):
        with federation_of(tmp_path / str(evaluates), SHARING) as place:
            model = bert()
            settings: dict[str, Any] = {"eval_strategy": "steps", "eval_steps": 2, "eval_on_start": True}
            more = settings if evaluates else {}
            trainer = Mine(
                model,
                arguments(tmp_path, **more),
                train_dataset=Texts(),
                eval_dataset=Texts(seed=5),
                peer=joined(place, model),
            )
            trainer.train()
        found.append(flat(model))
    assert torch.equal(*found)
    batch = Texts(seed=5).batches(24)[0]
    with torch.no_grad():
        loss = model(**batch).loss
    assert trainer.evaluate()["eval_loss"] == pytest.approx(float(loss), abs=1e-6)
    assert np.shape(trainer.predict(Texts(seed=5)).predictions) == (24, 3)


def test_bfloat16_is_close_to_float32(tmp_path: Path) -> None:
    found = []
    for bf16 in (False, True):
        with federation_of(tmp_path / str(bf16), SHARING) as place:
            model = bert()
            trainer = Mine(model, arguments(tmp_path, bf16=bf16), train_dataset=Texts(), peer=joined(place, model))
            trainer.train()
        penalties = [log["consilience/penalty"] for log in trainer.state.log_history if "consilience/round" in log]
        found.append((flat(model), penalties[-1]))
    torch.testing.assert_close(found[0][0], found[1][0], atol=0.05, rtol=0.05)
    assert found[0][1] > 0 and found[1][1] == pytest.approx(found[0][1], rel=0.2)


# --- other federations and data


class Voting(nn.Module):
    """A model that is not one of transformers, with a part that only votes move."""

    def __init__(self) -> None:
        super().__init__()
        self.net = divided()

    def forward(self, rows: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.net(rows)
        return {"logits": logits} if labels is None else {"loss": cross_entropy(logits, labels), "logits": logits}


def test_votes_move_a_part_as_in_a_loop_written_by_hand(tmp_path: Path) -> None:
    loader = batches(0)
    rows = [{"rows": x, "labels": y} for inputs, targets in loader for x, y in zip(inputs, targets, strict=True)]
    found = []
    for by_hand in (True, False):
        method = {"name": "two-stage", "delta": 0.25}
        with served(tmp_path / str(by_hand), method, divided, members=1, rules=ALONE) as place:
            model = Voting()
            if by_hand:
                hand = place.join(0, model.net)
                for _ in range(3):
                    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                    hand.refresh()
                    for inputs, targets in loader:
                        cross_entropy(model.net(inputs), targets).backward()  # type: ignore[no-untyped-call]
                        hand.take_gradients()
                        optimizer.step()
                        optimizer.zero_grad()
                    hand.share(loader)
            else:
                peer = place.join(0, model.net, unpack=lambda batch: (batch["rows"], batch["labels"]))
                Mine(model, arguments(tmp_path), train_dataset=rows, peer=peer).train()
        found.append(flat(model))
    assert torch.equal(*found)
    assert bool(((found[0] - flat(Voting())).abs() > 0.2).any())  # votes have moved the part


def test_shared_weights_end_the_same(tmp_path: Path) -> None:
    with federation_of(tmp_path, {"name": "fedavg"}, members=2, rules=AT_ONCE) as place:
        models = [bert(), bert()]
        peers = [joined(place, model, i) for i, model in enumerate(models)]
        for i, (model, peer) in enumerate(zip(models, peers, strict=True)):
            settings = arguments(tmp_path, optim="adamw_torch")
            trainer = Mine(model, settings, train_dataset=Texts(seed=i), peer=peer, wait=10)
            trainer.train()
            assert trainer.optimizer is not None
            state = trainer.optimizer.state[model.classifier.weight]
            assert state["step"] == 9  # of three epochs: downloads have not reset it
        assert not torch.equal(flat(models[0]), flat(models[1]))
        while any([peer.refresh(wait=1) for peer in peers]):
            pass
        assert torch.equal(flat(models[0]), flat(models[1]))


def test_padded_batches_by_length_and_every_second_epoch(tmp_path: Path) -> None:
    def pad(rows: list[dict[str, Any]]) -> dict[str, Tensor]:
        """A data collator."""
        words = nn.utils.rnn.pad_sequence([torch.tensor(row["input_ids"]) for row in rows], batch_first=True)
        lengths.add(words.shape[1])
        labels = torch.tensor([row["labels"] for row in rows])
        return {"input_ids": words, "attention_mask": (words > 0).long(), "labels": labels}

    lengths: set[int] = set()
    rows = [{"input_ids": [1 + i % 19] * (2 + i % 5), "labels": i % 3} for i in range(40)]
    with federation_of(tmp_path, SHARING) as place:
        model = bert()
        peer = joined(place, model)
        settings = arguments(tmp_path, 4, train_sampling_strategy="group_by_length")
        trainer = ConsilienceTrainer(
            model, settings, data_collator=pad, train_dataset=rows, peer=peer, every=2, loader=Texts(9).batches()
        )
        trainer.train()
        assert peer.round == 2 and len(lengths) > 1
        peer.refresh()
        assert float(peer.connection.state.answers["prototypes"].count.sum()) == 9  # of the loader
    shared = [log.get("consilience/acknowledged") for log in trainer.state.log_history if "consilience/round" in log]
    assert shared == [None, 1, None, 1]
