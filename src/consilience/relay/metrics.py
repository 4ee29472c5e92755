"""What a relay counts and measures, for Prometheus: counters and times here, the state at one moment in `scrape`.

Each relay has a registry of its own, so that one process can hold several.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

_SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)


class Metrics:
    """Hooks of a few assignments each; what they count is read when somebody asks for it."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        requests = Counter("consilience_requests", "requests answered", ["endpoint", "status"], registry=registry)
        uploads = Counter(
            "consilience_uploads",
            "uploads, accepted or refused with a code",
            ["federation", "result"],
            registry=registry,
        )
        self._requests, self._uploads = functools.cache(requests.labels), functools.cache(uploads.labels)
        self._received = Counter("consilience_received_bytes", "bytes of bodies received", registry=registry)
        self._sent = Counter("consilience_sent_bytes", "bytes of bodies sent", registry=registry)
        self._answers = Histogram(
            "consilience_answer_seconds", "time to build an answer", buckets=_SECONDS, registry=registry
        )
        self._commits = Histogram(
            "consilience_commit_seconds",
            "time to write a batch, from its begin until it is on disk",
            buckets=_SECONDS,
            registry=registry,
        )
        self._failed = Counter("consilience_commits_failed", "batches that could not be written", registry=registry)
        self._last_commit = Gauge(
            "consilience_last_commit_timestamp_seconds", "when a batch was written last", registry=registry
        )

    def count_request(self, endpoint: str, status: int) -> None:
        """Count a request that is answered."""
        self._requests(endpoint, status).inc()

    def count_upload(self, federation: str, result: str) -> None:
        """Count an upload by its result: accepted, or the code of the refusal."""
        self._uploads(federation, result).inc()

    def count_bytes(self, *, received: int = 0, sent: int = 0) -> None:
        """Count bytes of bodies."""
        if received:
            self._received.inc(received)
        if sent:
            self._sent.inc(sent)

    @contextlib.contextmanager
    def answer(self) -> Iterator[None]:
        """Measure how long an answer takes to build."""
        with self._answers.time():
            yield

    @contextlib.contextmanager
    def commit(self) -> Iterator[None]:
        """Measure how long a batch takes to write; one that fails is only counted."""
        began = time.perf_counter()
        try:
            yield
        except BaseException:
            self._failed.inc()
            raise
        self._commits.observe(time.perf_counter() - began)
        self._last_commit.set(time.time())
