"""consilience: `simulate`, with the engine and the number of processes it chooses."""

from __future__ import annotations

import consilience
from benchmarks.peers.work import Turns, mean_accuracy, read_work, test_images, train_images
from consilience import simulate
from consilience.data import Dataset

_TESTED = 10  # images that the simulation tests all learners on: it does so in the last round, and others do not


def main() -> None:
    work, turns = read_work(), Turns()
    count = work.learners * work.samples
    inputs, targets = train_images(work.data, count)
    test_inputs, test_targets = test_images(work.data, count)
    result = simulate(
        data=Dataset.from_arrays(
            "mnist", inputs.numpy(), targets.numpy(), test_inputs[:_TESTED].numpy(), test_targets[:_TESTED].numpy()
        ),
        model="lenet5",
        method="fedavg" if work.method == "fedavg" else f"fedproto:kd={work.kd}",
        learners=work.learners,
        rounds=work.rounds,
        eval_every=work.rounds,
        batch_size=work.batch_size,
        lr=work.lr,
        optimizer_state="reset" if work.method == "fedavg" else "keep",
        on_round=lambda *_: turns.end_of_round(),
    )
    models = [result.model(learner=i) for i in range(1 if work.method == "fedavg" else min(work.learners, 10))]
    up, down = result.message_bytes["up"], result.message_bytes["down"]
    turns.report(version=consilience.__version__, accuracy=mean_accuracy(models, work), bytes=up + down)


if __name__ == "__main__":
    main()
