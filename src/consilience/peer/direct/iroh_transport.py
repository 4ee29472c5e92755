"""Members across networks over iroh, an experiment: QUIC connections in which a member's key is its identity.

Only members of the charter are let in, by their keys. iroh's public relays, which belong to its makers, are off:
members reach each other directly, or through relays that they name.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import socket
import threading
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from consilience.errors import ConfigurationError
from consilience.extras import install_command
from consilience.peer.direct.address import Address
from consilience.peer.direct.requests import encode_refusal
from consilience.peer.direct.transport import AnswerRequest
from consilience.relay.repeat_filter import RepeatFilter
from consilience.wire.members import MemberKey

log = logging.getLogger("consilience.peer")
ALPN = b"consilience/1"
_FIRST_RETRY, _LONGEST_RETRY = 0.2, 5.0  # seconds
_CONNECT_SECONDS = 10.0
T = TypeVar("T")


class IrohTransport:
    """One member's iroh endpoint, in an event loop and a thread of its own.

    secret: the member's key. addresses: where to connect, and where to listen. largest: the most bytes of a request or
    a reply.
    """

    def __init__(
        self,
        members: Sequence[MemberKey],
        secret: bytes,
        addresses: tuple[Sequence[Address], Sequence[Address]],
        relays: Sequence[str],
        answer: AnswerRequest,
        largest: int,
    ) -> None:
        self._iroh = _import_iroh()
        self._names = {base64.b64decode(member.key.removeprefix("ed25519:")): member.name for member in members}
        self._answer, self._largest, self._relays = answer, largest, list(relays)
        self._connections: dict[str, Any] = {}
        self._repeats = RepeatFilter()
        dialed = [(address, self._target(address)) for address in addresses[0]]
        options = self._options(secret, addresses[1])
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="iroh", daemon=True)
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread.start()
        try:
            self._endpoint = self._run(self._iroh.Endpoint.bind(options), _CONNECT_SECONDS)
        except self._iroh.IrohError as error:
            listed = ", ".join(str(address) for address in addresses[1]) or "a free port"
            self._stop()
            raise ConfigurationError(
                f"iroh cannot start, listening at {listed}: {_reason(error)}; is the address this machine's, and free?"
            ) from error
        self._loop.call_soon_threadsafe(self._begin, dialed)

    def _run(self, work: Coroutine[Any, Any, T], seconds: float) -> T:
        """Run something in the event loop, from another thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(seconds + 5.0)

    def _target(self, address: Address) -> Any:
        """What iroh connects to: the member's key, and where it may be."""
        iroh, keys = self._iroh, {name: key for key, name in self._names.items()}
        if address.member not in keys:
            known = ", ".join(keys)
            raise ConfigurationError(f"{address}: the charter has no member {address.member!r}; there are {known}")
        if not address.host and not self._relays:
            raise ConfigurationError(
                f"{address} says who, and not where: add @HOST:PORT, or name a relay of iroh with --iroh-relay"
            )
        where = [f"{_resolve(address)}"] if address.host else []
        relay = self._relays[0] if self._relays else None
        return iroh.EndpointAddr(iroh.EndpointId.from_bytes(keys[address.member]), relay, where)

    def _options(self, secret: bytes, listen: Sequence[Address]) -> Any:
        iroh = self._iroh
        if len(listen) > 1:
            raise ConfigurationError("iroh listens at one address; give --listen once")
        mode = iroh.RelayMode.custom_from_urls(self._relays) if self._relays else iroh.RelayMode.disabled()
        return iroh.EndpointOptions(
            preset=iroh.preset_minimal(),
            alpns=[ALPN],
            relay_mode=mode,
            secret_key=secret,
            bind_addr=_resolve(listen[0]) if listen else "0.0.0.0:0",
        )

    def _begin(self, dialed: Sequence[tuple[Address, Any]]) -> None:
        self._spawn(self._accept())
        for address, target in dialed:
            self._spawn(self._stay_connected(address.member, target))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- connections ---------------------------------------------------------------------------------------------------

    async def _accept(self) -> None:
        """Let members in, and nobody else."""
        while (incoming := await self._endpoint.accept_next()) is not None:
            self._spawn(self._let_in(incoming))

    async def _let_in(self, incoming: Any) -> None:
        with contextlib.suppress(self._iroh.IrohError):
            connection = await (await incoming.accept()).connect()
            key = connection.remote_id().to_bytes()
            if key not in self._names:
                if self._repeats.count(key) is not None:
                    log.warning("refused a connection: the charter has no member with the key %s", key.hex()[:16])
                connection.close(1, b"not a member")
                return
            await self._serve(self._names[key], connection)

    async def _stay_connected(self, member: str, target: Any) -> None:
        """Connect to a member, and again whenever the connection has ended."""
        pause = _FIRST_RETRY
        while not self._endpoint.is_closed():
            if self._is_open(member):
                await asyncio.sleep(_FIRST_RETRY)
                continue
            try:
                connection = await asyncio.wait_for(self._endpoint.connect(target, ALPN), _CONNECT_SECONDS)
                since = self._loop.time()
                await self._serve(member, connection)
                pause = _FIRST_RETRY if self._loop.time() - since > _LONGEST_RETRY else pause
            except (self._iroh.IrohError, TimeoutError) as error:
                log.debug("%s cannot be reached: %s", member, _reason(error))
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_RETRY)

    async def _serve(self, member: str, connection: Any) -> None:
        """Answer what a member asks over a connection, until it ends."""
        self._connections[member] = connection
        try:
            while True:
                self._spawn(self._answer_one(await connection.accept_bi()))
        except self._iroh.IrohError:
            return
        finally:
            if self._connections.get(member) is connection:
                del self._connections[member]

    async def _answer_one(self, stream: Any) -> None:
        with contextlib.suppress(self._iroh.IrohError):
            try:
                request = await stream.recv().read_to_end(self._largest)
            except self._iroh.IrohError as error:
                log.warning("refused a request that is longer than %d bytes, or broke off", self._largest)
                reply = encode_refusal("too-large", f"at most {self._largest} bytes are read: {_reason(error)}")
            else:
                reply = await asyncio.to_thread(self._answer, request)
            await stream.send().write_all(reply)
            await stream.send().finish()

    def _is_open(self, member: str) -> bool:
        connection = self._connections.get(member)
        return connection is not None and connection.close_reason() is None

    # -- what a transport does -----------------------------------------------------------------------------------------

    def present(self) -> set[str]:
        """Names of the members that are connected now; their keys were checked."""
        return {name for name in list(self._connections) if self._is_open(name)}

    def ask(self, request: bytes, seconds: float, member: str | None = None) -> dict[str, bytes]:
        """Send a request to one member, or to all that are connected; the replies that came in time, by member."""
        names = [name for name in sorted(self.present()) if member in (None, name)]
        return self._run(self._ask_all(names, request, seconds), seconds)

    async def _ask_all(self, names: Sequence[str], request: bytes, seconds: float) -> dict[str, bytes]:
        replies = await asyncio.gather(*(self._ask_one(name, request, seconds) for name in names))
        return {name: reply for name, reply in zip(names, replies, strict=True) if reply is not None}

    async def _ask_one(self, name: str, request: bytes, seconds: float) -> bytes | None:
        async def ask() -> bytes:
            stream = await self._connections[name].open_bi()
            await stream.send().write_all(request)
            await stream.send().finish()
            return bytes(await stream.recv().read_to_end(self._largest))

        try:
            return await asyncio.wait_for(ask(), seconds)
        except (self._iroh.IrohError, TimeoutError, KeyError) as error:
            log.info("%s did not answer: %s", name, _reason(error))
            return None

    def close(self) -> None:
        """Close the endpoint, and end the thread."""
        if self._loop.is_closed():
            return
        with contextlib.suppress(self._iroh.IrohError, TimeoutError):
            self._run(self._end(), _CONNECT_SECONDS)
        self._stop()

    async def _end(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._connections.clear()
        await self._endpoint.close()
        del self._endpoint  # the port is free when nothing refers to it

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CONNECT_SECONDS)
        if not self._thread.is_alive():
            self._loop.close()


def _resolve(address: Address) -> str:
    """The address with the IP of its host, which is all that iroh takes."""
    try:
        found = socket.getaddrinfo(address.host.strip("[]"), address.port, type=socket.SOCK_DGRAM)[0]
    except OSError as error:
        raise ConfigurationError(f"{address}: the host cannot be found: {error.strerror}") from error
    ip = str(found[4][0])
    return f"[{ip}]:{address.port}" if ":" in ip else f"{ip}:{address.port}"


def _import_iroh() -> Any:
    try:
        import iroh
    except ImportError as error:
        raise ConfigurationError(f"addresses with iroh/ need the package iroh: {install_command('iroh')}") from error
    return iroh


def _reason(error: Any) -> str:
    text = error.debug_message() if hasattr(error, "debug_message") else str(error)
    return (text or type(error).__name__).split("\n")[0][:300]
