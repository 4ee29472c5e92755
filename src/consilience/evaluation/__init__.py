"""Evaluation: probes of features, and attacks that reconstruct images or infer membership."""

from consilience.evaluation.probes import LinearProbeSettings, knn_probe, linear_probe

__all__ = ["LinearProbeSettings", "knn_probe", "linear_probe"]
