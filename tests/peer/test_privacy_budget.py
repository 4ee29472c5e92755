"""A member's privacy over a relay: noise nobody can compute, and a budget that survives restarts and ends uploads."""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from consilience import simulate
from consilience.cli.member import _describe_privacy
from consilience.config.config import make_config
from consilience.data import Dataset, load
from consilience.errors import ConfigurationError, RelayError
from consilience.learner.batches import LearnerKey
from consilience.learner.noise_source import SECRET, SIMULATED
from consilience.learner.private_uploads import LearnerPrivacy, private_contributions
from consilience.models import SplitModel
from consilience.peer.connection import connect_to_relay
from consilience.peer.create_charter import TaskShape, create_charter, write_charter
from consilience.peer.member_method import member_method
from consilience.peer.peer import Peer
from consilience.peer.privacy_budget import charter_plan, check_fixed_encoder, loop_privacy
from consilience.peer.spent_budget import PrivacyBudget
from consilience.peer.state import PeerState
from consilience.peer.state_folder import StateFolder
from consilience.peer.trainer import FederatedTrainer
from consilience.privacy.gaussian import epsilon_of_releases, noise_of_releases
from consilience.relay import admin
from consilience.simulation.records.run_folder import RunFolder
from consilience.wire.charter import read_charter
from consilience.wire.headers import Parts
from consilience.wire.privacy import PrivacySettings
from consilience.wire.rules import Rules
from tests.peer_tools import batches, decoded, federation, net, train
from tests.relay_tools import serving

AT_ONCE = Rules(min_contributions=1, deadline=0.2)
PROTOTYPES = {"name": "fedproto"}
pytestmark = pytest.mark.usefixtures("one_thread")


def private(uploads: int = 3, epsilon: float = 4.0, kind: str = "upload", clip: float = 1.0) -> PrivacySettings:
    return PrivacySettings.model_validate(
        {"private": kind, "epsilon": epsilon, "delta": 1e-5, "clip": clip, "uploads": uploads}
    )


def bodies(peer: Peer | FederatedTrainer) -> list[dict[str, np.ndarray]]:
    """What a peer uploads from now on, as the relay reads it."""
    seen: list[dict[str, np.ndarray]] = []
    send = peer.connection.client.upload

    def noted(round_: int, parts: Parts, body: bytes, seconds: float) -> dict[str, object]:
        seen.append(decoded(peer, parts, body))
        return send(round_, parts, body, seconds)

    peer.connection.client.upload = noted  # type: ignore[method-assign]
    return seen


def digits(samples: int, own: float | None = None) -> Dataset:
    """own: the epsilon of every digit 3, if these have one of their own."""
    data = load("digits", train=samples, test=30)
    return data if own is None else replace(data, sample_epsilons=np.where(data.targets == 3, own, np.inf))


@contextlib.contextmanager
def trainer_in(
    folder: Path, method: str, privacy: PrivacySettings, samples: int = 60, own: float | None = None
) -> Iterator[tuple[FederatedTrainer, Path]]:
    """The trainer of `consilience join` in a federation of its own, and its folder; own: epsilon of the digit 3."""
    data = digits(samples, own)
    charter, starts = create_charter(
        "one", {"name": method}, TaskShape(data.shape, data.classes), ["mlp"], seed=5, rules=AT_ONCE, privacy=privacy
    )
    folder.mkdir(exist_ok=True)
    write_charter(folder / "one.toml", charter, starts)
    admin.create(folder / "relay.db", folder / "one.toml")
    token, place = str(admin.invite(folder / "relay.db", "m0")), folder / "peer"
    with serving(folder / "relay.db") as relay:
        connection = connect_to_relay(relay.url, token, place)
        config = make_config({"learners": 1, "rounds": 4, "seed": 5, "model": "mlp"})
        trainer = FederatedTrainer(connection, config, member_method(connection.charter), data, "mlp", 0.0)
        RunFolder.create(place, config).append([])
        try:
            yield trainer, place
        finally:
            trainer.close()


