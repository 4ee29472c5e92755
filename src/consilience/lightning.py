"""A LightningModule takes part in a federation; its training_step stays as it is.

    peer = consilience.join(url, token, model=module, layer="fc")
    trainer = lightning.Trainer(callbacks=[ConsilienceCallback(peer)])
    trainer.fit(module, loader)

Before each epoch the callback downloads, in each training batch it adds the penalty to the loss that training_step
returns, and after an epoch it uploads. It needs the extra `lightning`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from copy import copy
from dataclasses import dataclass
from itertools import islice
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from consilience.errors import ConfigurationError
from consilience.extras import install_command
from consilience.peer.batches import Loader
from consilience.peer.federated_epochs import EpochSettings, FederatedEpochs
from consilience.peer.peer import Peer

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ModuleNotFoundError as error:
    raise ConfigurationError(f"ConsilienceCallback needs lightning: {install_command('lightning')}") from error


class ConsilienceCallback(Callback):
    """Trains a LightningModule with a federation.

    peer: from `consilience.join`, with the module, or a part of it, as model=. every: upload after every so many
    epochs. loss: "module", the training step's own loss plus the penalty, or "method", the loss of the federation's
    method in its place. wait: the most seconds that a download and an upload may wait. loader: batches to share in
    place of the training dataloader.
    """

    def __init__(
        self, peer: Peer, every: int = 1, loss: str = "module", wait: float = 0.0, loader: Loader | None = None
    ) -> None:
        self.peer = peer
        self._epochs = FederatedEpochs(peer, EpochSettings(every, loss, wait, loader))
        self._wrapped = ExitStack()  # gives the module its own methods back

    # -- fit ---------------------------------------------------------------------------------------------------------

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse what cannot work before anything else happens."""
        if stage == "fit":
            _refuse_several_processes(trainer)
            _refuse_manual_optimization(pl_module)
            self._epochs.refuse_other_model(pl_module)
            _refuse_no_forward(self.peer.model)
            self._wrap_configure_optimizers(pl_module)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Let the optimizer hold the peer's modules, and let training_step return the penalty too."""
        self._wrapped.close()  # the optimizers are configured
        optimizer = trainer.optimizers[0]
        _refuse_no_optimizer(optimizer, pl_module)
        # In a group that is there already: schedulers have counted them. A checkpoint is restored after this.
        optimizer.param_groups[-1]["params"].extend(self._epochs.missing_parameters(optimizer))
        self._wrap_training_step(pl_module)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Count classes where the loss needs them, and upload before training where a method wants that."""
        self._epochs.begin(_TrainingBatches(trainer, in_use=True))

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Download."""
        pl_module.log("consilience/refreshed", float(self._epochs.refresh()))

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take the gradients of a part that everybody's votes move."""
        if self._epochs.takes_gradients:
            self.peer.take_gradients()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Upload; callbacks that save checkpoints come later."""
        acknowledged = self._epochs.share(trainer.current_epoch, _TrainingBatches(trainer))
        if acknowledged is not None:
            pl_module.log("consilience/acknowledged", float(acknowledged))
        pl_module.log("consilience/round", float(self.peer.round))

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Give the module its own methods back."""
        self._wrapped.close()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Give the module its own methods back; the peer's folder has every upload that was made."""
        self._wrapped.close()

    # -- checkpoints -------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint has of the peer: its name, and the modules that the optimizer trains."""
        return self._epochs.state()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue with the modules of a checkpoint."""
        self._epochs.load_state(state_dict)

    # -- methods of the module -----------------------------------------------------------------------------------------

    def _wrap_configure_optimizers(self, module: LightningModule) -> None:
        """Refuse several optimizers before Lightning does, which would send the user to what is refused here too."""
        own: Callable[[], Any] = module.configure_optimizers

        @functools.wraps(own)
        def configure_optimizers() -> Any:
            configured = own()
            _refuse_several_optimizers(configured, module)
            return configured

        self._replace(module, "configure_optimizers", configure_optimizers)

    def _wrap_training_step(self, module: LightningModule) -> None:
        own: Callable[..., Any] = module.training_step

        @functools.wraps(own)
        def training_step(batch: Any, *args: Any, **kwargs: Any) -> Any:
            result = own(batch, *args, **kwargs)
            if result is None:  # the module skips the batch
                return None
            if isinstance(result, Mapping):
                return {**result, "loss": self._loss(module, batch, result["loss"])}
            return self._loss(module, batch, result)

        self._replace(module, "training_step", training_step)

    def _replace(self, module: LightningModule, name: str, method: Callable[..., Any]) -> None:
        self._wrapped.callback(_restore, module, name, vars(module).get(name))
        setattr(module, name, method)

    def _loss(self, module: LightningModule, batch: Any, own: Tensor) -> Tensor:
        targets = self._epochs.targets(batch)
        loss, penalty = self._epochs.loss(own, targets), self.peer.penalty(targets)
        module.log("consilience/penalty", penalty.detach(), on_step=False, on_epoch=True, batch_size=len(targets))
        return loss + penalty


def _restore(module: LightningModule, name: str, of_instance: Callable[..., Any] | None) -> None:
    """of_instance: a method that is not its class's, such as the training step of a compiled module."""
    vars(module).pop(name, None)
    if of_instance is not None:
        setattr(module, name, of_instance)


