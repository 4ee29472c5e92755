"""A relay in this process, called without a socket, and small channels for its tests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import numpy as np

from consilience.relay import admin
from consilience.relay.app import Limits, Relay
from consilience.wire import charter as charters
from consilience.wire import codec, schema
from consilience.wire.common_values import CommonValues, common_values_message
from consilience.wire.encodings import BIT
from consilience.wire.headers import ANSWER_HEADER, UPLOAD_HEADER, Part, format_parts, parse_parts
from consilience.wire.rules import Rules

Arrays = dict[str, np.ndarray]
Channels = Mapping[str, schema.Channel]
SRC = str(Path(__file__).parents[1] / "src")


@dataclass
class StoredFederation:
    """A store with a federation, and its members' tokens."""

    store: Path
    channels: Channels
    tokens: list[str]

    def invite(self, name: str, federation: str | None = None) -> str:
        return str(admin.invite(self.store, name, federation))


def create_federation(
    folder: Path,
    channels: Channels,
    starts: CommonValues | None = None,
    members: int = 2,
    name: str = "digits",
    rules: Rules | None = None,
) -> StoredFederation:
    charter = charters.build_charter(
        name, {"name": "some"}, 3, channels, starts or {}, rules=rules or Rules(min_contributions=1)
    )
    file = folder / f"{name}.toml"
    file.write_text(charter.to_toml())
    charters.start_values_file(file).write_bytes(charters.encode_start_values(charter, starts or {}))
    store = folder / "relay.db"
    admin.create(store, file)
    made = StoredFederation(store, channels, [])
    made.tokens = [made.invite(f"member-{i}", name) for i in range(members)]
    return made


def message(channels: Channels, parts: Mapping[str, Part], direction: schema.Direction) -> dict[str, schema.Field]:
    """The message of a body with this header."""
    fields: dict[str, schema.Field] = {}
    for name in channels:
        if name not in parts:
            continue
        part = common_values_message(channels[name]) if parts[name].full else channels[name].message(direction)
        entries = parts[name].entries
        if entries is not None:
            part = {k: replace(f, shape=(entries, *f.shape[1:])) for k, f in part.items()}
        fields |= part
    return fields


class LocalRelay:
    """A relay in this process, one request at a time."""

    def __init__(self, stored: StoredFederation, limits: Limits | None = None) -> None:
        self.stored = stored
        self.relay = Relay(stored.store, limits or Limits(rate=0))
        app = self.relay.app()
        self._runner = asyncio.Runner()
        self._life = self.relay.lifespan(app)
        self._runner.run(self._life.__aenter__())
        self._client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://relay")

    def close(self) -> None:
        self._runner.run(self._client.aclose())
        self._runner.run(self._life.__aexit__(None, None, None))
        self._runner.close()

    def ask(
        self,
        who: int | str | None,
        path: str,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        content: bytes = b"",
    ) -> httpx.Response:
        token = self.stored.tokens[who] if isinstance(who, int) else who
        said = {**({"Authorization": f"Bearer {token}"} if token else {}), **(headers or {})}
        return self._runner.run(self._client.request(method, path, headers=said, content=content))

    def upload(self, who: int | str, round_: int, said: Mapping[str, Part], tensors: Arrays) -> httpx.Response:
        body = codec.encode(message(self.stored.channels, said, "up"), tensors)
        return self.ask(who, f"/v1/rounds/{round_}", "PUT", {UPLOAD_HEADER: format_parts(said)}, content=body)

    def answers(self, who: int | str, query: str = "", **headers: str) -> tuple[dict[str, Part], Arrays]:
        response = self.ask(who, f"/v1/answers?{query}", headers=headers)
        assert response.status_code == 200, response.text
        said = response.headers[ANSWER_HEADER]
        parts = parse_parts(said) if said else {}
        return parts, codec.decode(message(self.stored.channels, parts, "down"), response.content)


@contextmanager
def running(stored: StoredFederation, limits: Limits | None = None) -> Iterator[LocalRelay]:
    relay = LocalRelay(stored, limits)
    try:
        yield relay
    finally:
        relay.close()


def code(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["code"]


def wait_until(holds: Callable[[], bool], seconds: float = 1.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


PLAIN = {"mean": schema.Tensor((2,))}
MEAN = {"logits": schema.Mean("logits", PLAIN)}
BY_CLASS = {"prototypes": schema.Mean("prototypes", {"mean": schema.Tensor((3, 2))}, rows=(3,))}
MOVING = {"weights": schema.Mean("weights", {"layer.weight": schema.Tensor((40, 40), BIT, BIT)}, moving=True)}
START = {"weights": {"layer.weight": np.ones((40, 40), dtype=np.float32)}}


def logits(*values: float) -> Arrays:
    return {"logits.mean": np.array(values, dtype=np.float32)}


def weighs(weight: float) -> dict[str, Part]:
    return {"logits": Part(weight=weight)}


def change(seed: int) -> Arrays:
    return {"weights.layer.weight": np.random.default_rng(seed).normal(size=(40, 40)).astype(np.float32)}


def moved(version: int, weight: float = 1) -> dict[str, Part]:
    return {"weights": Part(version=version, weight=weight)}


def upload_over(
    url: str, token: str, round_: int, said: Mapping[str, Part], channels: Channels, tensors: Arrays
) -> None:
    """One upload over a socket."""
    body = codec.encode(message(channels, said, "up"), tensors)
    headers = {"Authorization": f"Bearer {token}", UPLOAD_HEADER: format_parts(said)}
    assert httpx.put(f"{url}/v1/rounds/{round_}", content=body, headers=headers).status_code == 200
