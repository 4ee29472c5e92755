"""A Hugging Face Trainer takes part in a federation.

    peer = consilience.join(url, token, model=model, layer="classifier")
    ConsilienceTrainer(model=model, args=args, train_dataset=dataset, peer=peer).train()

    class Mine(ConsilienceMixin, MyTrainer): ...  # a trainer of one's own

The penalty is added to whatever loss the model, `compute_loss_func` or your trainer's compute_loss makes, while the
model trains. It needs the extra `transformers`.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from consilience.errors import ConfigurationError
from consilience.extras import install_command
from consilience.peer.batches import Loader, stacked_samples
from consilience.peer.epoch_checkpoint import read_checkpoint, write_checkpoint
from consilience.peer.federated_epochs import EpochSettings, FederatedEpochs
from consilience.peer.peer import Peer

try:
    from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
    from transformers.trainer_utils import get_last_checkpoint
except ModuleNotFoundError as error:
    raise ConfigurationError(f"ConsilienceTrainer needs transformers: {install_command('transformers')}") from error

if TYPE_CHECKING:
    _Base = Trainer
else:
    _Base = object
_LARGEST_STEP = 1e-6  # of an epoch: what rounding may add to a trainer's count of epochs


class ConsilienceMixin(_Base):
    """Trains the model of any Hugging Face Trainer with a federation; name it before the trainer's class.

    peer: from `consilience.join`, with the trainer's model. every: upload after every so many epochs. loss: "module",
    the trainer's own loss plus the penalty, or "method", the loss of the federation's method in its place. wait: the
    most seconds that a download and an upload may wait. loader: batches to share in place of the training data.
    """

    def __init__(
        self,
        *args: Any,
        peer: Peer,
        every: int = 1,
        loss: str = "module",
        wait: float = 0.0,
        loader: Loader | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        _refuse_several_processes(self.args)
        _refuse_several_optimizers(self.optimizer)
        self.peer = peer
        self._epochs = FederatedEpochs(peer, EpochSettings(every, loss, wait, loader))
        self._epochs.refuse_other_model(cast("nn.Module", self.model))
        # Heads of classification take num_items_in_batch and do not divide by it, so a trainer that believes them does
        # not divide the loss either. Without it, their loss is the mean of a batch, which the trainer divides.
        self.model_accepts_loss_kwargs = False
        self._rows_of_step = 0
        self._calls = _EpochCalls(self._epochs, self)
        self.add_callback(self._calls)

    # -- training ----------------------------------------------------------------------------------------------------

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> Any:
        """Train; a checkpoint has the peer's modules too, where the federation's method has any."""
        if trial is not None or self.model_init is not None:
            raise ConfigurationError(
                "a hyperparameter search trains many models, and a member has one; give the trainer model= and no "
                "model_init, and join() for each training"
            )
        last = resume_from_checkpoint is True and get_last_checkpoint(str(self.args.output_dir))
        folder = last or (resume_from_checkpoint if isinstance(resume_from_checkpoint, str | os.PathLike) else None)
        if folder:
            read_checkpoint(Path(folder), self._epochs)
        return super().train(resume_from_checkpoint, ignore_keys_for_eval=ignore_keys_for_eval)

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Optimizer:
        """The trainer's optimizer, with the parameters of the peer's modules."""
        given = self.optimizer is not None
        optimizer = super().create_optimizer(*args, **kwargs)
        missing = self._epochs.missing_parameters(optimizer)
        if missing and given:
            raise ConfigurationError(
                "the optimizer given to the trainer does not hold the parameters of the peer's modules; make it with "
                "[*model.parameters(), *peer.parameters()]"
            )
        if missing:
            optimizer.add_param_group({"params": missing, "weight_decay": 0.0})
        return optimizer

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        """The batches of one step of the optimizer, and count their samples."""
        with stacked_samples():
            batches, items = super().get_batch_samples(*args, **kwargs)
        self._rows_of_step = sum(len(self._epochs.targets(batch)) for batch in batches)
        return batches, items

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """A batch forward and backward; gradients of a part that everybody's votes move are taken."""
        loss = super().training_step(*args, **kwargs)
        if self._epochs.takes_gradients:
            self.peer.take_gradients()
        return loss

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, *args: Any, **kwargs: Any
    ) -> Any:
        """The loss of the trainer, and while the model trains the penalty."""
        targets = self._epochs.targets(inputs) if model.training else None  # before label smoothing takes them out
        own, outputs = super().compute_loss(model, inputs, True, *args, **kwargs)
        loss = own if targets is None else self._with_penalty(own, targets)
        return (loss, outputs) if return_outputs else loss

    def _with_penalty(self, own: Tensor, targets: Tensor) -> Tensor:
        """The loss of a batch so that the batches of one step add up to the loss of one large batch."""
        penalty = self.peer.penalty(targets)
        self._calls.penalties.append(penalty.detach())
        share = len(targets) / (self._rows_of_step or len(targets))
        if not self._divides_loss and self._epochs.settings.loss == "module":
            return own + share * penalty  # own is normalized by the samples of the step already
        factor = share * self.current_gradient_accumulation_steps if self._divides_loss else share
        return factor * (self._epochs.loss(own, targets) + penalty)

    @property
    def _divides_loss(self) -> bool:
        """Whether the trainer divides what compute_loss returns by the number of batches of a step."""
        scaled: bool | None = getattr(self, "loss_is_scaled_for_ga", None)
        return self.compute_loss_func is None if scaled is None else not scaled


