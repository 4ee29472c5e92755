"""The public set at a member: the charter's, or an error that says what to do."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import httpx
import numpy as np
import pytest

from consilience.errors import ConfigurationError
from consilience.peer.connection import RelayConnection, connect_to_relay
from consilience.peer.peer import join
from consilience.peer.public_set import find_public_set
from consilience.wire.roles import encode_public_set
from tests.relay_tools import serving
from tests.roles_tools import PUBLIC, create_small

OTHER = np.ones_like(PUBLIC)


def connect(url: str, token: str, folder: Path) -> RelayConnection:
    return connect_to_relay(url, token, folder)


def test_a_copy_of_ones_own_is_checked(tmp_path: Path) -> None:
    store, tokens = create_small(tmp_path)
    with serving(store) as relay:
        member = connect(relay.url, tokens[1], tmp_path / "m1")
        found = find_public_set(member, OTHER, PUBLIC, wait=0)
        assert found is not None and np.array_equal(found, PUBLIC)
        with pytest.raises(ConfigurationError, match="--public has 6 training samples that are not the public set of"):
            find_public_set(member, PUBLIC, OTHER, wait=0)
        with pytest.raises(ConfigurationError, match=r"--public has 5 training samples .* has 320 bytes"):
            find_public_set(member, PUBLIC, PUBLIC[:5], wait=0)
        host = connect(relay.url, tokens[0], tmp_path / "m0")
        with pytest.raises(ConfigurationError, match="your data has 6 training samples that are not the public set"):
            find_public_set(host, OTHER, wait=0)
        status = member.client.federation(5.0)
        assert status["public_set"] is False  # a member that is not the host does not upload it
        for connection in (member, host):
            connection.close()


def test_a_member_waits_until_the_host_has_uploaded_it(tmp_path: Path) -> None:
    store, tokens = create_small(tmp_path)
    with serving(store) as relay:
        host, member = (connect(relay.url, tokens[i], tmp_path / f"m{i}") for i in range(2))
        heard: list[str] = []
        late = threading.Timer(1.0, lambda: find_public_set(host, PUBLIC))
        late.start()
        found = find_public_set(member, OTHER, wait=60, say=heard.append)
        late.join()
        assert found is not None and np.array_equal(found, PUBLIC)
        waiting, downloaded = heard
        assert waiting == "waiting for the public set, 0 of at most 60 s: its host, member 0, has not uploaded it"
        assert downloaded == f"the public set was downloaded, {PUBLIC.nbytes} bytes"
        file = tmp_path / "m1" / "public-set.bin"
        assert file.read_bytes() == encode_public_set(PUBLIC)
        before = member.client.bytes_received
        assert find_public_set(member, OTHER, wait=0) is not None
        assert member.client.bytes_received == before  # from the folder
        file.write_bytes(file.read_bytes()[:-4] + bytes(4))  # damaged there
        again = find_public_set(member, OTHER, wait=0)
        assert again is not None and np.array_equal(again, PUBLIC)
        assert member.client.bytes_received == before + PUBLIC.nbytes
        for connection in (member, host):
            connection.close()


def test_the_wait_for_a_public_set_ends(tmp_path: Path) -> None:
    store, tokens = create_small(tmp_path)
    with serving(store) as relay:
        member, started = connect(relay.url, tokens[1], tmp_path / "m1"), time.monotonic()
        with pytest.raises(ConfigurationError, match="did not come within 1 s: its host, member 0, has not uploaded"):
            find_public_set(member, OTHER, wait=1)
        assert 1 <= time.monotonic() - started < 20
        member.close()


def test_a_public_set_that_was_damaged_on_the_way_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, tokens = create_small(tmp_path)
    with serving(store) as relay:
        httpx.put(
            f"{relay.url}/v1/public-set",
            content=encode_public_set(PUBLIC),
            headers={"Authorization": f"Bearer {tokens[0]}"},
        ).raise_for_status()
        member = connect(relay.url, tokens[1], tmp_path / "m1")
        whole = member.client.public_set
        monkeypatch.setattr(member.client, "public_set", lambda seconds: whole(seconds)[:-1] + b"\1")
        with pytest.raises(ConfigurationError, match="this is not the public set of the charter: it has 384 bytes"):
            find_public_set(member, OTHER, wait=0)
        assert not (tmp_path / "m1" / "public-set.bin").exists()
        member.close()


def test_a_loop_of_ones_own_has_one_role(tmp_path: Path) -> None:
    store, tokens = create_small(tmp_path)
    with serving(store) as relay, pytest.raises(ConfigurationError, match="with the command `consilience join`"):
        join(relay.url, tokens[1], folder=tmp_path / "m1")
