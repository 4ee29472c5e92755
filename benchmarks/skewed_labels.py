"""Common and own answers under skewed labels: the default method, FedAvg and learning alone.

    python benchmarks/skewed_labels.py --data mnist --alphas 100,1,0.3,0.1 --seeds 10 --device cuda --out cells.json

Labels are split by Dirichlet(alpha). Every method has the same seeds and splits. The file keeps the accuracy of every
learner after the last round, so that nothing has to be run twice: methods that it has already are not run again.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from consilience import simulate

ONE_BIT = "consilience:kd=cosine(1,10,100):scale=absolute:down=bit:objective=cross-entropy:own_head=false:step=1"
METHODS = {
    "independent": "independent",
    "control": "independent:batch_order=1",
    "fedavg": "fedavg",
    "fedavg, two answers": "fedavg:objective=calibrated:own_head=true",
    "consilience, one answer": ONE_BIT,
    "consilience": "consilience",
}
"""What is compared; "one answer" was the default method before there were two."""
TASKS: dict[str, dict[str, Any]] = {
    "mnist": {"train": 1200, "model": "lenet5", "rounds": 100},
    "cifar10": {"train": 10000, "model": "resnet18", "rounds": 20, "precision": "bf16"},
}
COLORS = ["#888888", "#d95f02", "#b9b0e0", "#5b3fc4"]
HARM = 1.0
"""Points by which a learner's own accuracy must differ from the same learner alone to count."""


def run(task: str, alpha: str, method: str, options: argparse.Namespace) -> dict[str, Any]:
    """The accuracies of every learner after the last round."""
    settings = TASKS[task] | ({"data": options.file} if options.file else {"data": task})
    settings |= {"data_dir": options.data_dir} if options.data_dir and not options.file else {}
    started = time.perf_counter()
    result = simulate(
        **settings,
        method=method,
        learners=10,
        partition=f"dirichlet({alpha})",
        seeds=options.seeds,
        eval_every=settings["rounds"],
        device=options.device,
    )
    last = {key: np.round(result.history[key][-1], 2).tolist() for key in ("accuracy", "accuracy_own")}
    total = result.history["bytes.up"].sum() + result.history["bytes.down"].sum()
    return last | {"bytes": float(total) / options.seeds, "seconds": round(time.perf_counter() - started, 1)}


def table(cells: dict[str, dict[str, Any]]) -> str:
    """One line per condition and method: both answers, learners helped and harmed, bytes of a run."""
    lines = [f"{'':24}{'method':26}{'common %':>14}{'own %':>14}{'helped':>9}{'harmed':>9}{'MB':>9}"]
    for condition, methods in cells.items():
        alone = np.array(methods["independent"]["accuracy_own"]) if "independent" in methods else None
        for name, cell in methods.items():
            common, own = (np.array(cell[key]) for key in ("accuracy", "accuracy_own"))
            gain = own - alone if alone is not None and alone.shape == own.shape else np.zeros(0)
            counts = [f"{100 * np.mean(gain > HARM):.0f} %", f"{100 * np.mean(gain < -HARM):.0f} %"] * bool(gain.size)
            shown = [f"{each.mean():.1f} ± {each.mean(1).std(ddof=1):.1f}" for each in (common, own)]
            helped, harmed = counts if counts and name != "independent" else ("", "")
            lines.append(
                f"{condition:24}{name:26}{shown[0]:>14}{shown[1]:>14}{helped:>9}{harmed:>9}{cell['bytes'] / 1e6:>9.1f}"
            )
    return "\n".join(lines)


def figure(cells: dict[str, dict[str, Any]], task: str) -> Any:
    """Both answers against alpha, a line per method, as an Altair chart."""
    import altair  # only figures need it

    rows = [
        {"alpha": float(condition.rpartition(" ")[2]), "method": name, "data": data, "accuracy %": np.mean(cell[key])}
        for condition, methods in cells.items()
        if condition.startswith(f"{task}, ")
        for name, cell in methods.items()
        if name != "control"
        for key, data in (("accuracy", "common answer, everybody's data"), ("accuracy_own", "own answer, own data"))
    ]
    names = list(dict.fromkeys(str(row["method"]) for row in rows))
    data = altair.Data(values=rows)  # type: ignore[no-untyped-call]
    line = altair.Chart(data, width=320, height=260).mark_line(point=True, strokeWidth=2)
    axes = line.encode(
        altair.X(
            "alpha:Q",
            scale=altair.Scale(type="log"),
            axis=altair.Axis(values=sorted({row["alpha"] for row in rows})),
            title="alpha: more skewed to the left",
        ),
        altair.Y("accuracy %:Q", scale=altair.Scale(domain=[0, 100])),
        altair.Color("method:N", scale=altair.Scale(domain=names, range=COLORS), title=None),
    )
    return axes.facet(altair.Facet("data:N", title=None, header=altair.Header(labelFontSize=13)))


def main() -> None:
    """Run what the file does not have yet, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", choices=TASKS, default="mnist")
    parser.add_argument("--file", help="an .npz file with the data, in the place of the data set of that name")
    parser.add_argument("--data-dir")
    parser.add_argument("--alphas", default="100,1,0.3,0.1")
    parser.add_argument("--methods", help="names of the table, separated by semicolons; all without it")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--figure", type=Path, help="an .svg file for a figure of the table")
    parser.add_argument("--out", type=Path, default=Path("skewed-labels.json"))
    options = parser.parse_args()
    cells: dict[str, dict[str, Any]] = json.loads(options.out.read_text()) if options.out.exists() else {}
    for alpha in options.alphas.split(","):
        mine = cells.setdefault(f"{options.data}, alpha {alpha}", {})
        for name, method in METHODS.items():
            if name in mine or (options.methods and name not in options.methods.split(";")):
                continue
            mine[name] = run(options.data, alpha, method, options)
            print(f"{options.data}, alpha {alpha}, {name}: {mine[name]['seconds']} s", flush=True)
            options.out.write_text(json.dumps(cells, separators=(",", ":")))
    print(table(cells))
    if options.figure:
        figure(cells, options.data).save(options.figure)


if __name__ == "__main__":
    main()
