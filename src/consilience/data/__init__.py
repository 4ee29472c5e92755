"""Data sets, and how they are dealt out to learners. NumPy only: nothing here imports torch."""

from consilience.data.about import about
from consilience.data.dataset import Dataset
from consilience.data.partition import class_table, partition
from consilience.data.registry import DATASETS, is_path, load

__all__ = ["DATASETS", "Dataset", "about", "class_table", "is_path", "load", "partition"]
