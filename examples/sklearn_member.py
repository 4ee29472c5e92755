"""Three wards with different scikit-learn models learn together; each lacks most of the digits. No torch is needed.

North has samples of the digits 0 to 2 only, south of 3 to 5, west of 6 to 9. A sample's features are its pixels, which
all have in common. Each ward uploads, once, the mean feature of each of its digits and five means of four of its
samples. It then trains as before, with the means of everybody as further samples, each with a weight. In a feature
space that each learns for itself this would not help with digits that a ward lacks. The means of pixels are pictures:
whoever shares them shows what its samples look like on average. The weight of the means is the best of 3, 10 and 30 on
seeds 1000 to 1002.

    python examples/sklearn_member.py
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.svm import SVC

from consilience import ArrayPeer, join_arrays, load
from consilience.peer.array_charter import create_array_charter
from consilience.relay import admin

CLASSES, WIDTH, SEEDS = 10, 64, range(5)
SAMPLES = 15  # of each digit that a ward has
METHOD = {"name": "representation-sharing", "n_avg": 4, "up": 5, "down": 15}
WEIGHT = 30.0  # of a digit's mean, and of all its observations together, where a sample has 1
WARDS: Mapping[str, tuple[tuple[int, ...], Callable[[], Any]]] = {
    "north": ((0, 1, 2), lambda: LogisticRegression(max_iter=1000)),
    "south": ((3, 4, 5), SVC),
    "west": ((6, 7, 8, 9), lambda: LogisticRegression(C=0.1, max_iter=1000)),
}
Samples = tuple[np.ndarray, np.ndarray]


def samples_of(ward: str, seed: int) -> Samples:
    """The ward's own samples: features (n, 64) and labels (n,)."""
    data, order = load("digits"), np.random.default_rng(seed).permutation(1000)
    rows = [order[data.targets[order] == digit][:SAMPLES] for digit in WARDS[ward][0]]
    chosen = np.concatenate(rows)
    return data.inputs[chosen].reshape(-1, WIDTH), data.targets[chosen]


def train(ward: str, seed: int, peer: ArrayPeer | None = None) -> tuple[float, float]:
    """Train a ward's model; its accuracy on all digits, and on those that it lacks, in percent."""
    features, labels = samples_of(ward, seed)
    weights = np.ones(len(labels))
    if peer is not None:
        more, more_labels, more_weights = peer.targets().as_samples(WEIGHT)
        features = np.concatenate([features, more])
        labels = np.concatenate([labels, more_labels])
        weights = np.concatenate([weights, more_weights])
    digits, model = WARDS[ward]
    estimator = model().fit(features, labels, sample_weight=weights)
    data = load("digits")
    correct = estimator.predict(data.test_inputs.reshape(-1, WIDTH)) == data.test_targets
    lacking = ~np.isin(data.test_targets, digits)
    return 100 * float(correct.mean()), 100 * float(correct[lacking].mean())


def serve(store: Path, cleanup: contextlib.ExitStack) -> str:
    """Start a relay that ends with the program; its URL."""
    command = [sys.executable, "-m", "consilience", "relay", "serve", "--store", str(store), "--port", "0"]
    errors = cleanup.enter_context(store.with_suffix(".log").open("w+"))
    relay = cleanup.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True))
    cleanup.callback(relay.kill)
    line = relay.stdout.readline() if relay.stdout else ""
    if not line.startswith("relay: "):
        sys.exit(f"the relay did not start:\n{store.with_suffix('.log').read_text()}")
    return line.removeprefix("relay: ").strip()


def main() -> None:
    """Create a federation for each seed; all wards share, then each trains alone and with the others' means."""
    found: dict[str, list[list[float]]] = {ward: [] for ward in WARDS}
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as cleanup:
        folder, store = Path(name), Path(name, "relay.db")
        for seed in SEEDS:
            charter = create_array_charter(f"digits-{seed}", METHOD, CLASSES, WIDTH, bound=3.0, seed=seed)
            (folder / f"{seed}.toml").write_text(charter.to_toml())
            admin.create(store, folder / f"{seed}.toml")
        url = serve(store, cleanup)
        for seed in SEEDS:
            tokens = {ward: str(admin.invite(store, ward, f"digits-{seed}")) for ward in WARDS}
            peers = {ward: join_arrays(url, tokens[ward], folder=folder / f"{ward}-{seed}") for ward in WARDS}
            for ward, peer in peers.items():  # each of them on a machine of its own, in real life
                features, labels = samples_of(ward, seed)
                peer.share_arrays(features=features, labels=labels, wait=20)
            for ward, peer in peers.items():
                peer.refresh()
                found[ward].append([*train(ward, seed), *train(ward, seed, peer)])
                peer.close()
    print(f"accuracy in percent, seeds {SEEDS[0]} to {SEEDS[-1]}, ± the spread between them")
    print("ward   has        alone      together    of lacking digits: alone  together")
    for ward, rows in found.items():
        (all_alone, _, all_together, _), (_, _, spread, _) = np.mean(rows, axis=0), np.std(rows, axis=0)
        has, lacking = WARDS[ward][0], np.mean(rows, axis=0)[[1, 3]]
        line = f"{ward:6} {has[0]} to {has[-1]} {all_alone:10.1f} {all_together:9.1f} ± {spread:.1f}"
        print(f"{line} {lacking[0]:23.1f} {lacking[1]:9.1f}")


if __name__ == "__main__":
    main()
