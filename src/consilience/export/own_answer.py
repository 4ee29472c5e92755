"""A learner's own answer as a torch module: the common model, and what only this learner has."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from torch import Tensor, nn

from consilience.functional.own_answer import mean_answer, own_logits, possible_answers
from consilience.models import SplitModel

_OWN_MODEL = "own_model."


class OwnAnswer(nn.Module):
    """Logits for data like a learner's own: its model's, plus the log of its class shares, plus its private head's.

    log_shares: (classes,), for a calibrated model. head: the private head, where one was trained. own_model: the model
    that never left the learner, where one was trained. answer_weights: where held-out samples chose them, the weights
    of the model's answer without and with the head's correction, and of the own model's, in the mean of probabilities.
    """

    log_shares: Tensor | None
    answer_weights: Tensor | None

    def __init__(
        self,
        model: SplitModel,
        log_shares: Tensor | None,
        head: nn.Linear | None,
        own_model: SplitModel | None = None,
        answer_weights: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.model, self.head, self.own_model = model, head, own_model
        self.register_buffer("log_shares", log_shares)
        self.register_buffer("answer_weights", answer_weights)

    def forward(self, *inputs: Any, **named: Any) -> Tensor:
        """Logits, (rows, classes), of what the model takes."""
        features = self.model.features(*inputs, **named)
        logits = self.model.classifier(features)
        if self.answer_weights is None:
            return own_logits(logits, features, self.log_shares, self.head)
        own = None if self.own_model is None else self.own_model.classifier(self.own_model.features(*inputs, **named))
        return mean_answer(possible_answers(logits, features, self.log_shares, self.head, own), self.answer_weights)

    def private_tensors(self) -> dict[str, Tensor]:
        """What it has beside the model, by name: `log_shares`, `head.*`, `answer_weights`, and `own_model.*`.

        Tensors of the own model have the names of the network's own `state_dict`.
        """
        private = {name: t for name, t in self.state_dict().items() if not name.startswith(("model.", _OWN_MODEL))}
        if self.own_model is not None:
            private |= {f"{_OWN_MODEL}{name}": t for name, t in self.own_model.original.state_dict().items()}
        return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in private.items()}


def own_answer(model: SplitModel, private: dict[str, Tensor]) -> OwnAnswer:
    """The own answer of a model with these private tensors, on the CPU and in evaluation mode."""
    head = None
    if "head.weight" in private:
        weight, bias = private["head.weight"], private["head.bias"]
        head = nn.Linear(weight.shape[1], weight.shape[0], device="meta")  # no weights are drawn for it
        head.load_state_dict({"weight": weight, "bias": bias}, assign=True)
    own = None
    tensors = {n.removeprefix(_OWN_MODEL): t for n, t in private.items() if n.startswith(_OWN_MODEL)}
    if tensors:
        own = deepcopy(model)
        own.original.load_state_dict(tensors)
    return OwnAnswer(model, private.get("log_shares"), head, own, private.get("answer_weights")).eval()
