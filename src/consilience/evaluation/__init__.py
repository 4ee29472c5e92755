"""Evaluation: how good a model is."""

from consilience.evaluation.accuracy import accuracy

__all__ = ["accuracy"]
