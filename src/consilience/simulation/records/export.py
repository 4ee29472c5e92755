"""What a run keeps of its learners: their models, made again from its last checkpoint, and the samples they work on.

They are those of a run's first seed, and of its first variant where it has several.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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
from consilience.models import from_file, model_factory
from consilience.simulation.records.checkpoint import Checkpoint, load_checkpoint
from consilience.simulation.records.fingerprint import run_fingerprints
from consilience.simulation.records.run_folder import RunFolder
from consilience.simulation.setup.assign_data import concat_training_sets, data_overrides, may_share, split_for_seed
from consilience.simulation.setup.cohorts import DTYPES
from consilience.simulation.setup.inputs import load_data, models_of
from consilience.simulation.setup.participants import Participant, build_participants
from consilience.task import Public

_LARGEST = 2e9  # bytes of a checkpoint that is read for a look at it


@dataclass(frozen=True, eq=False)  # comparing by value would compare whole arrays
class SavedRun:
    """A run's settings and its last checkpoint; the rest is made again when it is asked for."""

    config: Config
    checkpoint: Checkpoint

    @property
    def round(self) -> int:
        """After which it was kept."""
        return self.checkpoint.round

    @property
    def which(self) -> str:
        """Which seed and variant it is, in words that follow others; nothing where there is one of each."""
        first = [f"seed {self.config.federation.seed}"] * (self.config.federation.seeds > 1)
        first += [" ".join(f"{k}={v}" for k, v in self.config.variants[0].items())] if self.config.variants else []
        return "".join(f", {word}" for word in first)

    @cached_property
    def method(self) -> Method:
        """In the first variant."""
        first = self._first.method
        return build_method(first.name, first.settings)

    @cached_property
    def participants(self) -> Sequence[Participant]:
        """Learners in each of their roles, in the first variant: a learner's first role before its others."""
        return build_participants(self._first, self.method, models_of(None, self._first))

    @property
    def learners(self) -> int:
        """How many there are."""
        return len({participant.learner for participant in self.participants})

    @property
    def _first(self) -> Config:
        return self.config.variant(0) if self.config.variants else self.config

    @cached_property
    def data(self) -> Dataset:
        """The data of a run, if it is here and the very same; nothing is downloaded for a look at it."""
        config = self.config
        if (
            config.data.source in CHECKSUMS
            and chosen_folder(Path(config.data.folder) if config.data.folder else None) is None
        ):
            cache = cache_folder() / config.data.source
            if not all((cache / file).is_file() for file in CHECKSUMS[config.data.source]):
                raise DataError(
                    f"the data set {config.data.source!r} is not in {cache}, and is not downloaded for a look at a run"
                )
        data, made_of = load_data(config), self.checkpoint.numbers.get("made_of", {})
        found = run_fingerprints(data, build_method(config.method.name, config.method.settings), config)
        for what in ("data", "model"):  # a method may be told in other words by now, and its weights are the same
            if made_of.get(what) != found.get(what):
                raise CheckpointError(f"the {what} that is here now is not the one of the run")
        return data

    @cached_property
    def local_datasets(self) -> LocalDatasets:
        """Who has which training samples, and as what."""
        return split_for_seed(self.config, self.method, self.data, self.config.federation.seed)

    @cached_property
    def public(self) -> tuple[np.ndarray, np.ndarray]:
        """The public set as it was dealt to its host: inputs (samples, *shape) and classes (samples,)."""
        assert self.method.host is not None
        return self.samples(self.method.host)

    def samples(self, who: int) -> tuple[np.ndarray, np.ndarray]:
        """A learner's own training samples as it has them: inputs (samples, *shape) and classes (samples,)."""
        data, chosen = self._own_samples(who)
        return data.inputs[chosen], data.targets[chosen]

    def may_share(self, who: int) -> np.ndarray:
        """Which of a learner's own training samples may enter what it puts up, (samples,)."""
        role = next(participant.role for participant in self.participants if participant.learner == who)
        data, chosen = self._own_samples(who)
        return may_share(data, role.never_share, chosen)

    def _own_samples(self, who: int) -> tuple[Dataset, np.ndarray]:
        """The training set as learners have it, and the places of one's own samples in it."""
        data, (parts,) = concat_training_sets(self.data, [self.local_datasets], self.learners)
        return data, np.sort(parts[who])

    def tests(self, who: int) -> tuple[np.ndarray, np.ndarray]:
        """Test samples as a learner would have them: inputs (samples, *shape) and classes (samples,)."""
        own = self._local_test_sets
        if own is None:
            return self.data.test_inputs, self.data.test_targets
        return own.inputs[min(who, len(own.inputs) - 1)], own.targets[who]

    @cached_property
    def _local_test_sets(self) -> LocalTestSets | None:
        terms = {} if self.method.pooled else data_overrides(self.config)
        return local_test_sets(self.data, self.learners, shift=self.config.federation.shift, overrides=terms)

    def learner(self, who: int, device: str = "cpu") -> Learner:
        """A learner in the role its model lies with, wearing what it had become, on the device named."""
        place = next(i for i, participant in enumerate(self.participants) if participant.learner == who)
        participant, dtype = self.participants[place], DTYPES[self.config.execution.precision]
        kinds = [each.stacking_key for each in self.participants]
        cohort, number = self._cohort(participant.stacking_key), kinds[:place].count(participant.stacking_key)
        assert isinstance(participant.model, str)
        build = model_factory(participant.model, self.data.shape, self.data.classes, self.config.model.width)
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
                symbols=len(self.data.alphabet),
            )
            learner = Learner(spec)
            learner.bind(self.checkpoint.model_state(cohort, number, learner, self.config.execution.device))
        return learner

    def features(self, who: int, inputs: np.ndarray) -> np.ndarray:
        """What a learner's own model makes of the inputs, (samples, width)."""
        learner = self.learner(who)
        with _explain_model_errors(who), torch.random.fork_rng(devices=[]):
            seen = compute_features(learner, _tensor(inputs, learner))
        features: np.ndarray = seen.numpy().reshape(len(seen), -1)
        return _finite(features, f"features of learner {who}")

    def outputs(
        self, who: int, inputs: np.ndarray, layers: Sequence[str], device: str = "cpu"
    ) -> dict[str, np.ndarray]:
        """What layers of a learner's own model, by their names as modules, make of the inputs, (samples, ...) each."""
        learner = self.learner(who, device)
        with _explain_model_errors(who), torch.random.fork_rng(devices=[]):
            seen = layer_outputs(learner, _tensor(inputs, learner), layers)
        found = {layer: outputs.float().numpy(force=True) for layer, outputs in seen.items()}
        return {layer: _finite(each, f"outputs of layer {layer!r} of learner {who}") for layer, each in found.items()}

    def _cohort(self, kind: str) -> int:
        """Where the first seed's learners of a kind lie: each kind is a cohort, or one for each size of public sets."""
        before = {participant.stacking_key: participant.role.data for participant in self.participants}
        earlier = list(before)[: list(before).index(kind)]
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
    """Whatever somebody's own code may raise, and a checkpoint of another model, in words."""
    try:
        yield
    except ConsilienceError:
        raise
    except Exception as error:
        raise CheckpointError(f"the model of learner {who} cannot be made again: {from_file.failure(error)}") from error


def _tensor(inputs: np.ndarray, learner: Learner) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(inputs)).to(learner.device, learner.dtype)


def _finite(values: np.ndarray, what: str) -> np.ndarray:
    if not np.isfinite(values).all():
        raise TrainingError(f"{what} are no numbers")
    return values


def read_saved_run(folder: Path) -> SavedRun:
    """What a run's folder keeps; where that is nothing, or too much, the error says so."""
    run = RunFolder.open(folder)
    config = run.config
    size = sum(file.stat().st_size for file in run.path.glob("checkpoint-*.safetensors"))
    if size > _LARGEST:
        raise CheckpointError(f"the checkpoint is of {size / 1e9:.1f} GB, which is too much to be read")
    kept = load_checkpoint(run)
    if kept is None:
        raise CheckpointError("no checkpoint is kept in the run's folder")
    return SavedRun(config, kept)
