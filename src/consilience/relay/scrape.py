"""The state of a relay at one moment, as Prometheus reads it: collected only when somebody asks."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from consilience.relay.member_table import STATES
from consilience.relay.metrics import Metrics
from consilience.relay.store import Store
from consilience.relay.store_health import store_size, writer_state
from consilience.relay.writer import Writer


@dataclass(frozen=True)
class RelayState(Collector):
    """What is not counted while it happens, but read from the relay when somebody asks.

    certificate_expires: seconds since 1970; None without TLS.
    """

    writer: Writer
    streams: int
    connections: int
    certificate_expires: float | None = None

    def collect(self) -> Iterator[Metric]:
        """One family after the other."""
        path = self.writer.store.path
        yield _gauge("connections", "open connections", self.connections)
        yield _gauge("event_streams", "open event streams of members", self.streams)
        yield _gauge("queue_length", "uploads that wait to be written", self.writer.queued)
        yield _gauge("writable", "1 if uploads can be written", float(writer_state(self.writer) == "ok"))
        damage = CounterMetricFamily(
            "consilience_damage_repaired", "damaged records found and repaired since the start"
        )
        damage.add_metric([], len(self.writer.loaded.damage))
        yield damage
        yield _gauge("federations_lost", "federations too damaged to be served", len(self.writer.loaded.lost))
        yield _gauge("store_bytes", "size of the store and its write-ahead log", store_size(path))
        yield _gauge("disk_free_bytes", "free space beside the store", shutil.disk_usage(path.absolute().parent).free)
        if self.certificate_expires is not None:
            yield _gauge(
                "certificate_expires_timestamp_seconds", "when the certificate expires", self.certificate_expires
            )
        yield from self._federations(path)

    def _federations(self, path: Path) -> Iterator[Metric]:
        members = GaugeMetricFamily("consilience_members", "members by state", labels=["federation", "state"])
        rounds = GaugeMetricFamily("consilience_round", "round of a federation", labels=["federation"])
        versions = GaugeMetricFamily(
            "consilience_version", "version of common values", labels=["federation", "channel"]
        )
        waiting = GaugeMetricFamily("consilience_waiting", "contributions that wait", labels=["federation", "channel"])
        counts = _count_members(path)
        for service in list(self.writer.federations.values()):
            name, snapshot = service.charter.name, service.snapshot
            rounds.add_metric([name], snapshot.round)
            for state in STATES:
                members.add_metric([name, state], counts[service.id, state])
            for channel, moving in snapshot.moving.items():
                versions.add_metric([name, channel], moving.version)
                waiting.add_metric([name, channel], snapshot.waiting[channel])
        yield from (members, rounds, versions, waiting)


def render(metrics: Metrics, state: RelayState) -> bytes:
    """Everything in Prometheus' text format. It reads the store: call it in a thread."""
    return generate_latest(metrics.registry) + generate_latest(state)


def _gauge(name: str, meaning: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"consilience_{name}", meaning, value=value)


def _count_members(path: Path) -> Counter[tuple[int, str]]:
    """How many members each federation has in each state; counted by SQLite, the records are checked at the start."""
    query = (
        "SELECT federation, CASE WHEN revoked = 1 THEN 'revoked' WHEN expires > 0 AND expires <= ? THEN 'expired' "
        "WHEN away THEN 'away' WHEN round < 0 THEN 'invited' ELSE 'active' END AS state, count(*) "
        "FROM members GROUP BY federation, state"
    )
    with contextlib.closing(Store(path)) as store:
        rows = store.sql.execute(query, (time.time(),)).fetchall()
    return Counter({(federation, state): count for federation, state, count in rows})
