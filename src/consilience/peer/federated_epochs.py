"""A member inside somebody else's trainer: downloads before an epoch, penalties in its batches, an upload after it.

The callbacks of `consilience.lightning` and `consilience.transformers` have one `FederatedEpochs` each; what they
differ in is where their trainer calls them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from consilience.errors import CheckpointError, ConfigurationError
from consilience.peer.batches import Loader, read_batch
from consilience.peer.peer import Peer
from consilience.validation import check_integer

LOSSES = ("module", "method")


@dataclass(frozen=True)
class EpochSettings:
    """How a member takes part in the epochs of a trainer.

    every: upload after every so many epochs. loss: "module", the trainer's own loss plus the penalty, or "method", the
    loss of the federation's method in its place. wait: the most seconds that a download and an upload may wait. loader:
    batches that are shared in place of the training data.
    """

    every: int = 1
    loss: str = "module"
    wait: float = 0.0
    loader: Loader | None = None

    def __post_init__(self) -> None:
        if self.loss not in LOSSES:
            raise ConfigurationError(
                f"loss={self.loss!r} is unknown; it is 'module', the loss of your own training step, or 'method', the "
                f"loss of the federation's method"
            )
        check_integer("every", self.every)
        if self.wait < 0:
            raise ConfigurationError(f"wait={self.wait} seconds; it must be 0 or more")


class FederatedEpochs:
    """One member's calls in the epochs of a trainer."""

    def __init__(self, peer: Peer, settings: EpochSettings) -> None:
        _refuse_other_than_peer(peer)
        self.peer, self.settings = peer, settings

    @property
    def takes_gradients(self) -> bool:
        """Whether a part of the model moves by votes, for which the gradients of each batch are taken."""
        return any(e.owned_part is not None for e in self.peer.exchanges)

    def refuse_other_model(self, trained: nn.Module) -> None:
        """Refuse to train a model that the peer does not share: its penalties and uploads would be of another one."""
        own = {id(p) for p in trained.parameters()}
        model = self.peer.model
        if model is None:
            raise ConfigurationError(
                "the peer does not know your model, and its penalty reads its forward passes; give it, "
                "consilience.join(url, model=model)"
            )
        others = [name for name, p in model.named_parameters() if id(p) not in own]
        if others:
            raise ConfigurationError(
                f"the trainer trains {type(trained).__name__}, and the peer has another model: {others[0]!r} is not a "
                f"parameter of the one that is trained; give both the same object, consilience.join(url, model=model)"
            )

    def targets(self, batch: Any) -> Tensor:
        """The targets of a batch, read as the peer reads batches."""
        return read_batch(batch, self.peer._unpack)[1]

    # -- an epoch ----------------------------------------------------------------------------------------------------

    def begin(self, loader: Loader) -> None:
        """Before the first epoch: count the classes for the method's loss, and upload what precedes training."""
        with unchanged_random_numbers():
            if self.settings.loss == "method":
                self.peer.count_classes(self._shared(loader))
            self.peer.introduce(self._shared(loader), wait=self.settings.wait)

    def refresh(self) -> bool:
        """Before an epoch: download; whether there was anything new."""
        return self.peer.refresh(wait=self.settings.wait)

    def loss(self, own: Tensor, targets: Tensor) -> Tensor:
        """The loss of a batch before the penalty: the trainer's own, or the method's."""
        return own if self.settings.loss == "module" else self.peer.loss(targets)

    def share(self, epoch: int, loader: Loader) -> bool | None:
        """After an epoch, counted from 0: upload; whether it was acknowledged, None where nothing is due."""
        if (epoch + 1) % self.settings.every:
            return None
        with unchanged_random_numbers():
            return self.peer.share(self._shared(loader), wait=self.settings.wait)

    def _shared(self, loader: Loader) -> Loader:
        return loader if self.settings.loader is None else self.settings.loader

    def missing_parameters(self, optimizer: Optimizer) -> list[nn.Parameter]:
        """Parameters of the peer's modules, such as a private head, that an optimizer does not hold."""
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        return [p for p in self.peer.parameters() if id(p) not in held]

    # -- checkpoints -------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What belongs to a checkpoint of the trainer: whose it is, and the modules that its optimizer trains."""
        modules = {name: dict(module.state_dict()) for name, module in self.peer.modules.items() if len(module)}
        return {"federation": self.peer.charter.name, "member": self.peer.name, "modules": modules}

    def load_state(self, state: Mapping[str, Any], source: str = "the checkpoint") -> None:
        """Give the peer's modules the values of a checkpoint; another member's is refused."""
        own = self.state()
        for key in ("federation", "member"):
            if state.get(key) != own[key]:
                raise CheckpointError(
                    f"{source} is of member {state.get('member')!r} in federation {state.get('federation')!r}, and the "
                    f"peer is {own['member']!r} in {own['federation']!r}; join with the token and the folder that the "
                    f"checkpoint was made with"
                )
        for name, module in self.peer.modules.items():
            if len(module):
                module.load_state_dict(state["modules"].get(name, {}))


def _refuse_other_than_peer(peer: object) -> None:
    if not isinstance(peer, Peer):
        raise ConfigurationError(
            f"peer is of the type {type(peer).__name__}; give what consilience.join(url, model=model) returned"
        )


@contextmanager
def unchanged_random_numbers() -> Iterator[None]:
    """Leave the random numbers of the caller's training as they are, whatever a pass over its data draws."""
    python, legacy = random.getstate(), np.random.get_state()
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else range(0)  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(legacy)
