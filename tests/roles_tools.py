"""A small federation of three roles with a public set, as tests of relays and members use it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from consilience.relay import admin
from consilience.wire import schema
from consilience.wire.charter import (
    Charter,
    build_charter,
    encode_start_values,
    read_charter,
    start_values_file,
)
from consilience.wire.roles import RoleSettings, describe_public_set
from consilience.wire.rules import Rules

PUBLIC = np.random.default_rng(7).normal(size=(6, 1, 4, 4)).astype(np.float32)
ROLES: dict[str, Any] = {
    "learners": 3,
    "order": ("learner", "witness", "distiller"),
    "usual": ("learner", "witness"),
    "members": {0: ("distiller",)},
    "uploads": {"learner": (), "witness": ("similarity",), "distiller": ("weights",)},
}


def small_charter(**rules: Any) -> tuple[Charter, dict[str, dict[str, np.ndarray]]]:
    """Two witnesses and a distiller: a pool of 6 rows, and a moving mean of 2 numbers."""
    public = describe_public_set(PUBLIC, host=0)
    channels: dict[str, schema.Channel] = {
        "similarity": schema.Pool(
            "similarity", {"rows": schema.Tensor((6, 2))}, public_set=public.sha256, draw=2, repeat=False
        ),
        "weights": schema.Mean("weights", {"w": schema.Tensor((2,))}, moving=True),
    }
    starts = {"weights": {"w": np.zeros(2, dtype=np.float32)}}
    plain = build_charter("small", {"name": "flesd"}, 3, channels, starts, 5, Rules(**rules))
    more = {"roles": RoleSettings(**ROLES), "public_set": public}
    return read_charter(plain.model_copy(update=more).to_toml()), starts


def create_small(folder: Path, members: int = 3, **rules: Any) -> tuple[Path, list[str]]:
    """The federation in a store, and its members' tokens."""
    charter, starts = small_charter(**rules)
    (folder / "small.toml").write_text(charter.to_toml())
    start_values_file(folder / "small.toml").write_bytes(encode_start_values(charter, starts))
    store = folder / "relay.db"
    admin.create(store, folder / "small.toml")
    return store, [str(admin.invite(store, f"m{number}")) for number in range(members)]
