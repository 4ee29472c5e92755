"""Answers made in threads of their own, once for all who ask at the same time, and kept for those who ask later."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple
from weakref import WeakValueDictionary

from consilience.relay.store import Store

_THREADS = 2  # one member has at most one answer being made, so that the other thread is free for the rest


class SharedAnswer(NamedTuple):
    """An answer as it is sent: all who read it share one body."""

    headers: list[tuple[bytes, bytes]]
    body: bytes


Build = Callable[[Store], SharedAnswer]


class AnswerCache:
    """Answers by key, at most so many bytes of them; the ones that were not asked for the longest are dropped."""

    def __init__(self, path: Path, most: int) -> None:
        self.path, self.most, self.size = path, most, 0
        self._kept: OrderedDict[str, SharedAnswer] = OrderedDict()
        self._being_made: dict[str, asyncio.Future[SharedAnswer]] = {}
        self._turns: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="answers")
        self._local, self._stores = threading.local(), list[Store]()

    def get(self, key: str) -> SharedAnswer | None:
        """An answer that is kept."""
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
        return found

    async def get_or_make(self, key: str, member: int, build: Build, *, keep: bool) -> SharedAnswer:
        """The answer with this key; made in a thread if it is not kept and nobody else has asked for it.

        keep: whether others may ask for it later. A member's answers are made one after the other.
        """
        turn = self._turns.setdefault(member, asyncio.Lock())
        while (found := self.get(key)) is None:
            making = self._being_made.get(key)
            if making is not None:
                return await asyncio.shield(making)  # who waits may go; the others still get it
            async with turn:
                if key not in self._being_made and key not in self._kept:
                    return await asyncio.shield(self._make(key, build, keep=keep))
        return found

    def _make(self, key: str, build: Build, *, keep: bool) -> asyncio.Future[SharedAnswer]:
        made = asyncio.wrap_future(self._threads.submit(lambda: build(self._store())))
        self._being_made[key] = made

        def finish(done: asyncio.Future[SharedAnswer]) -> None:
            self._being_made.pop(key, None)
            if not done.cancelled() and done.exception() is None:
                self.keep(key, done.result(), keep=keep)

        made.add_done_callback(finish)
        return made

    def keep(self, key: str, answer: SharedAnswer, *, keep: bool = True) -> SharedAnswer:
        """Keep an answer that was just made, if others may ask for it and it is not too large; the answer itself."""
        if keep and len(answer.body) <= self.most and key not in self._kept:
            self._kept[key] = answer
            self.size += len(answer.body)
        while self.size > self.most:
            _, dropped = self._kept.popitem(last=False)
            self.size -= len(dropped.body)
        return answer

    def _store(self) -> Store:
        """This thread's own connection to the store."""
        if not hasattr(self._local, "store"):
            self._local.store = Store(self.path)
            self._stores.append(self._local.store)
        store: Store = self._local.store
        return store

    def close(self) -> None:
        """End the threads, and close their stores."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        for store in self._stores:
            store.close()
