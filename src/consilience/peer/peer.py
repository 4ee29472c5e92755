"""A federation in a training loop of one's own: three lines.

    peer = consilience.join(url, model=model)  # the token: in CONSILIENCE_TOKEN, or token=...
    for epoch in range(epochs):
        for inputs, targets in loader:
            loss = cross_entropy(model(inputs), targets)
            loss = loss + peer.penalty(targets)
            ...
        peer.share(loader)  # uploads, and downloads what others have shared

The peer reads features and logits of your model's last forward pass where its classifier, the linear layer that
computes the logits, is called. Where that does not fit, give them by hand: `peer.penalty(features, logits, targets,
classifier)`. While the relay cannot be reached, training continues with the last answers, and the newest upload waits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, overload

from torch import nn

from consilience.errors import ConfigurationError
from consilience.exchanges.base import Exchange
from consilience.method import Method
from consilience.peer.batches import Loader, Unpack
from consilience.peer.called_model import CalledModel, called_by_hand
from consilience.peer.connect import connect
from consilience.peer.connection import FederationConnection
from consilience.peer.contributions import LoopContributions
from consilience.peer.direct.network import PeerNetwork
from consilience.peer.loop_answers import LoopAnswers
from consilience.peer.loop_limits import refuse_moves_before_batches, refuse_roles
from consilience.peer.loop_training import LoopTraining
from consilience.peer.member import FederationMember, Uploads
from consilience.peer.member_method import check_exchanges, member_method
from consilience.peer.privacy_budget import charter_plan, check_fixed_encoder, loop_privacy


def join(
    url: str | PeerNetwork,
    token: str = "",
    model: nn.Module | None = None,
    *,
    layer: str | None = None,
    unpack: Unpack | None = None,
    folder: Path | str | None = None,
    method: str | Method | None = None,
    timeout: float = 5.0,
    ca_file: str | None = None,
    relay_key: str | None = None,
    partners: Iterable[int] = (),
) -> Peer:
    """Join the federation that the token is for, or one without a relay.

    url: the relay's address, or a `PeerNetwork`: the charter, your key, and where the other members are. token: from
    your invitation; by default the environment variable CONSILIENCE_TOKEN. model: yours, as you train it; a hook on its
    classifier reads features and logits of your forward passes. Where the federation shares weights, its weights become
    the common ones. layer: the name of the linear layer that computes the logits, such as "fc"; by default the last
    one. unpack: a function that makes (inputs, targets) of a batch of your loader, where it yields neither that, nor
    several inputs and the targets, nor a mapping with labels. folder: where the last answers and a pending upload are
    saved (default: one under `peers/`), so that a restart continues from there. method: FILE.py:NAME, your copy of the
    file where the federation's method is in one. timeout: the most seconds that a call may take, unless you ask it to
    wait. ca_file: certificates to trust, as a PEM file, where no public authority has signed the relay's. relay_key:
    the relay's public key, as its operator tells it; without it, the key that the relay names at the first contact is
    kept in the folder and required from then on. partners: numbers of members whose uploads alone means and
    observations are of, beside yours, where the charter allows it; by default everybody's.
    """
    connection = connect(url, token, folder, timeout, ca_file, relay_key, partners)
    try:
        return Peer(connection, model, method, layer=layer, unpack=unpack)
    except BaseException:
        connection.disconnect()
        raise


class Peer(FederationMember, LoopTraining):
    """One member of a federation, used from its own training loop."""

    def __init__(
        self,
        connection: FederationConnection,
        model: nn.Module | None = None,
        method: str | Method | None = None,
        *,
        layer: str | None = None,
        unpack: Unpack | None = None,
    ) -> None:
        charter = connection.charter
        refuse_roles(charter)
        self.method = member_method(charter, method)
        check_exchanges(self.method, charter)
        LoopTraining.__init__(self, connection, self.method, model, layer, unpack)
        refuse_moves_before_batches(self.exchanges, charter)
        plan = charter_plan(charter, [e for e in self.exchanges if e.name in self.role.uploading])
        FederationMember.__init__(self, connection, plan)
        self._found_by_share = False  # answers that a loop may still wait for
        self._privacy = loop_privacy(plan, self.role, charter.name)
        self._contributions = LoopContributions(self._context, self._gradients, self._privacy)
        self._answers = LoopAnswers(connection, self.role, self.exchanges, self._context)
        if model is not None:
            self._answers.start_from_common_values()
        elif any(channel.moves for channel in connection.channels.values()):
            raise ConfigurationError(
                f"federation {charter.name!r} shares weights: give your model, consilience.join(url, model=model)"
            )
        self._begin_recording()

    # -- downloading -------------------------------------------------------------------------------------------------

    def refresh(self, wait: float = 0.0) -> bool:
        """Download new answers, which change the model where weights are shared; whether there were any.

        wait: the most seconds to wait until there is one, which `share` may have downloaded; without a relay, until all
        others have uploaded the round that you uploaded last. Without it, the call takes at most the timeout of `join`.
        """
        some, self._found_by_share = wait > 0 and self._found_by_share, False
        found = self._download(self._answers.channels(), self._context.pool_draws(), wait, some)
        self._answers.receive(found)
        return some or bool(found)

    # -- uploading ---------------------------------------------------------------------------------------------------

    @overload
    def share(self, loader: Loader, *, wait: float = 0.0) -> bool: ...
    @overload
    def share(self, model: nn.Module, loader: Loader, wait: float = 0.0) -> bool: ...
    def share(self, *given: Any, wait: float = 0.0, **named: Any) -> bool:
        """Upload what the exchanges share of the model and its data; whether the relay has acknowledged it.

        loader: your training data, as batches of (inputs, targets), of several inputs and the targets, or as mappings
        with labels; one pass is made over it, in evaluation mode, with the model given to `join`, called as you call
        it. wait: the most seconds to wait for the receipt. An upload without a receipt stays pending and is sent with
        the next call. If you have not called `refresh` since the last round, it is called now: a loop needs `penalty`
        and `share` only. model: another one, as features + classifier, as `consilience.split` makes them of any
        network; with it, nothing is downloaded.
        """
        by_hand = len(given) + len(named) > 1
        model, loader, wait = self._read_share("share", given, named, wait)
        round_ = self._next_round
        due = [e for e in self.exchanges if e.name in self.role.uploading and round_ % e.every == 0]
        loop_refreshes = by_hand or self._refreshed
        acknowledged = self._share(model, loader, round_, due, wait)
        if not loop_refreshes:
            self._found_by_share = self.refresh()
            self._refreshed = False  # not by the loop
        return acknowledged

    @overload
    def introduce(self, loader: Loader, *, wait: float = 0.0) -> bool: ...
    @overload
    def introduce(self, model: nn.Module, loader: Loader, wait: float = 0.0) -> bool: ...
    def introduce(self, *given: Any, wait: float = 0.0, **named: Any) -> bool:
        """Upload the untrained model's representations before the first round, as published; later it does nothing."""
        model, loader, wait = self._read_share("introduce", given, named, wait)
        if not self._before_first_round:
            return True
        due = [e for e in self.exchanges if e.uploads_before_training and e.name in self.role.uploading]
        return self._share(model, loader, 0, due, wait)

    def _read_share(
        self, call: str, given: Sequence[Any], named: dict[str, Any], wait: float
    ) -> tuple[CalledModel, Loader, float]:
        """The model to call, the loader and the seconds to wait, of either form of a call."""
        if len(given) == 3:
            *two, wait = given
            given = tuple(two)
        names = ("loader",) if len(given) + len(named) == 1 else ("model", "loader")
        found = {**dict(zip(names, given, strict=False)), **named}
        if found.keys() != set(names) or len(given) + len(named) != len(names):
            raise ConfigurationError(
                f"{call} takes your batches, peer.{call}(loader), or a model too, peer.{call}(model, loader), and "
                f"wait=SECONDS; got {len(given) + len(named)} arguments"
            )
        if "model" in found:
            self._context.use_model(found["model"])
            return called_by_hand(self._context.require_model(), self._unpack), found["loader"], wait
        called = self._own_model(f"{call}(loader)")
        assert self.model is not None
        self._context.use_model(self.model, self._layer)
        return called, found["loader"], wait

    def _share(self, model: CalledModel, loader: Loader, round_: int, due: list[Exchange], wait: float) -> bool:
        if self._record is not None:
            self._record.drop()

        def contributions(names: Collection[str]) -> Uploads:
            check_fixed_encoder(self._privacy, self._context.require_model().features)
            return self._contributions.compute([e for e in due if e.name in names], model, loader, round_)

        return self._upload([e.name for e in due], round_, wait, contributions)

    def _can_contribute(self, name: str) -> bool:
        return any(self._context.has_reference(e) for e in self.exchanges if e.name == name)

    def _finish_round(self) -> None:
        self._step = 0
        self._objective.keep()

    # -- closing -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Save the state and close the connection; a pending upload stays in the folder for the next time."""
        if self._record is not None:
            self._record.close()
        self._objective.keep()
        super().close()
