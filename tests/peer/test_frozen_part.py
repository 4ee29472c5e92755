"""Members that share trained parameters have the frozen part that the charter names; others may have any."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from consilience.config.config import make_config
from consilience.data import load
from consilience.errors import ConfigurationError
from consilience.models import SplitModel, cut, split
from consilience.models.frozen import frozen_parameters, frozen_parameters_digest
from consilience.peer.connection import connect_to_relay
from consilience.peer.create_charter import TaskShape, create_charter, write_charter
from consilience.peer.member_method import member_method
from consilience.peer.trainer import FederatedTrainer
from consilience.relay import admin
from consilience.wire.charter import read_charter, start_values_file
from tests.peer_tools import CLASSES, SHAPE, WIDTH, Founded, batches, federation, net, train
from tests.relay_tools import serving

FEDAVG, PROTOTYPES = {"name": "fedavg"}, {"name": "fedproto"}
pytestmark = pytest.mark.usefixtures("one_thread")


def adapted(backbone: float = 1.0, dtype: torch.dtype = torch.float32) -> SplitModel:
    """A model whose first layer is frozen, with other values for each number."""
    model = net()
    first = next(model.features.children())
    assert isinstance(first, nn.Linear)
    values = torch.linspace(-backbone, backbone, first.weight.numel()).bfloat16()
    with torch.no_grad():
        first.weight.copy_(values.view_as(first.weight))
        first.bias.fill_(backbone)
    first.requires_grad_(False).to(dtype)
    return model


def other() -> SplitModel:
    return adapted(2.0)


def frozen_classifier() -> SplitModel:
    """Another frozen part: a classifier that is not trained."""
    model = adapted()
    nn.init.constant_(model.classifier.weight, 0.5)
    model.classifier.requires_grad_(False)
    return model


def digest_by_hand(model: SplitModel) -> str:
    """As docs/protocol.md says."""
    found = hashlib.sha256()
    for name, sizes in (("bias", "[8]"), ("weight", "[8, 6]")):
        values: np.ndarray = model.get_parameter(f"features.0.{name}").detach().float().numpy()
        found.update(f"features.0.{name} float32 {sizes}\n".encode() + values.astype("<f4").tobytes())
    return found.hexdigest()


def digests(method: Mapping[str, Any], *models: Callable[[], SplitModel]) -> dict[str, str]:
    """By channel, what the charter says."""
    charter, _ = create_charter("small", method, TaskShape(SHAPE, CLASSES), models)
    assert read_charter(charter.to_toml()) == charter
    return {name: settings.frozen_sha256 for name, settings in charter.channel_settings.items()}


# --- the charter


def test_a_charter_names_the_frozen_part_where_parameters_are_shared() -> None:
    found = digests({"name": "consilience"}, adapted)
    assert found == {"prototypes": "", "observations": "", "weights": digest_by_hand(adapted())}
    charter, _ = create_charter("small", FEDAVG, TaskShape(SHAPE, CLASSES), [adapted])
    assert f'frozen_sha256 = "{found["weights"]}"' in charter.to_toml()


def test_charters_of_models_without_a_frozen_part_keep_their_bytes() -> None:
    for method, model in ((FEDAVG, net), ({"name": "consilience"}, net), (PROTOTYPES, adapted)):
        charter, _ = create_charter("small", method, TaskShape(SHAPE, CLASSES), [model])
        assert "frozen" not in charter.to_toml()


def test_a_charter_with_another_text_than_a_digest_is_refused() -> None:
    charter, _ = create_charter("small", FEDAVG, TaskShape(SHAPE, CLASSES), [adapted])
    text = charter.to_toml().replace(digest_by_hand(adapted()), "bert-base")
    with pytest.raises(ConfigurationError, match="frozen_sha256"):
        read_charter(text)


def test_models_with_different_frozen_parts_cannot_share_parameters() -> None:
    assert digests(FEDAVG, adapted, adapted)["weights"] == digest_by_hand(adapted())
    with pytest.raises(
        ConfigurationError, match=r"adapted and other cannot share 'weights': their frozen parts .* differ"
    ):
        digests(FEDAVG, adapted, other)
    assert digests(PROTOTYPES, adapted, other, net) == {"prototypes": ""}
    assert digests({"name": "federated-distillation"}, adapted, other, net) == {"logits": ""}


def test_of_one_part_of_a_model_only_its_own_frozen_parameters_count() -> None:
    """A classifier may read features of any model of its width."""
    assert digests({"name": "fedavg", "part": "classifier"}, adapted, other, net) == {"weights": ""}
    features = digests({"name": "fedavg", "part": "features"}, adapted, frozen_classifier)
    assert features == {"weights": digest_by_hand(adapted())}
    inner = digests({"name": "fedavg", "part": "features.2"}, adapted)  # reads what the frozen layer computes
    assert inner == {"weights": digest_by_hand(adapted())}


def test_of_a_cut_model_only_the_frozen_parameters_of_the_shared_part_count() -> None:
    def in_two_parts(build: Callable[[], SplitModel]) -> Callable[[], SplitModel]:
        return lambda: cut(build(), at="features.1")

    server = {"name": "fedavg", "part": "server"}
    assert digests(server, in_two_parts(adapted), in_two_parts(other)) == {"weights": ""}
    with pytest.raises(ConfigurationError, match="cannot share 'weights': their frozen parts"):
        digests({"name": "fedavg", "part": "features"}, in_two_parts(adapted), in_two_parts(other))


# --- what counts as the frozen part


def test_the_digest_is_the_same_in_half_precision_and_without_buffers() -> None:
    one, half = adapted(), adapted(dtype=torch.bfloat16)
    half.features.register_buffer("positions", torch.arange(7))
    assert frozen_parameters_digest(frozen_parameters(one)) == frozen_parameters_digest(frozen_parameters(half))
    assert frozen_parameters(net()) == {} and frozen_parameters_digest({}) == ""


def test_originals_that_peft_keeps_beside_trained_copies_do_not_count() -> None:
    """A new classifier is drawn anew in every process, and so is its original, which peft freezes and does not use."""
    peft = pytest.importorskip("peft")

    def model(seed: int) -> SplitModel:
        torch.manual_seed(0)
        backbone = nn.Linear(4, 8)
        torch.manual_seed(seed)
        network = nn.Sequential(backbone, nn.Linear(8, 8), nn.Linear(8, 3))
        config = peft.LoraConfig(r=2, target_modules=["0"], modules_to_save=["1", "2"])
        return split(peft.get_peft_model(network, config))

    one, two = frozen_parameters(model(1)), frozen_parameters(model(2))
    assert len(one) == 2 and all(name.endswith(("0.base_layer.weight", "0.base_layer.bias")) for name in one)
    assert frozen_parameters_digest(one) == frozen_parameters_digest(two)


# --- members


def test_a_member_with_the_frozen_part_of_the_charter_takes_part(tmp_path: Path) -> None:
    with federation(tmp_path, FEDAVG, 1, models=(adapted,)) as made, serving(made.store) as relay:
        model = adapted()
        peer = made.join(relay.url, 0, model)
        train(peer, model, batches(1))
        assert peer.share(model, batches(1)) and digest_by_hand(model) == digest_by_hand(adapted())


@pytest.mark.parametrize(("build", "found"), [(other, digest_by_hand(other())[:16]), (frozen_classifier, "")])
def test_a_member_with_another_frozen_part_is_refused(
    build: Callable[[], SplitModel], found: str, tmp_path: Path
) -> None:
    method = FEDAVG if build is other else {"name": "fedavg", "part": "features.2"}
    with federation(tmp_path, method, 1, models=(adapted,)) as made, serving(made.store) as relay:
        expected = digest_by_hand(adapted())[:16]
        with pytest.raises(ConfigurationError) as refused:
            made.join(relay.url, 0, build())
        said = str(refused.value)
        assert said.startswith("your model cannot share 'weights' in federation 'small': its frozen part")
        assert f"SHA-256 {found}" in said and f"instead of {expected}" in said
        assert "same revision and precision" in said and "a charter without `frozen_sha256`" in said
        model = adapted()
        peer = made.join(relay.url, 0, model)  # the refusal has left nothing behind
        with pytest.raises(ConfigurationError, match="your model cannot share 'weights'"):
            peer.share(build(), batches(1))
        assert peer.share(model, batches(1))


def test_a_charter_without_the_digest_lets_members_have_any_frozen_part(tmp_path: Path) -> None:
    """One of an earlier version, or one whose author has deleted the key."""
    with federation(tmp_path, FEDAVG, 1, models=(adapted,)) as made:
        line = f'frozen_sha256 = "{digest_by_hand(adapted())}"\n'
        old = Founded(tmp_path / "old", read_charter(made.charter.to_toml().replace(line, "")), [])
        old.folder.mkdir()
        (old.folder / "small.toml").write_text(old.charter.to_toml(), encoding="utf-8")
        starts = start_values_file(tmp_path / "small.toml")
        start_values_file(old.folder / "small.toml").write_bytes(starts.read_bytes())
        admin.create(old.store, old.folder / "small.toml")
        old.invite("m0")
        with serving(old.store) as relay:
            model = other()
            with old.join(relay.url, 0, model) as peer:
                assert peer.share(model, batches(1))


def test_prototypes_travel_between_different_frozen_parts(tmp_path: Path) -> None:
    with federation(tmp_path, PROTOTYPES, 2, models=(adapted,)) as made, serving(made.store) as relay:
        for number, model in enumerate((other(), adapted())):
            assert made.join(relay.url, number, model).share(model, batches(number))


def test_consilience_join_refuses_another_frozen_part(tmp_path: Path) -> None:
    data = load("digits", train=60, test=30)

    def model(values: float) -> Callable[[], nn.Module]:
        def network() -> nn.Module:
            frozen = nn.Linear(64, WIDTH)
            nn.init.constant_(frozen.weight, values)
            return nn.Sequential(nn.Flatten(), frozen.requires_grad_(False), nn.Tanh(), nn.Linear(WIDTH, 10))

        return network

    charter, starts = create_charter("digits", FEDAVG, TaskShape(data.shape, data.classes), [model(1.0)], seed=5)
    write_charter(tmp_path / "digits.toml", charter, starts)
    store = tmp_path / "relay.db"
    admin.create(store, tmp_path / "digits.toml")
    config = make_config({"learners": 1, "rounds": 1, "seed": 5})
    with serving(store) as relay:
        connection = connect_to_relay(relay.url, str(admin.invite(store, "m0")), tmp_path / "peer")
        method = member_method(connection.charter)
        with pytest.raises(ConfigurationError, match=r"your model 'network' cannot share 'weights' .* its frozen part"):
            FederatedTrainer(connection, config, method, data, model(2.0), 0.0)
        trainer = FederatedTrainer(connection, config, method, data, model(1.0), 0.0)
        try:
            assert trainer.run_round().acknowledged
        finally:
            trainer.close()
