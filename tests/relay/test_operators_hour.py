"""An operator's first hour with the real command, as in docs/guides/relay-runbook.md: certificate to metrics."""

from __future__ import annotations

import json
import os
import signal
import ssl
import struct
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import trustme

from tests.relay_tools import SOURCE, wait_until

CHARTER = """\
protocol = 2
name = "tiny"
classes = 2

[method]
name = "fedproto"

[channels.prototypes]
kind = "standing"
rows = [2]

[channels.prototypes.tensors.mean]
shape = [2, 2]
low = -1.0
high = 1.0
"""


def body(value: float) -> bytes:
    """An upload as in docs/protocol.md: all class means have this value, four samples each."""
    mean = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}
    count = {"dtype": "I32", "shape": [2], "data_offsets": [16, 24]}
    header = json.dumps({"0": mean, "1": count}, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header + struct.pack("<4f2i", *[value] * 4, 4, 4)


@dataclass
class Desk:
    """A folder in which an operator types commands, and the relays started there."""

    folder: Path
    ends: ExitStack
    trust: ssl.SSLContext

    def type(self, *words: str, fails: bool = False) -> tuple[str, str]:
        """What `consilience relay ...` prints, on standard output and standard error."""
        command = [sys.executable, "-m", "consilience", "relay", *words]
        environment = os.environ | {"PYTHONPATH": str(SOURCE)}
        done = subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert (done.returncode != 0) == fails, done.stdout + done.stderr
        return done.stdout, done.stderr

    def serve(self, *words: str, log: str) -> tuple[subprocess.Popen[str], httpx.Client]:
        """A relay that serves, and a client for it."""
        command = [sys.executable, "-m", "consilience", "relay", "serve", "--port", "0", "--log", "json", *words]
        environment = os.environ | {"PYTHONPATH": str(SOURCE)}
        with (self.folder / log).open("w") as errors:
            process = subprocess.Popen(
                command, cwd=self.folder, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        self.ends.callback(process.wait)
        self.ends.callback(process.kill)
        assert process.stdout is not None
        with process.stdout as out:
            url = out.readline().removeprefix("relay: ").strip()
        assert url.startswith("https://127.0.0.1:"), (self.folder / log).read_text()
        return process, self.ends.enter_context(httpx.Client(base_url=url, verify=self.trust, timeout=30))

    def renew(self, authority: trustme.CA) -> None:
        leaf = authority.issue_cert("127.0.0.1")
        (self.folder / "certificate.pem").write_bytes(b"".join(part.bytes() for part in leaf.cert_chain_pems))
        (self.folder / "key.pem").write_bytes(leaf.private_key_pem.bytes())


def upload(client: httpx.Client, token: str, round_: int, value: float) -> httpx.Response:
    headers = {"Authorization": f"Bearer {token}", "Consilience-Upload": "prototypes"}
    return client.put(f"/v1/rounds/{round_}", content=body(value), headers=headers)


def ask(client: httpx.Client, path: str, token: str) -> httpx.Response:
    return client.get(path, headers={"Authorization": f"Bearer {token}"})


def mean(client: httpx.Client, token: str) -> float:
    """The first value of the answer, which has the layout of an upload."""
    content = ask(client, "/v1/answers?round=1", token).content
    (value,) = struct.unpack_from("<f", content, len(content) - 24)
    return float(value)


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="there is no SIGHUP here")
def test_operators_hour(tmp_path: Path) -> None:
    authority, trust = trustme.CA(), ssl.create_default_context()
    authority.configure_trust(trust)
    with ExitStack() as ends:
        desk = Desk(tmp_path, ends, trust)
        (tmp_path / "tiny.toml").write_text(CHARTER)
        desk.renew(authority)
        tls = ("--tls-cert", "certificate.pem", "--tls-key", "key.pem")

        # start
        assert "tiny is created in relay.db" in desk.type("create", "tiny.toml")[0]
        process, client = desk.serve(*tls, log="relay.log")
        assert client.get("/health").json()["status"] == "ok"
        assert client.get("/ready").json() == {"status": "ready"}

        def logged(event: str) -> list[dict[str, object]]:
            lines = [json.loads(line) for line in (tmp_path / "relay.log").read_text().splitlines()]
            return [line for line in lines if line["event"] == event]

        # invite, upload, watch
        seven = desk.type("invite", "ward-7")[0].strip()
        eight, said = desk.type("invite", "ward-8", "--days", "90")
        eight = eight.strip()
        assert "shown only once, valid for 90 days" in said
        operator = desk.type("operator", "add", "anna")[0].strip()
        assert upload(client, seven, 1, 0.5).status_code == 200
        assert upload(client, eight, 1, -0.25).status_code == 200
        assert mean(client, seven) == 0.125
        metrics = ask(client, "/metrics", operator).text
        assert 'consilience_uploads_total{federation="tiny",result="accepted"} 2.0' in metrics
        assert 'consilience_members{federation="tiny",state="active"} 2.0' in metrics
        assert "consilience_connections 1.0" in metrics and "consilience_certificate_expires_timestamp" in metrics
        assert ask(client, "/metrics", seven).status_code == 401
        out, said = desk.type("status", "--tls-cert", "certificate.pem")
        assert "ward-8" in out and ", token until " in out and "never seen" not in out
        assert "certificate.pem: the certificate expires at" in said

        # a new certificate
        desk.renew(authority)
        process.send_signal(signal.SIGHUP)
        wait_until(lambda: bool(logged("certificate-reloaded")), 30)
        assert upload(client, seven, 2, 0.5).status_code == 200  # the open connection is not disturbed

        # backup, and a second relay that continues from it
        assert "monday.db: a sound copy of relay.db" in desk.type("backup", "monday.db")[0]
        assert desk.type("verify", "--store", "monday.db")[0].endswith("monday.db: sound\n")
        assert "restored from monday.db" in desk.type("restore", "monday.db", "--store", "second.db")[0]
        other, second = desk.serve("--store", "second.db", *tls, log="second.log")
        assert mean(second, seven) == 0.125
        assert ask(second, "/v1/federation", eight).json()["member"]["round"] == 1

        # rotate, revoke, invite again
        newer, said = desk.type("rotate", "ward-7")
        newer = newer.strip()
        assert "the old one is refused from now on" in said
        assert ask(client, "/v1/federation", seven).json()["code"] == "expired"
        assert ask(client, "/v1/federation", newer).json()["member"]["round"] == 2
        desk.type("revoke", "ward-8")
        assert ask(client, "/v1/federation", eight).json()["code"] == "revoked"
        wait_until(lambda: mean(client, newer) == 0.5, 30)
        again = desk.type("invite", "ward-8")[0].strip()
        assert upload(client, again, 0, 1.0).json()["code"] == "older-round"
        assert upload(client, again, 2, 1.0).status_code == 200
        assert mean(client, newer) == 0.75
        assert "stop that one first" in desk.type("restore", "monday.db", "--revoked", "revoke", fails=True)[1]

        # restore in place of the store
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0
        assert "ward-7, ward-8. Decide" in desk.type("restore", "monday.db", fails=True)[1]
        assert "revoked again: ward-7, ward-8" in desk.type("restore", "monday.db", "--revoked", "revoke")[0]
        other.send_signal(signal.SIGTERM)
        assert other.wait(timeout=30) == 0

        text = (tmp_path / "relay.log").read_text()
        events = {str(json.loads(line)["event"]) for line in text.splitlines()}
        assert events >= {
            "start",
            "member-invited",
            "token-rotated",
            "member-revoked",
            "login-failed",
            "refused",
            "stop",
        }
        for token in (seven, eight, operator, newer, again):
            assert token[-43:] not in text
