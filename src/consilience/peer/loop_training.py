"""What a member calls for each mini-batch of its own training loop: the method's loss, the penalty, gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, overload

import torch
from torch import Tensor, nn

from consilience.config.schedules import as_number, at_round
from consilience.errors import ConfigurationError
from consilience.method import Method
from consilience.models import UnknownClassifier
from consilience.peer.batches import Loader, Unpack, read_inputs
from consilience.peer.called_model import CalledModel, called_as_trained, own_module
from consilience.peer.connection import FederationConnection
from consilience.peer.exchange_context import ExchangeContext
from consilience.peer.forward_record import ForwardRecord, not_recorded
from consilience.peer.loop_objective import LoopObjective
from consilience.peer.loop_targets import as_targets
from consilience.peer.one_pass import run_call
from consilience.peer.shared_gradients import SharedGradients

Classifier = Callable[[Tensor], Tensor]


class LoopTraining:
    """The part of a peer that works on mini-batches. model: the caller's own, None where it gave none.

    unpack: makes (inputs, targets) of a batch.
    """

    model: nn.Module | None
    classifier: nn.Linear | None
    """The linear layer of the model that computes the logits; its inputs are the features. None where none is known."""
    connection: FederationConnection
    _round: int
    """The number of the newest round that was shared."""

    def __init__(
        self,
        connection: FederationConnection,
        method: Method,
        model: nn.Module | None,
        layer: str | None,
        unpack: Unpack | None,
    ) -> None:
        self.role = method.roles[method.role_of(connection.number)]
        self.exchanges = [e for e in self.role.exchanges if e.name in connection.channels]
        self._context = ExchangeContext(connection, method, self.exchanges)
        self._gradients = SharedGradients(self.exchanges, self._context)
        self.model, self._layer, self._unpack = model, layer, unpack
        self._called: CalledModel | None = None
        if model is not None:
            self.model = model = own_module(model)
            self._context.use_model(model, layer)
            self._called = called_as_trained(model, self._context.require_model(), unpack)
        elif layer is not None:
            raise ConfigurationError(
                f"layer={layer!r} is a layer of your model: give that too, consilience.join(url, model=model)"
            )
        classifier = self._called.classifier if self._called is not None else None
        self.classifier = None if isinstance(classifier, UnknownClassifier) else classifier
        objective = self.role.objective.for_held_out(False)  # what a loop of one's own holds out is its own affair
        self._objective = LoopObjective(objective, self._context, connection.state)
        self._record: ForwardRecord | None = None
        self._step = 0

    def _begin_recording(self) -> None:
        """Record the model's forward passes from now on."""
        if self._called is not None and self.classifier is not None:
            self._record = ForwardRecord(self.classifier, self._called.layer)

    @property
    def modules(self) -> Mapping[str, nn.ModuleDict]:
        """Modules that exchanges and the objective have in addition to the model, by name."""
        return self._context.modules

    def parameters(self) -> list[nn.Parameter]:
        """Parameters of `modules`: give them to your optimizer too, where there are any."""
        return [p for module in self.modules.values() for p in module.parameters()]

    def count_classes(self, loader: Loader) -> None:
        """Count your training samples by class, once before you train; needed where the method's loss is calibrated.

        loader: your batches; inputs are not used. The class shares are saved in the peer's folder, for the next start,
        and never sent.
        """
        self._objective.count_classes(loader, self._unpack)
        self._context.save()

    # -- the loss ----------------------------------------------------------------------------------------------------

    @overload
    def loss(self, targets: Tensor) -> Tensor: ...
    @overload
    def loss(self, features: Tensor, logits: Tensor, targets: Tensor) -> Tensor: ...
    def loss(self, *batch: Any, **named: Any) -> Tensor:
        """The method's own loss of a mini-batch, a scalar; add `penalty` to it.

        targets: those of your model's last forward pass. Without a model in `join`, and for several forward passes at
        once, give features (rows, width) and logits (rows, classes) too.

        In classification it is the cross-entropy, calibrated by your class shares where the method is, and the loss of
        the private head where it has one; the head's parameters are among `parameters`, and nothing of it is sent. In
        multi-label tasks it is the binary cross-entropy, and in a regression the squared error of targets standardized
        as the charter says, (targets - mean) / std with `charter.target`.
        """
        features, logits, targets, _ = self._read("loss", batch, named)
        return self._objective.loss(features, logits, targets)

    @overload
    def own_logits(self, inputs: Any) -> Tensor: ...
    @overload
    def own_logits(self, features: Tensor, logits: Tensor) -> Tensor: ...
    def own_logits(self, *given: Any, **named: Any) -> Tensor:
        """Your own answer for samples, (rows, classes): for data like yours, where your logits are for everybody's.

        inputs: as your loader yields them; your model is called once, in its mode, without gradients. Or give features
        and logits by hand. Where the method has no own answer, these are your logits.
        """
        if len(given) + len(named) == 2:
            return self._objective.own_logits(*given, **named)
        (inputs,) = (*given, *named.values())
        with torch.no_grad():
            called = self._own_model("own_logits(inputs)")
            called.require_classifier("own_logits(inputs)")
            features, logits = run_call(called, read_inputs(inputs))
            return self._objective.own_logits(features, logits)

    @overload
    def penalty(self, targets: Tensor) -> Tensor: ...
    @overload
    def penalty(self, features: Tensor, logits: Tensor, targets: Tensor, classifier: Classifier) -> Tensor: ...
    def penalty(self, *batch: Any, **named: Any) -> Tensor:
        """What the answers add to the loss of a mini-batch: a scalar, 0 while there are none.

        targets: those of your model's last forward pass, (rows,). Without a model in `join`, and for several forward
        passes at once, give all by hand: features (rows, width), logits (rows, classes), targets, and your classifier,
        for others' features. Where only weights are shared, a penalty is of the weights, and any model will do.
        """
        if not self.role.reads_samples and len(batch) + len(named) == 1:
            self._own_model("penalty(targets)")
            self.connection.require_open()
            self._context.follow_model()
            return self._penalty({}, 0)
        features, logits, targets, classifier = self._read("penalty", batch, named)
        targets = self._context.check_batch("penalty", features, logits, targets)
        self._context.move_to(features.device)
        seen = {"features": features.float(), "logits": logits.float(), "targets": targets}
        return self._penalty({**seen, "classify": _in_own_precision(classifier, features.dtype)}, len(targets))

    def _penalty(self, seen: Mapping[str, Any], rows: int) -> Tensor:
        """The weighted sum of the exchanges' penalties. seen: what their views have of the mini-batch."""
        context, round_ = self._context, self._round + 1
        total = torch.zeros((), device=context.device)
        others = not_recorded(self.classifier)  # it is applied to others' features
        with torch.autocast(context.device.type, enabled=False), others:  # float32, as answers travel
            for e in (at_round(e, round_) for e in self.exchanges):
                weight = as_number(e.weight)
                if not weight or e.name not in self.role.downloading or not context.has_reference(e):
                    continue
                draws = context.draws(e, e.batch_draws, rows, round_, self._step)
                view = context.view(e, **seen, **draws)
                total = total + weight * e.penalty(context.state(e), view, context.received(e))
        self._step += 1
        return total

    def _read(
        self, call: str, batch: Sequence[Any], named: Mapping[str, Any]
    ) -> tuple[Tensor, Tensor, Tensor, Classifier]:
        """Features, logits, targets and classifier: of the last forward pass, or as they were given by hand."""
        by_hand = ("features", "logits", "targets", *(("classifier",) if call == "penalty" else ()))
        one = len(batch) + len(named) == 1
        given = {**dict(zip(("targets",) if one else by_hand, batch, strict=False)), **named}
        if "targets" in given:
            given["targets"] = as_targets(call, given["targets"])
        if given.keys() == {"targets"}:
            return self._last_pass(call, given["targets"])
        if given.keys() != set(by_hand) or len(batch) + len(named) != len(by_hand):
            raise ConfigurationError(
                f"{call} takes the targets of your model's last forward pass, peer.{call}(targets), or all by hand, "
                f"peer.{call}({', '.join(by_hand)}); got {len(batch) + len(named)} arguments"
            )
        if self._record is not None:
            self._record.drop()
        return given["features"], given["logits"], given["targets"], given.get("classifier", _never_called)

    def _last_pass(self, call: str, targets: Tensor) -> tuple[Tensor, Tensor, Tensor, Classifier]:
        classifier = self._own_model(f"{call}(targets)").require_classifier(f"{call}(targets)")
        assert self._record is not None
        features, logits = self._record.use(call, targets)
        return features, logits, targets, classifier

    def _own_model(self, call: str) -> CalledModel:
        """The model given to `join`, as it is called; call: what needs it."""
        if self._called is None:
            raise ConfigurationError(
                f"peer.{call} uses your model, and the peer knows none: give it, consilience.join(url, model=model), "
                f"or give {call.partition('(')[0]} its other arguments by hand"
            )
        return self._called

    # -- gradients of a part that votes move ---------------------------------------------------------------------------

    def private_parameters(self) -> list[nn.Parameter]:
        """All parameters of the model but those of a part that only votes move, and those of `modules`.

        Give your optimizer these where the federation moves a part by everybody's gradients, as two-stage does.
        """
        return [*self._gradients.private_parameters(), *self.parameters()]

    def take_gradients(self) -> None:
        """Take the gradients of the part that votes move, after each loss.backward() and before the optimizer's step.

        `share` uploads the sign of their mean over the batches, and `refresh` moves the part as the majority voted.
        """
        self._gradients.take()


def _in_own_precision(classifier: Classifier, otherwise: torch.dtype) -> Classifier:
    """The classifier for others' features, which are float32, whatever it computes in itself."""
    own = (
        next((p.dtype for p in classifier.parameters()), otherwise) if isinstance(classifier, nn.Module) else otherwise
    )
    return lambda features: classifier(features.to(own)).float()


def _never_called(features: Tensor) -> Tensor:
    raise AssertionError("the objective's loss has the classifier of its view")
