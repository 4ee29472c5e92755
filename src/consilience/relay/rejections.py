"""What a relay refuses: a status for HTTP, a code for programs, and a message for people."""

from __future__ import annotations

from consilience.errors import ConsilienceError

STATUS = {
    "no-token": 401,
    "wrong-token": 401,
    "revoked": 403,
    "expired": 403,
    "other-role": 403,
    "partners": 403,
    "not-http": 400,
    "unknown-channel": 400,
    "malformed-upload": 400,
    "malformed-query": 400,
    "wrong-digest": 400,
    "wrong-weight": 400,
    "absurd-count": 400,
    "entries": 400,
    "no-such-reply": 404,
    "no-public-set": 404,
    "not-found": 404,
    "method-not-allowed": 405,
    "too-slow": 408,
    "other-bytes": 409,
    "other-public-set": 409,
    "older-round": 409,
    "already-uploaded": 409,
    "version-ahead": 409,
    "too-large": 413,
    "over-quota": 429,
    "too-many-connections": 429,
    "too-many-bytes": 429,
    "too-many-logins": 429,
    "head-too-large": 431,
    "disk-full": 507,
    "stopping": 503,
    "busy": 503,
    "cannot-write": 503,
    "damaged": 503,
    "taken-over": 503,
}
"""The relay's codes and the status of each; a body that does not match its schema gets 400 and the wire's own code."""


class Rejection(ConsilienceError):
    """A refused request; nothing of it was saved."""

    def __init__(
        self, code: str, message: str, *, field: str = "", retry_after: float | None = None, member: int = 0
    ) -> None:
        super().__init__(message)
        self.code, self.field, self.retry_after = code, field, retry_after
        self.member = member
        """The id of the member whose token was refused, where that is known."""

    @property
    def status(self) -> int:
        """The HTTP status of the answer."""
        return STATUS.get(self.code, 400)

    def content(self) -> dict[str, str]:
        """The body of the answer."""
        content = {"code": self.code, "message": str(self)}
        return content | ({"field": self.field} if self.field else {})


def damaged_record() -> Rejection:
    """A record that the request needs is damaged; the relay drops or rebuilds it, and the request may come again."""
    message = "a record in the relay's store is damaged and is being repaired; nothing was saved. Try again in a moment"
    return Rejection("damaged", message, retry_after=1)


def damaged_federation(why: str) -> Rejection:
    """A federation cannot be served until its operator restores a backup."""
    return Rejection("damaged", f"this federation is not served: {why}; its operator must restore a backup")


def taken_over() -> Rejection:
    """Another relay writes to the store, or its file was replaced; this relay cannot keep an upload."""
    message = (
        "this relay does not write to its store any more, because another relay does or its file was replaced; nothing "
        "was saved. Its operator must stop one of them"
    )
    return Rejection("taken-over", message, retry_after=30)
