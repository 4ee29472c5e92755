"""A learner's own answer as a torch module: the common model, and what only this learner has."""

from __future__ import annotations

from torch import Tensor, nn

from consilience.functional.own_answer import own_logits
from consilience.models import SplitModel


class OwnAnswer(nn.Module):
    """Logits for data like a learner's own: its model's, plus the log of its class shares, plus its private head's.

    log_shares: (classes,), for a calibrated model. head: the private head, where one was trained.
    """

    log_shares: Tensor | None

    def __init__(self, model: SplitModel, log_shares: Tensor | None, head: nn.Linear | None) -> None:
        super().__init__()
        self.model, self.head = model, head
        self.register_buffer("log_shares", log_shares)

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits, (rows, classes)."""
        features = self.model.features(inputs)
        return own_logits(self.model.classifier(features), features, self.log_shares, self.head)

    def private_tensors(self) -> dict[str, Tensor]:
        """What it has beside the model, by name: `log_shares`, `head.weight` and `head.bias`, where there are any."""
        private = {name: t for name, t in self.state_dict().items() if not name.startswith("model.")}
        return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in private.items()}


def own_answer(model: SplitModel, private: dict[str, Tensor]) -> OwnAnswer:
    """The own answer of a model with these private tensors, on the CPU and in evaluation mode."""
    head = None
    if "head.weight" in private:
        weight, bias = private["head.weight"], private["head.bias"]
        head = nn.Linear(weight.shape[1], weight.shape[0], device="meta")  # no weights are drawn for it
        head.load_state_dict({"weight": weight, "bias": bias}, assign=True)
    return OwnAnswer(model, private.get("log_shares"), head).eval()
