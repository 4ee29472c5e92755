"""A member's folder has one user: a second one is refused, and the end of the first one, however it comes, frees it."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from pathlib import Path

import pytest

from consilience.cli.member import JoinOptions, RelayAddress
from consilience.cli.member import join as join_with_command
from consilience.config.config import make_config
from consilience.errors import ConfigurationError, RelayError
from consilience.peer.direct.connection import connect_to_peers
from consilience.peer.peer import join
from tests.direct_tools import Wards, small_charter
from tests.peer_tools import SHARING, Founded, batches, federation, net
from tests.relay_tools import serving

USED = (
    r"peer-0 is used already, by another process or by another peer of this process.*"
    r"close that peer, peer\.close\(\).*join\(\.\.\., folder=\.\.\.\), or consilience join --out FOLDER"
)
PROGRAM = """
import sys, time
from consilience.peer.connection import connect_to_relay
connection = connect_to_relay(*sys.argv[1:])
print("joined", flush=True)
time.sleep(600)
"""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Founded, str]]:
    with federation(tmp_path, SHARING) as made, serving(made.store) as running:
        yield made, running.url


def refused(made: Founded, url: str) -> None:
    with pytest.raises(ConfigurationError, match=USED):
        made.join(url, 0)


def test_a_second_peer_of_one_process_or_thread_is_refused_until_the_first_is_closed(
    served: tuple[Founded, str],
) -> None:
    made, url = served
    peer = made.join(url, 0)
    refused(made, url)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(refused, made, url).result()
    peer.close()
    peer.close()  # closing twice frees nobody else's lock
    again = made.join(url, 0)
    peer.close()
    refused(made, url)
    again.close()


def test_a_peer_is_neither_copied_nor_sent_to_another_process(served: tuple[Founded, str]) -> None:
    """As a trainer does that starts its processes anew; the copy would have neither the lock nor the connection."""
    made, url = served
    with made.join(url, 0) as peer:
        for copy in (pickle.dumps, deepcopy):
            with pytest.raises(ConfigurationError, match=r"'m0' cannot be copied, .*Trainer\(devices=1\) .*of its own"):
                copy(peer)


def test_a_closed_peer_is_refused_and_writes_nothing(served: tuple[Founded, str]) -> None:
    """Its folder may be another's: it would upload under the same numbers, and save over the other's state."""
    made, url = served
    model, loader = net(), batches(1)
    peer = made.join(url, 0, model)
    assert peer.share(loader)
    peer.close()
    with made.join(url, 0, net()) as again:
        assert again.share(loader) and again.round == 2
        saved = (made.folder / "peer-0" / "peer" / "state.json").read_bytes()
        said = r"'m0' in federation 'small' is closed, .*join again, and use what that returns"
        calls: list[Callable[[], bool]] = [peer.refresh, lambda: peer.share(loader)]
        for call in calls:
            with pytest.raises(ConfigurationError, match=said):
                call()
        model(loader[0][0])
        with pytest.raises(
            ConfigurationError, match=r"penalty\(targets\) was called after peer\.close\(\); join again"
        ):
            peer.penalty(loader[0][1])
        peer.close()
        assert (made.folder / "peer-0" / "peer" / "state.json").read_bytes() == saved
        assert again.share(loader) and again.round == made.round_of(0) == 3


def test_the_command_is_refused_where_a_peer_is_and_the_other_way_round(served: tuple[Founded, str]) -> None:
    made, url = served
    config, folder = make_config({"learners": 1, "model": "mlp"}), made.folder / "peer-0"
    with made.join(url, 0), pytest.raises(ConfigurationError, match=USED):
        join_with_command(config, RelayAddress(url, made.tokens[0]), JoinOptions(folder))
    with made.join(url, 0):  # and it is free again
        pass


def test_another_process_is_noticed_and_frees_the_folder_when_it_is_killed(served: tuple[Founded, str]) -> None:
    made, url = served
    command = [sys.executable, "-c", PROGRAM, url, made.tokens[0], str(made.folder / "peer-0")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout is not None and other.stdout.readline() == "joined\n"
            refused(made, url)
        finally:
            other.kill()
            other.wait()
    made.join(url, 0).close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_process_forked_after_joining_keeps_no_lock(served: tuple[Founded, str]) -> None:
    """As workers of a DataLoader that outlive the peer."""
    made, url = served
    peer = made.join(url, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        signal.pause()
        os._exit(0)
    try:
        peer.close()
        made.join(url, 0).close()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_refused_start_leaves_no_lock_and_no_new_folder(served: tuple[Founded, str], tmp_path: Path) -> None:
    made, url = served
    new, there = tmp_path / "new", tmp_path / "there"
    there.mkdir()
    for folder in (new, there):
        with pytest.raises(RelayError, match="unknown to this relay"):
            join(url, f"cs1_1_{'a' * 43}", folder=folder)
    assert not new.exists() and there.exists()
    for wrong in ({"method": "fedavg"}, {"partners": [1]}):
        with contextlib.suppress(ConfigurationError, RelayError):
            made.join(url, 0, folder=there, **wrong).close()
    made.join(url, 0, folder=there).close()


def test_a_folder_that_cannot_be_written_is_named(served: tuple[Founded, str], tmp_path: Path) -> None:
    made, url = served
    (tmp_path / "file").write_text("")
    with pytest.raises(Exception, match=r"cannot write .*file.*choose another folder"):
        made.join(url, 0, folder=tmp_path / "file")


def test_members_without_a_relay_lock_their_folder_too(tmp_path: Path) -> None:
    wards = Wards(tmp_path / "wards")
    wards.write(small_charter())
    with ThreadPoolExecutor(2) as pool:
        folders = {name: tmp_path / f"peer-{name}" for name in ("north", "south")}
        joining = {name: pool.submit(connect_to_peers, wards.network(name), folders[name], 2.0) for name in folders}
        north, south = joining["north"].result(), joining["south"].result()
    try:
        with pytest.raises(ConfigurationError, match=r"peer-north is used already.*peer\.close\(\)"):
            connect_to_peers(wards.network("north"), folders["north"], 2.0)
        north.close()
        north = connect_to_peers(wards.network("north"), folders["north"], 2.0)
    finally:
        north.close()
        south.close()
