"""A federation from one's own training loop: refresh, add the penalty to the loss, share.

    peer = consilience.join(url, token)
    for epoch in range(epochs):
        peer.refresh()
        for inputs, targets in loader:
            features = model.features(inputs)
            logits = model.classifier(features)
            loss = cross_entropy(logits, targets) + peer.penalty(features, logits, targets, model.classifier)
            ...
        peer.share(model, loader)

Out of reach of the relay, training goes on with the last answers, and what was to be shared waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import numpy as np
import torch
from torch import Tensor, nn

from consilience.channels import Answer, empty_answer
from consilience.config.schedules import value_at
from consilience.errors import ConfigurationError, TrainingError
from consilience.exchanges.base import Contribution, Exchange, Received, View
from consilience.learner.body import as_sent, keeps_error
from consilience.method import Role
from consilience.methods import build_method
from consilience.models import SplitModel, to_split_model
from consilience.peer.http import RelayClient
from consilience.peer.one_pass import Loader, one_pass
from consilience.peer.outbox import ChannelUpload, Outbox
from consilience.randomness import seed_of, uniform
from consilience.task import Task
from consilience.wire import schema, tokens
from consilience.wire.agreement import describe_difference, without_local_choices
from consilience.wire.charter import values_fingerprint


def join(
    url: str,
    token: str,
    model: nn.Module | None = None,
    *,
    folder: Path | str | None = None,
    timeout: float = 5.0,
    ca_file: str | None = None,
) -> Peer:
    """Join the federation that the token is for.

    model: yours, where the federation shares weights; it takes the common ones. folder: where to keep what was heard
    and what waits to be sent (default: one under `peers/`), so that a restart goes on from there. timeout: the most
    seconds that a call may take of your training, but for what you ask it to wait. ca_file: certificates to trust, as
    a PEM file, where no public authority has signed the relay's.
    """
    connection = connect_to_relay(url, token, folder, timeout, ca_file)
    try:
        return Peer(connection, model)
    except BaseException:
        connection.client.close()
        raise


def connect_to_relay(
    url: str, token: str, folder: Path | str | None = None, timeout: float = 5.0, ca_file: str | None = None
) -> Outbox:
    """A member's correspondence, kept in its folder."""
    who = tokens.FORM.fullmatch(token.strip())
    if who is None:
        raise ConfigurationError("that is no token; it begins with cs1_ and comes from `consilience relay invite`")
    client = RelayClient(url, who[0], ca_file)
    place = f"{urlsplit(url).hostname}-{urlsplit(url).port or 443}-{int(who[1], 16)}"
    try:
        return Outbox(client, Path("peers") / place if folder is None else Path(folder), timeout)
    except BaseException:
        client.close()
        raise


