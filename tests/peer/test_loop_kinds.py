"""A training loop of one's own in federations of several labels and of numbers: targets are checked, losses plain."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from consilience.errors import ConfigurationError
from consilience.models import SplitModel
from consilience.peer.called_model import CalledModel
from consilience.peer.create_charter import TaskShape, create_charter, write_charter
from consilience.peer.loop_targets import FORMS, check_targets
from consilience.peer.one_pass import one_pass
from consilience.peer.peer import Peer, join
from consilience.relay import admin
from consilience.task import SINGLE_LABEL, Target, Task
from consilience.wire.charter import checked_charter, read_charter
from tests.peer_tools import SHAPE, WIDTH, net, seeded
from tests.relay_tools import serving

NUMBER = Target("regression", edges=(-0.5, 0.5), mean=100.0, std=20.0)
LABELS = Target("multi-label")
ROWS = 24
INPUTS = torch.randn(ROWS, *SHAPE, generator=torch.Generator().manual_seed(0))
NUMBERS = INPUTS[:, 0] - INPUTS[:, 1]
SETS = (INPUTS[:, :3] > 0).long()


def create(folder: Path, target: Target, outputs: int) -> list[str]:
    """Tokens of two members of a federation with the default method."""
    charter, starts = create_charter(
        "f", {"name": "consilience"}, TaskShape(SHAPE, outputs, target=target), [lambda: net(classes=outputs)]
    )
    write_charter(folder / "f.toml", charter, starts)
    admin.create(folder / "relay.db", folder / "f.toml")
    return [str(admin.invite(folder / "relay.db", name)) for name in ("north", "south")]


def train(peer: Peer, model: SplitModel, targets: Tensor) -> list[Tensor]:
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), []
    for _ in range(5):
        model(INPUTS)
        losses.append(peer.loss(targets))
        optimizer.zero_grad()
        (losses[-1] + peer.penalty(targets)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return losses


@pytest.mark.parametrize(
    ("target", "outputs", "targets", "by_hand"),
    [
        (NUMBER, 1, NUMBERS, lambda logits: F.mse_loss(logits[:, 0], NUMBERS)),
        (LABELS, 3, SETS, lambda logits: 3 * F.binary_cross_entropy_with_logits(logits, SETS.float())),  # of 3 labels
    ],
)
def test_two_loops_of_their_own_train_together(
    tmp_path: Path, target: Target, outputs: int, targets: Tensor, by_hand: Any
) -> None:
    tokens = create(tmp_path, target, outputs)
    with serving(tmp_path / "relay.db") as running:
        models = [seeded(lambda: net(classes=outputs), seed) for seed in (1, 2)]
        peers = [
            join(running.url, token, model, folder=tmp_path / f"p{i}")
            for i, (token, model) in enumerate(zip(tokens, models, strict=True))
        ]
        assert peers[0].charter.predicted == target
        for _ in range(2):
            losses = [train(peer, model, targets) for peer, model in zip(peers, models, strict=True)]
            assert all([peer.share([(INPUTS, targets)]) for peer in peers])
            for peer in peers:
                peer.refresh(wait=10)
        assert losses[0][-1] < losses[0][0]
        model = models[0]
        features = model.features(INPUTS)
        with pytest.raises(ConfigurationError, match=re.escape(FORMS[target.kind].format(classes=outputs))):
            peers[0].loss(features, model.classifier(features), targets[1:])
        model(INPUTS)
        with torch.no_grad():
            assert peers[0].loss(targets).item() == pytest.approx(by_hand(model(INPUTS)).item(), rel=1e-6)
        for name, other in zip(model.state_dict(), models[1].state_dict().values(), strict=True):
            torch.testing.assert_close(model.state_dict()[name], other)  # both have the common weights
        for peer in peers:
            peer.close()


BAD = [
    (Task(1, WIDTH, target=NUMBER), NUMBERS * 20 + 900, r"takes standardized numbers; give \(targets - 100\) / 20"),
    (Task(1, WIDTH, target=NUMBER), SETS, "is for regression and takes one finite number per sample"),
    (Task(1, WIDTH, target=NUMBER), NUMBERS * torch.nan, "one finite number per sample"),
    (Task(3, WIDTH, target=LABELS), torch.arange(ROWS) % 3, "multi-label and takes 0 or 1 for each of 3 labels"),
    (Task(3, WIDTH, target=LABELS), SETS * 2, "takes 0 or 1 for each of 3 labels"),
    (Task(3, WIDTH, target=SINGLE_LABEL), NUMBERS, "takes integers from 0 to 2, one per sample"),
]


@pytest.mark.parametrize(("task", "targets", "says"), BAD)
def test_targets_of_another_kind_are_refused(task: Task, targets: Tensor, says: str) -> None:
    with pytest.raises(ConfigurationError, match=f"the loader's targets are.*{says}"):
        check_targets(task, targets, "the loader's targets")


def test_numbers_in_the_users_unit_are_refused_where_a_member_shares_them() -> None:
    """Three and a half minutes are no three and a half standard deviations."""
    minutes = Task(1, WIDTH, target=Target("regression", edges=(0.0,), mean=3.5, std=1.0))
    with pytest.raises(ConfigurationError, match=r"the loader's targets are .* on average, .*\(targets - 3.5\) / 1"):
        one_pass(called(), [(INPUTS, NUMBERS / 2 + 3.5)], minutes, represent=True)
    one_pass(called(), [(INPUTS, NUMBERS / 2)], minutes, represent=True)
    one_pass(called(), [(INPUTS, NUMBERS / 2 + 8)], minutes, represent=True)  # a member with long ones only
    one_pass(called(), [(INPUTS[:1], torch.tensor([3.5]))], minutes, represent=True)  # the longest one of all


def called() -> CalledModel:
    model = net(classes=1)
    return CalledModel(model, model.classifier)


def test_charters_carry_the_target_and_others_stay_as_they_were() -> None:
    model = [lambda: net(classes=1)]
    charter, _ = create_charter("f", {"name": "fedproto"}, TaskShape(SHAPE, 1, target=NUMBER), model)
    text = charter.to_toml()
    assert 'kind = "regression"' in text and read_charter(text).predicted == NUMBER
    assert read_charter(text).channels["prototypes"].rows == (3,)
    plain, _ = create_charter("f", {"name": "fedproto"}, TaskShape(SHAPE, 3), [net])
    assert "target" not in plain.to_toml() and plain.kind == "single-label"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"classes": 2}, "a regression predicts one number; write classes = 1"),
        ({"target": {"kind": "multi-label"}}, "classes is 1; it must be 2 or more"),
        (
            {"target": {"kind": "multi-label", "std": 2.0}},
            "are for regression, and kind is 'multi-label'; leave them out",
        ),
        ({"target": {"kind": "regression", "edges": [0.5, 0.1]}}, "edges ascend"),
    ],
)
def test_damaged_charters_are_refused(change: dict[str, Any], says: str) -> None:
    model = [lambda: net(classes=1)]
    charter, _ = create_charter("f", {"name": "fedproto"}, TaskShape(SHAPE, 1, target=NUMBER), model)
    content = charter.model_dump(by_alias=True, exclude_none=True) | change
    with pytest.raises(ConfigurationError, match=says):
        checked_charter(content, "the charter")
