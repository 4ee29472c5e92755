"""The learners of a saved run: their models, rebuilt from its last checkpoint, and their samples.

They are the learners of the first seed, and of the first variant if the run has several.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from consilience.config.config import Config
from consilience.data import Dataset
from consilience.data.cache import cache_folder
from consilience.data.download import CHECKSUMS, chosen_folder
from consilience.data.local_datasets import LocalDatasets
from consilience.data.local_test_sets import LocalTestSets, local_test_sets
from consilience.errors import (
    CheckpointError,
    ConsilienceError,
    DataError,
    TrainingError,
)
from consilience.learner.learner import Learner
from consilience.learner.passes import compute_features, layer_outputs
from consilience.learner.spec import LearnerSpec
from consilience.method import Method
from consilience.methods import build_method
from consilience.methods.task_kinds import role_for_kind
from consilience.models import from_file
from consilience.simulation.records.checkpoint import Checkpoint, load_checkpoint
from consilience.simulation.records.fingerprint import run_fingerprints
from consilience.simulation.records.run_folder import RunFolder
from consilience.simulation.setup.assign_data import (
    concat_training_sets,
    data_overrides,
    hold_out,
    may_share,
    split_for_seed,
)
from consilience.simulation.setup.cohorts import DTYPES
from consilience.simulation.setup.inputs import load_data, models_of
from consilience.simulation.setup.participants import Participant, build_participants, learner_build
from consilience.task import Public

_LARGEST = 2e9  # bytes; a larger checkpoint is not read


@dataclass(frozen=True, eq=False)  # comparing by value would compare whole arrays
class SavedRun:
    """A run's settings and its last checkpoint; everything else is computed when it is asked for."""

    config: Config
    checkpoint: Checkpoint

    @property
    def round(self) -> int:
        """The round of the checkpoint."""
        return self.checkpoint.round

    @property
    def which(self) -> str:
        """The seed and the variant, as text that follows a label; empty if there is one of each."""
        first = [f"seed {self.config.federation.seed}"] * (self.config.federation.seeds > 1)
        first += [" ".join(f"{k}={v}" for k, v in self.config.variants[0].items())] if self.config.variants else []
        return "".join(f", {word}" for word in first)

    @cached_property
    def method(self) -> Method:
        """The method of the first variant."""
        first = self._first.method
        return build_method(first.name, first.settings)

    @cached_property
    def participants(self) -> Sequence[Participant]:
        """Learners in each of their roles, in the first variant: a learner's first role before its others."""
        kind = self.data.kind
        return [replace(each, role=role_for_kind(self.method, each.role, kind)) for each in self._any_kind]

    @property
    def learners(self) -> int:
        """How many learners there are."""
        return len({participant.learner for participant in self._any_kind})

    @cached_property
    def _any_kind(self) -> Sequence[Participant]:
        """Learners with roles as they are before the kind of task is known."""
        return build_participants(self._first, self.method, models_of(None, self._first))

    @property
    def _first(self) -> Config:
        return self.config.variant(0) if self.config.variants else self.config

    @cached_property
    def data(self) -> Dataset:
        """The data of the run, if it is on this machine and unchanged; nothing is downloaded."""
        config = self.config
        if (
            config.data.source in CHECKSUMS
            and chosen_folder(Path(config.data.folder) if config.data.folder else None) is None
        ):
            cache = cache_folder() / config.data.source
            if not all((cache / file).is_file() for file in CHECKSUMS[config.data.source]):
                raise DataError(
                    f"the data set {config.data.source!r} is not in {cache}, and is not downloaded to examine a run; "
                    f"download it with: consilience data {config.data.source}"
                )
        data, saved = load_data(config), self.checkpoint.numbers.get("fingerprints", {})
        found = run_fingerprints(data, build_method(config.method.name, config.method.settings), config)
        for what in ("data", "model"):  # a method may be described differently by now, and have the same weights
            if saved.get(what) != found.get(what):
                raise CheckpointError(f"the {what} on this machine is not the one the run was started with")
        return data

    @cached_property
    def local_datasets(self) -> LocalDatasets:
        """Which training samples each learner has, with its shift applied."""
        return split_for_seed(self.config, self.method, self.data, self.config.federation.seed)

    @cached_property
    def public(self) -> tuple[np.ndarray, np.ndarray]:
        """The public set, as its host has it: inputs (samples, *shape) and classes (samples,)."""
        assert self.method.host is not None
        return self.samples(self.method.host)

    def samples(self, who: int) -> tuple[np.ndarray, np.ndarray]:
        """A learner's own training samples as it has them: inputs (samples, *shape) and classes (samples,)."""
        data, chosen = self._own_samples(who)
        return data.inputs[chosen], data.targets[chosen]

    def may_share(self, who: int) -> np.ndarray:
        """Which of a learner's own training samples may enter its uploads, (samples,)."""
        role = next(participant.role for participant in self.participants if participant.learner == who)
        data, chosen = self._own_samples(who)
        return may_share(data, role.never_share, chosen)

    def _own_samples(self, who: int) -> tuple[Dataset, np.ndarray]:
        """The training set as learners have it, and the positions of a learner's own samples in it."""
        data, parts = concat_training_sets(self.data, [self.local_datasets], self.learners)
        share, seeds = self.config.evaluation.validation, [self.config.federation.seed]
        (trained,), _ = hold_out(parts, seeds, share, self.method.host)
        return data, np.sort(trained[who])

    def tests(self, who: int) -> tuple[np.ndarray, np.ndarray]:
        """Test samples as a learner would have them: inputs (samples, *shape) and classes (samples,)."""
        own = self._local_test_sets
        if own is None:
            return self.data.test_inputs, self.data.test_targets
        return own.inputs[min(who, len(own.inputs) - 1)], own.targets[who]

    @cached_property
    def _local_test_sets(self) -> LocalTestSets | None:
        overrides = {} if self.method.pooled else data_overrides(self.config)
        return local_test_sets(self.data, self.learners, shift=self.config.federation.shift, overrides=overrides)

    def learner(self, who: int, device: str = "cpu") -> Learner:
        """A learner in its first role, with the model state of the checkpoint, on the given device."""
        place = next(i for i, participant in enumerate(self.participants) if participant.learner == who)
        participant, dtype = self.participants[place], DTYPES[self.config.execution.precision]
        keys = [each.stacking_key for each in self.participants]
        cohort, number = self._cohort(participant.stacking_key), keys[:place].count(participant.stacking_key)
        assert isinstance(participant.model, str)
        build = learner_build(participant.model, self.data, self.config.model.width)
        public = Public(len(self.public[1])) if participant.role.data == "public" else None
        with _explain_model_errors(who):
            spec = LearnerSpec(
                build,
                participant.role,
                participant.optimizer,
                self.data.shape,
                participant.model,
                dtype,
                device,
                public=public,
                target=self.data.target,
                symbols=len(self.data.alphabet),
            )
            learner = Learner(spec)
            learner.bind(self.checkpoint.model_state(cohort, number, learner, self.config.execution.device))
        return learner

    def features(self, who: int, inputs: np.ndarray) -> np.ndarray:
        """The features that a learner's model computes for the inputs, (samples, width)."""
        learner = self.learner(who)
        with _explain_model_errors(who), torch.random.fork_rng(devices=[]):
            computed = compute_features(learner, _tensor(inputs, learner))
        features: np.ndarray = computed.numpy().reshape(len(computed), -1)
        return _finite(features, f"features of learner {who}")

    def outputs(
        self, who: int, inputs: np.ndarray, layers: Sequence[str], device: str = "cpu"
    ) -> dict[str, np.ndarray]:
        """The outputs of layers of a learner's model, by their module names, for the inputs; (samples, ...) each."""
        learner = self.learner(who, device)
        with _explain_model_errors(who), torch.random.fork_rng(devices=[]):
            seen = layer_outputs(learner, _tensor(inputs, learner), layers)
        found = {layer: outputs.float().numpy(force=True) for layer, outputs in seen.items()}
        return {layer: _finite(each, f"outputs of layer {layer!r} of learner {who}") for layer, each in found.items()}

    def _cohort(self, key: str) -> int:
        """The cohort of the first seed's learners with this stacking key.

        Each key has one cohort; learners on a public set have one for each size of the seeds' public sets.
        """
        before = {participant.stacking_key: participant.role.data for participant in self.participants}
        earlier = list(before)[: list(before).index(key)]
        sizes = self._public_sizes if "public" in before.values() else 1
        return sum(sizes if before[each] == "public" else 1 for each in earlier)

    @cached_property
    def _public_sizes(self) -> int:
        """How many different sizes the seeds' public sets have."""
        seeds, host = (
            range(self.config.federation.seed, self.config.federation.seed + self.config.federation.seeds),
            self.method.host,
        )
        assert host is not None
        return len({len(split_for_seed(self.config, self.method, self.data, seed).parts[host]) for seed in seeds})


