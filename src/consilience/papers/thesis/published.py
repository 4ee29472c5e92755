"""The tasks and the published numbers of the thesis (Berdoz 2022)."""

from __future__ import annotations

TASKS = {
    "MNIST": {"data": "mnist", "model": "lenet5", "train": 1200, "rounds": 100},
    "Fashion-MNIST": {"data": "fashion-mnist", "model": "resnet9", "train": 6000, "rounds": 20},
    "CIFAR-10": {"data": "cifar10", "model": "resnet18", "train": 10_000, "rounds": 20},
}
"""The tasks of Berdoz 2022, section 4."""

LEARNERS = (2, 5, 10)

TABLE1 = {
    "centralized": {"MNIST": (94.00,) * 3, "Fashion-MNIST": (87.77,) * 3, "CIFAR-10": (66.15,) * 3},
    "fedavg, different starts": {
        "MNIST": (92.64, 86.79, 70.06),
        "Fashion-MNIST": (89.79, 89.28, 88.21),
        "CIFAR-10": (67.99, 59.18, 51.05),
    },
    "independent": {
        "MNIST": (91.46, 85.26, 72.86),
        "Fashion-MNIST": (86.04, 83.61, 80.52),
        "CIFAR-10": (59.85, 46.46, 38.51),
    },
    "federated-distillation": {
        "MNIST": (94.45, 90.55, 77.90),
        "Fashion-MNIST": (87.17, 83.32, 79.44),
        "CIFAR-10": (56.75, 44.91, 31.43),
    },
    "representation-sharing": {
        "MNIST": (94.19, 90.63, 82.07),
        "Fashion-MNIST": (87.91, 84.44, 80.77),
        "CIFAR-10": (63.49, 47.28, 37.78),
    },
}
"""Table 1 of Berdoz 2022, in percent, for 2, 5 and 10 learners; one seed each."""


def published(row: str, task: str, learners: int) -> float | None:
    """The published accuracy, or None."""
    found = TABLE1.get(row, {}).get(task)
    return None if found is None else found[LEARNERS.index(learners)]


def best_published(task: str, learners: int) -> float:
    """The best of all published rows but the centralized one."""
    return max(rows[task][LEARNERS.index(learners)] for row, rows in TABLE1.items() if row != "centralized")
