"""Leakage: what the models and messages of a run reveal about the training data."""
