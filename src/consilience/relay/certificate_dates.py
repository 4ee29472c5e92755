"""When a certificate expires, read from its DER encoding: Python's `ssl` reads only the certificates of others."""

from __future__ import annotations

import datetime
import re
import ssl

from consilience.errors import ConfigurationError

_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_VERSION, _UTC_TIME = 0xA0, 0x17  # tags


def expiry_of_chain(path: str) -> float:
    """When the first certificate of a PEM file expires that does, in seconds since 1970."""
    try:
        with open(path, encoding="latin-1") as file:
            found = [expiry_of(ssl.PEM_cert_to_DER_cert(pem)) for pem in _PEM.findall(file.read())]
    except (OSError, ValueError, IndexError) as error:
        raise ConfigurationError(f"cannot read from {path} when the certificate expires: {error}") from error
    if not found:
        raise ConfigurationError(f"{path} has no certificate in PEM format")
    return min(found)


def expiry_of(der: bytes) -> float:
    """When one certificate expires: Certificate, its signed part, validity, the second of its two times (RFC 5280)."""
    signed = _fields(_fields(der)[0][1])[0][1]
    fields = [field for field in _fields(signed) if field[0] != _VERSION]
    tag, text = _fields(fields[3][1])[1]  # after serial number, algorithm and issuer
    digits = text.decode("ascii")
    if tag == _UTC_TIME:  # two digits for the year: 1950 to 2049
        digits = ("19" if digits >= "50" else "20") + digits
    return datetime.datetime.strptime(digits, "%Y%m%d%H%M%SZ").replace(tzinfo=datetime.UTC).timestamp()


def _fields(encoded: bytes) -> list[tuple[int, bytes]]:
    """Tag and content of every value in a sequence of DER values."""
    fields, at = [], 0
    while at < len(encoded):
        tag, length, start = encoded[at], encoded[at + 1], at + 2
        if length >= 0x80:  # its lower bits say how many bytes the length has
            start += length & 0x7F
            length = int.from_bytes(encoded[at + 2 : start])
        at = start + length
        if at > len(encoded):
            raise ValueError("it ends too early")
        fields.append((tag, encoded[start:at]))
    return fields
