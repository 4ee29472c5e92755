"""The event loop of a relay, with what it uses of asyncio that asyncio's documentation does not promise.

`tests/relay/test_uvicorn_hooks.py` checks that it is there.
"""

from __future__ import annotations

import asyncio
import logging
import math
from typing import Any

_NO_FILES = "socket.accept() out of system resource"
"""How asyncio's message starts if a connection cannot be accepted because too many files are open."""
_ONE_DAY = 86400.0
log = logging.getLogger("consilience.relay")


class RelayEventLoop(asyncio.SelectorEventLoop):
    """An event loop whose servers limit the TLS handshake to `handshake` seconds; uvicorn has no setting for it.

    If no file can be opened for a new connection, asyncio tries again after a second, and reports it as often as
    connections may wait. Here it accepts one connection at a time, and the log has one line a second.
    """

    def __init__(self, handshake: float) -> None:
        super().__init__()
        self._handshake, self._reported = handshake, -math.inf
        self.set_exception_handler(self._report)

    async def create_server(self, *given: Any, **named: Any) -> asyncio.Server:
        """As usual, with limits for TLS; a closing connection is ended by its own timer, not by this limit."""
        if named.get("ssl") is not None:
            named |= {"ssl_handshake_timeout": self._handshake, "ssl_shutdown_timeout": _ONE_DAY}
        return await super().create_server(*given, **named)

    def _start_serving(
        self, protocol_factory: Any, sock: Any, sslcontext: Any = None, server: Any = None, backlog: int = 1, *rest: Any
    ) -> None:
        super()._start_serving(protocol_factory, sock, sslcontext, server, 1, *rest)  # type: ignore[misc]

    def _report(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not str(context.get("message")).startswith(_NO_FILES):
            loop.default_exception_handler(context)
        elif self.time() - self._reported >= 1:
            self._reported = self.time()
            log.error("no connection can be accepted now: %s; lower --connections", context.get("exception"))