class ConsilienceTrainer(ConsilienceMixin, Trainer):
    """The Trainer of transformers, with a federation."""


class _EpochCalls(TrainerCallback):
    """Downloads before an epoch, uploads after it, and saves what a checkpoint needs of the peer."""

    def __init__(self, epochs: FederatedEpochs, trainer: Trainer) -> None:
        self._epochs, self._trainer, self._refreshed = epochs, trainer, False
        self.penalties: list[Tensor] = []  # of the batches of this epoch

    def on_train_begin(self, *events: Any, **kwargs: Any) -> None:
        """Count classes where the loss needs them, and upload before training where a method wants that."""
        self._epochs.begin(kwargs["train_dataloader"])

    def on_epoch_begin(self, *events: Any, **kwargs: Any) -> None:
        """Download."""
        self.penalties.clear()
        self._refreshed = self._epochs.refresh()

    def on_optimizer_step(self, *events: Any, **kwargs: Any) -> None:
        """Clear the gradients of the peer's modules: the trainer clears those of the model only."""
        for parameter in self._epochs.peer.parameters():
            parameter.grad = None

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Upload, before the trainer saves the checkpoint of the epoch."""
        epoch = math.ceil((state.epoch or 0) - _LARGEST_STEP) - 1
        acknowledged = self._epochs.share(epoch, kwargs["train_dataloader"])
        found = {"refreshed": float(self._refreshed), "round": float(self._epochs.peer.round)}
        if acknowledged is not None:
            found["acknowledged"] = float(acknowledged)
        if self.penalties:
            found["penalty"] = float(torch.stack(self.penalties).mean())
        self._trainer.log({f"consilience/{name}": value for name, value in found.items()})

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Save the peer's modules beside the model."""
        write_checkpoint(Path(str(args.output_dir)) / f"checkpoint-{state.global_step}", self._epochs)


def _refuse_several_optimizers(optimizer: object) -> None:
    if optimizer is not None and not isinstance(optimizer, Optimizer):
        raise ConfigurationError(
            f"optimizers=(optimizer, scheduler) has a {type(optimizer).__name__} as its optimizer, and a Trainer takes "
            f"one torch.optim.Optimizer; give one, with a group of parameters for each learning rate, or write a loop "
            f"of your own with peer.penalty(targets) and peer.share(loader)"
        )


def _refuse_several_processes(args: TrainingArguments) -> None:
    if args.world_size > 1 or args.n_gpu > 1:
        raise ConfigurationError(
            f"the trainer runs {args.world_size} processes with {args.n_gpu} GPUs each, and a member is one process "
            f"with one device; start one process, with CUDA_VISIBLE_DEVICES naming one GPU, or let each process join "
            f"as a member of its own"
        )
