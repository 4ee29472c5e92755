"""The messages of split learning and their sizes: one each way for every batch, and the device part if handed on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from consilience.learner.learner import Learner
from consilience.method import Turns
from consilience.task import DEVICE, SERVER, Task
from consilience.wire.byte_count import ByteCount
from consilience.wire.codec import encoded_size
from consilience.wire.encodings import INT32
from consilience.wire.schema import Direction, Field, Message


@dataclass(frozen=True)
class SplitMessages:
    """What travels between a learner and the server, for one architecture."""

    task: Task
    turns: Turns

    @property
    def handed_on(self) -> list[str]:
        """Names of the parameters and floating buffers that the next learner continues with."""
        return self._named(DEVICE) if self.turns.device == "handed-on" else []

    @property
    def shared(self) -> list[str]:
        """Names of the parameters and floating buffers that are the same for all learners after a turn."""
        return [*self._named(SERVER), *self.handed_on]

    def _named(self, part: str) -> list[str]:
        return self.task.covered(part, (*self.task.parameters, *self.task.buffers))

    def batch(self, direction: Direction, samples: int) -> Message:
        """The message of a batch: up the cut layer's output and the labels, down the gradient of that output."""
        assert self.task.cut is not None
        cut = Field((samples, *self.task.cut))
        return {"output": cut, "labels": Field((samples,), INT32)} if direction == "up" else {"gradient": cut}

    def weights(self) -> Message:
        """The message with the device part, for the next learner; empty where it stays private."""
        shapes = {**self.task.parameters, **self.task.buffers}
        return {name: Field(shapes[name]) for name in self.handed_on}

    def size(self, direction: Direction, batches: Iterable[int], weights: bool) -> tuple[int, int]:
        """Bytes and numbers that a learner sends or receives in a turn with batches of these sizes.

        weights: whether the device part travels too.
        """
        messages = [(self.batch(direction, samples), n) for samples, n in Counter(batches).items()]
        messages += [(self.weights(), 1)] if weights and self.handed_on else []
        values = sum(n * field.size for message, n in messages for field in message.values())
        return sum(n * encoded_size(message) for message, n in messages), values


def message_bytes(learner: Learner, batch_size: int) -> dict[str, int]:
    """Bytes of the largest message each way: of all its channels, or of a batch where learners take turns."""
    traffic, turns = ByteCount(learner.channels), learner.role.turns
    if turns is None:
        return {"up": traffic.up(learner.uploading), "down": traffic.down(learner.receiving)}
    messages = SplitMessages(learner.task, turns)
    up, down = messages.batch("up", batch_size), messages.batch("down", batch_size)
    return {"up": encoded_size(up), "down": encoded_size(down)}
