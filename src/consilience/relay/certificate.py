"""The certificate of a relay: loaded at the start, again when its files change, and watched until it expires."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import ssl
import time
from collections.abc import Callable

from consilience.errors import ConfigurationError, first_sentence
from consilience.relay.certificate_dates import expiry_of_chain
from consilience.relay.expiry import DAY, format_time
from consilience.relay.logs import event

WARN_DAYS = (30, 7, 1)
"""So many days before a certificate expires, and when it has, there is a warning."""
_POLL = 1.0  # seconds between looks at the files
log = logging.getLogger("consilience.relay")
_FileState = tuple[tuple[int, int, int] | None, ...]


class Certificate:
    """A certificate and its key, in the files where they are renewed.

    `context` is for the server. Connections get the newest pair that fits together: a handshake replaces the context by
    the newest, so a pair that cannot be used never is, and connections that are open stay open.
    """

    def __init__(self, certificate: str, key: str, clock: Callable[[], float] = time.time) -> None:
        self.certificate, self.key, self._clock = certificate, key, clock
        self._files = self._file_state()
        self.context = self._newest = load_context(certificate, key)
        self.expires = expiry_of_chain(certificate)
        self.context.sni_callback = self._use_newest
        self._requested = False
        self._warned = math.inf

    def _use_newest(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        connection.context = self._newest

    def request_reload(self) -> None:
        """Load the files again soon, changed or not; may be called by a signal."""
        self._requested = True

    async def watch(self) -> None:
        """Load the files again whenever they change, and warn before the certificate expires; until cancelled."""
        while True:
            self.check()
            await asyncio.sleep(_POLL)

    def check(self) -> None:
        """Do what is due: load the files again, warn."""
        files = self._file_state()
        if self._requested or files != self._files:
            self._requested, self._files = False, files
            self._reload()
        self._warn()

    def _reload(self) -> None:
        try:
            newest, expires = load_context(self.certificate, self.key), expiry_of_chain(self.certificate)
        except ConfigurationError as error:
            log.error(
                "the new certificate is not used, the old one still is: %s", error, extra=event("certificate-refused")
            )
            return
        self._newest, self.expires, self._warned = newest, expires, math.inf
        log.info(
            "the certificate was loaded again", extra=event("certificate-reloaded", expires=format_time(int(expires)))
        )

    def _warn(self) -> None:
        """One warning for each limit that has been passed since the last one."""
        left = (self.expires - self._clock()) / DAY
        passed = min((days for days in (*WARN_DAYS, 0) if left <= days), default=math.inf)
        if passed < self._warned:
            self._warned = passed
            log.warning(
                "%s",
                describe_expiry(self.expires, self._clock()),
                extra=event("certificate-expires", days=round(left, 1)),
            )

    def _file_state(self) -> _FileState:
        return tuple(_state_of(path) for path in (self.certificate, self.key))


def _state_of(path: str) -> tuple[int, int, int] | None:
    with contextlib.suppress(OSError):  # being replaced
        found = os.stat(path)
        return found.st_mtime_ns, found.st_size, found.st_ino
    return None


def describe_expiry(expires: float, now: float) -> str:
    """When a certificate expires, in words."""
    left = (expires - now) / DAY
    if left <= 0:
        return f"the certificate expired at {format_time(int(expires))}; members refuse to connect until it is renewed"
    advice = "; renew it" if left <= WARN_DAYS[0] else ""
    return f"the certificate expires at {format_time(int(expires))}, in {left:.1f} days{advice}"


def load_context(certificate: str, key: str) -> ssl.SSLContext:
    """The TLS context of a server; an error names the file at fault."""
    for path in (certificate, key):
        try:
            with open(path, "rb"):
                pass
        except OSError as error:
            raise ConfigurationError(f"cannot read {path}: {error.strerror}") from error
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(certificate)
    except (ssl.SSLError, OSError) as error:
        raise ConfigurationError(
            f"{certificate} is not a certificate in PEM format: {first_sentence(error)}"
        ) from error
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key, password=lambda: "")  # never asks at the terminal
    except (ssl.SSLError, OSError) as error:
        if "MISMATCH" in (getattr(error, "reason", None) or ""):
            raise ConfigurationError(f"{key} is not the key of the certificate {certificate}") from error
        raise ConfigurationError(f"{key} is not a key in PEM format without a password") from error
    return context
