"""A LightningModule, a Hugging Face classifier, a plain torch loop and scikit-learn learn together over one relay.

All have handwritten digits: as images, as rows of numbers, or as texts that name each digit's 20 darkest pixels; two
have mostly the digits 0 to 4, two 5 to 9. They share the mean logits of each class; their models have nothing else in
common. What a user changes in the code of a training, beside an import, is marked. "Alone" is the same program with the
weight 0 for what is shared. Runs differ, and one seed says little: docs/guides/trainers.md has the means of several.

    python examples/four_trainers.py
"""

import contextlib
import logging
import multiprocessing
import os
import sys
import tempfile
import time
import warnings
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen
from typing import Any

import lightning
import numpy as np
import torch
from scipy.special import softmax
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import BertConfig, BertForSequenceClassification, PrinterCallback, TrainingArguments

from consilience import join, join_arrays, load
from consilience.lightning import ConsilienceCallback
from consilience.peer.array_charter import create_array_charter
from consilience.relay import admin
from consilience.transformers import ConsilienceTrainer

CLASSES, MANY, FEW, EPOCHS, BATCH, WEIGHT, SEED = 10, 10, 2, 40, 5, 1.0, 0


def lightning_module(data: TensorDataset, test: Tensor, url: str) -> tuple[Any, Any]:
    class Digits(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(576, CLASSES))

        def training_step(self, batch: list[Tensor], index: int) -> Tensor:
            return nn.functional.cross_entropy(self.network(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), lr=1e-3)

    module = Digits()
    quiet: dict[str, Any] = {f"enable_{what}": False for what in ("checkpointing", "progress_bar", "model_summary")}
    peer = join(url, model=module.network)  # 1
    trainer = lightning.Trainer(
        accelerator="cpu", max_epochs=EPOCHS, logger=False, callbacks=[ConsilienceCallback(peer)], **quiet
    )  # 2
    trainer.fit(module, DataLoader(data, BATCH, shuffle=True))
    return peer, module.network(test)


def hugging_face(data: TensorDataset, test: Tensor, url: str) -> tuple[Any, Any]:
    darkest = torch.cat([data.tensors[0], test]).flatten(1).argsort(dim=1, descending=True, stable=True)[:, :20]
    words = nn.functional.pad(darkest.sort(1).values + 1, (1, 0))  # a first one, and the pixels from top to bottom
    texts: Any = [{"input_ids": i, "labels": n} for i, n in zip(words, data.tensors[1], strict=False)]
    sizes: dict[str, Any] = {"vocab_size": 65, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    sizes |= {"num_labels": CLASSES, "initializer_range": 0.2}
    model = BertForSequenceClassification(BertConfig(**sizes))
    usual: dict[str, Any] = {"per_device_train_batch_size": BATCH, "learning_rate": 1e-3, "use_cpu": True}
    arguments = TrainingArguments(num_train_epochs=EPOCHS, save_strategy="no", disable_tqdm=True, seed=SEED, **usual)
    peer = join(url, model=model)  # 1
    trainer = ConsilienceTrainer(model, arguments, train_dataset=texts, peer=peer)  # 2, in the place of Trainer
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return peer, model.train(False)(input_ids=words[len(texts) :]).logits


def plain_torch(data: TensorDataset, test: Tensor, url: str) -> tuple[Any, Any]:
    loader = DataLoader(data, BATCH, shuffle=True)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.Tanh(), nn.Linear(48, CLASSES))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    peer = join(url, model=model)  # 1
    for _ in range(EPOCHS):
        for inputs, targets in loader:
            loss = nn.functional.cross_entropy(model(inputs), targets)
            loss = loss + peer.penalty(targets)  # 2
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        peer.share(loader)  # 3
        time.sleep(0.1)  # a larger model would need this time
    return peer, model(test)


def scikit_learn(data: TensorDataset, test: Tensor, url: str) -> tuple[Any, Any]:
    rows, labels = (tensor.flatten(1 if tensor.ndim > 1 else 0).numpy() for tensor in data.tensors)
    model, classes = LogisticRegression(max_iter=1000), np.tile(np.arange(CLASSES), len(rows))
    peer = join_arrays(url)  # 1
    for _ in range(EPOCHS // 4):  # each sample is there once for each class, with a weight
        weights = np.eye(CLASSES) + peer.charter.method["kd"] * softmax(peer.targets().logits, axis=1)  # 2
        model.fit(np.repeat(rows, CLASSES, axis=0), classes, sample_weight=weights[labels].ravel())
        peer.share_arrays(logits=model.decision_function(rows), labels=labels)  # 3
        time.sleep(0.4)  # a larger model would need this time
    return peer, model.decision_function(test.flatten(1))


TRAIN = [lightning_module, hugging_face, plain_torch, scikit_learn]


def member(own: int, folder: str, url: str, token: str) -> tuple[float, float]:
    """Train a member; its accuracy in percent, and the kilobytes it sent."""
    os.chdir(folder)  # for the peer's folder, and what trainers write
    os.environ["CONSILIENCE_TOKEN"] = token
    logging.disable(logging.WARNING)  # what trainers say of the hardware
    warnings.filterwarnings("ignore", ".*does not have many workers|.*LeafSpec.* is deprecated")
    torch.manual_seed(SEED)
    data, order = load("digits"), np.random.default_rng(SEED).permutation(1000)
    cuts = [np.cumsum([0, *([MANY, FEW] if digit < 5 else [FEW, MANY]) * 2]) for digit in range(CLASSES)]
    rows = np.concatenate([order[data.targets[order] == d][c[own] : c[own + 1]] for d, c in enumerate(cuts)])
    samples = TensorDataset(torch.from_numpy(data.inputs[rows]), torch.from_numpy(data.targets[rows]))
    peer, logits = TRAIN[own](samples, torch.from_numpy(data.test_inputs), url)
    peer.close()
    return 100 * float((torch.as_tensor(logits).argmax(1).numpy() == data.test_targets).mean()), peer.bytes_sent / 1000


def main() -> None:
    """Train all members alone and together, each in a process of its own, and print what they gained."""
    results, spawn = [], multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as cleanup:
        pool = cleanup.enter_context(spawn.Pool(len(TRAIN)))
        for kd in (0.0, WEIGHT):
            store, file = Path(folder, f"{kd}.db"), Path(folder, f"{kd}.toml")
            charter = create_array_charter("digits", {"name": "federated-distillation", "kd": kd}, CLASSES)
            file.write_text(charter.to_toml())
            admin.create(store, file)
            command = [sys.executable, "-m", "consilience", "relay", "serve", "--store", str(store), "--port", "0"]
            relay: Any = cleanup.enter_context(Popen(command, stdout=PIPE, stderr=DEVNULL))
            cleanup.callback(relay.kill)
            url = relay.stdout.readline().decode().split()[1]  # relay: http://127.0.0.1:...
            members = [(own, folder, url, str(admin.invite(store, f"member-{own}"))) for own in range(len(TRAIN))]
            results.append(pool.starmap(member, members, chunksize=1))
    print("member            alone %  together %   gain  kB up")
    for train, (alone, _), (together, sent) in zip(TRAIN, *results, strict=True):
        print(f"{train.__name__:17} {alone:7.1f} {together:11.1f} {together - alone:+7.1f} {sent:6.1f}")


if __name__ == "__main__":
    main()
