"""What members and addresses may use of a relay: requests, connections, bytes in flight and failed logins."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.requests import Request

from consilience.errors import WireError
from consilience.relay.addresses import client_address
from consilience.relay.failed_logins import DELAY, FailedLogins
from consilience.relay.in_flight import Usage
from consilience.relay.limits import Limits
from consilience.relay.member_connections import EXTENSION, MemberConnections
from consilience.relay.rate_limit import RateLimit
from consilience.relay.rejections import Rejection
from consilience.relay.tables import MemberRecord


class Admission:
    """Counts what is used, and refuses what is too much."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.rate_limit = RateLimit(limits.rate, limits.burst)
        self._failed_logins = FailedLogins(limits.failed_logins)
        self._usage = Usage(limits.member_bytes, limits.address_bytes)
        self._connections = MemberConnections(limits.member_connections)

    def admit(self, request: Request, member: MemberRecord) -> None:
        """Count a member's request and its connection; refuses it if there are too many."""
        self.rate_limit.count(member.id)
        self._connections.claim(request.scope.get("extensions", {}).get(EXTENSION, {}).get("connection"), member.id)

    def hold(self, request: Request, member: MemberRecord, size: int, body: bytes | None = None) -> Callable[[], None]:
        """Count bytes as in flight until the function that is returned is called; refuses them if there are too many.

        body: the answer that is sent, which other requests may share.
        """
        return self._usage.hold(member.id, client_address(request.scope, self.limits.proxies), size, body)

    async def count_failed_login(self, request: Request, error: Rejection | WireError) -> Rejection | WireError:
        """The error to answer with: another one, after a while, if the address has sent too many wrong tokens."""
        if error.code != "wrong-token":
            return error
        too_many = self._failed_logins.count(client_address(request.scope, self.limits.proxies))
        if too_many is not None:
            await asyncio.sleep(DELAY)
        return too_many or error