@contextlib.contextmanager
def refusing(status: int, body: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """A server that reads every request to its end, and answers it so; its address, and the bodies it has read."""
    read: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            read.append(self.rfile.read(int(self.headers.get("Content-Length", 0))))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_PUT = answer

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        running = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        running.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", read
        finally:
            server.shutdown()


def test_charter_names_the_budget(tmp_path: Path) -> None:
    with federation(tmp_path, PROTOTYPES, privacy=private()) as made:
        text = made.charter.to_toml()
        assert read_charter(text).privacy == private()
        assert '[privacy]\nprivate = "upload"\nepsilon = 4.0' in text
    with federation(tmp_path / "other", PROTOTYPES) as made:
        assert "privacy" not in made.charter.to_toml(), "other charters keep their bytes"


@pytest.mark.parametrize(
    "wrong", [{"epsilon": 0}, {"epsilon": float("inf")}, {"delta": 1.0}, {"clip": -1}, {"uploads": 0}]
)
def test_a_charter_with_an_impossible_budget_is_refused(wrong: dict[str, float], tmp_path: Path) -> None:
    with federation(tmp_path, PROTOTYPES, privacy=private()) as made:
        changed = made.charter.model_dump(by_alias=True)
        changed["privacy"] |= wrong
        with pytest.raises(ValueError, match=f"privacy.{next(iter(wrong))}"):
            type(made.charter).model_validate(changed)


def test_uploads_have_noise_and_stop_when_the_budget_is_spent(tmp_path: Path) -> None:
    with (
        federation(tmp_path, PROTOTYPES, rules=AT_ONCE, privacy=private(uploads=2)) as made,
        serving(made.store) as relay,
    ):
        model, loader = net(), batches(1)
        peer = made.join(relay.url, 0)
        sent = bodies(peer)
        assert peer.privacy_spent == 0
        spent = []
        for _ in range(4):
            peer.refresh()
            train(peer, model, loader)
            peer.share(model, loader)
            spent.append(peer.privacy_spent)
        noise = noise_of_releases(4.0, 1e-5, 2)
        expected = [epsilon_of_releases(noise, count, 1e-5) for count in (1, 2, 2, 2)]
        assert spent == pytest.approx(expected) and spent[-1] == pytest.approx(4.0)
        assert len(sent) == 2 and made.round_of(0) == 2, "nothing is sent after the last upload"
        assert all((body["prototypes.count"] == 1).all() for body in sent), "counts would tell about the data"
        assert all(np.abs(body["prototypes.mean"]).max() <= 1 for body in sent), "bounds of the charter hold"


def test_nobody_can_compute_the_noise() -> None:
    key = LearnerKey(0, 0)
    one, other = (SECRET.normal("x", key, 1, 0, 20_000) for _ in range(2))
    assert not torch.equal(one, other)
    assert torch.equal(SIMULATED.normal("x", key, 1, 0, 50), SIMULATED.normal("x", key, 1, 0, 50))
    for drawn in (one, SIMULATED.normal("x", key, 1, 0, 20_000)):
        assert abs(float(drawn.mean())) < 0.04 and float(drawn.std()) == pytest.approx(1.0, abs=0.03)
    assert 0 <= float(SECRET.uniform("x", key, 1, 0, 1000).min()) < 0.05


def test_two_peers_with_the_same_data_upload_different_noise(tmp_path: Path) -> None:
    with federation(tmp_path, PROTOTYPES, rules=AT_ONCE, privacy=private()) as made, serving(made.store) as relay:
        model, loader = net(), batches(1)
        peers = [made.join(relay.url, number) for number in range(2)]
        sent = [bodies(peer) for peer in peers]
        for peer in peers:
            peer.share(model, loader)
        assert not np.array_equal(sent[0][0]["prototypes.mean"], sent[1][0]["prototypes.mean"])


def test_the_budget_survives_a_restart_and_a_lost_folder(tmp_path: Path) -> None:
    with (
        federation(tmp_path, PROTOTYPES, rules=AT_ONCE, privacy=private(uploads=3)) as made,
        serving(made.store) as relay,
    ):
        model, loader = net(), batches(1)
        peer = made.join(relay.url, 0)
        peer.share(model, loader)
        peer.share(model, loader)
        before = peer.privacy_spent
        peer.close()
        again = made.join(relay.url, 0)
        assert again.privacy_spent == before > 0
        again.close()
        shutil.rmtree(tmp_path / "peer-0")
        lost = made.join(relay.url, 0)
        assert lost.privacy_spent >= before, "what the relay has counts, whatever is known here"
        lost.share(model, loader)
        lost.share(model, loader)
        assert lost.privacy_spent <= 4.0 + 1e-9


def test_an_upload_that_was_never_sent_costs_nothing(tmp_path: Path) -> None:
    with federation(tmp_path, PROTOTYPES, rules=AT_ONCE, privacy=private(uploads=3)) as made:
        model, loader = net(), batches(1)
        with serving(made.store) as relay:
            peer = made.join(relay.url, 0, timeout=0.5)
        for _ in range(4):  # nobody listens
            peer.share(model, loader)
        assert peer.waiting and peer.connection.state.spent["uploads"] == 1


@pytest.mark.parametrize(
    ("status", "code"), [(429, b""), (503, b""), (507, b""), (401, b'{"code": "expired", "message": "old"}')]
)
def test_an_upload_that_was_read_and_refused_for_now_is_sent_again(status: int, code: bytes, tmp_path: Path) -> None:
    """Whoever stands in the way reads every upload: a new one each time would spend the budget on nothing."""
    with (
        federation(tmp_path, PROTOTYPES, rules=AT_ONCE, privacy=private(uploads=3)) as made,
        serving(made.store) as relay,
        refusing(status, code) as busy,
    ):
        model, loader = net(), batches(1)
        peer = made.join(relay.url, 0, timeout=0.3)
        peer.connection.client.url, read = busy
        for _ in range(6):
            peer.connection.backoff.succeeded()  # no time to wait
            peer.share(model, loader)
        assert len(read) > 1 and len(set(read)) == 1, "the same bytes each time"
        assert peer.connection.state.spent["uploads"] == 1 and 0 < peer.privacy_spent < 4.0
        peer.connection.client.url = relay.url
        peer.connection.backoff.succeeded()
        assert peer.share(model, loader) and peer.connection.state.spent["uploads"] == 2
        assert made.round_of(0) == 7, "of the upload that waited, and of the one that followed it"


def test_a_private_upload_that_waits_survives_a_kill_and_is_dropped_when_refused_for_good(tmp_path: Path) -> None:
    final = b'{"code": "wrong-weight", "message": "no"}'
    with (
        federation(tmp_path, PROTOTYPES, rules=AT_ONCE, privacy=private(uploads=3)) as made,
        serving(made.store) as relay,
        refusing(503, b"") as busy,
        refusing(400, final) as refusal,
    ):
        model, loader = net(), batches(1)
        peer = made.join(relay.url, 0, timeout=0.3)
        peer.connection.client.url, read = busy
        assert not peer.share(model, loader)
        peer.connection.disconnect()  # nothing is saved any more, as if it were killed
        again = made.join(relay.url, 0, timeout=0.3)
        assert again.waiting and again.connection.state.spent["uploads"] == 1
        again.connection.client.url, _ = busy
        assert not again.share(model, loader)
        # Sent again, the same bytes; on a busy machine more than once, since a call tries until its timeout.
        assert len(read) >= 2 and len(set(read)) == 1 and again.connection.state.spent["uploads"] == 1
        again.connection.client.url, _ = refusal
        again.connection.backoff.succeeded()
        with pytest.raises(RelayError, match="wrong-weight"):
            again.share(model, loader)
        assert refusal[1] == read[:1] and not again.waiting
        again.connection.client.url = relay.url
        assert again.share(model, loader) and again.connection.state.spent["uploads"] == 2


@pytest.mark.parametrize("method", ["fedproto", "fedavg"])
def test_the_trainer_of_join_sends_a_private_upload_again_as_it_is(method: str, tmp_path: Path) -> None:
    with trainer_in(tmp_path, method, private(uploads=3)) as (trainer, _), refusing(503, b"") as busy:
        client = trainer.connection.client
        trainer.introduce()  # the first upload of fedproto; fedavg downloads what changes are measured from
        before, place = trainer.connection.state.spent["uploads"], client.url
        client.url, read = busy
        for _ in range(3):
            trainer.connection.backoff.succeeded()  # no time to wait
            assert not trainer.run_round().acknowledged
        assert len(read) >= 3 and len(set(read)) == 1, "the same bytes each time"
        assert trainer.connection.state.spent["uploads"] == before + 1
        client.url = place
        trainer.connection.backoff.succeeded()
        assert trainer.run_round().acknowledged
        assert trainer.connection.state.pending is None
        newer = method == "fedproto"  # weights are uploaded again when the relay has aggregated the upload that waited
        assert trainer.connection.state.spent["uploads"] == before + 1 + newer


def test_error_feedback_sees_noised_values_alone(tmp_path: Path) -> None:
    """With the same noise, what is sent and the residual depend on the data through the noised upload alone."""
    method = {"name": "fedavg-1bit", "down": "float32"}
    with federation(tmp_path, method, rules=AT_ONCE, privacy=private()) as made, serving(made.store) as relay:
        model = made.common()
        peer = made.join(relay.url, 0, model)
        peer.refresh()
        train(peer, model, batches(1))
        peer.share(model, batches(1))
        residual = {k: v for parts in peer.connection.state.residuals.values() for k, v in parts.items()}
        deviation = 2 * noise_of_releases(4.0, 1e-5, 3)
        total = np.concatenate([value.ravel() for value in residual.values()])
        assert total.std() > 0.3 * deviation, "the residual is of noise, not of the small change of weights"


@pytest.mark.parametrize("kind", ["training", "fixed-encoder"])
def test_what_a_loop_of_ones_own_cannot_promise_is_refused(kind: str, tmp_path: Path) -> None:
    def frozen() -> SplitModel:
        model = net()
        model.features.requires_grad_(False)
        return model

    with (
        federation(tmp_path, PROTOTYPES, rules=AT_ONCE, models=(frozen,), privacy=private(kind=kind)) as made,
        serving(made.store) as relay,
    ):
        if kind == "training":
            with pytest.raises(ConfigurationError, match=r"noise in every step .* `consilience join`"):
                made.join(relay.url, 0)
            return
        peer = made.join(relay.url, 0)
        with pytest.raises(ConfigurationError, match=r"features\.\S+ of your model is trained"):
            peer.share(net(), batches(1))
        assert peer.share(frozen(), batches(1)) and peer.privacy_spent > 0


def test_a_charter_that_promises_what_its_method_cannot_keep_is_refused_by_the_member(tmp_path: Path) -> None:
    """A member does not believe the charter: weights are no features of a fixed encoder."""
    with federation(tmp_path, {"name": "fedavg"}, rules=AT_ONCE, privacy=private()) as made:
        role = member_method(made.charter).roles["learner"]
        wrong = made.charter.model_copy(update={"privacy": private(kind="fixed-encoder")})
        uploading = [e for e in role.exchanges if e.name in role.uploading]
        plan = charter_plan(wrong, uploading)
        with pytest.raises(ConfigurationError, match="'weights' uploads what was trained"):
            loop_privacy(plan, role, "wrong")
        privacy = LearnerPrivacy("fixed-encoder", 1.0, 1.0)
        with pytest.raises(ConfigurationError, match="'weights' uploads no class means"):
            private_contributions(privacy, uploading, made.charter.channels, {}, {}, torch.zeros(0))


@pytest.mark.parametrize(("tracks", "stays"), [(True, False), (False, True), (False, False), (True, True)])
def test_an_encoder_that_mixes_samples_is_not_fixed(tracks: bool, stays: bool) -> None:
    normalizing = nn.BatchNorm1d(4, affine=False, track_running_stats=tracks).eval()
    if stays:
        normalizing.train = lambda mode=True: normalizing  # type: ignore[method-assign]
    encoder = nn.Sequential(nn.Flatten(), normalizing).eval()
    privacy = LearnerPrivacy("fixed-encoder", 1.0, 1.0)
    if tracks and stays:
        check_fixed_encoder(privacy, encoder)
    else:
        with pytest.raises(ConfigurationError, match="BatchNorm in the encoder of your model"):
            check_fixed_encoder(privacy, encoder)
    assert not encoder.training and not normalizing.training, "modes are as before"


@pytest.mark.parametrize("kind", ["upload", "training"])
def test_the_trainer_of_join_has_noise_that_nobody_can_compute(kind: str, tmp_path: Path) -> None:
    """The same seed, member, model and data twice: with noise from the seed, the bytes would be the same."""
    sent = []
    for folder in (tmp_path / "one", tmp_path / "two"):
        with trainer_in(folder, "fedavg", private(kind=kind)) as (trainer, _):
            seen = bodies(trainer)
            trainer.introduce()
            trainer.run_round()
            sent.append(np.concatenate([tensor.ravel() for tensor in seen[-1].values()]))
    assert sent[0].shape == sent[1].shape and (sent[0] != sent[1]).mean() > 0.5


@pytest.mark.parametrize("own", [None, 1.0, 0.0])
def test_samples_with_a_budget_of_their_own_give_the_simulator_s_results(
    own: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the simulator's noise, `consilience join` draws the samples that the simulator draws."""
    monkeypatch.setattr("consilience.peer.member_role.SECRET", SIMULATED)
    with trainer_in(tmp_path, "fedavg", private(kind="training"), own=own) as (trainer, _):
        results = [trainer.run_round() for _ in range(3)]
    budget: Any = {"private": "training", "epsilon": 4.0, "private_clip": 1.0, "private_uploads": 3}
    result = simulate(data=digits(60, own), method="fedavg", learners=1, rounds=3, seed=5, model="mlp", **budget)
    assert [each.losses["cross_entropy"] for each in results] == result.history["loss.cross_entropy"][:, 0, 0].tolist()
    spent = result.summary()["privacy"].get("sample_epsilons", [])
    assert [each["epsilon"] for each in spent] == ([] if own is None else [own])
    assert [each["spent"] for each in spent] == pytest.approx([] if own is None else [own], abs=0.05)


def test_join_says_what_is_promised(tmp_path: Path) -> None:
    with trainer_in(tmp_path, "fedproto", private(uploads=5)) as (trainer, _):
        said = _describe_privacy(trainer)
    assert "Gaussian noise on the whole upload" in said and "epsilon 4, delta 1e-05, for 5 uploads" in said


def test_a_charter_for_what_cannot_be_private_is_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigurationError, match="calibrated by the class shares"),
        federation(tmp_path, {"name": "consilience"}, privacy=private(kind="training")),
    ):
        pass
    with (
        pytest.raises(ConfigurationError, match="training changes the encoder"),
        federation(tmp_path, PROTOTYPES, privacy=private(kind="fixed-encoder")),
    ):
        pass
    task = TaskShape((4,), 3, learners=3, public=np.zeros((6, 4), dtype=np.float32))
    with pytest.raises(ConfigurationError, match="learner 1 has several roles"):
        create_charter("roles", {"name": "flesd"}, task, ["mlp"], privacy=private(kind="training"))


