"""Time and memory of a round against learners, parameters and federations, on the stack engine and a CPU; and nodes.

    nice python benchmarks/scale.py [--repeat 3] [--out benchmarks/results/scale.json] [--figure docs/assets/scale.svg]
    CONSILIENCE_DATA=FOLDER python benchmarks/scale.py --only nodes

Every point runs in a process of its own with one thread: a warm-up round, then three whole rounds without a test, of
which the median counts; that is repeated, the points in turn, and the table has medians. `cpu` are the process's own
processor seconds, which other load on the machine lengthens far less than `wall`. Memory is the largest resident size
since before the run was set up. `first` are the processor seconds of first weights and channels.

Workload: representation sharing, a tiny network of two layers on random images of 8 x 8, 12 samples per learner, Adam.
That of `nodes` is in `benchmarks/nodes.py`: one federation in processes of this machine, and on nodes of a cluster.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

SAMPLES, SHAPE, CLASSES, ROUNDS = 12, (1, 8, 8), 10, 3
TINY = 16  # hidden units: 1,210 parameters
NODES = "nodes"
PLACES = ((1, 0), (2, 0), (1, 1), (2, 2))
"""Processes that train, and the nodes they are on; 0: in the loop engine, without a cluster."""
POINTS: dict[str, list[dict[str, int]]] = {
    "learners": [{"learners": n, "hidden": TINY, "federations": 1} for n in (10, 100, 1000, 10_000)],
    "parameters": [{"learners": 10, "hidden": n, "federations": 1} for n in (12, 130, 1330, 13_300, 133_000)],
    "federations": [{"learners": 5, "hidden": TINY, "federations": n} for n in (1, 4, 16, 64)],
    NODES: [{"samples": n, "processes": p, "nodes": at} for n in (12, 120) for p, at in PLACES],
}


def network(hidden: int) -> Any:
    """A hidden layer, and a linear classifier of it."""
    from torch import nn

    return nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, CLASSES))


def measure(point: dict[str, int]) -> dict[str, float]:
    """One point, in this process."""
    if "nodes" not in point:
        return measure_stack(**point)
    from benchmarks import nodes

    return nodes.measure(**point)


def measure_stack(learners: int, hidden: int, federations: int) -> dict[str, float]:
    """One point of learners, parameters or federations."""
    import numpy as np
    import torch

    from consilience.config.config import make_config
    from consilience.data import Dataset
    from consilience.methods import build_method
    from consilience.simulation.engines.stack.engine import StackEngine
    from consilience.simulation.round.round import Rounds
    from consilience.simulation.setup.setup import build_setup

    torch.set_num_threads(1)
    count = learners * SAMPLES
    inputs = np.random.default_rng(0).standard_normal((count, *SHAPE), dtype=np.float32)
    targets = np.arange(count) % CLASSES
    data = Dataset("noise", inputs, targets, inputs[:CLASSES], targets[:CLASSES], CLASSES)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    config = make_config({"learners": learners, "seeds": federations})
    setup = build_setup(config, build_method("representation-sharing"), data, [partial(network, hidden)])
    engine = StackEngine(list(setup.cohorts.plans), data)
    rounds = Rounds(setup, engine)
    began = time.process_time()
    rounds.start()
    first, times = time.process_time() - began, []
    for _ in range(1 + ROUNDS):
        wall, cpu = time.perf_counter(), time.process_time()
        rounds.run(evaluate=False)
        times.append((time.process_time() - cpu, time.perf_counter() - wall))
    cpu, wall = (statistics.median(column) for column in zip(*times[1:], strict=True))
    memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    parameters = engine.learners[0].binding.parameters.size
    return {"parameters": parameters, "cpu": cpu, "wall": wall, "memory_mib": memory, "first": first}


def measured(point: dict[str, int]) -> dict[str, float]:
    """One point, in a process of its own."""
    command = [sys.executable, __file__, "--point", json.dumps(point)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    if done.returncode:
        sys.exit(done.stderr)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def figure(found: dict[str, list[dict[str, Any]]]) -> Any:
    """Processor seconds and memory against each of the three sizes, as an Altair chart."""
    import altair  # only figures need it

    axes = {"learners": "learners", "parameters": "parameters", "federations": "federations at once"}
    rows = [
        {"size": point[by], "value": point[key], "by": axes[by], "of": of}
        for by, points in found.items()
        if by in axes
        for point in points
        for key, of in (("cpu", "processor seconds per round"), ("memory_mib", "memory, MiB"))
    ]
    chart = altair.Chart(altair.Data(values=rows), width=210, height=170)  # type: ignore[no-untyped-call]
    line = chart.mark_line(point=True, strokeWidth=2, color="#0072B2").encode(
        altair.X("size:Q", scale=altair.Scale(type="log"), title=None),
        altair.Y("value:Q", scale=altair.Scale(type="log"), title=None),
    )
    by = altair.Column("by:N", title=None, sort=list(axes.values()))
    faceted = line.facet(column=by, row=altair.Row("of:N", title=None, sort="descending"))
    return faceted.resolve_scale(x="independent", y="independent")


def table(found: dict[str, list[dict[str, Any]]]) -> str:
    """One line per point."""
    lines = [
        f"{'':12}{'learners':>9}{'parameters':>12}{'federations':>12}{'cpu s':>9}{'wall s':>9}{'MiB':>8}{'first s':>9}"
    ]
    for by in (by for by in found if by != NODES):
        for p in found[by]:
            sizes = f"{by:12}{p['learners']:>9}{p['parameters']:>12}{p['federations']:>12}"
            lines.append(f"{sizes}{p['cpu']:>9.3f}{p['wall']:>9.3f}{p['memory_mib']:>8.0f}{p['first']:>9.3f}")
    return "\n".join([*lines, "", *table_of_nodes(found.get(NODES, []))])


def table_of_nodes(points: list[dict[str, Any]]) -> Iterator[str]:
    """One line per point; its ratio is that of the time by the clock to one process of the loop engine."""
    yield (
        f"{'samples':>9}{'place':>16}{'cpu s':>9}{'wall s':>9}{'ratio':>7}{'start s':>9}{'calls':>7}"
        f"{'KiB sent':>10}{'KiB back':>10}{'ms/call':>9}{'cpu ms':>8}"
    )
    for p in points:
        alone = next(q for q in points if (q["samples"], q["processes"], q["nodes"]) == (p["samples"], 1, 0))
        if p["bits"] != alone["bits"]:
            sys.exit(f"the weights are others than in one process: {p}")
        place = f"{p['nodes']} nodes" if p["nodes"] else f"{p['processes']} processes"
        line = f"{p['samples']:>9}{place:>16}{p['cpu']:>9.3f}{p['wall']:>9.3f}{p['wall'] / alone['wall']:>7.2f}"
        line += f"{p['start']:>9.2f}"
        if p["nodes"]:
            more = [1000 * (p[key] - alone[key]) / p["calls"] for key in ("wall", "cpu")]
            line += f"{p['calls']:>7.0f}{p['sent'] / 1024:>10.0f}{p['received'] / 1024:>10.0f}"
            line += f"{more[0]:>9.2f}{more[1]:>8.2f}"
        yield line


def main() -> None:
    """Measure all points, print the table, and write the file and the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--point", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--repeat", type=int, default=3, help="processes per point")
    parser.add_argument("--out", type=Path, help="a JSON file for the numbers; what it has is not measured again")
    parser.add_argument("--figure", type=Path, help="an .svg file")
    parser.add_argument("--only", choices=POINTS, nargs="+", default=list(POINTS), help="parts to measure; all")
    options = parser.parse_args()
    if options.point is not None:
        print(json.dumps(measure(options.point)))
        return
    found = json.loads(options.out.read_text()) if options.out and options.out.exists() else {}
    runs: dict[str, list[list[dict[str, float]]]] = {
        by: [[] for _ in POINTS[by]] for by in options.only if by not in found
    }
    for _ in range(options.repeat):
        for by, each in runs.items():
            for point, times in zip(POINTS[by], each, strict=True):
                times.append(measured(point))
                print(by, point, times[-1], flush=True)
    for by, each in runs.items():
        medians = [{key: statistics.median(run[key] for run in times) for key in times[0]} for times in each]
        found[by] = [{**point, **median} for point, median in zip(POINTS[by], medians, strict=True)]
    print(table(found))
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if options.figure:
        figure(found).save(options.figure)


if __name__ == "__main__":
    main()
