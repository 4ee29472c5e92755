"""A member that uses the uploads of listed members only, over a relay."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from consilience.errors import RelayError
from consilience.wire.rules import Rules
from tests.peer_tools import SHARING, batches, federation, net, seeded
from tests.relay_tools import serving

pytestmark = pytest.mark.usefixtures("one_thread")


def test_means_are_over_partners_and_oneself_as_a_simulation_has_them(tmp_path: Path) -> None:
    with federation(tmp_path, SHARING, members=4, rules=Rules(partners=2)) as made, serving(made.store) as running:
        listed = [made.join(running.url, 0, partners=[2, 1])]
        peers = [*listed, *(made.join(running.url, who) for who in (1, 2, 3))]
        for who, peer in enumerate(peers):
            assert peer.introduce(seeded(net, who), batches(who))
        for peer in peers:
            peer.refresh()
        own = [peer.connection.state.answers["prototypes"] for peer in peers]
        assert (own[3].count.sum(), own[0].count.sum()) == (4 * 24, 3 * 24)  # samples of four members, and of three
        assert not np.allclose(own[0].tensors["mean"], own[3].tensors["mean"])
        assert np.array_equal(own[1].tensors["mean"], own[3].tensors["mean"])


def test_without_the_charter_s_permission_the_relay_s_refusal_is_raised(tmp_path: Path) -> None:
    with federation(tmp_path, SHARING, members=3) as made, serving(made.store) as running:
        peer = made.join(running.url, 0, partners=[1, 2])
        with pytest.raises(RelayError, match="the charter lets nobody choose partners") as error:
            peer.refresh()
        assert error.value.code == "partners"