@contextmanager
def _explain_model_errors(who: int) -> Iterator[None]:
    """Turn errors of a user's model code, or of a checkpoint of another model, into a CheckpointError."""
    try:
        yield
    except ConsilienceError:
        raise
    except Exception as error:
        raise CheckpointError(f"the model of learner {who} cannot be rebuilt: {from_file.failure(error)}") from error


def _tensor(inputs: np.ndarray, learner: Learner) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(inputs)).to(learner.device, learner.dtype)


def _finite(values: np.ndarray, what: str) -> np.ndarray:
    if not np.isfinite(values).all():
        raise TrainingError(f"{what} are NaN or infinite")
    return values


def read_saved_run(folder: Path) -> SavedRun:
    """The run saved in a folder; refused if it has no checkpoint, or one that is too large."""
    run = RunFolder.open(folder)
    config = run.config
    size = sum(file.stat().st_size for file in run.path.glob("checkpoint-*.safetensors"))
    if size > _LARGEST:
        raise CheckpointError(
            f"the checkpoint has {size / 1e9:.1f} GB; the most that is read is {_LARGEST / 1e9:.1f} GB"
        )
    checkpoint = load_checkpoint(run)
    if checkpoint is None:
        raise CheckpointError("the run's folder has no checkpoint")
    return SavedRun(config, checkpoint)
