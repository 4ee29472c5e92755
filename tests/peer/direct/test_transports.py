"""Both transports do the same: members find each other, ask and answer; strangers and what is too long are refused."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from consilience.errors import ConfigurationError
from consilience.peer.direct.address import parse_address
from consilience.peer.direct.iroh_transport import IrohTransport
from consilience.peer.direct.key_file import read_key
from consilience.peer.direct.transport import Transport
from consilience.peer.direct.zenoh_transport import Certificates, ZenohTransport
from consilience.wire.members import MemberKey
from tests.direct_tools import NAMES, Wards

LARGEST = 100_000
Open = Callable[..., Transport]


def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


@pytest.fixture(params=["tls", "iroh"])
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    """Starts the transport of a member, which answers with its name and what it was asked."""
    wards, kind = Wards(tmp_path, (*NAMES, "stranger")), request.param
    members = [MemberKey(name=name, key=wards.keys[name]) for name in NAMES]
    with contextlib.ExitStack() as stack:

        def open_(name: str, *peers: str) -> Transport:
            connect = [parse_address(wards.address(peer, kind)) for peer in peers]
            listen = [parse_address(f"{kind}/127.0.0.1:{wards.ports[name]}", listening=True)]
            answer = lambda request: f"{name}:{len(request)}".encode()  # noqa: E731
            found: Transport
            if kind == "iroh":
                known = [*members, MemberKey(name=name, key=wards.keys[name])] if name == "stranger" else members
                secret = read_key(tmp_path / f"{name}.key")[0]
                found = IrohTransport(known, secret, (connect, listen), [], answer, LARGEST)
            else:
                if name == "stranger":
                    wards.certify(name, trustme.CA())
                files = Certificates(
                    *(str(tmp_path / file) for file in ("ca.pem", f"{name}.tls.pem", f"{name}.tls.key"))
                )
                found = ZenohTransport("wards", name, NAMES, (connect, listen), files, answer, LARGEST)
            stack.callback(found.close)
            return found

        yield open_


def test_members_ask_one_another_and_all(start: Open) -> None:
    north, south = start("north"), start("south", "north")
    west = start("west", "north", "south")
    until(lambda: all(len(each.present()) == 2 for each in (north, south, west)))
    assert north.present() == {"south", "west"}
    until(lambda: north.ask(bytes(1000), 5.0) == {"south": b"south:1000", "west": b"west:1000"})
    assert west.ask(b"abc", 5.0, "north") == {"north": b"north:3"}
    assert west.ask(b"abc", 5.0, "nobody") == {}


def test_a_member_that_left_is_gone_and_comes_back(start: Open) -> None:
    north, south = start("north", "south"), start("south")
    until(lambda: north.present() == {"south"})
    south.close()
    until(lambda: not north.present())
    assert north.ask(b"x", 1.0) == {}
    start("south")
    until(lambda: north.ask(b"x", 2.0) == {"south": b"south:1"})


def test_a_stranger_gets_no_answer(start: Open, caplog: pytest.LogCaptureFixture) -> None:
    north = start("north")
    with caplog.at_level(logging.WARNING, "consilience.peer"):
        stranger = start("stranger", "north")
        time.sleep(1.5)
        assert stranger.present() == set() and stranger.ask(b"x", 0.5) == {}
    assert north.present() == set()
    if isinstance(north, IrohTransport):  # zenoh ends such a connection itself, before it is a session
        assert "the charter has no member with the key" in caplog.text


def test_a_request_that_is_far_too_long_is_not_read(start: Open) -> None:
    north, south = start("north"), start("south", "north")
    until(lambda: south.present() == {"north"})
    assert south.ask(bytes(10 * LARGEST), 2.0).get("north", b"refused").startswith(b"refused")
    until(lambda: south.ask(b"x", 2.0) == {"north": b"north:1"})
    assert north.present() == {"south"}


def test_replies_under_other_names_and_second_ones_do_not_count(tmp_path: Path) -> None:
    """A zenoh session may reply as often as it likes, under any name that the question's key includes."""
    zenoh = pytest.importorskip("zenoh")
    wards = Wards(tmp_path)
    listen = [parse_address(f"tcp/127.0.0.1:{wards.ports['north']}", listening=True)]
    north = ZenohTransport("wards", "north", ("north", "south"), ([], listen), None, bytes, LARGEST)
    config = zenoh.Config()
    for key, value in (("mode", '"peer"'), ("scouting/multicast/enabled", "false"), ("listen/endpoints", "[]")):
        config.insert_json5(key, value)
    config.insert_json5("connect/endpoints", f'["tcp/127.0.0.1:{wards.ports["north"]}"]')
    with contextlib.closing(north), zenoh.open(config) as session:

        def reply(query: Any) -> None:
            with query:
                for number in range(5):
                    query.reply(f"consilience/wards/message/other{number}", b"x")
                    query.reply("consilience/wards/message/south", b"%d" % number)
                time.sleep(1.0)

        queryable = session.declare_queryable("consilience/wards/message/*", reply)
        tokens = [session.liveliness().declare_token(f"consilience/wards/present/{n}") for n in ("south", "other")]
        until(lambda: north.present() == {"south"})
        until(lambda: bool(north.ask(b"x", 2.0)))
        time.sleep(1.2)  # until that question's reply has ended
        began = time.monotonic()
        assert north.ask(b"x", 10.0) == {"south": b"0"}
        assert time.monotonic() - began < 0.9  # it does not wait until the other side has finished
        assert north.ask(b"x", 10.0, "other0") == {}
        for each in (queryable, *tokens):
            each.undeclare()


@pytest.mark.parametrize("package", ["zenoh", "iroh"])
def test_a_package_that_is_not_installed_is_named(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    wards = Wards(tmp_path)
    extra = {"zenoh": "p2p", "iroh": "iroh"}[package]
    with pytest.raises(ConfigurationError, match=rf"need the package (eclipse-)?{package}: pip install .*{extra}"):
        if package == "zenoh":
            ZenohTransport("wards", "north", NAMES, ([], []), None, bytes, LARGEST)
        else:
            members = [MemberKey(name=name, key=key) for name, key in wards.keys.items()]
            IrohTransport(members, bytes(32), ([], []), [], bytes, LARGEST)


@pytest.mark.parametrize(
    "text",
    [
        "south.example:7447",
        "tls/",
        "tls/host",
        "tls/host:0",
        "tls/host:99999",
        "udp/host:1",
        "tls/a b:1",
        "iroh/1.2.3.4:5",
        "",
    ],
)
def test_an_address_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="is not an address; write tls/HOST:PORT"):
        parse_address(text)


def test_addresses() -> None:
    assert str(parse_address("tls/south.example:7447")) == "tls/south.example:7447"
    assert parse_address("tls/[::1]:7447").socket == "[::1]:7447"
    assert parse_address("iroh/south@10.0.0.5:1").member == "south" and parse_address("iroh/south").host == ""
    assert parse_address("iroh/0.0.0.0:7447", listening=True).port == 7447
    with pytest.raises(ConfigurationError, match="is not encrypted, and anybody could connect to it; use tls/10"):
        parse_address("tcp/10.0.0.5:7447")
    assert parse_address("tcp/127.0.0.1:7447").kind == "tcp"
