"""Some learners only download, some only upload.

Six learners share mean logits. Two newcomers download and upload nothing. Two archives upload and download nothing, so
they train exactly as if they were independent. Two partners do both. The table compares each group with the same
learners trained independently, on the same data and from the same initial weights.

    python examples/download_only.py

In a settings file this is `[groups.newcomers]` with `learners = "0-1"` and `uploads = false`.
"""

from __future__ import annotations

from consilience import Result, simulate

GROUPS: dict[str, dict[str, object]] = {
    "newcomers": {"learners": "0-1", "uploads": False},
    "archives": {"learners": "2-3", "downloads": False},
    "partners": {"learners": "4-5"},
}
SETTINGS = {"newcomers": "only download", "archives": "only upload", "partners": "do both"}


def run(method: str, groups: dict[str, dict[str, object]]) -> Result:
    """Six learners; the newcomers have few samples, the archives many."""
    return simulate(
        method=method,
        groups=groups,
        learners=6,
        train=150,
        partition="shares(1, 1, 4, 4, 2, 2)",
        epochs=10,
        rounds=30,
        seeds=2,
        eval_every=30,
        workers=0,
    )


def main() -> None:
    """Print the accuracy of each group, and the bytes of one of its learners over the whole run."""
    independent, together = run("independent", {}), run("federated-distillation", GROUPS)
    up, down = (together.history.total(f"bytes.{way}").mean(0) for way in ("up", "down"))  # each (learners,)
    print("group       settings       independent %  together %  kB up  kB down")
    for name in GROUPS:
        learners = together.config.groups[name].numbers(name, together.config.federation.learners)
        before, after = (result.accuracy[:, learners].mean() for result in (independent, together))  # (seeds, learners)
        print(
            f"{name:11} {SETTINGS[name]:14} {before:13.1f} {after:11.1f}"
            f" {up[learners].mean() / 1e3:6.0f} {down[learners].mean() / 1e3:8.0f}"
        )


if __name__ == "__main__":
    main()
