"""The methods as a table: what each does, what a learner uploads, and the bytes of a message."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.table import Table

from consilience.config.overrides import parse_method
from consilience.config.parts import DEFAULT_MODELS
from consilience.data.registry import DATASETS
from consilience.errors import ConfigurationError, UnknownName
from consilience.kinds import ALL_KINDS
from consilience.learner.learner import Learner
from consilience.learner.spec import LearnerSpec
from consilience.learner.split_messages import message_bytes
from consilience.methods import METHODS, build_method, method_names, settings_as_text
from consilience.methods.task_kinds import kinds_of
from consilience.models import build_model
from consilience.optimizers import Adam
from consilience.presentation.tables import format_bytes, new_table
from consilience.task import Public

log = logging.getLogger("consilience")
_BATCH = 32  # samples of a batch, where a message is sent for each
_PUBLIC = 1000  # samples of a public set, where a method has one
SHAPES = {
    "digits": ((1, 8, 8), 10),
    "mnist": ((1, 28, 28), 10),
    "fashion-mnist": ((1, 28, 28), 10),
    "cifar10": ((3, 32, 32), 10),
    "cifar100": ((3, 32, 32), 100),
    "cifar100-coarse": ((3, 32, 32), 20),
    "tiny-imagenet": ((3, 64, 64), 200),
}
"""Images and classes of data sets, known without their files."""


def catalog(data: str, model: str | None, methods: Sequence[str] = ()) -> list[dict[str, Any]]:
    """One entry per method, with the bytes of a full message for this data and model.

    methods: NAME or FILE.py:NAME, with settings or without; by default all, without those of packages that are broken.
    """
    if data not in SHAPES:
        raise _other_data(data)
    (shape, classes), name = SHAPES[data], model or DEFAULT_MODELS[data]
    found = []
    for method in methods or method_names():
        try:
            found.append(_entry(parse_method(method), data, name, shape, classes))
        except ConfigurationError as error:
            if methods or method in METHODS:
                raise
            log.warning("%s", error)
    return found


def _other_data(data: str) -> ConfigurationError:
    """Why there are no bytes for a data set: its shape is in its files, or it is known and is no images of classes."""
    if data not in DATASETS and not Path(data).exists():
        return UnknownName("data set", data, SHAPES)
    return ConfigurationError(
        f"the bytes of methods are listed for {', '.join(SHAPES)}, and not for {data!r}; leave data out to see which "
        f"methods serve which tasks, and compare methods on it for their bytes: "
        f"consilience compare --data {data} --rounds 1"
    )


def _entry(
    table: Mapping[str, Any], data: str, model: str, shape: tuple[int, int, int], classes: int
) -> dict[str, Any]:
    method, settings = str(table["name"]), {key: value for key, value in table.items() if key != "name"}
    built, cost = build_method(method, settings), {"up": 0, "down": 0}
    for part in built.roles_of(1):  # learner 0 may have a special role
        role = built.roles[part]
        public = Public(_PUBLIC) if role.data == "public" else None
        spec = LearnerSpec(partial(build_model, model, shape, classes), role, Adam(), shape, model, public=public)
        for way, size in message_bytes(Learner(spec), _BATCH).items():
            cost[way] += size
    return {
        "method": built.name,
        "summary": built.summary,
        "leaves": built.describe_upload(),
        "kinds": list(kinds_of(built)),
        "settings": settings_as_text(method) | settings,
        "data": data,
        "model": model,
        "message_bytes": cost,
    }


def describe_kinds(kinds: Sequence[str]) -> str:
    """The kinds of tasks that a method serves, in a few words."""
    return "all" if len(kinds) == len(ALL_KINDS) else ", ".join(kinds)


def catalog_table(rows: list[dict[str, Any]]) -> Table:
    """The catalog as a table."""
    task = f"{rows[0]['model']} on {rows[0]['data']}"
    sizes = f"public sets of {_PUBLIC:,} samples, split learning per batch of {_BATCH}"
    table = new_table(f"Methods; bytes per learner and round for {task}, {sizes}")
    table.padding = (0, 1, 1, 0)
    for heading in ("method", "what it does", "what a learner uploads", "tasks"):
        table.add_column(heading, no_wrap=heading == "method")
    table.add_column("upload", justify="right", no_wrap=True)
    table.add_column("download", justify="right", no_wrap=True)
    for row in rows:
        cost = row["message_bytes"]
        table.add_row(
            row["method"],
            row["summary"],
            row["leaves"],
            describe_kinds(row["kinds"]),
            format_bytes(cost["up"]),
            format_bytes(cost["down"]),
        )
    return table
