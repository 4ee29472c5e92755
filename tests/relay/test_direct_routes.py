"""Requests for answers and uploads are answered alike, whether they are routed or not."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from consilience.relay.app import Relay
from consilience.relay.direct_routes import DirectRoutes
from tests.relay_tools import create_federation, in_a_thread, upload_headers


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("PUT", "/v1/rounds/x", 400, "malformed-query"),
        ("PUT", "/v1/rounds/-1", 400, "malformed-query"),
        ("PUT", "/v1/rounds/1%2F2", 404, "not-found"),
        ("PUT", "/v1/rounds/", 404, "not-found"),
        ("PUT", "/v1/rounds/1/", 404, "not-found"),
        ("PUT", "/v1/rounds", 404, "not-found"),
        ("GET", "/v1/rounds/1", 405, "method-not-allowed"),
        ("POST", "/v1/answers", 405, "method-not-allowed"),
        ("GET", "/v1/answers/", 404, "not-found"),
        ("GET", "/v1/answers?round=x", 400, "malformed-query"),
    ],
)
def test_paths_that_look_like_theirs(method: str, path: str, status: int, code: str, tmp_path: Path) -> None:
    federation = create_federation(tmp_path, 1)
    with in_a_thread(Relay(federation.store)) as url, httpx.Client(base_url=url) as client:
        upload = federation.upload(0, 1)
        answer = client.request(method, path, headers=upload_headers(federation, 0, upload))
        assert (answer.status_code, answer.json()["code"]) == (status, code)


def test_routed_and_direct_requests_get_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers, refusals and what is counted of them."""

    def exchanged(folder: Path) -> list[tuple[int, bytes, list[str]]]:
        folder.mkdir()
        federation = create_federation(folder, 2)
        relay = Relay(federation.store)
        with in_a_thread(relay) as url, httpx.Client(base_url=url) as client:
            upload = federation.upload(0, 1)
            got = [
                client.put("/v1/rounds/1", content=upload.body, headers=upload_headers(federation, 0, upload)),
                client.put("/v1/rounds/0", content=upload.body, headers=upload_headers(federation, 0, upload)),
                client.put("/v1/rounds/1", content=upload.body[1:], headers=upload_headers(federation, 1, upload)),
                client.get("/v1/answers?round=2&channel=prototypes", headers=federation.head(1)),
                client.get("/v1/answers?round=2&channel=prototypes", headers=federation.head(0)),
                client.get("/v1/answers?round=2&channel=nothing", headers=federation.head(1)),
                client.get("/v1/answers", headers={"Authorization": "Bearer wrong"}),
                client.head("/v1/answers?round=2&channel=prototypes", headers=federation.head(1)),
            ]
            counted = {
                tuple(sample.labels.values()): sample.value
                for family in relay.activity.metrics.registry.collect()
                for sample in family.samples
                if sample.name == "consilience_requests_total"
            }
        assert counted == {
            ("upload", "200"): 1,
            ("upload", "409"): 1,
            ("upload", "400"): 1,
            ("answers", "200"): 3,
            ("answers", "400"): 1,
            ("answers", "401"): 1,
        }
        return [(each.status_code, _without_secrets(each), sorted(each.headers)) for each in got]

    direct = exchanged(tmp_path / "direct")
    monkeypatch.setattr(DirectRoutes, "__call__", lambda self, *request: self._app(*request))
    assert exchanged(tmp_path / "routed") == direct


def _without_secrets(answer: httpx.Response) -> bytes:
    """A body without what differs between two stores: the epoch, and the chain with its time."""
    if "json" not in answer.headers.get("content-type", ""):
        return answer.content
    said = answer.json()
    return repr({key: value for key, value in said.items() if key not in ("epoch", "chain")}).encode()