class Peer:
    """One member of a federation, beside its own training loop."""

    def __init__(self, connection: Outbox, model: nn.Module | None = None) -> None:
        self.connection = connection
        self.charter = connection.charter
        self.role = role_of(connection)
        self.exchanges = [e for e in self.role.exchanges if e.name in connection.channels]
        self._refuse_gradients()
        self._model: SplitModel | None = None
        self._given: nn.Module | None = None
        self._task = Task(self.charter.classes, _width(connection))
        self._place = torch.device("cpu")
        self._step, self._round = 0, max(connection.round, connection.pending.round if connection.pending else 0, 0)
        self._received: dict[str, Received] = {}
        self._state: dict[str, dict[str, Tensor]] = {}
        with torch.random.fork_rng(devices=[]):  # the caller's numbers go on as if nothing had been drawn
            torch.manual_seed(seed_of("modules", self.charter.seed, connection.number))
            self.modules = {e.name: nn.ModuleDict(e.modules(self._task)) for e in self.exchanges}
        if model is not None:
            self._take_on(model)
            self._begin()
        elif any(channel.moves for channel in connection.channels.values()):
            raise ConfigurationError(
                f"federation {self.charter.name!r} shares weights: give your model, consilience.join(url, token, model)"
            )

    def _refuse_gradients(self) -> None:
        """Refuse exchanges that move a part of the model by its gradients: those of somebody's loop are not seen."""
        for e in self.exchanges:
            if e.owned_part is not None:
                raise ConfigurationError(
                    f"federation {self.charter.name!r} moves the part {e.owned_part!r} of the model by everybody's "
                    f"gradients ({e.name!r}), which your own loop cannot give; take part with the command "
                    f"`consilience join`, which trains for you"
                )

    @property
    def name(self) -> str:
        """By what the relay knows this member."""
        return self.connection.name

    @property
    def round(self) -> int:
        """How many rounds were shared, or were to be."""
        return self._round

    @property
    def waiting(self) -> bool:
        """Whether something waits to be sent."""
        return self.connection.pending is not None

    def parameters(self) -> list[nn.Parameter]:
        """Parameters that exchanges have beside the model: give them to your optimizer too, where there are any."""
        return [p for module in self.modules.values() for p in module.parameters()]

    # -- hearing -------------------------------------------------------------------------------------------------------

    def refresh(self, wait: float = 0.0) -> bool:
        """Hear what is new, and let it change the model where weights are shared; whether anything was.

        wait: so many seconds at most, until something new is there. Without it, no longer than your patience.
        """
        began, timeout = time.monotonic(), self.connection.timeout
        end = began + max(wait, timeout)
        self.connection.flush(timeout)
        while True:
            found = self.connection.fetch(self._hearing(), self._draws(), min(timeout, end - time.monotonic()))
            if found or wait <= 0 or not self.connection.wait(began + wait - time.monotonic()):
                break
        self._hear(found)
        return bool(found)

    def _hearing(self) -> list[str]:
        return [
            e.name for e in self.exchanges if e.name in self.role.downloading or self.connection.channels[e.name].moves
        ]

    def _draws(self) -> dict[str, int]:
        """How many entries of each pool are wanted: as many as the penalty looks at."""
        pools = {n: c for n, c in self.connection.channels.items() if isinstance(c, schema.Pool)}
        return {e.name: getattr(e, "down", pools[e.name].draw) for e in self.exchanges if e.name in pools}

    @torch.no_grad()
    def _begin(self) -> None:
        """Know the common weights: they are the model's own, or the relay has them; and go on from them."""
        moving = [e for e in self.exchanges if self.connection.channels[e.name].moves]
        for e in moving:
            mine = {
                k: _numpy(t).copy() for k, t in e.common_values(self._view(e)).items()
            }  # training changes the model's own
            unheard = e.name not in self.connection.held
            if (
                unheard
                and values_fingerprint(self.connection.channels[e.name], mine) == self.charter.terms[e.name].start
            ):
                self.connection.held[e.name] = Answer(mine, np.zeros(()), 0)
        missing = [e.name for e in moving if e.name not in self.connection.held]
        if missing:
            self.connection.fetch(missing, {}, self.connection.timeout)
        known = {e.name: self.connection.held[e.name] for e in moving if e.name in self.connection.held}
        begun = {e.name for e in moving if e.start == "common" or self.connection.round > 0}
        self._hear({name: answer for name, answer in known.items() if name in begun})

    @torch.no_grad()
    def _hear(self, found: Mapping[str, Answer]) -> None:
        if self._model is not None:
            self._move_to(_device(self._model))
        for e in self.exchanges:
            if e.name not in found:
                continue
            self._received.pop(e.name, None)
            if not e.changes_model or e.name not in self.role.downloading:
                continue
            model = self._need_model()
            update = e.receive(self._states(e), self._view(e), self._answer(e))
            tensors = dict(model.named_parameters()) | dict(model.named_buffers())
            for name, value in {**update.parameters, **update.buffers}.items():
                tensors[name].copy_(value)
            self._state[e.name] = dict(update.state)

    def _answer(self, e: Exchange) -> Received:
        """The newest answer of an exchange, where the model is; before the first one, nothing with count 0."""
        if e.name not in self._received:
            channel = self.connection.channels[e.name]
            held = self.connection.held.get(e.name, empty_answer(channel))
            tensors = {k: torch.from_numpy(np.array(t)).to(self._place) for k, t in held.tensors.items()}
            count = torch.from_numpy(np.array(held.count, dtype=np.float64)).to(self._place)
            self._received[e.name] = Received(tensors, count, torch.ones((), dtype=torch.bool, device=self._place))
        return self._received[e.name]

    # -- training ------------------------------------------------------------------------------------------------------

    def penalty(
        self, features: Tensor, logits: Tensor, targets: Tensor, classifier: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """What the answers add to the loss of a mini-batch: a scalar, 0 while there are none.

        features: (rows, width). logits: (rows, classes). targets: (rows,). classifier: yours, for others' features.
        """
        self._check(features, logits, targets)
        self._move_to(features.device)
        seen = {"features": features.float(), "logits": logits.float(), "targets": targets.long()}
        total = seen["logits"].new_zeros(())
        round_, seed = self.round + 1, self.charter.seed
        with torch.autocast(features.device.type, enabled=False):  # as exact as what travels
            for e in self.exchanges:
                weight = value_at(e.weight, round_)
                if not weight or e.name not in self.role.downloading or not self._known(e):
                    continue
                more: dict[str, Any] = {"classify": _in_its_precision(classifier, features.dtype)}
                if e.batch_draws:
                    where = seed, round_, self.connection.number, self._step
                    more["draws"] = self._drawn(e, e.batch_draws, len(targets), *where)
                total = total + weight * e.penalty(self._states(e), self._view(e, **seen, **more), self._answer(e))
        self._step += 1
        return total

    def _known(self, e: Exchange) -> bool:
        """Whether there is something to measure from: a change of weights is measured from the common ones."""
        return e.name in self.connection.held or not self.connection.channels[e.name].moves

    def _check(self, features: Tensor, logits: Tensor, targets: Tensor) -> None:
        classes, rows = self.charter.classes, len(features)
        shaped = features.ndim == 2 and logits.shape == (rows, classes) and targets.shape == (rows,)
        if not shaped or targets.is_floating_point():
            raise ConfigurationError(
                f"penalty was given features {tuple(features.shape)}, logits {tuple(logits.shape)} and targets "
                f"{tuple(targets.shape)} of {targets.dtype}; it takes (rows, width), (rows, {classes}) and (rows,) of "
                f"whole numbers"
            )
        for e in self.exchanges:
            mean = self.connection.channels[e.name].tensors.get("mean")
            wide = features.shape[1] if e.name != "logits" else classes
            if mean is not None and mean.shape[-1] != wide:
                raise ConfigurationError(
                    f"your features are {features.shape[1]} wide, and federation {self.charter.name!r} shares features "
                    f"of width {mean.shape[-1]}; let yours be as wide, such as with one more linear layer"
                )

    # -- sharing -------------------------------------------------------------------------------------------------------

    def share(self, model: nn.Module, loader: Loader, wait: float = 0.0) -> bool:
        """Put up what the exchanges share of the model and its data; whether the relay has acknowledged it.

        model: features + classifier, as `consilience.split` makes them of any network. loader: your training data, as
        batches of (inputs, targets); one pass is made over it, in evaluation mode. wait: so many seconds at most, until
        it is acknowledged. What is not acknowledged waits, and goes with the next call.
        """
        round_ = max(self._round, self.connection.round) + 1
        uploading = [e for e in self.exchanges if e.name in self.role.uploading and round_ % e.every == 0]
        return self._share(model, loader, round_, uploading, wait)

    def introduce(self, model: nn.Module, loader: Loader, wait: float = 0.0) -> bool:
        """Put up the untrained model's representations, as published, before the first round; later it does nothing."""
        if self._round > 0 or self.connection.round >= 0:
            return True
        eager = [e for e in self.exchanges if e.uploads_before_training and e.name in self.role.uploading]
        return self._share(model, loader, 0, eager, wait)

    def _share(self, model: nn.Module, loader: Loader, round_: int, uploading: list[Exchange], wait: float) -> bool:
        self._take_on(model)
        end = time.monotonic() + max(wait, self.connection.timeout)
        if self.connection.unsettled:
            self.connection.flush(end - time.monotonic())
        due = [e for e in uploading if e.name in self.connection.open and self._known(e)]
        left = end - time.monotonic()  # the pass over the data is the caller's own work, and takes what it takes
        offers: dict[str, ChannelUpload] = {}
        if due and not self.connection.unsettled:
            with torch.no_grad():
                offers = self._offers(due, loader, round_)
        self._step, self._round = 0, round_
        return self.connection.queue(round_, offers) and self.connection.flush(left)

    def _offers(self, due: list[Exchange], loader: Loader, round_: int) -> dict[str, ChannelUpload]:
        seen, samples = one_pass(
            self._need_model(), loader, self.charter.classes, any(e.needs_representations for e in due)
        )
        offers = {}
        for e in due:
            channel, more = self.connection.channels[e.name], {}
            if e.sample_draws:
                where = self.charter.seed, round_, self.connection.number, -1
                more["draws"] = self._drawn(e, e.sample_draws, samples, *where)
            count = torch.full((), float(samples), device=self._place)
            view = self._view(e, **seen, samples=count, **more)
            put = _finite(e.name, e.contribute(self._states(e), view, self._answer(e)))
            errors = {k: self._error(channel, k) for k, t in channel.tensors.items() if keeps_error(channel, t)}
            sent, after = as_sent(channel, put, errors)
            held = self.connection.held.get(e.name)
            offers[e.name] = ChannelUpload(
                {k: _numpy(t) for k, t in sent.tensors.items()},
                _numpy(sent.weight),
                held.version if held is not None else 0,
                {k: _numpy(t) for k, t in after.items()},
            )
        return offers

    def _error(self, channel: schema.Channel, key: str) -> Tensor:
        kept = self.connection.errors.get(f"{channel.name}.{key}")
        if kept is None:
            return torch.zeros(channel.tensors[key].shape, device=self._place)
        return torch.from_numpy(np.array(kept)).to(self._place)

    # -- what exchanges see --------------------------------------------------------------------------------------------

    def _take_on(self, model: nn.Module) -> None:
        """Look at the model once: whether its channels are the federation's."""
        if self._model is None or (model is not self._model and model is not self._given):
            mine = to_split_model(model)
            task = _task_of(mine)
            self._refuse_other(task)
            self._given, self._model, self._task = model, mine, task
        assert self._model is not None
        self._move_to(_device(self._model))

    def _refuse_other(self, task: Task) -> None:
        """Refuse a model with other channels than the federation's."""
        name = self.charter.name
        if task.classes != self.charter.classes:
            raise ConfigurationError(
                f"your model tells {task.classes} classes apart, and federation {name!r} has {self.charter.classes}"
            )
        for e in self.exchanges:
            mine, theirs = e.channel(task), self.connection.channels[e.name]
            if without_local_choices(mine) != without_local_choices(theirs):
                raise ConfigurationError(
                    f"your model cannot share {e.name!r} in federation {name!r}: {describe_difference(mine, theirs)}; "
                    f"use the model the federation was created with, or one with the same feature width"
                )

    def _move_to(self, place: torch.device) -> None:
        """Be where the model is: it may have been moved since."""
        if place == self._place:
            return
        self._place = place
        self._received.clear()
        self._state = {name: {k: t.to(place) for k, t in state.items()} for name, state in self._state.items()}
        for module in self.modules.values():
            module.to(place)

    def _need_model(self) -> SplitModel:
        if self._model is None:
            raise ConfigurationError("the model is not known yet: give it, consilience.join(url, token, model)")
        return self._model

    def _states(self, e: Exchange) -> dict[str, Tensor]:
        if e.name not in self._state:
            self._state[e.name] = e.init_state(self._view(e))
        return self._state[e.name]

    def _drawn(self, e: Exchange, wanted: int, rows: int, *where: int) -> Tensor:
        drawn = uniform(f"draws {e.name}", *where, np.arange(wanted)[:, None], np.arange(rows)[None, :])
        return torch.from_numpy(drawn).to(self._place)

    def _view(self, e: Exchange, **seen: Any) -> View:
        """What an exchange may see: of what is not given, nothing."""
        empty = torch.empty(0, device=self._place)
        model = self._model
        given = {"inputs": empty, "features": empty, "logits": empty, "targets": empty.long(), **seen}
        given.setdefault("samples", torch.zeros((), device=self._place))
        given.setdefault("classify", model.classifier if model is not None else _no_classifier)
        return View(
            task=self._task,
            parameters=dict(model.named_parameters()) if model is not None else {},
            buffers={k: b for k, b in model.named_buffers() if b.is_floating_point()} if model is not None else {},
            valid=torch.ones(len(given["targets"]), device=self._place),
            modules=self.modules[e.name],  # type: ignore[arg-type]  # a ModuleDict is a mapping of callables
            **given,
        )

    # -- the end -------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Hang up; what waits stays in the folder for the next time."""
        self.connection.save()
        self.connection.client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def role_of(connection: Outbox) -> Role:
    """The role of this member, by the charter's method."""
    method = dict(connection.charter.method)
    built = build_method(str(method.pop("name")), method)
    return built.roles[built.role_of(connection.number)]


def _width(connection: Outbox) -> int:
    """How wide the features are that the federation shares; 0 where it shares none."""
    means = [channel.tensors["mean"].shape[-1] for channel in connection.channels.values() if "mean" in channel.tensors]
    return max(means, default=0)


def _task_of(model: SplitModel) -> Task:
    parameters = {k: tuple(p.shape) for k, p in model.named_parameters()}
    buffers = {k: tuple(b.shape) for k, b in model.named_buffers() if b.is_floating_point()}
    return Task(model.classes, model.width, (), model.bound, parameters, buffers, type(model).__name__)


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device


def _finite(name: str, put: Contribution) -> Contribution:
    """What is put up, as it travels: float32, and nothing that is no number."""
    tensors = {k: t.float() for k, t in put.tensors.items()}
    if not all(bool(torch.isfinite(t).all()) for t in tensors.values()):
        raise TrainingError(f"exchange {name!r} would put up what is no number; try a smaller learning rate or weight")
    return Contribution(tensors, put.weight)


def _in_its_precision(classifier: Callable[[Tensor], Tensor], otherwise: torch.dtype) -> Callable[[Tensor], Tensor]:
    """The classifier for others' features, which are float32, whatever it computes in itself."""
    own = (
        next((p.dtype for p in classifier.parameters()), otherwise) if isinstance(classifier, nn.Module) else otherwise
    )
    return lambda features: classifier(features.to(own)).float()


def _numpy(tensor: Tensor) -> np.ndarray:
    found: np.ndarray = tensor.detach().float().numpy(force=True)
    return found


def _no_classifier(features: Tensor) -> Tensor:
    raise ConfigurationError("the penalty needs your classifier: peer.penalty(features, logits, targets, classifier)")
