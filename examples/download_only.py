"""Not everybody gives and takes alike: some only listen, some only give.

Six learners share mean logits. Two newcomers listen and put nothing up; two archives give and take nothing, so they
learn exactly as if alone; two do both. Bytes and accuracies of each group stand beside what the same learners reach by
themselves, on the same data and first weights.

    python examples/download_only.py

In a settings file the same is `[groups.newcomers]` with `learners = "0-1"` and `uploads = false`.
"""

from __future__ import annotations

from consilience import Result, simulate

GROUPS: dict[str, dict[str, object]] = {
    "newcomers": {"learners": "0-1", "uploads": False},
    "archives": {"learners": "2-3", "downloads": False},
    "partners": {"learners": "4-5"},
}
TERMS = {"newcomers": "only listen", "archives": "only give", "partners": "do both"}


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
    """What each group reaches, and what a learner of it moves in the whole run."""
    apart, together = run("independent", {}), run("federated-distillation", GROUPS)
    up, down = (together.history.total(f"bytes.{way}").mean(0) for way in ("up", "down"))  # (learners,)
    print("group       terms        independent %  together %  kB up  kB down")
    for name in GROUPS:
        who = together.config.groups[name].numbers(name, together.config.learners)
        before, after = (result.accuracy[:, who].mean() for result in (apart, together))  # of (seeds, learners)
        print(
            f"{name:11} {TERMS[name]:12} {before:13.1f} {after:11.1f}"
            f" {up[who].mean() / 1e3:6.0f} {down[who].mean() / 1e3:8.0f}"
        )


if __name__ == "__main__":
    main()
