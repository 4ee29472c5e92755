"""Where the other members of a federation without a relay are, and with what this member shows who it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from consilience.errors import ConfigurationError
from consilience.peer.direct.address import Address, one_kind, parse_address
from consilience.peer.direct.iroh_transport import IrohTransport
from consilience.peer.direct.link import LARGEST_REPLY, DirectLink
from consilience.peer.direct.transport import Transport
from consilience.peer.direct.zenoh_transport import Certificates, ZenohTransport
from consilience.wire.charter import Charter, read_charter


@dataclass(frozen=True)
class PeerNetwork:
    """A federation without a relay, as one of its members reaches it.

    charter, key: files: what the members have agreed on, and this member's key from `consilience key`. peers: addresses
    of the others, such as tls/south.example:7447. listen: addresses where this member accepts connections. ca_file,
    certificate, certificate_key: PEM files for tls/: the authority that signs the members' certificates, this member's
    own, and its private key. iroh_relays: servers that connect members behind firewalls, with iroh/; none by default.
    wait: the most seconds to wait for the first other member at a first start.
    """

    charter: Path | str
    key: Path | str
    peers: Sequence[str] = ()
    listen: Sequence[str] = ()
    ca_file: str | None = None
    certificate: str | None = None
    certificate_key: str | None = None
    iroh_relays: Sequence[str] = ()
    wait: float = 60.0

    def read_charter(self) -> Charter:
        """The charter; refuses one of a federation with a relay."""
        try:
            charter = read_charter(Path(self.charter).read_text(encoding="utf-8"), str(self.charter))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(
                f"{self.charter}: cannot be read: {getattr(error, 'strerror', None) or error}"
            ) from error
        if not charter.members:
            raise ConfigurationError(
                f"{self.charter} lists no members: it is for a relay. Join with the relay's address and your token, or "
                f"write a charter with `consilience federation ... --member NAME=KEY`"
            )
        return charter

    def addresses(self) -> tuple[list[Address], list[Address]]:
        """Where to connect, and where to listen."""
        connect = [parse_address(text) for text in self.peers]
        return connect, [parse_address(text, listening=True) for text in self.listen]

    def open(self, link: DirectLink, secret: bytes) -> Transport:
        """The transport that the addresses name, started; it answers others with what the link says."""
        addresses = self.addresses()
        largest = max(link.mailbox.largest, LARGEST_REPLY)
        if one_kind([*addresses[0], *addresses[1]]) == "iroh":
            return IrohTransport(link.charter.members, secret, addresses, self.iroh_relays, link.answer, largest)
        if self.iroh_relays:
            raise ConfigurationError("--iroh-relay is for addresses with iroh/; leave it out with tls/ and tcp/")
        certificates = self._certificates(any(a.kind == "tls" for each in addresses for a in each))
        names = list(link.numbers)
        return ZenohTransport(link.charter.name, link.name, names, addresses, certificates, link.answer, largest)

    def _certificates(self, needed: bool) -> Certificates | None:
        given = {
            "--ca-file": self.ca_file,
            "--certificate": self.certificate,
            "--certificate-key": self.certificate_key,
        }
        missing = [name for name, file in given.items() if not file]
        if not needed:
            return None
        if missing:
            raise ConfigurationError(
                f"tls/ needs certificates on both sides, and {', '.join(missing)} is missing; give PEM files of the "
                f"authority that all members trust, of this member's certificate, and of its key"
            )
        return Certificates(str(self.ca_file), str(self.certificate), str(self.certificate_key))
