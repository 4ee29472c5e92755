"""pfl: `FederatedAveraging` on the `SimulatedBackend`, in one process per core with one thread each.

The processes share a round's learners, as its guide "Fast distributed simulations" says: the first process starts the
others, with the addresses of all and each one's rank in environment variables.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.peers.lenet5 import LeNet5
from benchmarks.peers.work import Turns, Work, mean_accuracy, read_work

_RANK, _ADDRESSES = "PFL_WORKER_RANK", "PFL_WORKER_ADDRESSES"


class Model(LeNet5):
    """LeNet5 with what `PyTorchModel` asks for."""

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self(x), y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        return {}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return int(probe.getsockname()[1])


def start_others(cores: int) -> list[subprocess.Popen[bytes]]:
    """Start the processes of all ranks but this one's, 0; pfl reads the variables when it is imported."""
    os.environ[_ADDRESSES] = ",".join(f"localhost:{free_port()}" for _ in range(cores))
    os.environ[_RANK] = "0"
    command = [sys.executable, "-m", "benchmarks.peers.pfl_work", sys.argv[1]]
    return [
        subprocess.Popen(command, env={**os.environ, _RANK: str(rank)}, stdin=subprocess.DEVNULL)
        for rank in range(1, cores)
    ]


def train(work: Work, turns: Turns | None) -> Model:
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import MinimizeReuseUserSampler
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    class EndOfRound(TrainingProcessCallback):  # type: ignore[misc]
        def after_central_iteration(self, *_: Any, **__: Any) -> tuple[bool, Metrics]:
            if turns is not None:
                turns.end_of_round()
            return False, Metrics()

    class Unevaluated(FederatedAveraging):  # type: ignore[misc]
        """Learners are not evaluated; pfl evaluates them in round 0 whatever the frequency."""

        def get_next_central_contexts(self, *arguments: Any, **named: Any) -> Any:
            contexts, *others = super().get_next_central_contexts(*arguments, **named)
            for context in contexts or ():
                object.__setattr__(context, "do_evaluation", False)
            return contexts, *others

    users = {i: Dataset(work.learner_data(i), user_id=str(i)) for i in range(work.learners)}
    data = FederatedDataset(users.__getitem__, MinimizeReuseUserSampler(list(users)))
    module = Model()
    Unevaluated().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=work.rounds,
            evaluation_frequency=work.rounds,
            train_cohort_size=work.learners,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=data, val_data=data, postprocessors=[WeightByDatapoints()]),
        model=PyTorchModel(
            model=module,
            local_optimizer_create=torch.optim.Adam,
            central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
        ),
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=work.lr, local_batch_size=work.batch_size
        ),
        callbacks=[EndOfRound()],
        send_metrics_to_platform=False,
    )
    return module


def main() -> None:
    work = read_work()
    first = os.environ.get(_RANK, "0") == "0"
    turns = Turns() if first else None
    others = start_others(work.cores) if first else []
    torch.set_num_threads(1)
    torch.manual_seed(0)
    np.random.seed(0)
    model = train(work, turns)
    for process in others:
        process.wait()
    if turns is not None:
        turns.report(version=version("pfl"), accuracy=mean_accuracy([model], work))


if __name__ == "__main__":
    main()
