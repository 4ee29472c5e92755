"""A federation in a training loop of one's own: download, add the penalty to the loss, upload.

    peer = consilience.join(url, token)
    for epoch in range(epochs):
        peer.refresh()
        for inputs, targets in loader:
            features = model.features(inputs)
            logits = model.classifier(features)
            loss = peer.loss(features, logits, targets) + peer.penalty(features, logits, targets, model.classifier)
            ...
        peer.share(model, loader)

While the relay cannot be reached, training continues with the last answers, and the newest upload waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType

import numpy as np
import torch
from torch import Tensor, nn

from consilience.channels import Answer
from consilience.config.schedules import as_number, at_round
from consilience.errors import ConfigurationError, TrainingError
from consilience.exchanges.base import Contribution, Exchange, View
from consilience.learner.batches import LearnerKey
from consilience.learner.noise_source import SECRET, UPLOAD_NOISE
from consilience.learner.private_uploads import noise_size, private_contributions
from consilience.learner.residuals import as_sent
from consilience.method import Method
from consilience.peer.connection import FederationConnection, connect_to_relay
from consilience.peer.direct.connection import connect_to_peers
from consilience.peer.direct.network import PeerNetwork
from consilience.peer.exchange_context import ExchangeContext
from consilience.peer.loop_limits import refuse_moves_before_batches, refuse_roles
from consilience.peer.loop_objective import LoopObjective
from consilience.peer.member_method import check_exchanges, member_method
from consilience.peer.one_pass import Loader, one_pass
from consilience.peer.privacy_budget import charter_plan, check_fixed_encoder, loop_privacy
from consilience.peer.shared_gradients import SharedGradients
from consilience.peer.spent_budget import PrivacyBudget
from consilience.peer.state import ChannelUpload
from consilience.randomness import AFTER_TRAINING
from consilience.wire.charter import values_fingerprint


def join(
    url: str | PeerNetwork,
    token: str = "",
    model: nn.Module | None = None,
    *,
    folder: Path | str | None = None,
    method: str | Method | None = None,
    timeout: float = 5.0,
    ca_file: str | None = None,
    relay_key: str | None = None,
    partners: Iterable[int] = (),
) -> Peer:
    """Join the federation that the token is for, or one without a relay.

    url: the relay's address, or a `PeerNetwork`: the charter, your key, and where the other members are. model: yours,
    where the federation shares weights; its weights become the common ones. folder: where the last answers and a
    pending upload are saved (default: one under `peers/`), so that a restart continues from there. method:
    FILE.py:NAME, your copy of the file where the federation's method is in one. timeout: the most seconds that a call
    may take, unless you ask it to wait. ca_file: certificates to trust, as a PEM file, where no public authority has
    signed the relay's. relay_key: the relay's public key, as its operator tells it; without it, the key that the relay
    names at the first contact is kept in the folder and required from then on. partners: numbers of members whose
    uploads alone means and observations are of, beside yours, where the charter allows it; by default everybody's.
    """
    connection = _connect(url, token, folder, timeout, ca_file, relay_key)
    try:
        connection.use_partners(partners)
        return Peer(connection, model, method)
    except BaseException:
        connection.client.close()
        raise


def _connect(
    url: str | PeerNetwork,
    token: str,
    folder: Path | str | None,
    timeout: float,
    ca_file: str | None,
    relay_key: str | None,
) -> FederationConnection:
    if isinstance(url, str):
        return connect_to_relay(url, token, folder, timeout, ca_file, relay_key)
    if token or ca_file or relay_key:
        raise ConfigurationError(
            "a PeerNetwork has no relay: leave out token and relay_key, and give ca_file to the PeerNetwork"
        )
    return connect_to_peers(url, folder, timeout)


class Peer(AbstractContextManager["Peer"]):
    """One member of a federation, used from its own training loop."""

    def __init__(
        self, connection: FederationConnection, model: nn.Module | None = None, method: str | Method | None = None
    ) -> None:
        self.connection, self.charter = connection, connection.charter
        refuse_roles(self.charter)
        self.method = member_method(self.charter, method)
        check_exchanges(self.method, self.charter)
        self.role = self.method.roles[self.method.role_of(connection.number)]
        self.exchanges = [e for e in self.role.exchanges if e.name in connection.channels]
        refuse_moves_before_batches(self.exchanges, self.charter)
        self._context = ExchangeContext(connection, self.method, self.exchanges)
        self._gradients = SharedGradients(self.exchanges, self._context)
        plan = charter_plan(self.charter, [e for e in self.exchanges if e.name in self.role.uploading])
        self._privacy = loop_privacy(plan, self.role, self.charter.name)
        self._budget = PrivacyBudget(plan, connection.state)
        pending = connection.state.pending
        self._step, self._round = 0, max(connection.state.round, pending.round if pending else 0, 0)
        if model is not None:
            self._context.use_model(model)
            _start_from_common_values(self)
        elif any(channel.moves for channel in connection.channels.values()):
            raise ConfigurationError(
                f"federation {self.charter.name!r} shares weights: give your model, consilience.join(url, token, model)"
            )
        objective = self.role.objective.for_held_out(False)  # what a loop of one's own holds out is its own affair
        self._objective = LoopObjective(objective, self._context, connection.state)

    @property
    def name(self) -> str:
        """The member's name at the relay."""
        return self.connection.name

    @property
    def round(self) -> int:
        """The number of the newest round that was shared, acknowledged or not."""
        return self._round

    @property
    def waiting(self) -> bool:
        """Whether an upload is pending: the relay has not acknowledged it."""
        return self.connection.state.pending is not None

    @property
    def bytes_sent(self) -> int:
        """Bytes of the bodies uploaded so far."""
        return self.connection.client.bytes_sent

    @property
    def privacy_spent(self) -> float:
        """Epsilon of all uploads so far, with the delta of the charter; 0 where uploads are not private."""
        return self._budget.spent

    @property
    def modules(self) -> Mapping[str, nn.ModuleDict]:
        """Modules that exchanges and the objective have in addition to the model, by name."""
        return self._context.modules

    def parameters(self) -> list[nn.Parameter]:
        """Parameters of `modules`: give them to your optimizer too, where there are any."""
        return [p for module in self.modules.values() for p in module.parameters()]

    # -- downloading -------------------------------------------------------------------------------------------------

    def refresh(self, wait: float = 0.0) -> bool:
        """Download new answers, which change the model where weights are shared; whether there were any.

        wait: the most seconds to wait until there is one; without a relay, until all others have uploaded the round
        that you uploaded last. Without it, the call takes at most the timeout of `join`.
        """
        connection, started = self.connection, time.monotonic()
        end = started + max(wait, connection.timeout)
        connection.outbox.flush(connection.timeout)
        if wait > 0:
            connection.wait_for_others(connection.state.round, wait)
        while True:
            seconds = min(connection.timeout, end - time.monotonic())
            found = connection.inbox.download(_downloaded(self), self._context.pool_draws(), seconds)
            if found or wait <= 0 or not connection.inbox.wait(started + wait - time.monotonic()):
                break
        self._receive(found)
        return bool(found)

    @torch.no_grad()
    def _receive(self, found: Mapping[str, Answer]) -> None:
        """Let new answers change the model, where their exchange does that."""
        context = self._context
        context.follow_model()
        for e in (e for e in self.exchanges if e.name in found):
            context.forget_received(e)
            if not e.changes_model or e.name not in self.role.downloading:
                continue
            model = context.require_model()
            update = e.receive(context.state(e), context.view(e), context.received(e))
            tensors = dict(model.named_parameters()) | dict(model.named_buffers())
            for name, value in {**update.parameters, **update.buffers}.items():
                tensors[name].copy_(value)
            context.set_state(e, update.state)

    # -- training ----------------------------------------------------------------------------------------------------

    def count_classes(self, loader: Loader) -> None:
        """Count your training samples by class, once before you train; needed where the method's loss is calibrated.

        loader: batches of (inputs, targets); inputs are not used. The class shares are saved in the peer's folder, for
        the next start, and never sent.
        """
        self._objective.count_classes(loader)
        self.connection.save()

    def loss(self, features: Tensor, logits: Tensor, targets: Tensor) -> Tensor:
        """The method's own loss of a mini-batch, a scalar; add `penalty` to it.

        It is the cross-entropy, calibrated by your class shares where the method is, and the loss of the private head
        where it has one. The head's parameters are among `parameters`, and nothing of it is sent.
        """
        return self._objective.loss(features, logits, targets)

    def own_logits(self, features: Tensor, logits: Tensor) -> Tensor:
        """Your own answer for samples, (rows, classes): for data like yours, where your logits are for everybody's.

        Where the method has no own answer, these are your logits.
        """
        return self._objective.own_logits(features, logits)

    def penalty(
        self, features: Tensor, logits: Tensor, targets: Tensor, classifier: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """What the answers add to the loss of a mini-batch: a scalar, 0 while there are none.

        features: (rows, width). logits: (rows, classes). targets: (rows,). classifier: yours, for others' features.
        """
        context = self._context
        context.check_batch("penalty", features, logits, targets)
        context.move_to(features.device)
        seen = {"features": features.float(), "logits": logits.float(), "targets": targets.long()}
        total = seen["logits"].new_zeros(())
        round_ = self.round + 1
        with torch.autocast(features.device.type, enabled=False):  # float32, as answers travel
            for e in (at_round(e, round_) for e in self.exchanges):
                weight = as_number(e.weight)
                if not weight or e.name not in self.role.downloading or not context.has_reference(e):
                    continue
                draws = context.draws(e, e.batch_draws, len(targets), round_, self._step)
                view = context.view(e, **seen, classify=_in_own_precision(classifier, features.dtype), **draws)
                total = total + weight * e.penalty(context.state(e), view, context.received(e))
        self._step += 1
        return total

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

    # -- uploading ---------------------------------------------------------------------------------------------------

    def share(self, model: nn.Module, loader: Loader, wait: float = 0.0) -> bool:
        """Upload what the exchanges share of the model and its data; whether the relay has acknowledged it.

        model: features + classifier, as `consilience.split` makes them of any network. loader: your training data, as
        batches of (inputs, targets); one pass is made over it, in evaluation mode. wait: the most seconds to wait for
        the receipt. An upload without a receipt stays pending and is sent with the next call.
        """
        round_ = max(self._round, self.connection.state.round) + 1
        due = [e for e in self.exchanges if e.name in self.role.uploading and round_ % e.every == 0]
        return _upload(self, model, loader, round_, due, wait)

    def introduce(self, model: nn.Module, loader: Loader, wait: float = 0.0) -> bool:
        """Upload the untrained model's representations before the first round, as published; later it does nothing."""
        if self._round > 0 or self.connection.state.round >= 0:
            return True
        due = [e for e in self.exchanges if e.uploads_before_training and e.name in self.role.uploading]
        return _upload(self, model, loader, 0, due, wait)

    # -- closing -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Save the state and close the connection; a pending upload stays in the folder for the next time."""
        self._objective.keep()
        self.connection.close()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _upload(peer: Peer, model: nn.Module, loader: Loader, round_: int, due: list[Exchange], wait: float) -> bool:
    connection, outbox = peer.connection, peer.connection.outbox
    peer._context.use_model(model)
    end = time.monotonic() + max(wait, connection.timeout)
    if connection.state.unconfirmed:
        outbox.flush(end - time.monotonic())
    due = [e for e in due if e.name in outbox.open_channels and peer._context.has_reference(e)]
    left = end - time.monotonic()  # the pass over the data is the caller's own work, and not limited
    uploads: dict[str, ChannelUpload] = {}
    if due and not connection.state.unconfirmed and peer._budget.allows_upload():
        check_fixed_encoder(peer._privacy, peer._context.require_model().features)
        with torch.no_grad():
            uploads = _contributions(peer, due, loader, round_)
        peer._budget.add_upload()
    peer._step, peer._round = 0, round_
    peer._objective.keep()
    return outbox.queue(round_, uploads) and outbox.flush(left)


def _downloaded(peer: Peer) -> list[str]:
    """Channels whose answers are downloaded: a change is measured from the common values of a moving mean."""
    channels = peer.connection.channels
    return [e.name for e in peer.exchanges if e.name in peer.role.downloading or channels[e.name].moves]


@torch.no_grad()
def _start_from_common_values(peer: Peer) -> None:
    """Hold the common values of moving means: the model's own where the charter names them, else the relay's."""
    connection, answers = peer.connection, peer.connection.state.answers
    moving = [e for e in peer.exchanges if connection.channels[e.name].moves]
    for e in (e for e in moving if e.name not in answers):
        # Copies: training changes the model's own.
        own = {k: _numpy(t).copy() for k, t in e.common_values(peer._context.view(e)).items()}
        if values_fingerprint(connection.channels[e.name], own) == peer.charter.channel_settings[e.name].start:
            answers[e.name] = Answer(own, np.zeros(()), 0)
    missing = [e.name for e in moving if e.name not in answers]
    if missing:
        connection.inbox.download(missing, {}, connection.timeout)
    started = {e.name for e in moving if e.start == "common" or connection.state.round > 0}
    peer._receive({name: answers[name] for name in started if name in answers})


def _contributions(peer: Peer, due: list[Exchange], loader: Loader, round_: int) -> dict[str, ChannelUpload]:
    """What exchanges contribute after one pass over the data, quantized, with the residuals that leaves."""
    context, state = peer._context, peer.connection.state
    needed = any(e.needs_representations for e in due)
    seen, samples = one_pass(context.require_model(), loader, peer.charter.classes, needed)
    count = torch.full((), float(samples), device=context.device)
    views, given = dict[str, View](), dict[str, Contribution]()
    due, channels, uploads = [at_round(e, round_) for e in due], peer.connection.channels, {}
    for e in due:
        draws = context.draws(e, e.sample_draws, samples, round_, AFTER_TRAINING)
        views[e.name] = context.view(e, **seen, samples=count, gradients=peer._gradients.mean(e), **draws)
        given[e.name] = _checked_finite(e.name, e.contribute(context.state(e), views[e.name], context.received(e)))
    if peer._privacy is not None:
        size = noise_size(peer._privacy, due, channels)
        normal = SECRET.normal(UPLOAD_NOISE, LearnerKey(0, 0), round_, AFTER_TRAINING, size).to(context.device)
        given = private_contributions(peer._privacy, due, channels, views, given, normal)
    for e in due:
        sent, residuals = as_sent(channels[e.name], given[e.name], context.residuals(channels[e.name]))
        uploads[e.name] = ChannelUpload(
            {k: _numpy(t) for k, t in sent.tensors.items()},
            _numpy(sent.weight),
            state.answers[e.name].version if e.name in state.answers else 0,
            {k: _numpy(t) for k, t in residuals.items()},
        )
    peer._gradients.forget()
    return uploads


def _checked_finite(name: str, contribution: Contribution) -> Contribution:
    """The contribution in float32, as it travels; NaN and infinite values are refused."""
    tensors = {k: t.float() for k, t in contribution.tensors.items()}
    if not all(bool(torch.isfinite(t).all()) for t in tensors.values()):
        raise TrainingError(
            f"the upload of exchange {name!r} is NaN or infinite; try a smaller learning rate or weight"
        )
    return Contribution(tensors, contribution.weight)


def _in_own_precision(classifier: Callable[[Tensor], Tensor], otherwise: torch.dtype) -> Callable[[Tensor], Tensor]:
    """The classifier for others' features, which are float32, whatever it computes in itself."""
    own = (
        next((p.dtype for p in classifier.parameters()), otherwise) if isinstance(classifier, nn.Module) else otherwise
    )
    return lambda features: classifier(features.to(own)).float()


def _numpy(tensor: Tensor) -> np.ndarray:
    found: np.ndarray = tensor.detach().float().numpy(force=True)
    return found