def test_steps_are_counted_before_the_model_is_saved(tmp_path: Path) -> None:
    """Killed after a checkpoint, in any place, a member knows of all steps that its model has taken."""
    with trainer_in(tmp_path, "fedproto", private(kind="training", uploads=5)) as (trainer, place):
        trainer.introduce()
        per_round = trainer.main.private_steps
        assert trainer.connection.state.spent == {"uploads": 1, "steps": 0, "released": 0, "lost": 0}
        PrivacyBudget(trainer.budget.plan, trainer.connection.state, trainer.main.step_plan, per_round)
        assert trainer.connection.state.spent["steps"] == 0, "an upload before the first round is no lost folder"
        trainer.budget.add_steps(per_round)  # a round in which nothing is uploaded
        trainer.save(place)
        loaded = StateFolder(place).load()
        assert loaded is not None and loaded[1].spent["steps"] == per_round > 0
        lost = PeerState()
        lost.count_lost(2)
        PrivacyBudget(trainer.budget.plan, lost, trainer.main.step_plan, per_round)
        assert lost.spent == {"uploads": 3, "steps": 3 * per_round, "released": 3 * per_round, "lost": 0}


def test_a_member_whose_second_role_uploads_has_a_budget_too(tmp_path: Path) -> None:
    """In FLESD the first role of a member uploads nothing: its uploads are the witness's, and they count."""
    data = load("digits", train=90, test=30)
    method = {"name": "flesd", "distill_epochs": 1, "distill_batch": 16, "queue": 16}
    task = TaskShape(data.shape, data.classes, learners=3, public=data.inputs[:30])
    charter, starts = create_charter("roles", method, task, ["mlp"], seed=5, rules=AT_ONCE, privacy=private(uploads=2))
    write_charter(tmp_path / "roles.toml", charter, starts)
    store = tmp_path / "relay.db"
    admin.create(store, tmp_path / "roles.toml")
    tokens = [str(admin.invite(store, f"m{number}")) for number in range(2)]
    with serving(store) as relay:
        connection = connect_to_relay(relay.url, tokens[1], tmp_path / "peer")
        config = make_config({"learners": 1, "rounds": 4, "seed": 5, "model": "mlp"})
        built = member_method(connection.charter)
        trainer = FederatedTrainer(connection, config, built, data, "mlp", 0.0, data.inputs[:30])
        assert trainer.main.name == "learner" and not trainer.main.learner.uploading
        spent = []
        for _ in range(3):
            for step in range(2):  # learner, witness
                trainer.upload(step)
            spent.append(trainer.finish_round().epsilon)
        trainer.close()
    assert spent[1] == spent[2] == pytest.approx(4.0) and spent[0] is not None and 0 < spent[0] < 4.0
    assert connection.state.spent["uploads"] == 2
