"""Health, OpenAPI, logs and internal errors of a relay."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from consilience.relay.rejections import STATUS
from consilience.wire import charter as charters
from consilience.wire import codec
from consilience.wire.headers import UPLOAD_HEADER
from consilience.wire.rules import Rules
from tests.local_relay import (
    MEAN,
    MOVING,
    SRC,
    START,
    LocalRelay,
    change,
    create_federation,
    logits,
    moved,
    running,
    upload_over,
    wait_until,
    weighs,
)


def test_health_reports_whether_the_relay_can_write(tmp_path: Path) -> None:
    relay = LocalRelay(create_federation(tmp_path, MEAN))
    try:
        assert relay.ask(None, "/health").json() == {"status": "ok", "protocol": charters.PROTOCOL}
    finally:
        relay.close()
    assert not relay.relay.writer.alive


def test_openapi_names_every_code_and_every_route(tmp_path: Path) -> None:
    with running(create_federation(tmp_path, MEAN)) as relay:
        said = relay.ask(None, "/openapi.json").json()
        routes = {route.path for route in relay.relay.app().routes}  # type: ignore[attr-defined]
    assert set(said["paths"]) == routes
    codes = set(said["components"]["schemas"]["Rejection"]["properties"]["code"]["enum"])
    assert codes >= set(STATUS) | set(codec.CODES)
    listed = json.dumps(said["paths"])
    told = {c for c in codes if c in listed}
    assert told >= codes - {"method-not-allowed", "head-too-large"}  # before any operation is found


PROGRAM = """
import sys
sys.path.insert(0, {src!r})
sys.modules["torch"] = None
from consilience.cli.main import main
main(["relay", "serve", "--store", {store!r}, "--port", "0"])
"""


def test_relay_runs_without_torch_and_logs_no_client_data(tmp_path: Path) -> None:
    stored = create_federation(tmp_path, {**MEAN, **MOVING}, START, rules=Rules(min_contributions=1, deadline=0.2))
    program = PROGRAM.format(src=SRC, store=str(stored.store))
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-W", "error", "-c", program]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().removeprefix("relay: ").strip()
            token = stored.tokens[0]
            upload_over(url, token, 1, weighs(424242) | moved(0), stored.channels, logits(0.4242, 7.25) | change(1))
            headers = {
                "Authorization": f"Bearer {token}",
                "X-Own": "my-own-header",
                UPLOAD_HEADER: "logits;weight=99;entries=9",
            }
            bad = httpx.put(f"{url}/v1/rounds/2", content=b"secret-body", headers=headers)
            assert bad.status_code == 400
            assert httpx.get(f"{url}/v1/answers?have=mine:1", headers=headers).status_code == 400
            assert httpx.get(f"{url}/v1/nowhere-{token}", headers=headers).status_code == 404

            def closed() -> bool:
                said: dict[str, Any] = httpx.get(f"{url}/v1/federation", headers=headers).json()
                return bool(said["versions"]["weights"])

            wait_until(closed, 5)
            answer = httpx.get(f"{url}/v1/answers?channel=logits", headers=headers)
            values = codec.decode(MEAN["logits"].message("down"), answer.content)["logits.mean"]
            assert values.tolist() == logits(0.4242, 7.25)["logits.mean"].tolist()
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=15)
        finally:
            process.kill()
    assert process.returncode == 0, err
    assert "weights was aggregated at its deadline" in err  # so the log was on
    for secret in (token, token[-43:], "0.4242", "7.25", "424242", "my-own-header", "secret-body", "weight=99"):
        assert secret not in out + err


def test_internal_error_is_reported_without_details(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = create_federation(tmp_path, MEAN)
    with running(stored) as relay, caplog.at_level(logging.DEBUG):
        service = next(iter(relay.relay.writer.federations.values()))

        def fails(*given: Any) -> str:
            raise ValueError("0.4242")

        with monkeypatch.context() as broken, pytest.raises(ValueError, match=r"0\.4242"):
            broken.setattr(service, "accept_upload", fails)
            relay.upload(0, 1, weighs(1), logits(0.4242, 1))
        assert (
            relay.upload(0, 1, weighs(1), logits(2, 1)).status_code == 200
        )  # nothing was saved, and the writer still runs
    assert any("ValueError" in record.getMessage() for record in caplog.records)
    assert stored.tokens[0] not in caplog.text
