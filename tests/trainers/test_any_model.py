"""Where only weights travel, trainers of others train any model: of GPT-2, and of one without a linear layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import GPT2Config, GPT2ForSequenceClassification, GPT2LMHeadModel, Trainer

from consilience.errors import ConfigurationError
from consilience.lightning import ConsilienceCallback
from tests.peer_tools import CLASSES, SHAPE, SHARING, batches
from tests.trainer_tools import AT_ONCE, flat, served
from tests.trainers.lightning_tools import QUIET, Mine, fit, of
from tests.trainers.transformers_tools import WORDS, InOrder, Texts, arguments, bert
from tests.trainers.transformers_tools import Mine as MineTogether

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # peft calls what transformers will drop
    *QUIET,
]


def config() -> GPT2Config:
    """A tiny one, without dropout."""
    sizes: dict[str, Any] = {"vocab_size": WORDS, "n_positions": 8, "n_embd": 8, "n_layer": 1, "n_head": 2}
    without: dict[str, Any] = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    tokens: dict[str, Any] = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 0)
    tokens["num_labels"] = CLASSES
    return GPT2Config(**sizes, **without, **tokens)


def gpt2() -> GPT2ForSequenceClassification:
    """Its classifier is applied to every token, and one token's logits are used."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return GPT2ForSequenceClassification(config())


def language_model() -> GPT2LMHeadModel:
    """Its last linear layer has the weights of the embedding, so that it cannot be divided."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return GPT2LMHeadModel(config())


def adapted() -> nn.Module:
    """A BERT with an adapter in every linear layer, also in its classifier."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        settings = LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False)
        return get_peft_model(bert(), settings)


class Continued(Texts):
    """The same texts; predicted is each next word."""

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {**super().__getitem__(index), "labels": self.words[index]}


def trained(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters() if p.requires_grad])


@pytest.mark.parametrize(
    ("build", "method", "data"),
    [
        (gpt2, {"name": "fedavg"}, Texts),
        (gpt2, {"name": "fedavg-1bit"}, Texts),
        (gpt2, {"name": "fedprox", "mu": 0.5}, Texts),
        (language_model, {"name": "fedavg"}, Continued),
        (adapted, {"name": "fedavg", "part": "*lora_*"}, Texts),
    ],
    ids=["fedavg", "one bit", "fedprox", "language model", "adapters"],
)
def test_a_hugging_face_trainer_shares_the_weights_of_any_model(
    tmp_path: Path, build: Any, method: dict[str, Any], data: Any
) -> None:
    with served(tmp_path, method, build, rules=AT_ONCE) as place:
        models = [build(), build()]
        peers = [place.join(i, model) for i, model in enumerate(models)]
        assert torch.equal(flat(models[0]), flat(models[1]))
        for i, (model, peer) in enumerate(zip(models, peers, strict=True)):
            trainer = MineTogether(model, arguments(tmp_path), train_dataset=data(seed=i), peer=peer, wait=10)
            trainer.train()
            assert peer.round == 3
            penalties = [log["consilience/penalty"] for log in trainer.state.log_history if "consilience/round" in log]
            assert len(penalties) == 3 and (min(penalties) > 0) == (method["name"] == "fedprox")
        assert not torch.equal(trained(models[0]), trained(models[1]))
        while any([peer.refresh(wait=1) for peer in peers]):
            pass
        assert torch.equal(trained(models[0]), trained(models[1]))
        assert (trained(models[0]) - trained(build())).abs().max() > 0.001


def test_a_classifier_of_every_token_is_refused_where_features_are_shared(tmp_path: Path) -> None:
    with served(tmp_path, SHARING, gpt2) as place:
        model = gpt2()
        trainer = MineTogether(model, arguments(tmp_path), train_dataset=Texts(), peer=place.join(0, model))
        said = r"layer 'score' of GPT2\w+ read inputs of the shape \(8, 6, 8\) for 8 targets, .*pool or select"
        with pytest.raises(ConfigurationError, match=said):
            trainer.train()
        with pytest.raises(ConfigurationError, match=r"'score' read features .*\(8, 6, 8\) .*each position of a"):
            trainer.training_step(model, Texts().batches()[0])


def test_without_penalties_a_gpt2_trains_as_without_a_federation(tmp_path: Path) -> None:
    found = []
    for together in (False, True):
        with served(tmp_path / str(together), {"name": "fedavg"}, gpt2) as place:  # the mean waits for the second
            model = gpt2()
            peer = place.join(0, model)  # which gives it the common weights
            more: dict[str, Any] = {"peer": peer} if together else {}
            kind: type[Trainer] = MineTogether if together else InOrder
            kind(model, arguments(tmp_path), train_dataset=Texts(), **more).train()
        found.append(flat(model))
    assert torch.equal(*found)


class Convolution(nn.Module):
    """Has no linear layer."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.layer = nn.Conv1d(1, CLASSES, SHAPE[0])

    def forward(self, inputs: Tensor) -> Tensor:
        """(n, 6) -> (n, 3)."""
        logits: Tensor = self.layer(inputs[:, None])[..., 0]
        return logits


def test_lightning_shares_the_weights_of_a_model_without_a_linear_layer(tmp_path: Path) -> None:
    with served(tmp_path, {"name": "fedprox", "mu": 0.5}, Convolution, rules=AT_ONCE) as place:
        modules = [Mine(), Mine()]
        for i, module in enumerate(modules):
            module.net = Convolution()  # type: ignore[assignment]
            trainer = fit(module, of(batches(i)), ConsilienceCallback(place.join(i, module.net), wait=10))
            assert float(trainer.callback_metrics["consilience/penalty"]) > 0
        peers: list[Any] = place.made.peers
        while any([peer.refresh(wait=1) for peer in peers]):
            pass
        assert torch.equal(flat(modules[0]), flat(modules[1]))
        assert not torch.equal(flat(modules[0]), flat(Convolution()))


def test_lightning_has_no_loss_of_the_method_for_it(tmp_path: Path) -> None:
    with served(tmp_path, {"name": "fedavg"}, Convolution) as place:
        module = Mine()
        module.net = Convolution()  # type: ignore[assignment]
        callback = ConsilienceCallback(place.join(0, module.net), loss="method")
        with pytest.raises(
            ConfigurationError, match=r"peer.loss\(targets\) needs the linear layer .*Convolution has no"
        ):
            fit(module, of(batches(0)), callback)


def test_a_whole_lightning_module_may_be_the_model(tmp_path: Path) -> None:
    class Whole(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Convolution()

        def forward(self, inputs: Tensor) -> Any:
            return self.inner(inputs)

        def training_step(self, batch: Any, index: int) -> Any:
            return cross_entropy(self(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    with served(tmp_path, {"name": "fedavg"}, Whole, members=1, rules=AT_ONCE) as place:
        module = Whole()
        peer = place.join(0, module)
        fit(module, of(batches(0)), ConsilienceCallback(peer))
        assert peer.round == place.made.round_of(0) == 3
