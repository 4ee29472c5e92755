"""A member's key: 32 secret bytes in a file that only its owner can read, and the public key that a charter lists."""

from __future__ import annotations

import base64
import binascii
import os
import re
import secrets
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from consilience.errors import ConfigurationError
from consilience.files import report_write_errors
from consilience.wire.signatures import public_key

SECRET = "consilience-member-key:"
"""How a file with a member's secret key starts."""
_FORM = re.compile(rf"{SECRET}([A-Za-z0-9+/]{{43}}=)\n?")


def make_key(file: Path) -> str:
    """Write a new key into a file that is not there yet; the public key."""
    secret = secrets.token_bytes(32)
    with report_write_errors(file, "choose another place"):
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            raise ConfigurationError(f"{file} is there already; a key is never replaced, choose another name") from None
        with os.fdopen(descriptor, "w", encoding="ascii") as opened:
            opened.write(f"{SECRET}{base64.b64encode(secret).decode()}\n")
            opened.flush()
            os.fsync(opened.fileno())
    return public_key(secret)


def read_key(file: Path | str) -> tuple[bytes, Ed25519PrivateKey, str]:
    """The secret in a member's key file, as bytes and as a key, and the public key."""
    try:
        match = _FORM.fullmatch(Path(file).read_text(encoding="ascii"))
        secret = base64.b64decode(match[1], validate=True) if match else b""
    except OSError as error:
        raise ConfigurationError(f"{file}: the key cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, binascii.Error):
        secret = b""
    if len(secret) != 32:
        raise ConfigurationError(f"{file} is not the key of a member; `consilience key FILE` makes one")
    return secret, Ed25519PrivateKey.from_private_bytes(secret), public_key(secret)
