"""Evaluation: how good a model is, and how good its features are by themselves."""

from consilience.evaluation.accuracy import accuracy
from consilience.evaluation.probes import knn_probe, linear_probe

__all__ = ["accuracy", "knn_probe", "linear_probe"]
