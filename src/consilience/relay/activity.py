"""What a relay notes about its own work: metrics, the log of refused requests, and when members were seen last.

`ObservedRequests` is a middleware around all endpoints. An endpoint says in the request's scope who asks (`member`,
`federation`) and why it is refused (`refused`, a `Rejection`).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from consilience.relay.addresses import client_address
from consilience.relay.last_seen import LastSeen
from consilience.relay.logs import event
from consilience.relay.membership_log import MembershipLog
from consilience.relay.metrics import Metrics
from consilience.relay.recent_activity import RecentActivity
from consilience.relay.repeat_filter import RepeatFilter
from consilience.relay.tables import MemberRecord

log = logging.getLogger("consilience.relay")
_LOGIN = ("no-token", "wrong-token", "revoked", "expired")


class Activity:
    """One per relay: given to its endpoints and to its writer."""

    def __init__(self, proxies: Collection[str] = ()) -> None:
        self.proxies = proxies
        self.metrics = Metrics()
        self.seen = LastSeen()
        self.members = MembershipLog()
        self.recent = RecentActivity()
        self._repeats = RepeatFilter()

    def note_answer(self, scope: Mapping[str, Any], status: int) -> None:
        """A request is answered with this status."""
        endpoint = getattr(scope.get("endpoint"), "__name__", "other")
        member: MemberRecord | None = scope.get("member")
        federation, refused = scope.get("federation", ""), scope.get("refused")
        code = "fault" if status == 500 else refused.code if refused else ""
        self.metrics.count_request(endpoint, status)
        if endpoint == "upload":
            self.metrics.count_upload(federation, "accepted" if status == 200 else code)
        if member is not None:
            self.seen.note(member)
        if code:
            self._log_refusal(
                code, endpoint, federation, member.name if member else "", client_address(scope, self.proxies)
            )
            message = str(refused) if refused else "an internal error of the relay; its log says where"
            who = (member.federation, member.id) if member else (0, refused.member if refused else 0)
            self.recent.refuse(code, message, f"{scope['method']} {scope['path']}", *who)
        elif member is not None:
            uploaded = endpoint == "upload" and int(scope["path_params"]["round"]) > member.round
            self.recent.answer(member.federation, member.id, uploaded=uploaded)

    def _log_refusal(self, code: str, endpoint: str, federation: str, member: str, address: str) -> None:
        """Log a refusal; one line a minute for each code, member and address, with the number of those held back."""
        held = self._repeats.count((code, member, address))
        if held is None:
            return
        name, message = ("login-failed", "a login failed") if code in _LOGIN else ("refused", "a request was refused")
        who = {"federation": federation, "member": member, "address": address}
        log.info("%s", message, extra=event(name, code=code, endpoint=endpoint, **who, repeated=held or None))


class ObservedRequests:
    """A middleware that notes how each request is answered, and the bytes of bodies."""

    def __init__(self, app: ASGIApp, activity: Activity) -> None:
        self._app, self._activity = app, activity

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, and note how."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, metrics = False, self._activity.metrics

        async def observed_receive() -> Message:
            message = await receive()
            metrics.count_bytes(received=len(message.get("body", b"")))
            return message

        async def observed_send(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                self._activity.note_answer(scope, message["status"])
            else:
                metrics.count_bytes(sent=len(message.get("body", b"")))
            await send(message)

        try:
            await self._app(scope, observed_receive, observed_send)
        except Exception:
            if not started:
                self._activity.note_answer(scope, 500)
            raise
