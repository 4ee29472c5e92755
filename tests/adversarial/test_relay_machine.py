"""A relay's store under any order of events, including crashes, against a plain model of its expected content."""

from __future__ import annotations

import json
import sqlite3
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from consilience.relay import admin
from consilience.relay.answers import AnswerRequest
from consilience.relay.federation import FederationService
from consilience.relay.recount import recount
from consilience.relay.rejections import Rejection
from consilience.relay.tables import FederationTable
from consilience.relay.upload_queue import QueuedUpload
from consilience.relay.writer import Writer
from consilience.wire import charter as charters
from consilience.wire import codec, schema
from consilience.wire.encodings import FLOAT32
from consilience.wire.headers import Part, format_parts, parse_parts
from consilience.wire.rules import Rules
from tests.relay_tools import often

PAIR = {"x": schema.Tensor((2,))}
CHANNELS: dict[str, schema.Channel] = {
    "scalar": schema.Mean("scalar", PAIR),
    "by-row": schema.Mean("by-row", PAIR, rows=(2,)),
    "pool": schema.Pool("pool", PAIR, rows=(2,), keep=2, draw=2),
    "moving": schema.Mean("moving", PAIR, moving=True, max_staleness=1),
}
LEAST, DEADLINE, EXPIRE, STALE = 2, 10.0, 3, 1
COMMON = np.array([0.5, -1.0], dtype=np.float32)

VALUES = st.lists(st.floats(-100, 100, width=32), min_size=2, max_size=2)
COUNTS = st.lists(st.integers(0, 5), min_size=2, max_size=2)
CONTRIBUTIONS = st.fixed_dictionaries(
    {},
    optional={
        "scalar": st.tuples(VALUES, st.sampled_from([0.0, 0.1, 1.0, 7.0])),
        "by-row": st.tuples(VALUES, COUNTS),
        "pool": st.lists(st.tuples(VALUES, COUNTS), min_size=1, max_size=2),
        "moving": st.tuples(VALUES, st.sampled_from([0.0, 1.0, 3.0]), st.integers(-1, 3)),
    },
).filter(bool)
Contribution = dict[str, Any]


@dataclass
class ModelMember:
    """A member in the model."""

    token_id: int
    round: int = -1
    revoked: bool = False
    away: int = 0
    misses: int = 0
    last: tuple[int, str, bytes, str] | None = None
    """Round, header, body and receipt of its last upload."""


