"""The setting `cluster`: what it refuses before any cluster is asked, and that Ray is imported for it alone."""

from __future__ import annotations

import json
import os
import socketserver
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from consilience import Dataset, compare, simulate
from consilience.config.config import make_config
from consilience.data import load
from consilience.errors import ClusterError, ConfigurationError
from consilience.papers import Scale
from consilience.simulation.engines.ray import shard
from consilience.simulation.engines.ray.engine import ShardOptions
from consilience.simulation.simulate import check_run

Command = Callable[..., tuple[int, str, str]]
SIZE: dict[str, Any] = {"data": "digits", "train": 40, "test": 20, "learners": 2, "rounds": 1}


@pytest.mark.parametrize("given", ["lokal", "127.0.0.1", "ray://127.0.0.1:10001", "host:port", ""])
def test_an_unknown_word_is_refused(given: str) -> None:
    with pytest.raises(ConfigurationError, match=r"cluster is '.*'; it must be local, auto or the address HOST:PORT"):
        make_config({"cluster": given})


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ({"workers": 0}, "workers is 0, which keeps all learners in this process, and cluster is 'auto'"),
        ({"device": "cuda:1"}, "device is 'cuda:1', a device of this machine, and cluster is 'auto'"),
        ({"device": "mps"}, "device is 'mps', a device of this machine"),
    ],
)
def test_settings_that_contradict_it_are_refused(others: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make_config({"cluster": "auto", **others})


def test_an_address_where_nobody_listens_is_refused_at_once() -> None:
    with pytest.raises(ClusterError, match=r"cluster is '127.0.0.1:9', and nothing listens there .*ray start --head"):
        simulate(**SIZE, cluster="127.0.0.1:9")


def test_a_run_that_is_refused_leaves_nothing_behind(tmp_path: Path) -> None:
    """So that it can be started again under the same name."""
    with pytest.raises(ClusterError, match="nothing listens there"):
        simulate(**SIZE, cluster="127.0.0.1:9", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("says", [b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.1 400 Bad Request\r\n\r\n", b""])
def test_an_address_of_another_program_is_refused(says: bytes) -> None:
    """Ray would ask it for minutes."""

    class Other(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.sendall(says)

    with socketserver.TCPServer(("127.0.0.1", 0), Other) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        where = f"127.0.0.1:{server.server_address[1]}"
        try:
            with pytest.raises(ClusterError, match=f"cluster is '{where}', and what listens there is no Ray cluster"):
                simulate(**SIZE, cluster=where)
        finally:
            server.shutdown()


def test_a_port_that_cannot_be_is_refused() -> None:
    with pytest.raises(ClusterError, match="nothing listens there"):
        simulate(**SIZE, cluster="127.0.0.1:99999")


def test_a_comparison_says_so_too_and_leaves_its_folder_to_resume(command: Command) -> None:
    size = ["--learners", "2", "--rounds", "1", "--train", "40", "--test", "20"]
    code, _, said = command("compare", "--methods", "fedavg", *size, "--cluster", "127.0.0.1:9", "--out", "here")
    assert code == 1 and "nothing listens there" in said
    assert Path("here/comparison.toml").exists()


def test_a_gpu_is_needed_where_a_run_is_and_where_its_channels_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of a comparison are tasks on other machines, which refuse what they do not have; channels stay here."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    on_gpus = {**SIZE, "device": "cuda"}
    check_run(make_config({**on_gpus, "cluster": "auto"}))
    with pytest.raises(ConfigurationError, match=r"no GPU on this machine; use cpu"):
        check_run(make_config(on_gpus))
    match = (
        r"no GPU on this machine, where the channels of a run are kept .* 'auto'; start it on a machine that has one"
    )
    with pytest.raises(ConfigurationError, match=match):
        simulate(**on_gpus, cluster="auto")


def test_streamed_samples_are_refused() -> None:
    samples = torch.utils.data.TensorDataset(torch.rand(8, 4), torch.arange(8) % 2)
    data = Dataset.streamed(samples, samples, name="mine")
    with pytest.raises(ConfigurationError, match="cluster is 'auto', and data set 'mine' is streamed"):
        simulate(data=data, learners=2, rounds=1, cluster="auto")


@pytest.mark.parametrize("start", [simulate, compare])
def test_without_the_extra_the_command_that_installs_it_is_named(
    start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigurationError, match=r"clusters need Ray: pip install .*ray"):
        start(**SIZE, cluster="auto")


def test_ray_is_imported_for_a_cluster_alone(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['ray'] = None\n"
        "from consilience import compare, simulate\n"
        "import consilience.cli.main, consilience.papers\n"
        "simulate(data='digits', train=40, test=20, learners=2, rounds=1, workers=0)\n"
        "compare(methods=['fedavg'], data='digits', train=40, test=20, learners=2, rounds=1, workers=0)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_cluster_of_this_machine_alone_has_the_numbers_of_the_plain_command(tmp_path: Path) -> None:
    """In processes of their own: Ray stays in a process where it was imported."""

    def accuracy(*how: str) -> Any:
        size = ["--train", "40", "--test", "20", "--learners", "2", "--rounds", "1", "--engine", "loop"]
        command = [sys.executable, "-m", "consilience", "run", "--json", *size, "--out", str(tmp_path / how[-1]), *how]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["accuracy"]

    assert accuracy("--cluster", "local", "--workers", "2") == accuracy("--workers", "0")


def test_a_cell_is_the_same_on_a_cluster() -> None:
    assert Scale(cluster="auto").settings(1) == Scale().settings(1) | {"cluster": "auto"}
    from consilience.papers import Cell

    names = {Cell({"row": "a"}, SIZE | scale.settings(1)).name for scale in (Scale(), Scale(cluster="auto"))}
    assert len(names) == 1


def test_the_setting_is_an_option_of_the_commands(command: Command) -> None:
    for name in ("run", "compare", "sweep", "reproduce"):
        code, shown, _ = command(name, "--help")
        assert code == 0 and "--cluster" in shown


def test_what_comes_from_ray_may_be_read_only() -> None:
    """As arrays are that other processes share."""
    from consilience.simulation.engines.ray.shard import _to_torch

    array = np.arange(3.0)
    array.flags.writeable = False
    copy = _to_torch(array)
    copy += 1
    assert array.tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize(
    ("resources", "expected"),
    [({"num_cpus": 1}, [2, 1, 2]), ({"num_gpus": 1.0}, [1, 1, 1]), ({"num_cpus": 1, "num_gpus": 1 / 3}, [3, 3, 3])],
)
def test_processes_share_their_gpu_or_their_machine(resources: dict[str, float], expected: list[int]) -> None:
    assert ShardOptions(3, resources).processes_there(["one", "other", "one"]) == expected


def test_a_process_there_is_as_deterministic_as_one_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of matrices on a GPU need a variable of the environment, which each process reads for itself."""
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    monkeypatch.setattr(shard, "keep_log", lambda: None)
    monkeypatch.setattr(shard, "LoopEngine", lambda *given: None)
    try:
        shard.Shard().set_up([], load("digits"), None, "loop", deterministic=True)
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8" and torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
        os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)
