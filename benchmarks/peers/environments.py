"""One virtual environment for each library, made once, with the versions of requirements/."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
FOLDER = HERE / ".environments"
TORCH = "torch==2.13.0"  # first, and alone: what asks for any torch is content with this one


def environment(name: str) -> Path:
    """The Python of a library's environment, which is made where it is not there, or its requirements have changed."""
    python, done = FOLDER / name / "bin" / "python", FOLDER / f"{name}.installed"
    wanted = "\n".join([TORCH, requirements(name).read_text(encoding="utf-8")])
    if not done.exists() or done.read_text(encoding="utf-8") != wanted:
        print(f"making the environment of {name}", file=sys.stderr, flush=True)
        done.unlink(missing_ok=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", python.parents[1]], check=True)
        for what in ([TORCH], [TORCH, "-r", str(requirements(name))]):
            subprocess.run([python, "-m", "pip", "install", "--quiet", *what], check=True, cwd=HERE.parents[1])
        done.write_text(wanted, encoding="utf-8")
    return python


def requirements(name: str) -> Path:
    return HERE / "requirements" / f"{name}.txt"


def variables(mark: str) -> dict[str, str]:
    """What the programs have in their environment: this repository, no telemetry, threads as each sets them itself."""
    kept = {key: value for key, value in os.environ.items() if not key.endswith("_NUM_THREADS")}
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "WANDB_MODE": "disabled"}
    return kept | quiet | {"PYTHONPATH": str(HERE.parents[1]), "PYTHONWARNINGS": "ignore", "PEERS_BENCHMARK": mark}
