"""A relay against its own OpenAPI description: every request is answered as described, never with a server error."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    ignored_auth,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from consilience.relay import admin
from consilience.relay.app import Limits, Relay
from consilience.relay.openapi import description
from consilience.relay.operators import add_operator
from consilience.wire import charter as charters
from consilience.wire import schema
from consilience.wire.rules import Rules
from tests.relay_tools import in_a_thread

CHANNELS: dict[str, schema.Channel] = {
    "mean": schema.Mean("mean", {"x": schema.Tensor((2,))}),
    "pool": schema.Pool("pool", {"x": schema.Tensor((2,))}, rows=(2,), keep=2, draw=2),
    "moving": schema.Mean("moving", {"x": schema.Tensor((2,))}, moving=True),
}
STARTS = {"moving": {"x": np.zeros(2, dtype=np.float32)}}
ENDLESS = ["/v1/events", "/v1/operator/events"]
API = schemathesis.openapi.from_dict(description()).exclude(path=ENDLESS)
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
    unsupported_method,
    ignored_auth,
]


@dataclass
class Place:
    """A relay's address, and valid tokens of a member and of an operator."""

    url: str
    token: str
    operator: str
    store: Path


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    store = tmp_path_factory.mktemp("relay") / "relay.db"
    charter = charters.build_charter("digits", {"name": "some"}, 2, CHANNELS, STARTS, rules=Rules(min_contributions=1))
    file = store.with_suffix(".toml")
    file.write_text(charter.to_toml())
    charters.start_values_file(file).write_bytes(charters.encode_start_values(charter, STARTS))
    admin.create(store, file)
    token = str(admin.invite(store, "mine"))
    relay = Relay(store, Limits(rate=0, failed_logins=0))
    relay.operators._rate_limit.rate = 0
    with in_a_thread(relay) as url:
        yield Place(url, token, str(add_operator(store, "anna")), store)


@API.parametrize()
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_operation_conforms_to_the_openapi_description(case: schemathesis.Case[Any], place: Place) -> None:
    token = place.operator if case.path.startswith("/v1/operator/") else place.token
    case.call_and_validate(base_url=place.url, headers={"Authorization": f"Bearer {token}"}, checks=CHECKS)


def test_generated_requests_upload_nothing(place: Place) -> None:
    (stands,) = admin.status(place.store)
    assert (stands["uploads"], stands["versions"]) == (0, {"moving": 0})


def test_all_operations_but_the_event_streams_are_tested() -> None:
    tried = {operation.ok().path for operation in API.get_all_operations() if isinstance(operation, Ok)}
    assert tried | set(ENDLESS) == set(description()["paths"])
