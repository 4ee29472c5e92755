"""What tests of Hugging Face trainers share: a tiny BERT made here, texts for it, and the same training by hand."""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, SequentialSampler
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

from consilience import split
from consilience.peer.peer import Peer
from consilience.transformers import ConsilienceMixin
from tests.peer_tools import CLASSES
from tests.trainer_tools import ALONE, Served, served

BOTH = {"name": "fedavg", "objective": "calibrated", "own_head": True}
WORDS, LENGTH, RATE = 20, 6, 0.1


def bert(dropout: float = 0.0) -> BertForSequenceClassification:
    """A tiny one; nothing is downloaded."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        sizes: dict[str, Any] = {"vocab_size": WORDS, "hidden_size": 8, "intermediate_size": 8}
        sizes |= {"max_position_embeddings": 8}
        heads: dict[str, Any] = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_labels": CLASSES}
        without: dict[str, Any] = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
        return BertForSequenceClassification(BertConfig(**sizes, **heads, **without))


class Texts(Dataset[dict[str, Tensor]]):
    """Samples of random words; every class is there."""

    def __init__(self, samples: int = 24, seed: int = 0) -> None:
        chance = torch.Generator().manual_seed(seed)
        self.words = torch.randint(0, WORDS, (samples, LENGTH), generator=chance)
        self.labels = torch.arange(samples) % CLASSES

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        mask = torch.ones(LENGTH, dtype=torch.int64)
        return {"input_ids": self.words[index], "attention_mask": mask, "labels": self.labels[index]}

    def batches(self, size: int = 8) -> list[dict[str, Tensor]]:
        """In their order."""
        rows = [self[i] for i in range(len(self))]
        parts = [rows[i : i + size] for i in range(0, len(rows), size)]
        return [{key: torch.stack([row[key] for row in part]) for key in part[0]} for part in parts]


class InOrder(Trainer):
    """A user's trainer: it does not shuffle."""

    def _get_train_sampler(self, *args: Any) -> Any:
        return SequentialSampler(self.train_dataset)  # type: ignore[arg-type]


class Mine(ConsilienceMixin, InOrder):
    """The same, with a federation."""


def arguments(folder: Path, epochs: float = 3, **more: Any) -> TrainingArguments:
    usual = {"per_device_train_batch_size": 8, "learning_rate": RATE, "optim": "sgd", "max_grad_norm": 0.0}
    quiet = {"report_to": [], "save_strategy": "no", "logging_strategy": "no", "disable_tqdm": True}
    rest = {"lr_scheduler_type": "constant", "use_cpu": True, "seed": 0}
    return TrainingArguments(str(folder / "out"), num_train_epochs=epochs, **{**usual, **quiet, **rest, **more})


def joined(place: Served, model: nn.Module, member: int = 0, **more: Any) -> Peer:
    return place.join(member, model, layer="classifier", **more)


def federation_of(folder: Path, method: Mapping[str, Any], **more: Any) -> AbstractContextManager[Served]:
    return served(folder, method, lambda: split(bert(), at="classifier"), **{"members": 1, "rules": ALONE, **more})


def train_by_hand(peer: Peer, model: nn.Module, data: Texts, epochs: int, size: int = 8, method: bool = False) -> None:
    """Three lines in a loop of one's own."""
    loader = data.batches(size)
    optimizer = torch.optim.SGD([*model.parameters(), *peer.parameters()], lr=RATE)
    if method:
        peer.count_classes(loader)
    peer.introduce(loader)
    for _ in range(epochs):
        peer.refresh()
        for batch in loader:
            loss = model(**batch).loss
            if method:
                loss = peer.loss(batch["labels"])
            (loss + peer.penalty(batch["labels"])).backward()
            optimizer.step()
            optimizer.zero_grad()
        peer.share(loader)
