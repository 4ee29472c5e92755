"""Three wards with networks in plain NumPy learn together; each lacks most of the digits. No torch is needed.

North has samples of the digits 0 to 2 only, south of 3 to 5, west of 6 to 9. A sample's features are 48 projections of
its pixels, random but the same for all: they follow from the federation's seed. In each round a ward uploads the mean
feature of each of its digits and three means of four of its samples, other ones each time, and trains its network, one
hidden layer whose gradient is written out below, on its own samples and all means that it has downloaded so far. The
weight of the means is the best of 2, 5 and 15 on seeds 1000 to 1002.

    python examples/numpy_member.py
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from consilience import ArrayPeer, join_arrays, load
from consilience.peer.array_charter import create_array_charter
from consilience.relay import admin

WARDS = {"north": (0, 1, 2), "south": (3, 4, 5), "west": (6, 7, 8, 9)}  # the digits that a ward has
CLASSES, WIDTH, HIDDEN, SAMPLES, SEEDS = 10, 48, 32, 15, range(3)  # samples: of each of these digits
ROUNDS, STEPS, RATE, WEIGHT = 8, 60, 0.1, 5.0  # weight: of a digit's means in a round, where a sample has 1
METHOD = {"name": "representation-sharing", "n_avg": 4, "up": 3, "down": 6}
Samples = tuple[np.ndarray, np.ndarray, np.ndarray]  # features (n, width), labels (n,), weights (n,)


@dataclass
class Network:
    """Logits of features: features -> tanh(features W + b) -> hidden V + c, trained by gradient descent."""

    seed: int
    weights: list[np.ndarray] = field(init=False)

    def __post_init__(self) -> None:
        random = np.random.default_rng(self.seed)
        first, second = (
            random.normal(0, WIDTH**-0.5, (WIDTH, HIDDEN)),
            random.normal(0, HIDDEN**-0.5, (HIDDEN, CLASSES)),
        )
        self.weights = [first, np.zeros(HIDDEN), second, np.zeros(CLASSES)]

    def logits(self, features: np.ndarray) -> np.ndarray:
        """(n, classes)."""
        first, b, second, c = self.weights
        logits: np.ndarray = np.tanh(features @ first + b) @ second + c
        return logits

    def step(self, features: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> None:
        """One step down the gradient of the weighted mean cross-entropy."""
        first, b, second, c = self.weights
        hidden = np.tanh(features @ first + b)  # (n, hidden)
        logits = hidden @ second + c
        chances = np.exp(logits - logits.max(axis=1, keepdims=True))
        chances /= chances.sum(axis=1, keepdims=True)  # (n, classes)
        error = (chances - np.eye(CLASSES)[labels]) * (weights / weights.sum())[:, None]  # of the logits
        back = error @ second.T * (1 - hidden**2)  # (n, hidden) of what enters tanh
        gradients = [features.T @ back, back.sum(axis=0), hidden.T @ error, error.sum(axis=0)]
        self.weights = [w - RATE * g for w, g in zip(self.weights, gradients, strict=True)]


def features_of(inputs: np.ndarray, seed: int) -> np.ndarray:
    """Features that all members compute alike: tanh of random projections, (n, width)."""
    projection = np.random.default_rng(seed).normal(0, 64**-0.5, (64, WIDTH))
    return np.tanh(inputs.reshape(-1, 64) @ projection)


def samples_of(ward: str, seed: int) -> Samples:
    """The ward's own samples."""
    data, order = load("digits"), np.random.default_rng(seed).permutation(1000)
    rows = np.concatenate([order[data.targets[order] == digit][:SAMPLES] for digit in WARDS[ward]])
    return features_of(data.inputs[rows], seed), data.targets[rows], np.ones(len(rows))


def accuracy(network: Network, ward: str, seed: int) -> tuple[float, float]:
    """Percent of all digits, and of those that the ward lacks."""
    data = load("digits")
    correct = network.logits(features_of(data.test_inputs, seed)).argmax(axis=1) == data.test_targets
    return 100 * float(correct.mean()), 100 * float(correct[~np.isin(data.test_targets, WARDS[ward])].mean())


def together(peers: dict[str, ArrayPeer], seed: int) -> dict[str, Network]:
    """The wards' networks after all rounds; in real life each runs on a machine of its own."""
    networks, known = {ward: Network(seed) for ward in peers}, {ward: samples_of(ward, seed) for ward in peers}
    for _ in range(ROUNDS):
        for ward, peer in peers.items():
            features, labels, _ = samples_of(ward, seed)
            peer.share_arrays(features=features, labels=labels, wait=20)
        for ward, peer in peers.items():
            peer.refresh()
            more = peer.targets().as_samples(WEIGHT)
            features, labels, weights = (np.concatenate(pair) for pair in zip(known[ward], more, strict=True))
            known[ward] = features, labels, weights
            for _ in range(STEPS):
                networks[ward].step(*known[ward])
    return networks


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
    """Create a federation for each seed, and print what each ward's network gained."""
    found: dict[str, list[tuple[float, ...]]] = {ward: [] for ward in WARDS}
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as cleanup:
        folder, store = Path(name), Path(name, "relay.db")
        for seed in SEEDS:
            charter = create_array_charter(f"digits-{seed}", METHOD, CLASSES, WIDTH, bound=1.0, seed=seed)
            (folder / f"{seed}.toml").write_text(charter.to_toml())
            admin.create(store, folder / f"{seed}.toml")
        url = serve(store, cleanup)
        for seed in SEEDS:
            tokens = {ward: str(admin.invite(store, ward, f"digits-{seed}")) for ward in WARDS}
            with contextlib.ExitStack() as joined:
                peers = {
                    w: joined.enter_context(join_arrays(url, tokens[w], folder=folder / f"{w}-{seed}")) for w in WARDS
                }
                networks = together(peers, seed)
            for ward, network in networks.items():
                alone, own = Network(seed), samples_of(ward, seed)
                for _ in range(ROUNDS * STEPS):
                    alone.step(*own)
                found[ward].append((*accuracy(alone, ward, seed), *accuracy(network, ward, seed)))
    print(f"accuracy in percent, seeds {SEEDS[0]} to {SEEDS[-1]}")
    print("ward   has        alone  together  of lacking digits: alone  together")
    for ward, rows in found.items():
        a, lacking_a, t, lacking_t = np.mean(rows, axis=0)
        print(f"{ward:6} {WARDS[ward][0]} to {WARDS[ward][-1]} {a:10.1f} {t:9.1f} {lacking_a:25.1f} {lacking_t:9.1f}")


if __name__ == "__main__":
    main()