@dataclass(frozen=True)
class _TrainingBatches:
    """The batches of an epoch, as many as the trainer takes, on its device.

    in_use: the trainer has begun to read them, for its first epoch.
    """

    trainer: Trainer
    in_use: bool = False

    def __iter__(self) -> Iterator[Any]:
        loader: Any = self.trainer.train_dataloader
        limit = self.trainer.num_training_batches
        if isinstance(loader, Mapping | list | tuple):
            raise ConfigurationError(
                f"the training dataloaders are a {type(loader).__name__} of {len(loader)}, and it is not clear which "
                f"one to share; give it: ConsilienceCallback(peer, loader=...)"
            )
        if self.in_use and getattr(loader, "persistent_workers", False):
            loader = _with_other_workers(loader)
        for batch in loader if limit == float("inf") else islice(loader, int(limit)):
            yield self.trainer.strategy.batch_to_device(batch)


def _refuse_several_processes(trainer: Trainer) -> None:
    if trainer.world_size > 1:
        raise ConfigurationError(
            f"the trainer runs {trainer.world_size} processes, and a member is one process; use Trainer(devices=1, "
            f"num_nodes=1), or let each process join as a member of its own"
        )


def _with_other_workers(loader: Any) -> Any:
    """A loader of the same batches: one that keeps its workers cannot be read twice at a time."""
    other = copy(loader)
    vars(other).update(_iterator=None, persistent_workers=False)
    return other


def _refuse_no_forward(model: nn.Module | None) -> None:
    if isinstance(model, LightningModule) and type(model).forward is LightningModule.forward:
        raise ConfigurationError(
            f"{type(model).__name__} has no forward, and share calls the model given to join on your training data; "
            f"give join the network inside it, consilience.join(url, model=module.network), or write its forward"
        )


def _refuse_no_optimizer(optimizer: Optimizer, module: LightningModule) -> None:
    if not optimizer.param_groups:  # Lightning has one of its own in the place of none
        raise ConfigurationError(
            f"configure_optimizers of {type(module).__name__} returned no optimizer, and ConsilienceCallback trains "
            f"with one; return one, or leave the callback out"
        )


def _refuse_several_optimizers(configured: Any, module: LightningModule) -> None:
    """configured: what configure_optimizers returned, in any of the forms that Lightning takes."""
    listed = configured if isinstance(configured, list | tuple) else [configured]
    if listed and isinstance(listed[0], list | tuple):  # optimizers, and then schedulers
        listed = listed[0]
    count = sum(isinstance(each, Optimizer | Mapping) for each in listed)
    if count > 1:
        raise ConfigurationError(
            f"configure_optimizers of {type(module).__name__} returned {count} optimizers, and ConsilienceCallback "
            f"trains with one; return one, with a group of parameters for each learning rate, or optimize by hand "
            f"(automatic_optimization = False): then {_BY_HAND}"
        )


def _refuse_manual_optimization(module: LightningModule) -> None:
    if not module.automatic_optimization:
        raise ConfigurationError(
            f"{type(module).__name__} optimizes by hand (automatic_optimization = False), with one optimizer or "
            f"several; {_BY_HAND}"
        )


_BY_HAND = (
    "leave ConsilienceCallback out, call peer.refresh() in on_train_epoch_start, add peer.penalty(targets) to the loss "
    "before manual_backward, and call peer.share(loader) in on_train_epoch_end"
)
