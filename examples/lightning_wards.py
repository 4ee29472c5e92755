"""Two wards train LightningModules together: the modules stay as they are, and the Trainer has one callback more.

Each ward has its own network and mostly half of the ten digits, and runs in a process of its own. The baseline is the
same training without the callback. The processes do not wait for each other, so runs differ a little. Needs the extra
lightning.

    python examples/lightning_wards.py
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import subprocess
import sys
import tempfile
import warnings
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from consilience import join, load, split
from consilience.lightning import ConsilienceCallback
from consilience.peer.create_charter import TaskShape, create_charter, write_charter
from consilience.relay import admin

METHOD = {"name": "representation-sharing", "kd": 10.0, "contrast": 10.0}
CLASSES, WIDTH, EPOCHS, SEED = 10, 64, 40, 0
MANY, FEW = 10, 2  # samples of each of a ward's main digits, and of each other digit
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)  # hide what it says of the hardware
warnings.filterwarnings("ignore", ".*does not have many workers")  # this is small data
warnings.filterwarnings("ignore", ".*LeafSpec.* is deprecated")  # between Lightning and torch


class Ward(lightning.LightningModule):
    """A module that knows nothing of a federation: images (n, 1, 8, 8) -> logits (n, 10)."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        """The loss of a mini-batch."""
        inputs, targets = batch
        return cross_entropy(self.network(inputs), targets)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def perceptron() -> nn.Module:
    """North's network."""
    layers = [nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, WIDTH), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(WIDTH, CLASSES))


def convolution() -> nn.Module:
    """South's network: (n, 1, 8, 8) -> (n, 16, 4, 4) -> (n, 64) -> (n, 10)."""
    layers = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, WIDTH)]
    return nn.Sequential(*layers, nn.Tanh(), nn.Linear(WIDTH, CLASSES))


WARDS = {"north": perceptron, "south": convolution}


def samples_of(name: str) -> DataLoader[Any]:
    """The ward's own samples, three times in an epoch."""
    data, order = load("digits"), np.random.default_rng(SEED).permutation(1000)
    digits = [order[data.targets[order] == digit][: MANY + FEW] for digit in range(CLASSES)]
    cuts = [MANY] * 5 + [FEW] * 5  # north has the samples before the cut, south the rest
    own = np.concatenate(
        [rows[:cut] if name == "north" else rows[cut:] for rows, cut in zip(digits, cuts, strict=True)]
    )
    tensors = [torch.from_numpy(part[np.tile(own, 3)]) for part in (data.inputs, data.targets)]
    return DataLoader(TensorDataset(*tensors), batch_size=16, shuffle=True)


def train(name: str, url: str = "", token: str = "", folder: Path | None = None) -> tuple[float, int]:
    """Train a ward's module, with the relay or without; return its accuracy in percent and the bytes it sent."""
    torch.manual_seed(SEED)
    module, callbacks, peer = Ward(WARDS[name]()), list[lightning.Callback](), None
    if url:
        peer = join(url, token, module.network, folder=folder)
        callbacks = [ConsilienceCallback(peer)]
    quiet: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = lightning.Trainer(
        max_epochs=EPOCHS, accelerator="cpu", callbacks=callbacks, enable_model_summary=False, **quiet
    )
    trainer.fit(module, samples_of(name))
    data = load("digits")
    with torch.no_grad():
        correct = module.network(torch.from_numpy(data.test_inputs)).argmax(1) == torch.from_numpy(data.test_targets)
    if peer:
        peer.close()
    return float(100 * correct.float().mean()), peer.bytes_sent if peer else 0


def ward(name: str, url: str, token: str, folder: Path, results: Queue[Any]) -> None:
    """Run one ward's process: train alone first, then with the other."""
    torch.set_num_threads(1)
    alone, _ = train(name)
    together, sent = train(name, url, token, folder)
    results.put((name, alone, together, sent))


def main() -> None:
    """Start a relay and both wards, and print what they gained."""
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as cleanup:
        folder, store, results = Path(name), Path(name, "relay.db"), spawn.Queue()
        models = [lambda build=build: split(build()) for build in WARDS.values()]
        charter = create_charter("digits", METHOD, TaskShape((1, 8, 8), CLASSES), models, seed=SEED)
        admin.create(store, write_charter(folder / "digits.toml", *charter)[0])
        command = [sys.executable, "-m", "consilience", "relay", "serve", "--store", str(store), "--port", "0"]
        relay = cleanup.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL))
        cleanup.callback(relay.kill)
        assert relay.stdout
        url = relay.stdout.readline().decode().split()[1]  # relay: http://127.0.0.1:...
        for who in WARDS:
            token = str(admin.invite(store, who))
            process = spawn.Process(target=ward, args=(who, url, token, folder / who, results))
            process.start()
            cleanup.callback(process.join)
            cleanup.callback(process.kill)
        found = {who: rest for who, *rest in (results.get(timeout=400) for _ in WARDS)}
    print("ward   network      mostly  alone %  together %   gain  kB up")
    for who, build in WARDS.items():
        alone, together, sent = found[who]
        about = f"{who:6} {build.__name__:12} {'0 to 4' if who == 'north' else '5 to 9':7}"
        print(f"{about} {alone:6.1f} {together:11.1f} {together - alone:+7.1f} {sent / 1000:6.0f}")


if __name__ == "__main__":
    main()
