"""Federations without a relay as tests use them: keys, certificates, addresses on loopback, and signed messages."""

from __future__ import annotations

import base64
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import trustme
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from consilience.peer.create_charter import with_members
from consilience.peer.direct.key_file import make_key
from consilience.peer.direct.network import PeerNetwork
from consilience.wire import schema
from consilience.wire.charter import Charter, build_charter, message_of
from consilience.wire.codec import Codec
from consilience.wire.encodings import FLOAT16
from consilience.wire.headers import Part
from consilience.wire.rules import Rules
from consilience.wire.signatures import public_key
from consilience.wire.signed_message import SignedMessage, sign_message

NAMES = ("north", "south", "west")
CLASSES, WIDTH = 3, 4


def secret_of(name: str) -> bytes:
    """A key that is the same in every test."""
    return name.encode().ljust(32, b"\0")


def small_channels() -> dict[str, schema.Channel]:
    """A standing mean by class, a pool, and a standing mean with one weight."""
    row = {"mean": schema.Tensor((CLASSES, WIDTH), FLOAT16, low=-2.0, high=2.0)}
    return {
        "prototypes": schema.Mean("prototypes", row, (CLASSES,)),
        "observations": schema.Pool("observations", row, (CLASSES,), keep=2, draw=2),
        "logits": schema.Mean("logits", {"mean": schema.Tensor((CLASSES,))}),
    }


def small_charter(
    names: Sequence[str] = NAMES, channels: Mapping[str, schema.Channel] | None = None, **rules: Any
) -> Charter:
    """The charter of members with keys of `secret_of`."""
    method = {"name": "representation-sharing"}
    charter = build_charter("wards", method, CLASSES, channels or small_channels(), {}, 5, Rules(**rules))
    return with_members(charter, [(name, public_key(secret_of(name))) for name in names])


def parts_of(charter: Charter, names: Sequence[str]) -> dict[str, Part]:
    """What an upload to some channels holds."""
    channels = charter.channels
    found = {}
    for name in (name for name in channels if name in names):
        channel = channels[name]
        entries = channel.keep if isinstance(channel, schema.Pool) else None
        found[name] = Part(entries=entries, weight=None if channel.rows else 7.0)
    return found


def random_body(charter: Charter, parts: Mapping[str, Part], seed: int) -> bytes:
    """A body that the charter allows."""
    random, message = np.random.default_rng(seed), message_of(charter.channels, "up", parts)
    tensors = {}
    for key, field in message.items():
        counts = field.encoding.name == "int32"
        drawn = random.integers(0, 4, field.shape) if counts else random.uniform(-1, 1, field.shape)
        tensors[key] = np.asarray(drawn, dtype=np.float32)
    return Codec(message).encode(tensors)


def signed(
    charter: Charter, name: str, round_: int, only: Sequence[str] | None = None, seed: int = 0, **other: Any
) -> SignedMessage:
    """A member's message of a round, with random values; other: what to sign in the place of the truth."""
    parts = parts_of(charter, only or list(charter.channels))
    body = other.get("body", random_body(charter, parts, seed))
    return sign_message(
        Ed25519PrivateKey.from_private_bytes(other.get("secret", secret_of(name))),
        other.get("federation", charter.name),
        other.get("fingerprint", charter.fingerprint),
        name,
        round_,
        other.get("parts", parts),
        body,
    )


def free_ports(count: int) -> list[int]:
    """Ports on loopback that nobody uses now."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [int(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports


@dataclass
class Wards:
    """The files and addresses of a federation's members, in one folder."""

    folder: Path
    names: tuple[str, ...] = NAMES

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.keys = {name: make_key(self.folder / f"{name}.key") for name in self.names}
        self.ports = dict(zip(self.names, free_ports(len(self.names)), strict=True))
        self.authority = trustme.CA()
        self.authority.cert_pem.write_to_path(str(self.folder / "ca.pem"))
        for name in self.names:
            self.certify(name, self.authority)

    def certify(self, name: str, authority: trustme.CA) -> None:
        """Write a certificate for a member, signed by an authority."""
        found = authority.issue_cert("127.0.0.1", "localhost")
        found.private_key_pem.write_to_path(str(self.folder / f"{name}.tls.key"))
        found.cert_chain_pems[0].write_to_path(str(self.folder / f"{name}.tls.pem"))

    def write(self, charter: Charter) -> Path:
        """Write the charter of these members; its file."""
        file = self.folder / "federation.toml"
        file.write_text(with_members(charter, list(self.keys.items())).to_toml())
        return file

    def address(self, name: str, kind: str = "tls") -> str:
        """Where a member listens."""
        who = f"{name}@" if kind == "iroh" else ""
        return f"{kind}/{who}127.0.0.1:{self.ports[name]}"

    def settings(self, name: str, kind: str = "tls", **other: Any) -> dict[str, Any]:
        """What a member's `PeerNetwork` is made of."""
        files = {
            "charter": str(self.folder / "federation.toml"),
            "key": str(self.folder / f"{name}.key"),
            "ca_file": str(self.folder / "ca.pem"),
            "certificate": str(self.folder / f"{name}.tls.pem"),
            "certificate_key": str(self.folder / f"{name}.tls.key"),
        }
        if kind != "tls":
            files = {key: file for key, file in files.items() if key in ("charter", "key")}
        peers = [self.address(other, kind) for other in self.names if other != name]
        own = f"{kind}/127.0.0.1:{self.ports[name]}"
        return {**files, "peers": peers, "listen": [own], "wait": 30.0, **other}

    def network(self, name: str, kind: str = "tls", **other: Any) -> PeerNetwork:
        """A member's network."""
        return PeerNetwork(**self.settings(name, kind, **other))

    def options(self, name: str, kind: str = "tls") -> list[str]:
        """The same as options of `consilience join`."""
        settings = self.settings(name, kind)
        found = [
            f"--{key.replace('_', '-')}={settings[key]}" for key in settings if key not in ("peers", "listen", "wait")
        ]
        return [*found, *(f"--peers={text}" for text in settings["peers"]), f"--listen={settings['listen'][0]}"]


def public_bytes(key: str) -> bytes:
    """The 32 bytes of a public key's text."""
    return base64.b64decode(key.removeprefix("ed25519:"))
