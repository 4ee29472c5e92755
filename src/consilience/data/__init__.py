"""Data sets, and how their samples are split among learners. NumPy only: nothing here imports torch."""

from consilience.data.dataset import Dataset
from consilience.data.description import describe_dataset
from consilience.data.partition import class_counts, partition_samples
from consilience.data.registry import DATASETS, is_dataset_path, load
from consilience.data.scaling import Scaling
from consilience.data.sequences import pad_sequences

__all__ = [
    "DATASETS",
    "Dataset",
    "Scaling",
    "class_counts",
    "describe_dataset",
    "is_dataset_path",
    "load",
    "pad_sequences",
    "partition_samples",
]
