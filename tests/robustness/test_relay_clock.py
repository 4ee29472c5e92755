"""A machine whose clock is set a day back or forward gives the same answers, byte for byte, at the same deadlines."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from consilience.wire.rules import Rules
from tests.relay_tools import Federation, create_federation, serving, upload_headers, wait_until

DEADLINE = 1.0
CLOCK = """
import datetime, os, sys, time

told, real, real_ns, true = sys.argv[1], time.time, time.time_ns, datetime.datetime

def shift():
    return float(open(told).read()) if os.path.exists(told) else 0.0

class Shifted(true):
    @classmethod
    def now(cls, tz=None):
        return true.now(tz) + datetime.timedelta(seconds=shift())

    @classmethod
    def utcnow(cls):
        return true.now(datetime.timezone.utc).replace(tzinfo=None) + datetime.timedelta(seconds=shift())

time.time = lambda: real() + shift()
time.time_ns = lambda: real_ns() + int(shift() * 1e9)
datetime.datetime = Shifted

from consilience.cli.main import main
main(sys.argv[2:])
"""


def answers(client: httpx.Client, federation: Federation) -> list[tuple[bytes, str, str]]:
    """All answers to two members."""
    said = []
    for member in (0, 1):
        for question in ("?round=2", "?round=2&channel=weights&have=weights:1", "?round=5&turn=1&channel=observations"):
            answer = client.get(f"/v1/answers{question}", headers=federation.head(member))
            assert answer.status_code == 200
            said.append((answer.content, answer.headers["etag"], answer.headers["Consilience-Answer"]))
    return said


def course(federation: Federation, shift: float) -> tuple[list[list[tuple[bytes, str, str]]], float]:
    """The answers of two rounds, with the clock changed in between, and the duration of the second round."""
    script, told = federation.store.with_name("clock.py"), federation.store.with_name("shift")
    script.write_text(CLOCK)
    said = []
    with serving(federation.store, program=[str(script), str(told)]) as relay:
        with httpx.Client(base_url=relay.url) as client:

            def put(member: int, round_: int) -> None:
                upload = federation.upload(member, round_, round_ - 1)
                head = upload_headers(federation, member, upload)
                assert client.put(f"/v1/rounds/{round_}", content=upload.body, headers=head).status_code == 200

            for member in range(3):
                put(member, 1)
            said.append(answers(client, federation))
            put(0, 2)
            opened = time.monotonic()
            told.write_text(str(shift))
            put(1, 2)
            stands = "/v1/federation"
            wait_until(
                lambda: client.get(stands, headers=federation.head(0)).json()["versions"]["weights"] == 2, DEADLINE + 5
            )
            lasted = time.monotonic() - opened
            said.append(answers(client, federation))
        relay.stop()
    return said, lasted


@pytest.mark.parametrize("shift", [-86400.0, 86400.0])
def test_changing_the_system_clock_changes_no_answers_or_deadlines(tmp_path: Path, shift: float) -> None:
    federation = create_federation(tmp_path, 3, rules=Rules(deadline=DEADLINE))
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(federation.store, other / "relay.db")
    right, lasted = course(federation, 0.0)
    said, lasted_shifted = course(replace(federation, store=other / "relay.db"), shift)
    assert said == right
    for seconds in (lasted, lasted_shifted):
        assert DEADLINE - 0.1 < seconds < DEADLINE + 2.0
