"""A federation without torch: what it knows and what a member shares are NumPy arrays.

    peer = consilience.join_arrays(url, token)
    for round_ in range(rounds):
        targets = peer.targets()  # downloads what others have shared
        ...  # train with scikit-learn, JAX, Keras or NumPy
        peer.share_arrays(features=features, labels=labels)

While the relay cannot be reached, training continues with the last answers, and the newest upload waits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from consilience.functional.upload_noise import private_upload
from consilience.peer.array_exchanges import ArrayExchange, Place, exchanges_of_charter
from consilience.peer.array_samples import ArraySamples, check_samples
from consilience.peer.array_targets import Targets, targets_of
from consilience.peer.connect import connect
from consilience.peer.connection import FederationConnection
from consilience.peer.direct.network import PeerNetwork
from consilience.peer.member import FederationMember, Uploads
from consilience.peer.state import ChannelUpload
from consilience.privacy.plan import PrivacyPlan
from consilience.privacy.secret_noise import secret_normal
from consilience.wire import schema
from consilience.wire.charter import Charter


def join_arrays(
    url: str | PeerNetwork,
    token: str = "",
    *,
    folder: Path | str | None = None,
    timeout: float = 5.0,
    ca_file: str | None = None,
    relay_key: str | None = None,
    partners: Iterable[int] = (),
) -> ArrayPeer:
    """Join a federation that shares class means, observations or logits, with any library; torch is not needed.

    url: the relay's address, or a `PeerNetwork`. token: from the invitation; by default that of the environment
    variable CONSILIENCE_TOKEN. folder: where the last answers and a pending upload are saved (default: one under
    `peers/`), so that a restart continues from there. timeout: the most seconds that a call may take, unless you ask it
    to wait. ca_file: certificates to trust, as a PEM file, where no public authority has signed the relay's. relay_key:
    the relay's public key, as its operator tells it; by default the one that it names at the first contact. partners:
    numbers of members whose uploads alone means and observations are of, beside yours, where the charter allows it.
    """
    connection = connect(url, token, folder, timeout, ca_file, relay_key, partners)
    try:
        return ArrayPeer(connection)
    except BaseException:
        connection.disconnect()
        raise


class ArrayPeer(FederationMember):
    """One member of a federation, whose model is in any library: it takes and gives NumPy arrays."""

    def __init__(self, connection: FederationConnection) -> None:
        self._exchanges = {e.name: e for e in exchanges_of_charter(connection.charter)}
        super().__init__(connection, _upload_plan(connection.charter))

    def refresh(self, wait: float = 0.0) -> bool:
        """Download new answers, which `targets` has from then on; whether there were any.

        wait: the most seconds to wait until there is one; without a relay, until all others have uploaded the round
        that you uploaded last. Without it, the call takes at most the timeout of `join_arrays`.
        """
        draws = {n: e.channel.draw for n, e in self._exchanges.items() if isinstance(e.channel, schema.Pool)}
        return bool(self._download(self._exchanges.keys(), draws, wait))

    def targets(self) -> Targets:
        """What the federation knows: means by class, observations and mean logits of the newest answers.

        If you have not called `refresh` since the last round, it is called now: a loop needs `targets` and
        `share_arrays` only.
        """
        if not self._refreshed and not self.connection.closed:
            self.refresh()
        return targets_of(list(self._exchanges.values()), self.connection.state.answers, self.charter.classes)

    def share_arrays(self, *, features: Any = None, logits: Any = None, labels: Any = None, wait: float = 0.0) -> bool:
        """Upload the means of your samples by class; whether the relay has acknowledged it.

        features: (samples, width). logits: (samples, classes); what the federation does not share is ignored. labels:
        (samples,), integers from 0. All may be of any library that `np.asarray` takes. Leave out samples that must not
        enter any mean. wait: the most seconds to wait for the receipt. An upload without a receipt stays pending and is
        sent with the next call.
        """
        return self._share(self._checked(features, logits, labels), self._next_round, wait)

    def introduce(self, *, features: Any = None, logits: Any = None, labels: Any = None, wait: float = 0.0) -> bool:
        """Upload the untrained model's means before the first round, as published; later it does nothing."""
        if not self._before_first_round:
            return True
        return self._share(self._checked(features, logits, labels), 0, wait)

    def _checked(self, features: Any, logits: Any, labels: Any) -> ArraySamples:
        given = {"features": features, "logits": logits, "labels": labels}
        return check_samples(list(self._exchanges.values()), self.charter.name, self.charter.classes, given)

    def _share(self, samples: ArraySamples, round_: int, wait: float) -> bool:
        place = Place(self.charter.seed, self.connection.number, round_)
        return self._upload(self._exchanges, round_, wait, lambda due: self._contributions(due, samples, place))

    def _contributions(self, due: Collection[str], samples: ArraySamples, place: Place) -> Uploads:
        """What exchanges contribute, with noise where uploads are private, as the relay will decode it."""
        exchanges = {name: self._exchanges[name] for name in due}
        given = {name: e.contribute(samples.values[e.values], samples.labels, place) for name, e in exchanges.items()}
        if self._budget.plan is None:
            for name, (means, _) in given.items():
                exchanges[name].refuse_beyond_bounds(means, self.charter.name)
        else:
            given = _with_noise(self._budget.plan, exchanges, given)
        uploads = {}
        for name, (means, weight) in given.items():
            sent = exchanges[name].channel.encoding("mean", "up").quantize(means)
            uploads[name] = ChannelUpload({"mean": sent}, weight)
        return uploads


def _upload_plan(charter: Charter) -> PrivacyPlan | None:
    asked = charter.privacy
    if asked is None:
        return None
    return PrivacyPlan(asked.private, asked.epsilon, asked.delta, asked.clip, asked.uploads, releases=True)


Contributions = Mapping[str, tuple[np.ndarray, np.ndarray]]


def _with_noise(
    plan: PrivacyPlan, exchanges: Mapping[str, ArrayExchange], given: Contributions
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """All means as one vector with secret noise; weights, which would tell how many samples there are, are all 1."""
    means = {name: values for name, (values, _) in given.items()}
    noisy = private_upload(means, plan.clip, plan.noise, secret_normal(sum(m.size for m in means.values())))
    found = {}
    for name, (_, weight) in given.items():
        bounds = exchanges[name].channel.tensors["mean"]
        found[name] = np.clip(noisy[name], bounds.low, bounds.high), np.ones_like(weight)
    return found
