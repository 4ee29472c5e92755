"""Two clinics train Hugging Face sequence classifiers together: ConsilienceTrainer stands where Trainer stood.

Each clinic has its own texts and a BERT of its own depth; both are made here, and nothing is downloaded. The baseline
is the same training with the Trainer of transformers. The clinics run in processes of their own and do not wait for
each other, so runs differ a little. Needs the extra transformers.

    python examples/hugging_face_clinics.py
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import subprocess
import sys
import tempfile
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

from consilience import join, split
from consilience.peer.create_charter import TaskShape, create_charter, write_charter
from consilience.relay import admin
from consilience.transformers import ConsilienceTrainer

METHOD = {"name": "representation-sharing", "kd": 1.0, "contrast": 0.1}
WORDS, LENGTH, CLASSES, WIDTH, SAMPLES, EPOCHS, SEED = 64, 12, 4, 32, 96, 20, 0
CLINICS = {"east": 1, "west": 2}  # layers of each clinic's model


class Notes(Dataset[dict[str, Any]]):
    """Texts of 12 words; a third of them are of the quarter of the words that a class prefers."""

    def __init__(self, samples: int, seed: int) -> None:
        chance = np.random.default_rng(seed)
        self.labels = np.arange(samples) % CLASSES
        liked = 4 + self.labels[:, None] * 15 + chance.integers(0, 15, (samples, LENGTH))
        others = chance.integers(4, WORDS, (samples, LENGTH))
        self.words = np.where(chance.random((samples, LENGTH)) < 0.35, liked, others)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"input_ids": self.words[index], "labels": int(self.labels[index])}


def bert(layers: int) -> BertForSequenceClassification:
    """A small one with random weights; what its classifier reads are features of the width 32."""
    sizes: dict[str, Any] = {"vocab_size": WORDS, "hidden_size": WIDTH, "intermediate_size": 64, "num_labels": CLASSES}
    heads: dict[str, Any] = {"num_hidden_layers": layers, "num_attention_heads": 2, "max_position_embeddings": 16}
    return BertForSequenceClassification(BertConfig(**sizes, **heads))


def train(name: str, folder: Path, url: str = "", token: str = "") -> tuple[float, int]:
    """Train a clinic's model, with the relay or without; return its accuracy in percent and the bytes it sent."""
    torch.manual_seed(SEED)
    model, data = bert(CLINICS[name]), Notes(SAMPLES, seed=SEED * 10 + CLINICS[name])
    arguments = TrainingArguments(
        str(folder / "out"),
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=16,
        learning_rate=2e-3,
        seed=SEED,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    if not url:
        trainer, sent = Trainer(model, arguments, train_dataset=data), 0
        quiet(trainer).train()
    else:
        with join(url, token, model, layer="classifier", folder=folder / "peer") as peer:
            quiet(ConsilienceTrainer(model, arguments, train_dataset=data, peer=peer)).train()
            sent = peer.bytes_sent
    return accuracy(model), sent


def quiet(trainer: Trainer) -> Trainer:
    """Without the callback that prints every log."""
    for callback in [c for c in trainer.callback_handler.callbacks if type(c).__name__ == "PrinterCallback"]:
        trainer.remove_callback(callback)
    return trainer


def accuracy(model: BertForSequenceClassification) -> float:
    """On texts that nobody has trained with, in percent."""
    test = Notes(1000, seed=SEED * 10 + 9)
    with torch.no_grad():
        logits = model.train(False)(input_ids=torch.from_numpy(test.words)).logits
    return float(100 * (logits.argmax(1) == torch.from_numpy(test.labels)).float().mean())


def clinic(name: str, folder: Path, url: str, token: str, results: Queue[Any]) -> None:
    """Run one clinic's process: train alone first, then with the other."""
    torch.set_num_threads(1)
    alone, _ = train(name, folder)
    results.put((name, alone, *train(name, folder, url, token)))


def main() -> None:
    """Start a relay and both clinics, and print what they gained."""
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as cleanup:
        folder, store, results = Path(name), Path(name, "relay.db"), spawn.Queue()
        models = [lambda layers=layers: split(bert(layers), at="classifier") for layers in CLINICS.values()]
        charter = create_charter("notes", METHOD, TaskShape((LENGTH,), CLASSES), models, seed=SEED)
        admin.create(store, write_charter(folder / "notes.toml", *charter)[0])
        command = [sys.executable, "-m", "consilience", "relay", "serve", "--store", str(store), "--port", "0"]
        relay = cleanup.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL))
        cleanup.callback(relay.kill)
        assert relay.stdout
        url = relay.stdout.readline().decode().split()[1]  # relay: http://127.0.0.1:...
        for who in CLINICS:
            token = str(admin.invite(store, who))
            process = spawn.Process(target=clinic, args=(who, folder / who, url, token, results))
            process.start()
            cleanup.callback(process.join)
            cleanup.callback(process.kill)
        found = {who: rest for who, *rest in (results.get(timeout=400) for _ in CLINICS)}
    print("clinic  layers  alone %  together %   gain  kB up")
    for who, layers in CLINICS.items():
        alone, together, sent = found[who]
        print(f"{who:7} {layers:6} {alone:8.1f} {together:11.1f} {together - alone:+7.1f} {sent / 1000:6.0f}")


if __name__ == "__main__":
    main()
