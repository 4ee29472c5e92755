"""A plain PyTorch loop: one learner after the other, each with a new Adam, on all cores."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.peers.lenet5 import LeNet5
from benchmarks.peers.work import CLASSES, Turns, Work, mean_accuracy, read_work

State = dict[str, Tensor]


def steps(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor, batch_size: int) -> None:
    """One epoch in random order."""
    for chosen in torch.split(torch.randperm(len(y)), batch_size):
        optimizer.zero_grad()
        F.cross_entropy(model(x[chosen]), y[chosen]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def fedavg_round(model: nn.Module, common: State, data: list[tuple[Tensor, Tensor]], work: Work) -> State:
    """The mean of the weights with which the learners end, each starting with the common ones."""
    total = {key: torch.zeros_like(value) for key, value in common.items()}
    for x, y in data:
        model.load_state_dict(common)
        steps(model, torch.optim.Adam(model.parameters(), lr=work.lr), x, y, work.batch_size)
        for key, value in model.state_dict().items():
            total[key] += value
    return {key: value / len(data) for key, value in total.items()}


def fedavg(work: Work, turns: Turns) -> list[nn.Module]:
    data = [work.learner_data(i) for i in range(work.learners)]
    model = LeNet5()
    common = {key: value.clone() for key, value in model.state_dict().items()}
    for _ in range(work.rounds):
        common = fedavg_round(model, common, data, work)
        turns.end_of_round()
    model.load_state_dict(common)
    return [model]


class FedProtoLearner:
    """A learner that keeps its model and optimizer, and shares the mean features of its classes."""

    def __init__(self, work: Work, data: tuple[Tensor, Tensor]) -> None:
        self.work, (self.x, self.y) = work, data
        self.model = LeNet5()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=work.lr)

    def train(self, prototypes: Tensor | None) -> tuple[Tensor, Tensor]:
        """One epoch; sums of features (classes, width) and counts of samples (classes, 1)."""
        for chosen in torch.split(torch.randperm(len(self.y)), self.work.batch_size):
            y = self.y[chosen]
            features = self.model.encoder(self.x[chosen])  # (batch, width)
            loss = F.cross_entropy(self.model.head(features), y)
            if prototypes is not None:
                loss = loss + self.work.kd * F.mse_loss(features, prototypes[y])
            self.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
        with torch.no_grad():
            which = F.one_hot(self.y, CLASSES).float()  # (samples, classes)
            return which.T @ self.model.encoder(self.x), which.sum(0)[:, None]


def fedproto(work: Work, turns: Turns) -> list[nn.Module]:
    learners = [FedProtoLearner(work, work.learner_data(i)) for i in range(work.learners)]
    prototypes: Tensor | None = None  # (classes, width)
    for _ in range(work.rounds):
        sums, counts = zip(*(learner.train(prototypes) for learner in learners), strict=True)
        prototypes = sum(sums) / sum(counts).clamp(min=1)
        turns.end_of_round()
    return [learner.model for learner in learners]


def main() -> None:
    work, turns = read_work(), Turns()
    torch.manual_seed(0)
    torch.set_num_threads(work.cores)
    models = (fedavg if work.method == "fedavg" else fedproto)(work, turns)
    turns.report(version=torch.__version__, accuracy=mean_accuracy(models[:10], work))


if __name__ == "__main__":
    main()
