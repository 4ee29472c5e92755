"""What tests of Lightning share: a module that knows nothing of a federation, and trainers that print nothing."""

from __future__ import annotations

from typing import Any

import lightning
import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from consilience.peer.peer import Peer
from tests.peer_tools import Batches
from tests.trainer_tools import LR, Net, Served

BOTH = {"name": "fedavg", "objective": "calibrated", "own_head": True}
QUIET = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated:FutureWarning"),  # between Lightning and torch
]


class Mine(lightning.LightningModule):
    """A user's module, which knows nothing of a federation."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.net = Net(dropout=dropout)

    def forward(self, inputs: Tensor) -> Any:
        return self.net(inputs)

    def training_step(self, batch: Any, index: int) -> Any:
        return cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=LR, momentum=0.9)


def fit(module: lightning.LightningModule, loader: Any, *callbacks: Any, epochs: int = 3, **more: Any) -> Any:
    """The trainer, after training."""
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    path, val = more.pop("ckpt_path", None), more.pop("val", None)
    settings = {"max_epochs": epochs, "accelerator": "cpu", "enable_model_summary": False, **quiet, **more}
    trainer = lightning.Trainer(callbacks=list(callbacks), **settings)
    trainer.fit(module, loader, val, ckpt_path=path)
    return trainer


def of(loader: Batches) -> DataLoader[Any]:
    """A data loader of the same batches."""
    return DataLoader(TensorDataset(*(torch.cat(parts) for parts in zip(*loader, strict=True))), 8)


def join(place: Served, module: Mine, member: int = 0, **more: Any) -> Peer:
    return place.join(member, module.net, layer="fc", **more)
