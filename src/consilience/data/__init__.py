"""Data sets, and how they are dealt out to learners. NumPy only: nothing here imports torch."""

from consilience.data.dataset import Dataset
from consilience.data.description import describe_dataset
from consilience.data.partition import class_counts, partition
from consilience.data.registry import DATASETS, is_path, load

__all__ = ["DATASETS", "Dataset", "class_counts", "describe_dataset", "is_path", "load", "partition"]
