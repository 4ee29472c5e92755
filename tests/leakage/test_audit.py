"""Audits of runs: shadow federations, statistics of uploads, results, the command, the report page, and errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from consilience.config.config import Config, make_config
from consilience.errors import CheckpointError, ConfigurationError
from consilience.evaluation.likelihood_ratio import likelihood_ratio_scores
from consilience.evaluation.roc import roc_of
from consilience.leakage.audit import AuditedRun, AuditSettings, audit_run, prepare_audit
from consilience.leakage.audit_results import FILE, AuditResult, audit_as_json, read_audit, write_audit
from consilience.leakage.audit_tables import attack_rows, audit_text, epsilon_rows
from consilience.leakage.epsilon_audit import audit_epsilon, neighboring_samples
from consilience.leakage.shadow_federations import draw_members, learners_samples, run_shadows
from consilience.leakage.upload_statistics import confidence, means_statistics
from consilience.privacy.plan import PrivacyPlan
from consilience.simulation.in_memory import running
from consilience.simulation.round.seen_upload import SeenUpload
from consilience.simulation.setup.inputs import models_of
from consilience.simulation.setup.setup import build_setup
from consilience.simulation.simulate import simulate

Command = Callable[..., tuple[int, str, str]]
SMALL: dict[str, Any] = {"learners": 2, "rounds": 2, "train": 120, "test": 100, "workers": 0, "seed": 1000}
QUICK = AuditSettings(shadows=8, trials=0)

pytestmark = pytest.mark.usefixtures("one_thread")


def settings(method: str, **more: Any) -> Config:
    return make_config(SMALL | {"data": "digits", "method": {"name": method}} | more)


def prepared(method: str, **more: Any) -> AuditedRun:
    return prepare_audit(settings(method, **more), QUICK)


@pytest.fixture(scope="module")
def audited() -> AuditResult:
    return audit_run(prepared("representation-sharing"), QUICK)


# --- shadow federations


def test_every_learner_has_half_of_its_samples_and_federations_differ() -> None:
    run = prepared("fedproto")
    config = run.config.replace(seeds=6)
    parts = learners_samples(config, run.method, run.data)
    kept = draw_members(config, parts, len(run.data.targets), None)
    assert [[int(mine[part].sum()) for part in parts] for mine in kept] == [[30, 30]] * 6
    assert len({mine.tobytes() for mine in kept}) == 6
    setup = build_setup(config, run.method, run.data, models_of(None, config), kept=kept)
    for mine, there in zip(kept, setup.data.parts, strict=True):
        for part, own in zip(parts, there, strict=True):
            assert np.array_equal(np.sort(own), part[mine[part]])
    assert setup.data.counts.sum() == 6 * 60
    again = draw_members(config, parts, len(run.data.targets), 0)  # the host keeps all: everybody has its samples
    assert again[:, parts[0]].all() and not again[:, parts[1]].all()


def test_watching_changes_nothing_and_sees_what_the_relay_sees() -> None:
    config = prepared("fedavg-1bit").config
    run, plain = prepared("fedavg-1bit"), simulate(config)
    setup, seen = build_setup(config, run.method, run.data, models_of(None, config)), list[SeenUpload]()
    with running(config, setup, None) as watched:
        watched.rounds.on_upload = seen.append
        result = watched.run()
    assert np.array_equal(result.accuracy, plain.accuracy)
    assert {(each.round, each.channel) for each in seen} == {(1, "weights"), (2, "weights")}
    for each in seen:  # one bit: two values in each tensor, but for the scale's sign
        assert all(len(torch.unique(t.abs())) == 1 for t in each.tensors.values())


@pytest.mark.parametrize(
    ("method", "channels"),
    (
        ("independent", set[str]()),
        ("federated-distillation", {"logits"}),
        ("consilience", {"prototypes", "observations", "weights"}),
        ("cluster-sharing", {"clusters"}),
    ),
)
def test_every_upload_of_every_round_is_seen(method: str, channels: set[str]) -> None:
    run = prepared(method)
    found = run_shadows(run.config.replace(seeds=3), run.method, run.data)
    labeled = {"model"} if method != "cluster-sharing" else set()
    assert found.by_target.keys() == channels | labeled
    rounds = {"weights": 2, "model": 1}  # class means are uploaded before the first round, too
    for name, seen in found.by_target.items():
        assert seen.shape == (3, 120, 1 if name == "model" else 2 * rounds.get(name, 3))
        assert np.isfinite(seen).all() and (seen.std(0) > 0).any()
    assert found.member.sum() == 3 * 60 and found.not_attacked == (() if labeled else ("model",))


def test_learners_that_are_away_give_no_evidence() -> None:
    run = prepared("fedproto", learners=4, participation=0.5)
    found = run_shadows(run.config.replace(seeds=3), run.method, run.data)
    assert np.isfinite(found.by_target["prototypes"]).all()


# --- statistics


def test_statistics_of_means_by_hand() -> None:
    # The attacker's samples are centered at 0 with unit variance: the mean of (2, 0) and (0, 2) lies along both, and
    # not along (0, -2). A class that was not uploaded says nothing.
    known = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]], dtype=torch.float64)
    values = torch.tensor([[2.0, 0.0], [0.0, 2.0], [0.0, -2.0], [2.0, 0.0]], dtype=torch.float64)
    targets, none = torch.tensor([0, 0, 0, 1]), torch.zeros(4, dtype=torch.int64)
    means, counts = torch.tensor([[1.0, 1.0], [0.0, 0.0]], dtype=torch.float64), torch.tensor([2.0, 0.0])
    found = means_statistics(values, targets, means, counts, known, none)
    assert found[:, 0].tolist() == pytest.approx([1.5, 1.5, -1.5, 0.0])  # the variance of four is 4 / 3
    assert found[:, 1].tolist() == pytest.approx([-1.5, -1.5, -7.5, 0.0])


def test_confidence_is_the_logit_of_the_probability() -> None:
    logits, targets = torch.randn(5, 4, dtype=torch.float64), torch.tensor([0, 1, 2, 3, 0])
    chance = logits.softmax(1)[torch.arange(5), targets]
    assert torch.allclose(confidence(logits, targets), torch.logit(chance))


def test_small_means_reveal_their_samples_and_chance_does_not(audited: AuditResult) -> None:
    by_target = {attack.target: attack for attack in audited.attacks}
    assert list(by_target) == ["prototypes", "observations", "all uploads", "model"]
    assert by_target["prototypes"].online.auc > 0.75  # three samples in a mean
    assert by_target["all uploads"].offline.auc > 0.75
    assert by_target["prototypes"].online.members + by_target["prototypes"].online.others <= 8 * 120
    assert 0.4 < by_target["model"].online.auc < 0.75
    assert audited.epsilon is None and audited.not_attacked == ()


def test_shuffled_memberships_are_chance() -> None:
    run = prepared("fedproto")
    found = run_shadows(run.config.replace(seeds=16), run.method, run.data)
    other = np.random.default_rng(0).random(found.member.shape) < 0.5
    scores = likelihood_ratio_scores(found.by_target["prototypes"], other)
    known = np.isfinite(scores)
    assert roc_of(scores[other & known], scores[~other & known]).auc == pytest.approx(0.5, abs=0.06)


def test_the_same_seed_gives_the_same_audit(audited: AuditResult) -> None:
    assert audit_run(prepared("representation-sharing"), QUICK) == audited


# --- the lower bound of epsilon


def test_neighboring_samples() -> None:
    run = prepared("fedproto")
    parts = learners_samples(run.config, run.method, run.data)
    first, second = neighboring_samples(parts, run.data, "upload", None)
    for part in parts:
        assert first[part].sum() == second[part].sum() == 30 and not (first & second).any()
        shared = set(run.data.targets[part[first[part]]]) & set(run.data.targets[part[second[part]]])
        assert len(shared) <= 1
    first, second = neighboring_samples(parts, run.data, "sample", None)
    assert second[np.concatenate(parts)].all() and [int((second & ~first)[part].sum()) for part in parts] == [1, 1]


def test_a_run_without_noise_is_told_apart_and_a_private_one_keeps_its_epsilon() -> None:
    plain = prepared("fedproto", rounds=1)
    found = audit_epsilon(plain.config, plain.method, plain.data, 64)
    assert found.claimed is None and found.neighbors == "upload"
    assert found.general.epsilon > 1.5 and found.general.false_positives + found.general.false_negatives == 0
    private = prepared("fedproto", rounds=1, private="upload", epsilon=4.0)
    bound = audit_epsilon(private.config, private.method, private.data, 64)
    assert bound.claimed == 4.0 and max(bound.general.epsilon, bound.gaussian.epsilon) <= 4.0
    assert bound.gaussian.false_positives + bound.gaussian.false_negatives > 5


def test_noise_that_is_much_too_small_in_a_run_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    real: Any = PrivacyPlan.__dict__["noise"]
    monkeypatch.setattr(PrivacyPlan, "noise", property(lambda plan: real.fget(plan) / 10))
    private = prepared("fedproto", rounds=1, private="upload", epsilon=4.0)
    bound = audit_epsilon(private.config, private.method, private.data, 64)
    assert bound.gaussian.epsilon > 4.0


# --- results and errors


def test_results_survive_their_file_and_a_damaged_one_is_named(audited: AuditResult, tmp_path: Path) -> None:
    assert read_audit(tmp_path) is None
    write_audit(tmp_path, audited)
    assert read_audit(tmp_path) == audited
    assert json.loads(json.dumps(audit_as_json(audited)))["method"] == "representation-sharing"
    (tmp_path / FILE).write_text('{"method": 3}')
    with pytest.raises(
        CheckpointError, match=r"audit.json is damaged: method: .*; audit again with: consilience audit"
    ):
        read_audit(tmp_path)
    (tmp_path / FILE).write_text("not JSON")
    with pytest.raises(CheckpointError, match=r"audit.json is damaged"):
        read_audit(tmp_path)


def test_tables(audited: AuditResult) -> None:
    rows = attack_rows({"mine": audited})
    assert [(row["attacked"], row["form"]) for row in rows][:2] == [("prototypes", "online"), ("prototypes", "offline")]
    assert "TPR at 0.1 % FPR" in rows[0] and rows[0]["TPR at 0.1 % FPR"] == "–"  # fewer than 1,000 others
    assert "8 shadow federations of 2 learners, 2 rounds, seeds 1000 to 1007, 120 samples" in audit_text({"": audited})
    assert epsilon_rows({"mine": audited}) == []
    assert [row["run"] for row in attack_rows({"a": audited, "b": audited})] == ["a"] * 8 + ["b"] * 8


def test_too_few_shadow_models_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"shadows is 7; an audit needs 8 shadow federations or more"):
        AuditSettings(shadows=7)
    with pytest.raises(ConfigurationError, match=r"trials is -1"):
        AuditSettings(trials=-1)
    with pytest.raises(ConfigurationError, match=r"unknown of 'weights'.*uploads"):
        AuditSettings(of="weights")  # type: ignore[arg-type]
    run = prepared("fedproto")
    with pytest.raises(ConfigurationError, match=r"trials is 8 with 2 learners each; .* use more trials"):
        audit_epsilon(run.config, run.method, run.data, 8)


@pytest.mark.parametrize("method", ("independent", "centralized", "self-distillation", "split-learning"))
def test_a_run_without_uploads_is_refused_where_uploads_are_to_be_attacked(method: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"method '{method}' uploads nothing on a channel.*--of model"):
        prepare_audit(settings(method), AuditSettings(shadows=8, of="uploads"))


def test_samples_of_one_class_are_refused() -> None:
    run = prepared("fedproto")
    data = replace(run.data, targets=np.zeros_like(run.data.targets))
    with pytest.raises(ConfigurationError, match=r"all training samples of 'digits' have one class"):
        run_shadows(run.config.replace(seeds=8), run.method, data)


def test_learners_with_too_few_samples_are_refused() -> None:
    run = prepared("fedproto", train=20, learners=4)
    with pytest.raises(ConfigurationError, match=r"a learner has 5 training samples; .* 8 or more"):
        audit_run(run, QUICK)


# --- the command and the page


def test_the_command_saves_shows_and_reports(tmp_path: Path, command: Command) -> None:
    folder, page = tmp_path / "mine", tmp_path / "page.html"
    simulate(method="fedproto", data="digits", out=folder, **SMALL)
    code, out, err = command("audit", str(folder), "--shadows", "8", "--trials", "40", "--out", str(page))
    assert code == 0, err
    assert "prototypes" in out and "balanced accuracy" in out and "Lower bound of epsilon" in out
    saved = read_audit(folder)
    assert saved is not None and saved.epsilon is not None and saved.epsilon.claimed is None
    text = page.read_text()
    assert "Audit: membership inference" in text and "false positive rate" in text
    code, out, err = command("audit", str(folder), "--shadows", "8", "--trials", "0", "--of", "model", "--json")
    assert code == 0 and [a["target"] for a in json.loads(out)["attacks"]] == ["model"]


def test_the_command_reads_settings_from_a_file_and_changes_them(tmp_path: Path, command: Command) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('data = "digits"\ntrain = 120\ntest = 100\nlearners = 2\nrounds = 9\nworkers = 0\n')
    given = ("audit", str(file), "--shadows", "8", "--trials", "0", "--set", "rounds=1", "--json")
    code, out, err = command(*given)
    assert code == 0, err
    assert json.loads(out)["rounds"] == 1 and json.loads(out)["method"] == "consilience"
    code, _, err = command(*given, "--out", str(tmp_path / "page.html"))
    assert code == 2 and "--out writes a page about runs in folders" in err
    code, _, err = command("audit", str(tmp_path / "nowhere"))
    assert code == 2 and "is neither a run's folder nor a file with settings" in err


FROZEN = """
from torch import nn