@dataclass
class Model:
    """The expected content of a relay, in dictionaries."""

    members: list[ModelMember] = field(default_factory=list)
    kept: dict[str, dict[int, tuple[Any, int]]] = field(
        default_factory=lambda: {"scalar": {}, "by-row": {}, "pool": {}}
    )
    """By channel and member: what it put, and the newest round when it came."""
    waiting: dict[int, tuple[list[float], float, int]] = field(default_factory=dict)
    common: np.ndarray = field(default_factory=lambda: COMMON.copy())
    version: int = 0
    newest: int = -1
    newest_by: int = -1
    since: float | None = None
    receipts: int = 0

    @property
    def expected(self) -> int:
        return sum(not (m.revoked or m.away) for m in self.members)

    def take(self, number: int, round_: int, said: Contribution, version: int) -> str | tuple[list[str], list[str]]:
        """The accepted and the refused channels of an upload, or the code that refuses all of it."""
        member = self.members[number]
        if member.revoked:
            return "revoked"
        if "moving" in said:
            if version > self.version:
                return "version-ahead"
            if number in self.waiting:
                return "already-uploaded"
        stale = ["moving"] if "moving" in said and self.version - version > STALE else []
        taken = [name for name in CHANNELS if name in said and name not in stale]
        renewed = bool(taken) and round_ > self.newest and number != self.newest_by
        self.newest += renewed  # by one, however many rounds a member skips, and not twice in a row by the same member
        self.newest_by = number if renewed else self.newest_by
        for name in taken:
            if name == "moving":
                self.waiting[number] = said[name][0], said[name][1], version
            else:
                self.kept[name][number] = said[name], self.newest
        if "moving" in taken:
            member.away = max(member.away - 1, 0)
        member.round = round_
        self.receipts += 1
        if renewed:
            for entries in self.kept.values():
                for who in [who for who, (_, at) in entries.items() if at < self.newest - EXPIRE]:
                    del entries[who]
        if "moving" in said:
            self.close_if_ready()
        return taken, stale

    def revoke(self, number: int) -> None:
        self.members[number].revoked = True
        self.waiting.pop(number, None)
        for entries in self.kept.values():
            entries.pop(number, None)

    def close_if_ready(self) -> None:
        present = sum(not self.members[number].away for number in self.waiting)
        if len(self.waiting) >= LEAST and present >= self.expected:
            self.close()

    def close_if_overdue(self, now: float) -> None:
        if self.since is not None and now - self.since >= DEADLINE and len(self.waiting) >= LEAST:
            for number, member in enumerate(self.members):
                if not (member.revoked or member.away or number in self.waiting):
                    member.away, member.misses = 2**member.misses, member.misses + 1
            self.close()

    def close(self) -> None:
        total, weight = np.zeros(2), 0.0
        for _, (values, samples, version) in sorted(self.waiting.items()):
            counts = samples / (1 + self.version - version) ** 0.75
            total, weight = total + counts * np.array(values, dtype=np.float64), weight + samples
        self.waiting, self.since = {}, None
        if weight:
            self.common = self.common + (total / weight).astype(np.float32)
            self.version += 1

    def note(self, now: float) -> None:
        """Record when the first contribution since the last aggregation arrived."""
        self.since = None if not self.waiting else (now if self.since is None else self.since)

    def mean(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Mean and weight of a standing mean."""
        total, weight = np.zeros(2), np.zeros(2)
        for (values, counts), _ in self.kept[name].values():
            total, weight = total + np.array(values, dtype=np.float64) * counts, weight + counts
        return np.divide(total, weight, out=np.zeros(2), where=weight > 0), weight


def encoded(said: Contribution, version: int) -> tuple[str, bytes]:
    """The header and the body of a contribution."""
    parts: dict[str, Part] = {}
    fields: dict[str, schema.Field] = {}
    tensors: dict[str, np.ndarray] = {}
    for name, channel in CHANNELS.items():
        if name not in said:
            continue
        message = channel.message("up")
        if name == "pool":
            parts[name] = Part(entries=len(said[name]))
            message = {k: schema.Field((len(said[name]), 2), f.encoding, f.low) for k, f in message.items()}
            tensors |= {
                "pool.x": np.array([v for v, _ in said[name]]),
                "pool.count": np.array([c for _, c in said[name]]),
            }
        else:
            tensors[f"{name}.x"] = np.array(said[name][0])
            if name == "by-row":
                parts[name], tensors["by-row.count"] = Part(), np.array(said[name][1])
            else:
                parts[name] = Part(version=version if name == "moving" else None, weight=said[name][1])
        fields |= message
    return format_parts(parts), codec.encode(fields, tensors)


class Machine(RuleBasedStateMachine):
    """One federation, whose writer is called directly: one step is one iteration of its thread."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.path, self.now = Path(self.folder.name) / "relay.db", 0.0
        charter = charters.build_charter(
            "digits",
            {"name": "some"},
            2,
            CHANNELS,
            {"moving": {"x": COMMON}},
            seed=3,
            rules=Rules(min_contributions=LEAST, deadline=DEADLINE, expire=EXPIRE, round_seconds=0, samples=1000),
        )
        file = self.path.with_suffix(".toml")
        file.write_text(charter.to_toml())
        charters.start_values_file(file).write_bytes(charters.encode_start_values(charter, {"moving": {"x": COMMON}}))
        admin.create(self.path, file)
        self.model = Model()
        self.held, self.held_version = COMMON.copy(), 0
        self.open()

    def open(self) -> None:
        self.writer = Writer(self.path, clock=lambda: self.now)
        self.service = self.writer.federations[1]

    def shut(self) -> None:
        """As if the process had ended: nothing more is written to disk, and its memory is lost."""
        self.writer.close()

    def teardown(self) -> None:
        self.shut()
        self.folder.cleanup()

    def turn(self, *uploads: QueuedUpload) -> None:
        for upload in uploads:
            upload.receipt.set_running_or_notify_cancel()
        self.writer.write(list(uploads))

    def settle(self) -> None:
        """Update the model after one iteration of the writer."""
        self.model.close_if_overdue(self.now)
        self.model.note(self.now)

    # -- possible events -----------------------------------------------------------------------------------------------

    @initialize(count=st.integers(2, 4))
    def begin(self, count: int) -> None:
        for _ in range(count):
            self.invite()

    @precondition(lambda self: len(self.model.members) < 5)
    @rule()
    def invite(self) -> None:
        token = admin.invite(self.path, f"member-{len(self.model.members)}")
        self.model.members.append(ModelMember(token.id))
        self.turn()
        self.settle()

    @precondition(lambda self: sum(not m.revoked for m in self.model.members) > 1)
    @rule(pick=st.integers(0, 100))
    def revoke(self, pick: int) -> None:
        here = [n for n, m in enumerate(self.model.members) if not m.revoked]
        number = here[pick % len(here)]
        admin.revoke(self.path, f"member-{number}")
        self.model.revoke(number)
        if self.model.waiting:
            self.model.close_if_ready()
        self.turn()
        self.settle()

    @rule(pick=st.integers(0, 100), behind=st.sampled_from([0, 0, 0, 1, 2]), values=VALUES, weight=st.integers(0, 3))
    def change(self, pick: int, behind: int, values: list[float], weight: int) -> None:
        """A member without a waiting contribution uploads a change, so that the mean can move."""
        free = [n for n, m in enumerate(self.model.members) if not m.revoked and n not in self.model.waiting]
        if free:
            self.upload(free[pick % len(free)], 1, {"moving": (values, float(weight), behind)})

    @rule(pick=st.integers(0, 100), ahead=st.integers(1, 5), said=CONTRIBUTIONS)
    def upload(self, pick: int, ahead: int, said: Contribution) -> None:
        number = pick % len(self.model.members)
        member = self.model.members[number]
        version = max(self.model.version - (said["moving"][2] if "moving" in said else 0), 0)
        round_, (header, body) = member.round + ahead, encoded(said, version)
        upload = QueuedUpload(member.token_id, round_, header, body)
        self.turn(upload)
        expected = self.model.take(number, round_, said, version)
        self.settle()
        if isinstance(expected, str):
            assert self.refusal(upload) == expected
            return
        receipt = json.loads(upload.receipt.result(0))
        assert (receipt["round"], receipt["accepted"], list(receipt["refused"])) == (round_, *expected)
        member.last = round_, header, body, upload.receipt.result(0)

    @precondition(lambda self: any(m.last for m in self.model.members))
    @rule(pick=st.integers(0, 100), how=st.sampled_from(["same", "other", "older"]))
    def again(self, pick: int, how: str) -> None:
        """Repeat the last upload, or upload other bytes for the same round."""
        members = [m for m in self.model.members if m.last]
        member = members[pick % len(members)]
        assert member.last is not None
        round_, header, body, receipt = member.last
        if how == "other":
            header, body = encoded({"scalar": ([1.5, 2.5], 2.0)}, 0)
        upload = QueuedUpload(member.token_id, round_ - (how == "older"), header, body)
        if upload.round < 0:
            return
        self.turn(upload)
        self.settle()
        if member.revoked:
            assert self.refusal(upload) == "revoked"
        elif how == "same":
            assert upload.receipt.result(0) == receipt
        else:
            assert self.refusal(upload) == {"other": "other-bytes", "older": "older-round"}[how]

    @rule(seconds=st.sampled_from([1.0, 6.0, 10.0, 11.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.turn()
        self.settle()

    @rule()
    def restart(self) -> None:
        """The relay stops in any way and restarts: deadlines start anew."""
        self.shut()
        self.open()
        self.turn()
        self.model.since = None
        self.settle()

    @rule(pick=st.integers(0, 100), said=CONTRIBUTIONS, full=st.booleans())
    def crash(self, pick: int, said: Contribution, full: bool) -> None:
        """Everything is written, then the power fails or the disk is full before the commit."""
        member = self.model.members[pick % len(self.model.members)]
        upload = QueuedUpload(member.token_id, member.round + 1, *encoded(said, self.model.version))
        error = sqlite3.OperationalError("database or disk is full") if full else RuntimeError("no power")
        update = FederationTable.update

        def fails(*given: Any) -> None:
            raise error

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(FederationTable, "update", fails)
            if full:
                self.turn(upload)
            else:
                try:
                    self.turn(upload)
                except RuntimeError:
                    self.shut()
                    self.open()
                    self.model.since = None
        assert FederationTable.update is update
        assert not upload.receipt.done() or upload.receipt.exception(0) is not None
        self.turn()  # continues as if no upload had arrived
        self.settle()

    @rule(pick=st.integers(0, 100), round_=st.integers(0, 5))
    def read(self, pick: int, round_: int) -> None:
        """A member's answer, as it is encoded on the wire."""
        number = pick % len(self.model.members)
        question = self.service.answers.check(AnswerRequest(tuple(CHANNELS), round_, {"moving": self.held_version}, {}))
        reply = self.service.answers.build(self.writer.store, self.service.snapshot, number, question)
        etag = self.service.answers.etag(self.service.snapshot, number, question)
        assert reply.headers["ETag"] == f'"{etag}"'
        got = self.service.messages.codec_for("down", reply.parts).decode(reply.body)
        for name in ("scalar", "by-row"):
            mean, weight = self.model.mean(name)
            np.testing.assert_allclose(got[f"{name}.x"], mean, rtol=1e-5, atol=1e-5)
            told = np.full(2, reply.parts[name].weight) if name == "scalar" else got["by-row.count"]
            np.testing.assert_allclose(told, weight, rtol=1e-9)
        there = [(v, c) for entries, _ in self.model.kept["pool"].values() for v, c in entries]
        for values, counts in zip(got["pool.x"], got["pool.count"], strict=True):
            shown = [(np.where(np.array(c) > 0, np.float32(v), 0).tolist(), list(c)) for v, c in there]
            assert (values.tolist(), counts.tolist()) in (shown or [([0, 0], [0, 0])])
        if "moving" in reply.parts:
            self.catch_up(reply.parts["moving"], got["moving.x"])
        assert self.held_version == self.model.version
        assert self.held.tobytes() == self.service.snapshot.moving["moving"].common["x"].tobytes()

    def catch_up(self, part: Part, values: np.ndarray) -> None:
        if part.full:
            self.held = values
        else:
            assert part.version is not None
            for version in range(self.held_version + 1, part.version):
                body = self.writer.store.replies.get(1, "moving", version)
                assert body is not None
                self.held = self.held + codec.decode(CHANNELS["moving"].message("down"), body)["moving.x"]
            self.held = self.held + values
        self.held_version = part.version or 0

    def refusal(self, upload: QueuedUpload) -> str:
        error = upload.receipt.exception(0)
        assert isinstance(error, Rejection)
        return error.code

    # -- invariants ----------------------------------------------------------------------------------------------------

    @invariant()
    def relay_equals_the_model(self) -> None:
        snapshot, model = self.service.snapshot, self.model
        moving = snapshot.moving["moving"]
        assert (snapshot.round, snapshot.expected) == (model.newest, model.expected)
        assert (moving.version, snapshot.waiting["moving"]) == (model.version, len(model.waiting))
        np.testing.assert_allclose(moving.common["x"], model.common, rtol=1e-6)
        assert FLOAT32 is CHANNELS["moving"].tensors["x"].down
        for name in ("scalar", "by-row"):
            answer, (mean, weight) = snapshot.standing[name].answer(), model.mean(name)
            np.testing.assert_allclose(answer.tensors["x"], mean, rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(answer.count, weight if name == "by-row" else weight[0], rtol=1e-9)
        there = {(n, i) for n, (entries, _) in model.kept["pool"].items() for i in range(len(entries))}
        assert {(int(n), int(i)) for n, i in np.argwhere(snapshot.present["pool"])} == there

    @invariant()
    def disk_holds_exactly_what_is_needed(self) -> None:
        sql = self.writer.store.sql
        entries = {(c, n) for c, n in sql.execute("SELECT channel, number FROM contributions")}
        kept = {(name, number) for name, of in self.model.kept.items() for number in of}
        assert entries == kept | {("moving", number) for number in self.model.waiting}
        uploads = {number for (number,) in sql.execute("SELECT id FROM uploads")}
        assert uploads == {number for (number,) in sql.execute("SELECT upload FROM contributions")}
        assert sql.execute("SELECT count(*) FROM receipts").fetchone() == (self.model.receipts,)
        members = sql.execute("SELECT round, revoked, away FROM members ORDER BY number").fetchall()
        assert members == [(m.round, m.revoked, m.away) for m in self.model.members]
        assert not self.writer.failing

    @invariant()
    def state_on_disk_equals_the_snapshot(self) -> None:
        again, snapshot = FederationService(self.writer.store, 1).snapshot, self.service.snapshot
        assert (again.revision, again.round, again.waiting) == (snapshot.revision, snapshot.round, snapshot.waiting)
        for name, running in snapshot.standing.items():
            back = again.standing[name].state()
            assert all((back[key] == value).all() for key, value in running.state().items())
            assert all(back[key].shape == value.shape for key, value in running.state().items())
        assert again.moving["moving"].common["x"].tobytes() == snapshot.moving["moving"].common["x"].tobytes()
        assert not recount(self.service, self.writer.store).keys() - {"scalar"}  # its weights are fractions
        rows = min(len(again.present["pool"]), len(snapshot.present["pool"]))
        assert (again.present["pool"][:rows] == snapshot.present["pool"][:rows]).all()


def test_encoded_headers_are_parsed_as_intended() -> None:
    header, body = encoded({"pool": [([1, 2], [1, 0])], "moving": ([1, 2], 3.0, 0)}, 4)
    assert parse_parts(header) == {"pool": Part(entries=1), "moving": Part(version=4, weight=3)}
    assert body


TestMachine = Machine.TestCase
TestMachine.settings = settings(
    phases=[Phase.generate],  # failing sequences are short enough to read, and shrinking them takes minutes
    max_examples=often(30, 400),
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
