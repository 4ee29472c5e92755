"""Objectives: what a learner minimises on its own data."""

from consilience.objectives.base import Objective
from consilience.objectives.cross_entropy import CrossEntropy

__all__ = ["CrossEntropy", "Objective"]