from consilience.models import SplitModel


def frozen(shape, classes):
    features = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh()).requires_grad_(False)
    return SplitModel(features, nn.Linear(8, classes), bound=1.0)
"""


@pytest.mark.parametrize("factor", (1.0, 0.05))
def test_one_sample_in_the_means_of_a_fixed_encoder(
    factor: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Neighbors differ in one sample. With the noise of the plan the claim holds; with a twentieth of it, it does not.
    (tmp_path / "net.py").write_text(FROZEN)
    real: Any = PrivacyPlan.__dict__["noise"]
    monkeypatch.setattr(PrivacyPlan, "noise", property(lambda plan: factor * real.fget(plan)))
    model = f"{tmp_path / 'net.py'}:frozen"
    run = prepared("fedproto", rounds=1, model=model, private="fixed-encoder", epsilon=4.0)
    found = audit_epsilon(run.config, run.method, run.data, 64)
    assert found.neighbors == "sample" and (found.gaussian.epsilon <= 4.0) == (factor == 1.0)


def test_the_number_of_samples_is_public_where_single_samples_are_private() -> None:
    """Weights are uploaded with the number of samples, which the audit changes by one and must not score."""
    run = prepared("fedavg", rounds=1, private="training", epsilon=4.0)
    found = audit_epsilon(run.config, run.method, run.data, 64)
    assert found.neighbors == "sample" and max(found.general.epsilon, found.gaussian.epsilon) <= 4.0
