"""What several tests need."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from consilience.cli.main import main
from consilience.cli.terminal import Screen

if worker := os.environ.get("PYTEST_XDIST_WORKER"):  # tests run side by side
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])))
    # dcor compiles when it is first imported, and a cache that two write at a time makes it crash.
    os.environ["NUMBA_CACHE_DIR"] = str(Path(__file__).parents[1] / ".pytest_cache" / f"numba-{worker}")

try:
    import hypothesis
except ModuleNotFoundError:  # on a machine that has a GPU and few packages, the tests of engines run without it
    pass
else:
    hypothesis.settings.register_profile("no deadline", deadline=None)  # a busy machine may be slow at any example
    hypothesis.settings.load_profile("no deadline")


def pytest_collection_finish() -> None:
    """Modules and tests stay until the end; without them garbage collections are ten times as fast."""
    gc.collect()
    gc.freeze()


Said = tuple[int, str, str]
Command = Callable[..., Said]


@pytest.fixture
def one_thread() -> Iterator[None]:
    """For tiny tensors: more threads only wait for each other, the more so on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    """The command in this process, in a folder of its own: exit code, standard output, standard error."""
    monkeypatch.chdir(tmp_path)
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):  # would make a pipe look like a terminal
        monkeypatch.delenv(name, raising=False)

    def call(*arguments: str) -> Said:
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        code = ended.value.code
        return (code if isinstance(code, int) else 0), out, err

    return call


@pytest.fixture
def interrupt_after(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """Press Ctrl-C once, after so many rounds, whatever part they belong to."""
    waiting: list[None] = []  # one entry for each round to come before it

    def on_round(self: Screen, *others: Any) -> None:
        if waiting:
            waiting.pop()
            if not waiting:
                signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Screen, "on_round", on_round)
    yield lambda rounds: waiting.extend([None] * rounds)
    assert not waiting, "nothing was interrupted"
