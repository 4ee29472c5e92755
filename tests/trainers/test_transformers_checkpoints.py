"""Checkpoints of a Hugging Face Trainer: resuming gives the same bits; interruptions and refusals harm nothing."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from consilience.errors import CheckpointError, ConfigurationError
from consilience.peer.peer import Peer
from consilience.transformers import ConsilienceTrainer
from tests.local_relay import SRC
from tests.peer_tools import CLASSES, SHARING
from tests.trainer_tools import Served, flat
from tests.trainers.transformers_tools import BOTH, Mine, Texts, arguments, bert, federation_of, joined

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.usefixtures("one_thread")


def train(
    place: Served, epochs: float, loss: str, resume: bool = False, member: int = 0
) -> tuple[torch.nn.Module, Peer]:
    """Train to an epoch, with shuffled batches and dropout, in a process that has just started as far as it knows."""
    model = bert(dropout=0.3)
    peer = joined(place, model, member)
    settings = arguments(place.made.folder, epochs, save_strategy="epoch", optim="adamw_torch", learning_rate=0.01)
    with peer:  # closed after a refusal too: a folder has one peer at a time
        trainer = ConsilienceTrainer(model, settings, train_dataset=Texts(), peer=peer, loss=loss)
        trainer.train(resume_from_checkpoint=resume)
    return model, peer


@pytest.mark.parametrize(("method", "loss"), [(SHARING, "module"), (BOTH, "method")], ids=["sharing", "private head"])
def test_resuming_gives_the_bits_of_a_training_without_a_stop(
    tmp_path: Path, method: dict[str, Any], loss: str
) -> None:
    found = []
    for stop in (False, True):
        with federation_of(tmp_path / str(stop), method) as place:
            if stop:
                train(place, 2, loss)
            model, peer = train(place, 4, loss, resume=stop)
            found.append((flat(model), peer))
            file = place.made.folder / "out" / "checkpoint-12" / "consilience.safetensors"
            assert [t.shape for t in load_file(file).values()] == [p.shape for p in reversed(peer.parameters())]
    assert torch.equal(found[0][0], found[1][0])
    assert all(map(torch.equal, found[0][1].parameters(), found[1][1].parameters()))
    assert [peer.round for _, peer in found] == [4, 4]


def test_checkpoints_of_another_member_damaged_ones_and_those_without_the_peer_are_refused(tmp_path: Path) -> None:
    with federation_of(tmp_path, BOTH, members=2) as place:
        train(place, 1, "method")
        message = (
            r"consilience.safetensors is of member 'm0' .* the peer is 'm1' .*; join with the token and the folder"
        )
        with pytest.raises(CheckpointError, match=message):
            train(place, 2, "method", resume=True, member=1)
        file = place.made.folder / "out" / "checkpoint-3" / "consilience.safetensors"
        file.write_bytes(file.read_bytes()[:50])
        with pytest.raises(CheckpointError, match=r"safetensors is damaged: .*resume from another checkpoint"):
            train(place, 2, "method", resume=True)
        file.unlink()
        with pytest.raises(CheckpointError, match=r"is not there, .* train without resume_from_checkpoint"):
            train(place, 2, "method", resume=True)


def test_an_interrupted_training_leaves_the_folder_as_after_the_last_upload(tmp_path: Path) -> None:
    class Stops(Mine):
        def training_step(self, *args: Any, **kwargs: Any) -> Any:
            if self.state.global_step == 7:
                raise KeyboardInterrupt
            return super().training_step(*args, **kwargs)

    with federation_of(tmp_path, SHARING) as place:
        model = bert()
        peer = joined(place, model)
        with pytest.raises(KeyboardInterrupt):
            Stops(model, arguments(tmp_path), train_dataset=Texts(), peer=peer).train()
        assert peer.round == place.made.round_of(0) == 2 and not peer.waiting
        peer.close()
        _, again = train(place, 1, "module")
        assert again.round == place.made.round_of(0) == 3


def test_training_continues_while_the_relay_is_away(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with federation_of(tmp_path, SHARING) as place:
        model = bert()
        peer = joined(place, model, timeout=0.5)
        place.relay.kill()
        trainer = Mine(model, arguments(tmp_path), train_dataset=Texts(), peer=peer)
        trainer.train()
    logs = [log for log in trainer.state.log_history if "consilience/round" in log]
    assert [log["consilience/acknowledged"] for log in logs] == [0, 0, 0] and trainer.state.epoch == 3 and peer.waiting
    levels = [record.levelno for record in caplog.records if record.name == "consilience.peer"]
    assert levels[0] == logging.WARNING and set(levels[1:]) <= {logging.INFO}  # later attempts are not warned of again


# --- refusals


def test_what_cannot_work_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with federation_of(tmp_path, BOTH) as place:
        model = bert()
        peer = joined(place, model)
        data: dict[str, Any] = {"train_dataset": Texts()}
        with pytest.raises(ConfigurationError, match=r"loss='mine' is unknown; it is 'module', .*or 'method'"):
            Mine(model, arguments(tmp_path), **data, peer=peer, loss="mine")
        with pytest.raises(ConfigurationError, match=r"trains BertForSequenceClassification, and the peer has another"):
            Mine(bert(), arguments(tmp_path), **data, peer=peer)
        with pytest.raises(ConfigurationError, match=r"a hyperparameter search trains many .*join\(\) for each"):
            Mine(model, arguments(tmp_path), **data, peer=peer).train(trial={"learning_rate": 0.1})
        given = torch.optim.SGD(model.parameters(), lr=0.1)
        with pytest.raises(ConfigurationError, match=r"make it with \[\*model.parameters\(\), \*peer.parameters\(\)\]"):
            Mine(model, arguments(tmp_path), **data, peer=peer, loss="method", optimizers=(given, None)).train()
        with pytest.raises(ConfigurationError, match=r"has a list as its optimizer, .*give one, with a group of"):
            Mine(model, arguments(tmp_path), **data, peer=peer, optimizers=([given, given], None))
        settings = arguments(tmp_path)
        monkeypatch.setattr(settings, "_n_gpu", 2)  # as with two GPUs in one process
        with pytest.raises(ConfigurationError, match=r"1 processes with 2 GPUs each.*CUDA_VISIBLE_DEVICES naming one"):
            Mine(model, settings, **data, peer=peer)


def test_texts_that_are_not_padded_are_refused_with_how_to_pad_them(tmp_path: Path) -> None:
    """Before the first step, also where nothing is shared before training."""
    texts: Any = [{"input_ids": [1] * (3 + i % 2), "labels": i % CLASSES} for i in range(8)]
    with federation_of(tmp_path, {"name": "fedavg"}) as place:
        model = bert()
        trainer = Mine(model, arguments(tmp_path), train_dataset=texts, peer=joined(place, model))
        with pytest.raises(ConfigurationError, match=r"different lengths; pad .*DataCollatorWithPadding\(tokenizer\)"):
            trainer.train()


DISTRIBUTED = """
import sys
from pathlib import Path
from consilience import join
from tests.trainers.transformers_tools import Mine, Texts, arguments, bert
url, token, folder = sys.argv[1:]
model = bert()
peer = join(url, token, model, layer="classifier", folder=folder)
Mine(model, arguments(Path(folder)), train_dataset=Texts(), peer=peer)
"""


def test_several_processes_are_refused(tmp_path: Path) -> None:
    """Two real ones, which gloo connects."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with federation_of(tmp_path, SHARING, members=2) as place:
        started = []
        for rank in range(2):
            at = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
            mine = {"RANK": str(rank), "LOCAL_RANK": str(rank), "PYTHONPATH": os.pathsep.join((str(ROOT), SRC))}
            given = [place.relay.url, place.made.tokens[rank], str(tmp_path / f"process-{rank}")]
            program = [sys.executable, "-c", DISTRIBUTED, *given]
            environment = {**os.environ, **at, **mine}
            started.append(subprocess.Popen(program, env=environment, stderr=subprocess.PIPE, text=True))
        errors = [process.communicate(timeout=200)[1] for process in started]
    message = "ConfigurationError: the trainer runs 2 processes with 0 GPUs each, and a member is one process"
    assert all(message in error for error in errors), errors
