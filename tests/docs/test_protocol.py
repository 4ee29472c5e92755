"""The protocol page: its tables match the code, and a relay accepts its example by hand."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import httpx
from pydantic import BaseModel

from consilience.relay import admin
from consilience.relay.app import Limits
from consilience.relay.openapi import description
from consilience.relay.rejections import STATUS
from consilience.relay.timeouts import HEAD_LIMIT, Timeouts
from consilience.wire.channel_settings import ChannelSettings, TensorSettings
from consilience.wire.charter import PROTOCOL, Charter
from consilience.wire.codec import CODES
from consilience.wire.headers import ANSWER_HEADER, UPLOAD_HEADER
from consilience.wire.privacy import PrivacySettings
from consilience.wire.roles import PublicSetSettings, RoleSettings
from consilience.wire.rules import Rules
from consilience.wire.targets import TargetSettings
from tests.relay_tools import serving

PAGE = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text(encoding="utf-8")


def table(first: str) -> list[list[str]]:
    """The cells of the rows of the table whose first heading is `first`."""
    _, _, rest = PAGE.partition(f"\n| {first} |")
    lines = rest.split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]


def block(title: str) -> str:
    found = re.search(rf'^```\w+ title="{re.escape(title)}"\n(.*?)^```$', PAGE, flags=re.DOTALL | re.MULTILINE)
    assert found is not None, title
    return found[1]


def test_every_code_is_listed_with_its_status() -> None:
    listed = {code.strip("`"): int(status) for code, status, _ in table("code")}
    assert listed == dict.fromkeys(CODES, 400) | STATUS
    assert len(table("code")) == len(listed)


def test_every_key_of_a_charter_is_listed_with_its_default() -> None:
    parts: dict[str, type[BaseModel]] = {
        "key": Charter,
        "of `[target]`": TargetSettings,
        "of `[rules]`": Rules,
        "of `[privacy]`": PrivacySettings,
        "of `[roles]`": RoleSettings,
        "of `[public_set]`": PublicSetSettings,
        "of `[channels.NAME]`": ChannelSettings,
        "of `[channels.NAME.tensors.KEY]`": TensorSettings,
    }
    for first, model in parts.items():
        rows = {key: row[1] for row in table(first) for key in re.findall(r"`(\w+)`", row[0])}
        fields = {field.alias or key: field for key, field in model.model_fields.items()}
        assert rows.keys() == fields.keys()
        for key, listed in rows.items():
            default = {"[]": "()", "true": "True"}.get(listed.strip("`"), listed.strip("`"))
            if default in ("", "none"):
                assert fields[key].is_required() or key in (
                    "rules",
                    "roles",
                    "scaling",
                    "target",
                    "quorum",
                    "public_set",
                    "start",
                    "frozen_sha256",
                    "relay_key",
                    "privacy",
                    "clip_norm",
                    "clip_ratio",
                    "weight_cap",
                    "low",
                    "high",
                ), key
            else:
                assert default == str(fields[key].default), key


def test_every_path_is_listed() -> None:
    listed = re.findall(r"^\| `(GET|PUT) (/\S+)` \|", PAGE, flags=re.MULTILINE)
    assert {(path, method.lower()) for method, path in listed} == {
        (path, method) for path, methods in description()["paths"].items() for method in methods
    }


def test_every_limit_is_that_of_the_code() -> None:
    limits, timeouts = Limits(), Timeouts()
    listed = [row[1] for row in table("what")]
    assert listed[0] == f"{limits.rate:g}, {limits.burst}"
    assert listed[1:5] == [f"{n:g}" for n in (timeouts.head, timeouts.idle, timeouts.body, timeouts.answer)]
    assert listed[6:8] == [str(limits.member_connections), str(limits.address_connections)]
    assert listed[8:10] == [str(limits.member_bytes // 2**20), str(limits.address_bytes // 2**20)]
    assert listed[10:12] == [str(limits.failed_logins), str(limits.cache // 2**20)]
    assert listed[12].split("; ")[0] == str(HEAD_LIMIT)


def test_handwritten_example_is_accepted_and_returned(tmp_path: Path) -> None:
    for title in ("tiny.toml", "body.py"):
        (tmp_path / title).write_text(block(title), encoding="utf-8")
    body = subprocess.run([sys.executable, tmp_path / "body.py"], capture_output=True, check=True, timeout=60).stdout
    receipt, refused = [json.loads(found) for found in re.findall(r"^(\{.*\})$", PAGE, flags=re.MULTILINE)][1:]
    store = tmp_path / "relay.db"
    admin.create(store, tmp_path / "tiny.toml")
    head = {"Authorization": f"Bearer {admin.invite(store, 'ward-7')}"}
    with serving(store) as relay, httpx.Client(base_url=relay.url, headers=head, timeout=20, trust_env=False) as client:
        assert client.get("/health").json() == {"status": "ok", "protocol": PROTOCOL}
        for _ in range(2):
            upload = client.put("/v1/rounds/1", content=body, headers={UPLOAD_HEADER: "prototypes"})
            shown = {key: receipt[key] for key in ("epoch", "chain")}  # another one in each store
            assert (upload.status_code, upload.json() | shown) == (200, receipt)
        answer = client.get("/v1/answers", params={"round": 1})
        assert (answer.content, answer.headers[ANSWER_HEADER]) == (body, "prototypes")
        again = client.get("/v1/answers", params={"round": 1}, headers={"If-None-Match": answer.headers["etag"]})
        assert again.status_code == 304
        short = client.put("/v1/rounds/2", content=body[:100], headers={UPLOAD_HEADER: "prototypes"})
        assert (short.status_code, short.json()) == (400, refused)
