"""What several tests need."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from consilience.cli import main

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
