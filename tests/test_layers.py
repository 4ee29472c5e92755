"""How the library hangs together: what is public, what imports what, and that a relay does without torch."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import consilience
from consilience import exchanges

ROOT = Path(consilience.__file__).parent

LAYERS = (
    {"errors"},
    {"extras", "files", "input_fields", "randomness", "task", "user_code", "validation"},
    {"wire"},
    {"channels"},
    {"config"},
    {"kinds"},
    {"data", "evaluation", "functional", "models", "optimizers", "privacy"},
    {"exchanges", "export"},
    {"objectives"},
    {"method"},
    {"methods"},
    {"learner"},
    {"presentation"},
    {"relay", "simulation"},
    {"peer"},
    {"leakage", "lightning", "transformers"},
    {"report"},
    {"papers"},
    {"cli"},
    {"__main__"},
)
"""From the bottom up: a package imports from itself and from lower lines, never from another one of its own line."""

WITHOUT_TORCH = (
    *(
        "errors",
        "files",
        "input_fields",
        "randomness",
        "task",
        "user_code",
        "validation",
        "wire",
        "channels",
        "config",
        "kinds",
        "data",
    ),
    *("relay.app", "relay.admin", "relay.server", "cli.main"),
    *("peer.array_peer", "peer.array_charter", "peer.direct.network"),
)

RELAY = """
import sys
sys.modules["torch"] = None  # importing it would fail
import numpy as np
from consilience.wire import codec, schema
from consilience.channels import build_channel
from consilience.wire.encodings import BIT, FLOAT16, INT8

one, like = np.ones((1, 2), dtype=np.float32), np.zeros(1, dtype=np.float32)
tensors = {"x": schema.Tensor((2,), BIT, INT8)}
standing = build_channel(schema.Mean("s", {"x": schema.Tensor((2,), FLOAT16, FLOAT16)}), 2, {}, like)
moving = build_channel(schema.Mean("m", tensors, moving=True), 2, {"x": one[0]}, like)
pool = build_channel(schema.Pool("p", tensors, draw=2), 2, {}, like)
standing.upload([0], {"x": one}, np.ones(1))
moving.upload([1], {"x": one}, np.ones(1), [0])
pool.upload([1], {"x": one[None]}, np.ones((1, 1)))
assert moving.aggregate()
answers = {"s.x": standing.answer(), "m.x": moving.answer(), "p.x": pool.answer([0], 0, 1)[0]}
message = {k: f for c in (standing, moving, pool) for k, f in c.channel.message("down").items()}
body = codec.encode(message, {k: a.tensors["x"] for k, a in answers.items()})
print({k: v.tolist() for k, v in codec.decode(message, body).items()})
"""


def run(program: str) -> str:
    """What a program of its own prints."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# --- torch


def test_a_relay_s_parts_do_not_import_torch() -> None:
    names = ", ".join(f"'consilience.{name}'" for name in WITHOUT_TORCH)
    guilty = run(
        f"import importlib, sys\n"
        f"for name in ('consilience', {names}):\n"
        f"    importlib.import_module(name)\n"
        f"    if 'torch' in sys.modules:\n"
        f"        print(name)\n"
        f"        break\n"
    )
    assert guilty == ""


def test_a_relay_runs_where_there_is_no_torch() -> None:
    assert run(RELAY) == "{'s.x': [1.0, 1.0], 'm.x': [2.0, 2.0], 'p.x': [[1.0, 1.0], [1.0, 1.0]]}"


def test_a_simulation_imports_no_library_that_only_some_runs_need() -> None:
    """Every run, and every worker process, would wait for them at its start."""
    seldom = "'pandas', 'sklearn', 'scipy', 'altair', 'ray', 'starlette', 'dp_accounting', 'torch._dynamo'"
    simulated = "import sys; from consilience import simulate; simulate(method='fedavg', rounds=1, workers=0)"
    assert run(f"{simulated}; print(*[name for name in ({seldom}) if name in sys.modules])") == ""


# --- what is public


def imported_for_types() -> dict[str, str]:
    """The names a type checker sees at the top, and where they come from."""
    tree = ast.parse((ROOT / "__init__.py").read_text(encoding="utf-8"))
    (guard,) = (node for node in tree.body if isinstance(node, ast.If))
    return {
        alias.asname or alias.name: str(node.module)
        for node in guard.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_all_is_exact() -> None:
    assert sorted(consilience.__all__) == sorted(imported_for_types())
    assert dir(consilience) == sorted([*consilience.__all__, "__version__"])
    known: dict[str, object] = {}
    exec("from consilience import *", known)
    assert set(known) - {"__builtins__"} == set(consilience.__all__)


@pytest.mark.parametrize("name", consilience.__all__)
def test_every_public_name_loads_from_where_type_checkers_look(name: str) -> None:
    home = importlib.import_module(imported_for_types()[name])
    assert getattr(consilience, name) is getattr(home, name)


def test_every_exchange_is_public() -> None:
    own = {
        n
        for n in exchanges.__all__
        if isinstance(c := getattr(exchanges, n), type) and issubclass(c, exchanges.Exchange)
    }
    assert own and own <= set(consilience.__all__)


def test_a_name_nobody_has_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'consilience' has no attribute 'simulte'"):
        consilience.simulte  # noqa: B018


# --- who imports whom


@cache
def modules() -> dict[str, Path]:
    """Every module by its dotted name under `consilience`; the lazy package itself stands above all layers."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if name:
            found[name] = path
    return found


def imports(tree: ast.AST) -> Iterator[str]:
    """Dotted names, under `consilience`, of what a syntax tree imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (a.name.removeprefix("consilience.") for a in node.names if a.name.startswith("consilience."))
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports name the whole path"
            if node.module == "consilience":
                yield from (alias.name for alias in node.names)
            elif (node.module or "").startswith("consilience."):
                module = str(node.module).removeprefix("consilience.")
                inner = [f"{module}.{alias.name}" for alias in node.names]
                yield from (name if name in modules() else module for name in inner)


def layer(name: str) -> int:
    part = name.split(".")[0]
    assert any(part in parts for parts in LAYERS), f"{part!r} has no layer yet; give it one"
    return next(i for i, parts in enumerate(LAYERS) if part in parts)


@pytest.mark.parametrize("name", modules())
def test_imports_go_to_lower_layers_only(name: str) -> None:
    tree = ast.parse(modules()[name].read_text(encoding="utf-8"))
    package = name.split(".")[0]
    wrong = [other for other in imports(tree) if other.split(".")[0] != package and layer(other) >= layer(name)]
    assert wrong == []


def test_nothing_imports_itself_in_a_circle() -> None:
    graph = {}
    for name, path in modules().items():
        found = set(imports(ast.parse(path.read_text(encoding="utf-8"))))
        graph[name] = {other for other in found if other != name and not name.startswith(f"{other}.")}
    order = list(TopologicalSorter(graph).static_order())  # raises CycleError, naming the circle
    assert order.index("errors") < order.index("cli.main")
