"""Fingerprints of a run's data, method and models: a checkpoint is resumed only with the same ones."""

from __future__ import annotations

import hashlib
import re

from consilience.config.config import Config
from consilience.data import Dataset
from consilience.data.description import dataset_sha256
from consilience.method import Method
from consilience.methods.from_file import method_digest
from consilience.models import from_file
from consilience.simulation.setup.setup import Setup
from consilience.user_code import file_digest, is_file_name, split_file_name


def run_fingerprints(data: Dataset, method: Method, config: Config) -> dict[str, str]:
    """Short digests of the data, the method and the files of models; other models are compared by their shapes."""
    # A memory address differs in every process.
    roles = re.sub(r" at 0x[0-9a-f]+", "", f"{dict(method.roles)} {dict(method.members)}{_role_assignment(method)}")
    found = {"data": dataset_sha256(data)[:16], "method": hashlib.sha256(roles.encode()).hexdigest()[:16]}
    files = [
        from_file.model_digest(name) for name in dict.fromkeys(config.learner_models) if from_file.is_model_file(name)
    ]
    if is_file_name(method.source):
        found["method file"] = method_digest(method.source)[:16]
    augment = config.training.augment
    if isinstance(augment, str) and is_file_name(augment):  # a function is never in a folder's settings
        found["augment file"] = file_digest(split_file_name(augment)[0])[:16]
    return found | ({"model": hashlib.sha256("".join(files).encode()).hexdigest()[:16]} if files else {})


def frozen_fingerprint(setup: Setup) -> dict[str, str]:
    """A short digest of the frozen parts of the models; nothing where no model has one."""
    digests = "".join(plan.spec.frozen_sha256 for plan in setup.cohorts.plans)
    return {"frozen part": hashlib.sha256(digests.encode()).hexdigest()[:16]} if digests else {}


def _role_assignment(method: Method) -> str:
    """Which learners have which role, if the method has several roles."""
    return f" {method.usual} {method.host} {method.once}" if len(method.roles) > 1 else ""
