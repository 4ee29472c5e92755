"""How many bytes members and addresses have in flight: bodies being received, and answers being sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from consilience.relay.rejections import Rejection


class BytesInFlight:
    """The bytes in flight of each member, or of each address. A most of 0 is no limit."""

    def __init__(self, whose: str, most: int) -> None:
        self.whose, self.most = whose, most
        self._used: Counter[int | str] = Counter()
        self._readers: Counter[tuple[int | str, int]] = Counter()  # of each answer, by its id

    def take(self, key: int | str, size: int, answer: int = 0) -> None:
        """Count bytes; refuses them if there are too many, unless there are no others.

        answer: the id of an answer; if several requests of one key read the same, its bytes count once.
        """
        if answer:
            self._readers[key, answer] += 1
            if self._readers[key, answer] > 1:
                return
        used = self._used[key]
        if self.most and used and used + size > self.most:
            self._forget_reader(key, answer)
            raise Rejection(
                "too-many-bytes",
                f"this request is about {size} bytes, and {used} bytes of requests and answers of {self.whose} are "
                f"under way; at most {self.most} are allowed. Read the answers that wait, and try again",
                retry_after=1,
            )
        self._used[key] = used + size

    def give_back(self, key: int | str, size: int, answer: int = 0) -> None:
        """Bytes that were counted have been received or sent."""
        if answer and not self._forget_reader(key, answer):
            return
        self._used[key] -= size
        if not self._used[key]:
            del self._used[key]

    def _forget_reader(self, key: int | str, answer: int) -> bool:
        """Whether it was the last."""
        self._readers[key, answer] -= 1
        if self._readers[key, answer] > 0:
            return False
        del self._readers[key, answer]
        return True


class Usage:
    """The bytes in flight of members and of addresses."""

    def __init__(self, member_bytes: int, address_bytes: int) -> None:
        self.members = BytesInFlight("yours", member_bytes)
        self.addresses = BytesInFlight("your address", address_bytes)

    def hold(self, member: int, address: str, size: int, answer: bytes | None = None) -> Callable[[], None]:
        """Count bytes as in flight until the function that is returned is called.

        answer: the answer that is sent, which other requests may share.
        """
        shared = 0 if answer is None else id(answer)
        self.members.take(member, size, shared)
        try:
            self.addresses.take(address, size, shared)
        except Rejection:
            self.members.give_back(member, size, shared)
            raise

        def release() -> None:
            self.members.give_back(member, size, shared)
            self.addresses.give_back(address, size, shared)

        return release
