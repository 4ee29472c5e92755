"""The three lines of a loop of one's own: the same bits as with features, logits and classifier given by hand."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from consilience.errors import ConfigurationError, UnknownName
from consilience.models import split
from consilience.peer.peer import Peer, join
from tests.peer_tools import CLASSES, SHAPE, SHARING, WIDTH, batches, federation
from tests.relay_tools import serving

pytestmark = pytest.mark.usefixtures("one_thread")


class Net(nn.Module):
    """A user's network: dropout in training, a softmax after the classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(SHAPE[0], 8), nn.ReLU(), nn.Linear(8, WIDTH), nn.Tanh())
        self.drop, self.fc = nn.Dropout(0.2), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.fc(self.drop(self.body(x)))
        return logits.log_softmax(1)


def made_net(seed: int) -> Net:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Net()


def by_hand(peer: Peer, model: Net, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    features = model.drop(model.body(inputs))
    logits = model.fc(features)
    return peer.loss(features, logits, targets), peer.penalty(features, logits, targets, model.fc)


def by_record(peer: Peer, model: Net, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    model(inputs)
    return peer.loss(targets), peer.penalty(targets)


METHODS: list[dict[str, Any]] = [
    {**SHARING, "up": 2, "down": 3},
    {**SHARING, "discriminator": "exponential"},
    {"name": "federated-distillation"},
    {"name": "consilience", "up": "int4"},
    {"name": "fedavg", "objective": "calibrated", "own_head": True},
]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: "-".join(map(str, method.values())))
def test_bits_and_bytes_are_those_of_the_explicit_form(tmp_path: Path, method: dict[str, Any]) -> None:
    found = []
    for short in (False, True):
        with (
            federation(tmp_path / str(short), method, 1, [lambda: split(Net())]) as made,
            serving(made.store) as running,
        ):
            model = made_net(1)
            torch.manual_seed(7)  # of dropout
            peer, loader = made.join(running.url, 0, model), batches(1)
            assert peer.model is model and peer.classifier is model.fc
            peer.count_classes(loader)
            assert peer.introduce(loader) if short else peer.introduce(split(model), loader)
            optimizer, seen = torch.optim.SGD([*model.parameters(), *peer.parameters()], lr=0.1), list[Tensor]()
            for _ in range(3):
                peer.refresh()
                for inputs, targets in loader:
                    parts = (by_record if short else by_hand)(peer, model, inputs, targets)
                    optimizer.zero_grad()
                    (parts[0] + parts[1]).backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
                    seen += [part.detach() for part in parts]
                assert peer.share(loader) if short else peer.share(split(model), loader)
            values = [p.detach() for p in (*model.parameters(), *peer.parameters())]
            answers = {k: a.tensors for k, a in peer.connection.state.answers.items()}
            sent = peer.bytes_sent, peer.connection.client.bytes_received
            found.append((seen + values, answers, sent))
    (tensors, answers, sent), (others, other_answers, other_sent) = found
    assert sent == other_sent and sent[0] > 0
    assert all(torch.equal(a, b) for a, b in zip(tensors, others, strict=True))
    assert any(float(t) > 0 for t in tensors[1:18:2]) or method["name"] == "fedavg"  # penalties
    for name, arrays in answers.items():
        assert all((arrays[k] == other_answers[name][k]).all() for k in arrays)


def test_a_copy_of_the_model_is_not_recorded(tmp_path: Path) -> None:
    with federation(tmp_path, SHARING, 1) as made, serving(made.store) as running:
        model = made_net(1)
        before = {k: v.clone() for k, v in model.state_dict().items()}
        peer = made.join(running.url, 0, model)
        assert model.state_dict().keys() == before.keys()
        (inputs, targets), *_ = batches(1)
        model(inputs)
        copied = copy.deepcopy(model)
        copied(inputs[:3])
        assert peer.penalty(targets).item() == 0  # of eight rows: the copy's three were not recorded
        peer.close()
        assert not model.fc._forward_hooks


class Text(nn.Module):
    """Takes named inputs, applies dropout of its own, and returns a mapping; its last linear layer is another one."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.fc = nn.Embedding(9, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.unused = nn.Linear(2, CLASSES)

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> dict[str, Tensor]:
        weights = torch.ones(ids.shape) if mask is None else mask
        pooled = (self.words(ids) * weights[..., None]).sum(1) / weights.sum(1, keepdim=True)
        return {"logits": self.fc(pooled.tanh())}


IDS = torch.randint(0, 9, (12, 5), generator=torch.Generator().manual_seed(0))
MASK, LABELS = (torch.arange(5) < 3).float().repeat(12, 1), torch.arange(12) % CLASSES
LOADERS: dict[str, Any] = {
    "mappings": [{"ids": IDS[:6], "mask": MASK[:6], "labels": LABELS[:6]}, {"ids": IDS[6:], "labels": LABELS[6:]}],
    "mapping and targets": [({"ids": IDS[:6], "mask": MASK[:6]}, LABELS[:6]), ({"ids": IDS[6:]}, LABELS[6:])],
    "several inputs": [(IDS[:6], MASK[:6], LABELS[:6]), (IDS[6:], None, LABELS[6:])],
}


def test_models_with_named_or_several_inputs(tmp_path: Path) -> None:
    """The upload is that of features computed by hand: class means of what the classifier reads."""
    method = {"name": "fedproto"}
    with federation(tmp_path, method, 1, [lambda: split(Text(), at="fc")]) as made, serving(made.store) as running:
        torch.manual_seed(0)
        model = Text()
        with torch.no_grad():
            halves = model.words(IDS[:6])[:, :3].mean(1), model.words(IDS[6:]).mean(1)
            features = torch.cat(halves).tanh()
        expected = torch.stack([features[label == LABELS].mean(0) for label in range(CLASSES)])
        peer = made.join(running.url, 0, model, layer="fc")
        assert peer.classifier is model.fc
        model.train()
        for loader in LOADERS.values():
            assert peer.share(loader) and model.training
            answer = torch.tensor(peer.connection.state.answers["prototypes"].tensors["mean"])
            torch.testing.assert_close(answer, expected, rtol=1e-5, atol=1e-6)
        model(IDS, MASK)
        assert peer.penalty(LABELS).item() > 0
        model(ids=IDS)
        assert peer.loss(targets=LABELS).item() > 0
        said = r"Text cannot be called with what the loader yields, model\(\.\.\., words=\.\.\.\).*unpack="
        with pytest.raises(ConfigurationError, match=said.replace(r"\.\.\., ", "")):
            peer.share([{"words": IDS, "labels": LABELS}])
        assert model.training and not peer.waiting and len(model.fc._forward_hooks) == 1


class OneMapping(Text):
    """Takes one mapping."""

    def forward(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:  # type: ignore[override]
        return super().forward(**batch)


def test_a_model_that_takes_one_mapping_needs_it_in_a_tuple(tmp_path: Path) -> None:
    with federation(tmp_path, SHARING, 1, [lambda: split(Text(), at="fc")]) as made, serving(made.store) as running:
        model, loader = OneMapping(), [({"ids": IDS, "mask": MASK}, LABELS)]
        peer = made.join(running.url, 0, model, layer="fc")
        with pytest.raises(ConfigurationError, match=r"needs it in a tuple, unpack=(.*)$") as refused:
            peer.share(loader)
        peer.close()
        said = re.search(r"unpack=(lambda.*)$", str(refused.value))
        assert said
        with made.join(running.url, 0, model, layer="fc", unpack=eval(said[1])) as peer:
            assert peer.share(loader)
            model(loader[0][0])
            assert peer.penalty(LABELS).item() > 0


def test_targets_of_a_batch_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with federation(tmp_path, SHARING, 1) as made, serving(made.store) as running:
        (inputs, targets), *_ = batches(1)
        model = made_net(1)
        peer = made.join(running.url, 0, model)
        refusals: list[tuple[Any, str]] = [
            (targets + 1, r"from 1 to 3; this federation takes integers from 0 to 2, one per sample"),
            (torch.where(targets == 0, -100, targets), r"from -100 to 2; this federation takes integers from 0 to 2"),
            (targets.float(), r"torch\.float32 of the shape \(8,\); .*such as targets.flatten\(\).long\(\) of whole"),
            (nn.functional.one_hot(targets, CLASSES), r"of the shape \(8, 3\); .*targets.argmax\(1\) of one-hot rows"),
            (None, r"was given targets of the type NoneType, and takes a tensor"),
            (["a"] * 8, r"was given targets of the type list, and takes a tensor"),
        ]
        for wrong, said in refusals:
            for call in ("loss", "penalty"):
                model(inputs)
                with pytest.raises(ConfigurationError, match=rf"{call} .*{said}"):
                    getattr(peer, call)(wrong)
        found, forms = [], list[Any]([targets, targets.tolist(), targets.numpy()])
        for given in forms:
            torch.manual_seed(7)  # of dropout
            model(inputs)
            found.append(peer.loss(given).item())
        assert found[0] == found[1] == found[2] > 0


def test_autocast_and_low_precision_give_the_penalty_of_the_explicit_form(tmp_path: Path) -> None:
    with federation(tmp_path, SHARING, 1) as made, serving(made.store) as running:
        (inputs, targets), *_ = batches(1)
        model = made_net(1).eval()
        peer = made.join(running.url, 0, model)
        assert peer.share(batches(1)) and not peer.refresh()  # share has downloaded what there is
        exact = sum_of_parts(peer, model, inputs, targets, autocast=False)
        half = sum_of_parts(peer, model, inputs, targets, autocast=True)
        assert exact > 0 and half != exact and half == pytest.approx(exact, rel=0.05)
        model.to(torch.bfloat16)
        assert sum_of_parts(peer, model, inputs.bfloat16(), targets, autocast=False) == pytest.approx(exact, rel=0.05)
        assert peer.share(batches(1))


def sum_of_parts(peer: Peer, model: Net, inputs: Tensor, targets: Tensor, autocast: bool) -> float:
    """Loss and penalty, which are the same in both forms."""
    found = []
    for form in (by_hand, by_record):
        peer._step = 0  # the same draws
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss, penalty = form(peer, model, inputs, targets)
        assert loss.dtype == penalty.dtype == torch.float32
        (loss + penalty).backward()  # type: ignore[no-untyped-call]
        found.append((loss + penalty).item())
    assert found[0] == found[1]
    return found[0]


def test_validation_between_forward_pass_and_penalty_changes_nothing(tmp_path: Path) -> None:
    with federation(tmp_path, SHARING, 1) as made, serving(made.store) as running:
        (inputs, targets), *_ = batches(1)
        model = made_net(1)
        peer = made.join(running.url, 0, model)
        assert peer.share(batches(1)) and not peer.refresh()  # share has downloaded what there is
        model(inputs)
        with torch.no_grad():
            model(inputs[:2])
        assert peer.loss(targets).requires_grad and peer.penalty(targets).item() > 0
        with pytest.raises(ConfigurationError, match=r"penalty\(targets\) was called twice after one forward pass"):
            peer.penalty(targets)
        model(inputs)
        assert peer.share(batches(1))
        with pytest.raises(ConfigurationError, match=r"'fc' was not called.*layer="):
            peer.penalty(targets)


def test_the_own_answer_needs_inputs_alone(tmp_path: Path) -> None:
    method = {"name": "fedavg", "objective": "calibrated", "own_head": True}
    with federation(tmp_path, method, 1, [lambda: split(Net())]) as made, serving(made.store) as running:
        (inputs, targets), *_ = batches(1)
        model = made_net(1).eval()
        peer = made.join(running.url, 0, model)
        peer.count_classes([{"x": inputs, "y": targets}])
        head = peer.modules["cross_entropy"]["own_head"]
        assert isinstance(head, nn.Linear)
        nn.init.ones_(head.weight)
        with torch.no_grad():
            features = model.body(inputs)
            expected = peer.own_logits(features, model.fc(features))
        assert torch.equal(peer.own_logits(inputs), expected)
        assert torch.equal(peer.own_logits({"x": inputs}), expected)


def no_linear() -> nn.Module:
    return nn.Sequential(nn.Conv1d(1, CLASSES, SHAPE[0]), nn.Flatten())


def lazy() -> nn.Module:
    return nn.Sequential(nn.LazyLinear(WIDTH), nn.Tanh(), nn.LazyLinear(CLASSES))


REFUSED: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
    (no_linear, {}, ConfigurationError, r"no torch\.nn\.Linear .*; let it end in one, such as nn\.Sequential\(model"),
    (
        lazy,
        {},
        ConfigurationError,
        r"'0\.weight' of your model has no size.*call the model on a batch before",
    ),
    (lambda: made_net(1), {"layer": "cf"}, UnknownName, r"cf.*Did you mean 'fc'"),
    (
        lambda: made_net(1),
        {"layer": "drop"},
        ConfigurationError,
        r"'drop' of Net is a Dropout.*Linear: .*fc",
    ),
    (lambda: made_net(1), {"layer": "body.0"}, ConfigurationError, r"has 8 classes.*name it.*layer=\.\.\."),
    (lambda: split(Net()), {"layer": "fc"}, ConfigurationError, r"split already.*leave `layer` out"),
    (None, {"layer": "fc"}, ConfigurationError, r"layer='fc' is a layer of your model: give .*model=model"),
]


def test_models_that_cannot_work_are_refused_with_the_way_out(tmp_path: Path) -> None:
    with federation(tmp_path, SHARING, 2) as made, serving(made.store) as running:
        for build, more, error, said in REFUSED:
            model = build and build()
            with pytest.raises(error, match=said):
                made.join(running.url, 0, model, **more)
            assert not model or not any(m._forward_hooks for m in model.modules())
        (inputs, targets), *_ = loader = batches(1)
        model = Text()  # its last linear layer is not the one that computes the logits
        with pytest.raises(ConfigurationError, match=r"divided at 'unused' \(layer=\.\.\. names .*cannot share"):
            made.join(running.url, 0, model)
        model.unused = nn.Linear(WIDTH, CLASSES)
        peer = made.join(running.url, 0, model)
        model(IDS)
        with pytest.raises(ConfigurationError, match=r"'unused' was not called.*name it, .*layer=\.\.\."):
            peer.penalty(LABELS)
        with pytest.raises(ConfigurationError, match=r"'unused' of Text was never called.*name .*layer=\.\.\."):
            peer.share([(IDS, LABELS)])
        unknown = made.join(running.url, 1)
        for call in (
            lambda: unknown.penalty(targets),
            lambda: unknown.loss(targets),
            lambda: unknown.share(loader),
            lambda: unknown.introduce(loader),
            lambda: unknown.own_logits(inputs),
        ):
            with pytest.raises(ConfigurationError, match=r"the peer knows none: give it, .*model=model"):
                call()
        with pytest.raises(ConfigurationError, match=r"peer\.penalty\(features, logits, targets, classifier\); got 2"):
            unknown.penalty(inputs, targets)  # type: ignore[call-overload]
        with pytest.raises(ConfigurationError, match=r"share takes .*, peer\.share\(loader\).*got 0 arguments"):
            unknown.share()  # type: ignore[call-overload]


def test_the_token_may_be_in_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with federation(tmp_path, SHARING, 2) as made, serving(made.store) as running:
        monkeypatch.setenv("CONSILIENCE_TOKEN", f" {made.tokens[1]}\n")
        model = made_net(1)
        with join(running.url, model=model, folder=tmp_path / "peer") as peer:
            assert peer.name == "m1" and peer.model is model
        with join(running.url, made.tokens[0], folder=tmp_path / "other") as peer:
            assert peer.name == "m0"
        with pytest.raises(ConfigurationError, match=r"second argument, is of the type Net.*join\(url, model=model\)"):
            join(running.url, model)  # type: ignore[arg-type]
