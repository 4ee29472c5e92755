"""fluke: `FedAVG` and `FedProto`, in one process with a thread per core: its parallel algorithm needs several GPUs."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import torch

if torch.version.cuda is None and not version("torchvision").endswith("+cpu"):
    # PyPI has torchvision, which fluke imports, for CUDA only: beside a torch for CPUs its operators cannot be loaded.
    # Nothing here uses them; with declarations of these two it can be imported.
    _OPERATORS = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
    for _name in ("nms", "qnms"):
        _schema = f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        _OPERATORS.define(_schema)  # type: ignore[no-untyped-call]

import fluke
from fluke import DDict, FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.algorithms.fedproto import FedProto
from fluke.comm import ChannelObserver, Message
from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader
from fluke.utils import FederationObserver

from benchmarks.peers.work import CLASSES, Turns, Work, mean_accuracy, read_work

_MODEL = "benchmarks.peers.lenet5.LeNet5"
_FLOAT = 4  # bytes; fluke counts numbers


class Observer(FederationObserver, ChannelObserver):  # type: ignore[misc]
    """Waits at the end of rounds, and counts what is sent."""

    def __init__(self, turns: Turns) -> None:
        self.turns, self._sent = turns, 0
        self.per_round = 0.0  # numbers, by all

    def message_received(self, by: Any, message: Message) -> None:
        self._sent += message.size

    def end_round(self, round: int) -> None:
        self.per_round = self._sent / round
        self.turns.end_of_round()


def loader(work: Work, learner: int) -> FastDataLoader:
    return FastDataLoader(
        *work.learner_data(learner),
        num_labels=CLASSES,
        batch_size=work.batch_size,
        shuffle=True,
        skip_singleton=False,
    )


def settings(work: Work) -> DDict:
    client = {
        "batch_size": work.batch_size,
        "local_epochs": 1,
        "loss": "CrossEntropyLoss",
        "optimizer": {"name": "Adam", "lr": work.lr},
        "scheduler": {"name": "StepLR", "step_size": 1, "gamma": 1},
    }
    if work.method == "fedavg":
        client["persistency"] = False  # a new Adam in each round, as the other libraries have
        return DDict(client=client, server={"weighted": True}, model=_MODEL)
    client |= {"model": _MODEL, "n_protos": CLASSES, "lam": work.kd}
    return DDict(client=client, server={"weighted": True, "n_protos": CLASSES}, model=_MODEL)


def main() -> None:
    work, turns = read_work(), Turns()
    torch.set_num_threads(work.cores)
    FlukeENV().set_seed(0)
    FlukeENV().set_device("cpu")
    FlukeENV().set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
    loaders = [loader(work, i) for i in range(work.learners)]
    data = DummyDataContainer(loaders, [None] * work.learners, None, CLASSES)
    algorithm = (FedAVG if work.method == "fedavg" else FedProto)(
        n_clients=work.learners, data_splitter=DataSplitter(data), hyper_params=settings(work)
    )
    observer = Observer(turns)
    algorithm.set_callbacks(observer)
    algorithm.run(n_rounds=work.rounds, eligible_perc=1.0)
    models = [algorithm.server.model] if work.method == "fedavg" else [c.model for c in algorithm.clients[:10]]
    bytes_ = round(_FLOAT * observer.per_round / work.learners)
    turns.report(version=fluke.__version__, accuracy=mean_accuracy(models, work), bytes=bytes_)


if __name__ == "__main__":
    main()
