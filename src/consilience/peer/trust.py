"""What a member believes its relay: only what is signed with the key that it keeps since its first contact.

Whatever is not is refused as `RelayUnreachable` with the code `wrong-signature`: the member's state stays as it is, and
another attempt may reach the relay itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from consilience.errors import ConsilienceError, RelayUnreachable, WireError
from consilience.wire.charter import read_charter
from consilience.wire.digests import DIGEST_HEADER, check_digests, content_digest, parse_digests
from consilience.wire.headers import ANSWER_HEADER
from consilience.wire.signatures import (
    ANSWER,
    RECEIPT,
    REPLY,
    SIGNATURE_HEADER,
    STATUS,
    is_signed,
    parse_key,
    parse_signature,
    signed_text,
)

SIGNATURE = "wrong-signature"
"""The error code where something is not signed with the relay's key."""
Headers = Mapping[str, str]
"""The headers of a response, by names in lower case."""


class RelayTrust:
    """The key of a member's relay, and the checks with it.

    key: as the charter names it; empty until the first contact, which then decides. federation, number: of the member.
    """

    def __init__(self, url: str, key: str = "", federation: str = "", number: int = -1) -> None:
        if key:
            parse_key(key)
        self.url, self.key, self.federation, self.number = url, key, federation, number
        self._charter = ""  # as it came last

    def check_status(self, status: Mapping[str, Any], headers: Headers, body: bytes) -> int:
        """The epoch of a federation's status; the first one is checked with the key that its charter names."""
        number = status["member"].get("number")
        if status["charter"] != self._charter:
            key, federation = self._read_charter(status["charter"])
        else:
            key, federation = self.key, self.federation
        epoch = self._check(self.key or key, STATUS, federation, {"member": number}, headers, body)
        if self.key not in ("", key):
            raise self._refusal(f"its charter names the key {key or 'of nobody'}, and not {self.key}")
        if self._charter and (federation, number) != (self.federation, self.number):
            raise self._refusal(f"its status is of member {number} of {federation!r}, and not of this one")
        if not self.federation:
            self.key, self.federation, self.number = key, federation, number
        self._charter = status["charter"] if federation == self.federation else ""
        return epoch

    def _read_charter(self, text: str) -> tuple[str, str]:
        """The key and the federation that a charter names."""
        try:
            charter = read_charter(text, "the relay's charter")
        except ConsilienceError as error:  # of another version, or changed on its way
            raise _refused(f"{self.url} serves a charter that cannot be followed: {error}") from error
        return charter.relay_key, charter.name

    def check_receipt(self, round_: int, headers: Headers, body: bytes) -> int:
        """The epoch of an upload's receipt."""
        return self._check_bound(RECEIPT, {"member": self.number, "round": round_}, headers, body)

    def check_answer(self, headers: Headers, body: bytes) -> int:
        """The epoch of an answer."""
        bound = {"etag": headers.get("etag", ""), "parts": headers.get(ANSWER_HEADER.lower(), "")}
        return self._check_bound(ANSWER, bound, headers, body)

    def check_reply(self, channel: str, version: int, headers: Headers, body: bytes) -> int:
        """The epoch of a reply of a moving mean."""
        return self._check_bound(REPLY, {"channel": channel, "version": version}, headers, body)

    def _check_bound(self, kind: str, bound: Mapping[str, object], headers: Headers, body: bytes) -> int:
        return self._check(self.key, kind, self.federation, bound, headers, body)

    def _check(
        self, key: str, kind: str, federation: str, bound: Mapping[str, object], headers: Headers, body: bytes
    ) -> int:
        if not key:
            raise self._refusal("its charter names no key; an older version of consilience serves it, update it")
        try:
            digest = headers.get(DIGEST_HEADER.lower())
            check_digests(parse_digests(digest) if digest else {}, body)
            if SIGNATURE_HEADER.lower() not in headers:
                raise WireError(f"it has no {SIGNATURE_HEADER}", code=SIGNATURE)
            signature, epoch = parse_signature(headers[SIGNATURE_HEADER.lower()])
        except WireError as error:
            raise self._refusal(f"its {kind} is refused: {error}") from error
        if not is_signed(
            parse_key(key), signature, signed_text(kind, federation, epoch, dict(bound), content_digest(body))
        ):
            raise self._refusal(
                f"its {kind} is not signed with its key {key}. If the folder is of another relay, choose another one; "
                f"if the relay has another key now, ask its operator, and only then delete the folder"
            )
        return epoch

    def _refusal(self, why: str) -> RelayUnreachable:
        return _refused(f"{self.url} is not the relay that this member knows, or was changed on its way: {why}")


def _refused(message: str) -> RelayUnreachable:
    found = RelayUnreachable(message, may_have_arrived=True)
    found.code = SIGNATURE
    return found
