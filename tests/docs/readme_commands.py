"""Run every command of the README, in order, in the environment that `make run` has made.

    .venv/bin/python tests/docs/readme_commands.py

Commands run as they stand. Those that need a network, other machines or many minutes run in the short form of `SHORT`,
on this machine. Files that the README takes for granted (pictures, a model, a hospital's data) are made first.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
BLOCK = re.compile(r"```(sh|bash|console|python)\n(.*?)```", flags=re.DOTALL)
SECONDS = 600

SHORT = {
    "consilience compare --data mnist": "consilience compare --train 100 --learners 2 --rounds 2 --seeds 2 "
    "--partition dirichlet(0.3) --methods independent,fedavg,consilience",
    "consilience relay serve": "consilience relay serve --port 0",
    "CONSILIENCE_TOKEN=cs1_... consilience join": "consilience join URL --data ward-7.npz --model mlp --rounds 2",
    "consilience join URL --method mine.py:spread": "consilience join URL --method mine.py:spread --rounds 2",
}
"""What runs in the place of commands that begin so. URL is that of a relay on this machine."""
ELSEWHERE = ("make ",)
"""Commands that are run by other checks."""


class Example(NamedTuple):
    """A command, or a Python program, of the README."""

    language: str
    text: str


def examples(text: str) -> Iterator[Example]:
    """The commands and programs of a page, in order."""
    for language, body in BLOCK.findall(text):
        if language == "python":
            yield Example(language, body)
            continue
        lines = body.replace("\\\n", " ").splitlines()
        if language == "console":
            lines = [line[2:] for line in lines if line.startswith("$ ")]
        yield from (Example("command", " ".join(line.split())) for line in lines if line.strip())


def short_form(command: str) -> str:
    """What runs in the place of a command."""
    return next((short for start, short in SHORT.items() if command.startswith(start)), command)


class Reader:
    """Somebody who types the commands of the README into a shell, in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.token, self.url = folder, "", ""
        self.relay: subprocess.Popen[str] | None = None
        self.environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
        self.environment.pop("PYTHONPATH", None)

    def run(self, example: Example) -> None:
        """Run one command or program; end with its output if it fails."""
        if example.language == "python":
            file = self.folder / "mine.py"
            file.write_text(example.text, encoding="utf-8")
            self._call([sys.executable, str(file)], "the program in the README")
            return
        command = short_form(example.text)
        words = shlex.split(command, comments=True)
        if words[:3] == ["consilience", "relay", "serve"]:
            self._serve(words)
        elif words[:2] == ["consilience", "join"]:
            if "mine.py:spread" in words:  # its federation has a charter so far
                self._call(shlex.split("consilience relay create federation.toml --store spread.db"), "create")
                self.token = self._call(shlex.split("consilience relay invite ward-7 --store spread.db"), "invite")
                self._serve(shlex.split("consilience relay serve --port 0 --store spread.db"))
            self.environment["CONSILIENCE_TOKEN"] = re.findall(r"cs1_\S+", self.token)[0]
            self._call([self.url if word == "URL" else word for word in words], command)
        else:
            printed = self._call(words, command)
            if words[:3] == ["consilience", "relay", "invite"]:
                self.token = printed

    def _call(self, words: list[str], name: str) -> str:
        print(f"$ {name}", flush=True)
        done = subprocess.run(
            words, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=SECONDS
        )
        if done.returncode:
            sys.exit(f"{name} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
        return done.stdout + done.stderr

    def _serve(self, words: list[str]) -> None:
        print(f"$ {shlex.join(words)}", flush=True)
        self.stop()
        log = (self.folder / "relay.log").open("w")
        self.relay = subprocess.Popen(
            words, cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, stderr=log, text=True
        )
        assert self.relay.stdout is not None
        line = self.relay.stdout.readline()
        if not line.startswith("relay: "):
            sys.exit(f"the relay did not start:\n{line}{(self.folder / 'relay.log').read_text()}")
        self.url = line.removeprefix("relay: ").strip()

    def stop(self) -> None:
        """End the relay, if one is running."""
        if self.relay is not None:
            self.relay.terminate()
            self.relay.wait(timeout=60)
            self.relay = None


def make_files(folder: Path) -> None:
    """The files that the README takes for granted: pictures in a folder for each class, a model, a hospital's data."""
    import numpy as np
    from PIL import Image
    from sklearn.datasets import load_digits

    digits = load_digits()
    for number in range(120):
        place = folder / "pictures" / f"digit-{digits.target[number]}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray((digits.images[number] * 15).astype(np.uint8)).save(place / f"{number}.png")
    inputs, targets = digits.images[:, None].astype(np.float32) / 16, digits.target
    np.savez(folder / "ward-7.npz", x=inputs[:300], y=targets[:300], test_x=inputs[300:400], test_y=targets[300:400])
    (folder / "net.py").write_text(
        "from torch import nn\n\n\nclass Net(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n"
        "        self.hidden = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Tanh())\n"
        "        self.fc = nn.Linear(32, 10)\n\n"
        "    def forward(self, x):\n        return self.fc(self.hidden(x))\n",
        encoding="utf-8",
    )


def main() -> None:
    """Run everything, and say how much it was."""
    count = 0
    with tempfile.TemporaryDirectory() as name:
        make_files(Path(name))
        reader = Reader(Path(name))
        try:
            for example in examples(README.read_text(encoding="utf-8")):
                if example.language == "python" or not example.text.startswith(ELSEWHERE):
                    reader.run(example)
                    count += 1
            reader.run(Example("command", f"{sys.executable} {ROOT / 'examples' / 'two_hospitals.py'}"))
        finally:
            reader.stop()
    print(f"{count + 1} commands and programs of the README ran")


if __name__ == "__main__":
    main()
