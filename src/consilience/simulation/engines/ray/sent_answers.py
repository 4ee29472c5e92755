"""The answers that learners hold, on their way to the shards: each batch is in the cluster's memory once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from consilience.channels import Answer
from consilience.simulation.engines.answers import AnswerStore
from consilience.simulation.engines.jobs import Job
from consilience.simulation.engines.ray.remote_shard import RemoteShard


class SentAnswers:
    """Sends shards the answers that their jobs need, and lets them forget those that nobody holds any more."""

    def __init__(self, ray: Any, answers: AnswerStore) -> None:
        self._ray, self._answers = ray, answers
        self._stored: dict[int, tuple[Answer, tuple[Any, ...]]] = {}
        """By the number of their first answer: batches, and the call that gives each to a shard."""

    def send(self, shard: RemoteShard, job: Job) -> None:
        """Send a shard the answers that a job needs and that it does not have."""
        numbers = [*getattr(job, "held", {}).values(), *getattr(job, "fresh", {}).values()]
        firsts = np.array(sorted(self._answers.batches))
        used = np.unique(np.concatenate(numbers)) if numbers else np.zeros(0, dtype=np.int64)
        for first in np.unique(firsts[np.searchsorted(firsts, used[used >= 0], side="right") - 1]).tolist():
            call = self._call(first)
            if shard.sent_answers.get(first) is not call:
                shard.sent_answers[first] = call
                shard.call("store_answers", *call)

    def _call(self, first: int) -> tuple[Any, ...]:
        """The call that gives a batch to a shard. A resumed run may have another batch under the same number."""
        batch = self._answers.batches[first]
        known, call = self._stored.get(first, (None, ()))
        if known is not batch:
            tensors = {key: tensor.numpy(force=True) for key, tensor in batch.tensors.items()}
            call = first, self._ray.put(tensors), batch.count.numpy(force=True), batch.version
            self._stored[first] = batch, call
        return call

    def drop(self, shards: Sequence[RemoteShard]) -> None:
        """Let shards forget answers that nobody holds any more."""
        for first in self._stored.keys() - self._answers.batches.keys():
            del self._stored[first]
        for shard in shards:
            if unused := [first for first in shard.sent_answers if first not in self._answers.batches]:
                shard.forget_answers(unused)
