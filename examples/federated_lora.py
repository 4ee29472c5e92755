"""Three clinics fine-tune a language model together: only one bit for each weight of its LoRA adapters travels.

A small BERT is trained on general texts and saved: in your federation, that is a model from a hub. Each clinic loads
it, peft freezes it and adds adapters, and the clinics train these on a few texts of their own, over a relay. Compared
are the bytes that a clinic uploads in a round: adapters at one bit, adapters in float32, and all of the model.

    python examples/federated_lora.py

Needs the extras transformers, adapters and relay: pip install -e '.[learn,relay,transformers,adapters]'
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", HF_HUB_DISABLE_PROGRESS_BARS="1")

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import BertConfig, BertForSequenceClassification

from consilience import join, split
from consilience.peer.create_charter import TaskShape, create_charter, write_charter
from consilience.relay import admin

WORDS, LENGTH, CLASSES, CLINICS, SAMPLES = 400, 16, 4, ("north", "east", "south"), 24
CLASSIFIER, ADAPTED = "classifier", "base_model.model.classifier"
Batch = tuple[dict[str, Tensor], Tensor]


def texts(seed: int, count: int, *, general: bool = False) -> Batch:
    """Texts with words of one of eight topics, and of any; the clinics' four classes are of two topics each."""
    random = np.random.default_rng(seed)
    topics = random.integers(0, 2 * CLASSES, count)
    words = random.integers(0, WORDS, (count, LENGTH))
    of_topic = topics[:, None] * (WORDS // 8) + random.integers(0, WORDS // 8, (count, LENGTH))
    chosen = np.where(random.random((count, LENGTH)) < 0.4, of_topic, words)
    return {"input_ids": torch.from_numpy(chosen)}, torch.from_numpy(topics if general else topics % CLASSES)


def train(model: nn.Module, batch: Batch, epochs: int, rate: float) -> None:
    """Train whatever is not frozen."""
    inputs, targets = batch
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], rate)
    model.train()
    for rows in (rows for _ in range(epochs) for rows in torch.split(torch.randperm(len(targets)), 16)):
        loss = cross_entropy(model(inputs["input_ids"][rows]).logits, targets[rows])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def correct(model: nn.Module, batch: Batch) -> float:
    """Accuracy in percent."""
    with torch.no_grad():
        predicted = model.eval()(**batch[0]).logits.argmax(1)
    return float(100 * (predicted == batch[1]).float().mean())


def pretrain(folder: Path) -> None:
    """Train a small BERT on general texts, and save it."""
    words: dict[str, Any] = {"vocab_size": WORDS, "max_position_embeddings": LENGTH, "num_labels": 2 * CLASSES}
    layers: dict[str, Any] = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = BertForSequenceClassification(BertConfig(**words, **layers, intermediate_size=256))
    train(model, texts(1, 2000, general=True), 3, 1e-3)
    model.save_pretrained(folder)


def whole(folder: Path) -> nn.Module:
    """The pretrained model with a new classifier; all of it is trained."""
    model: nn.Module = BertForSequenceClassification.from_pretrained(folder)
    model.classifier = nn.Linear(64, CLASSES)
    return model


def adapted(folder: Path) -> nn.Module:
    """The pretrained model, frozen, with adapters of rank 2 and a classifier that are trained."""
    model = get_peft_model(whole(folder), LoraConfig(r=2, lora_alpha=4, target_modules=["query", "value"]))
    model.get_submodule(ADAPTED).requires_grad_(True)
    return model


@contextlib.contextmanager
def federation(folder: Path, method: str, build: Callable[[], nn.Module]) -> Iterator[dict[str, dict[str, Any]]]:
    """A relay with a federation of this method; yields the arguments with which each clinic joins."""
    folder.mkdir()
    charter = create_charter("clinics", {"name": method}, TaskShape((LENGTH,), CLASSES), [build])
    store = folder / "relay.db"
    admin.create(store, write_charter(folder / "clinics.toml", *charter)[0])
    command = [sys.executable, "-m", "consilience", "relay", "serve", "--store", str(store), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as relay:
        try:
            url = relay.stdout.readline().removeprefix("relay: ").strip() if relay.stdout else ""
            yield {n: {"url": url, "token": str(admin.invite(store, n)), "folder": folder / n} for n in CLINICS}
        finally:
            relay.terminate()


def run(folder: Path, method: str, network: Callable[[], nn.Module], layer: str, rounds: int) -> int:
    """Learn together for some rounds, print the results, and return the bytes that a clinic uploads in a round."""
    with contextlib.ExitStack() as stack:
        clinics = stack.enter_context(federation(folder, method, lambda: split(network(), at=layer)))
        models = {name: network() for name in clinics}
        peers = {n: stack.enter_context(join(model=models[n], layer=layer, **clinics[n])) for n in clinics}
        data, test = {n: texts(10 + i, SAMPLES) for i, n in enumerate(clinics)}, texts(2, 1000)
        before = correct(models["north"], test)
        for _ in range(rounds):
            for name, peer in peers.items():
                train(models[name], data[name], 3, 5e-3 if layer == ADAPTED else 1e-3)
                peer.share([data[name]], wait=30)
            for peer in peers.values():
                peer.refresh(wait=30)
        states = [model.state_dict() for model in models.values()]
        same = all(torch.equal(states[0][name], state[name]) for state in states[1:] for name in state)
        trained = sum(p.numel() for p in models["north"].parameters() if p.requires_grad)
        sent, after = peers["north"].bytes_sent // rounds, correct(models["north"], test)
        print(f"{folder.name:18} {trained:9,} {sent:10,} {before:8.1f} {after:8.1f} {same!s:>10}")
        return sent


def main() -> None:
    """Compare adapters at one bit, adapters in float32, and the whole model in float32."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        pretrained = Path(name, "pretrained")
        pretrain(pretrained)
        print("what travels        trained  B a round  before %  after %  same bits")
        bit = run(Path(name, "adapters, one bit"), "fedavg-1bit", partial(adapted, pretrained), ADAPTED, rounds=6)
        floats = run(Path(name, "adapters, float32"), "fedavg", partial(adapted, pretrained), ADAPTED, rounds=6)
        model = run(Path(name, "model, float32"), "fedavg", partial(whole, pretrained), CLASSIFIER, rounds=1)
        print(f"one bit is 1/{model // bit} of the model in float32, and 1/{floats // bit} of the adapters in float32")


if __name__ == "__main__":
    main()
