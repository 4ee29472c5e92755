"""A configuration file to start from: every key, what it means, and its default."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from typing import Any

from pydantic.fields import FieldInfo

from consilience.cli.known_methods import known_method, known_names
from consilience.config.config import PARTS, Config, GroupConfig

_EXAMPLES = {
    "data_dir": '"~/data"',
    "train": "1000",
    "test": "1000",
    "image_size": "32",
    "public": "100",
    "classes": "5",
    "total_epochs": "50",
    "clip": "1.0",
    "epsilon": "8.0",
    "private_uploads": "10",
    "clip_norm": "5.0",
    "clip_ratio": "3.0",
    "weight_cap": "500",
    "image_mode": '"gray"',
    "label": '"diagnosis"',
    "owners": '"hospital"',
    "drop": '"id,name"',
    "test_data": '"test.csv"',
    "learners": "5",
    "width": "64",
    "workers": "2",
    "cluster": '"auto"',
    "watch": '"cut"',
    "model": '"lenet5"',
}


def starting_file(config: Config) -> str:
    """The configuration as a TOML file with every key explained; keys that are not set are comments."""
    lines = [
        "# Settings of a run: consilience run THIS_FILE, or compare, or sweep. Options of the command override it.",
        "# A key left out has the value shown here; one in a comment is an example, and is not set by default.",
    ]
    for name, part in PARTS.items():
        lines += ["", f"# -- {part.heading} ".ljust(100, "-")]
        for key, field in part.keys().items():
            lines += _explained(part.model_fields[field])
            lines.append(_line(key, getattr(getattr(config, name), field)))
    return "\n".join([*lines, *_method(config), *_groups(config)]) + "\n"


def _explained(field: FieldInfo) -> Iterator[str]:
    yield ""
    yield from _comment(field.description or "")


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, 98, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)


def _line(key: str, value: Any) -> str:
    return f"# {key} = {_EXAMPLES.get(key, '...')}" if value is None else f"{key} = {_toml(value)}"


def _toml(value: Any) -> str:
    """A string, a number or a list, which TOML and JSON write in the same way, or a table in one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_toml(key)} = {_toml(each)}" for key, each in value.items()) + "}"
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)


def _method(config: Config) -> Iterator[str]:
    name, own = config.method.name, config.method.settings
    yield from ("", "# -- The method ".ljust(100, "-"), "")
    yield from _comment(f"one of {', '.join(known_names())}; `consilience methods` describes each")
    yield from ("[method]", f"name = {_toml(name)}", "")
    about = f"{known_method(name, own).summary} Its settings and their defaults; a number may be a schedule: "
    about += (
        '"ramp(0, 10, 20)" goes from 0 to 10 over 20 rounds, "cosine(0, 10, 20)" does too, more slowly at both ends.'
    )
    yield from _comment(about)
    for key, value in known_method(name, own).settings.items():
        yield f"{key} = {_toml(own[key])}" if key in own else f"# {key} = {_toml(value)}"


def _groups(config: Config) -> Iterator[str]:
    yield from ("", "# -- Groups: learners with their own settings ".ljust(100, "-"))
    yield from ("# A table for each group, under a name you choose. All keys but `learners` may be left out.", "")
    examples = {"learners": "1-2", "model": "mlp", "exchanges": ("prototypes",), "never_share": (3,), "lr": 0.001}
    examples |= {"sample_epsilons": {"3": 1.0}}
    examples |= {"epochs": 2, "batch_size": 16, "uploads": True, "downloads": True}
    examples |= {
        "joins": 3,
        "participation": 0.5,
        "shift": "rotate(90)",
        "samples": 200,
        "attack": "none",
        "partners": [0, 1],
    }
    yield "# [groups.clinic]"
    for key, field in GroupConfig.model_fields.items():
        if key != "method":
            yield f"# {key} = {_toml(examples[key])}".ljust(30) + f"# {field.description}"
    yield from (
        "#",
        "# [groups.clinic.method]".ljust(30) + f"# {GroupConfig.model_fields['method'].description}",
        "# kd = 3",
    )
    for name, group in config.groups.items():
        given = group.model_dump(exclude_unset=True)
        yield from ("", f"[groups.{_toml(name)}]", *(f"{k} = {_toml(v)}" for k, v in given.items() if k != "method"))
        if group.method:
            yield from ("", f"[groups.{_toml(name)}.method]", *(f"{k} = {_toml(v)}" for k, v in group.method.items()))
