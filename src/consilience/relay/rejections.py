"""What a relay refuses: a status for HTTP, a code for programs, and a message for people."""

from __future__ import annotations

from consilience.errors import ConsilienceError

STATUS = {
    "no-token": 401,
    "wrong-token": 401,
    "revoked": 403,
    "not-http": 400,
    "unknown-channel": 400,
    "malformed-upload": 400,
    "malformed-query": 400,
    "wrong-weight": 400,
    "absurd-count": 400,
    "entries": 400,
    "no-such-reply": 404,
    "not-found": 404,
    "method-not-allowed": 405,
    "too-slow": 408,
    "other-bytes": 409,
    "older-round": 409,
    "already-uploaded": 409,
    "version-ahead": 409,
    "too-large": 413,
    "over-quota": 429,
    "head-too-large": 431,
    "disk-full": 507,
    "stopping": 503,
    "busy": 503,
    "cannot-write": 503,
}
"""The relay's codes and the status of each; a body that does not match its schema gets 400 and the wire's own code."""


class Rejection(ConsilienceError):
    """A refused request; nothing of it was saved."""

    def __init__(self, code: str, message: str, *, field: str = "", retry_after: float | None = None) -> None:
        super().__init__(message)
        self.code, self.field, self.retry_after = code, field, retry_after

    @property
    def status(self) -> int:
        """The HTTP status of the answer."""
        return STATUS.get(self.code, 400)

    def content(self) -> dict[str, str]:
        """The body of the answer."""
        content = {"code": self.code, "message": str(self)}
        return content | ({"field": self.field} if self.field else {})
