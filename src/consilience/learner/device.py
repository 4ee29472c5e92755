"""What a device can do: Apple's GPU (mps) has no float64.

There, sums and random numbers of the learner's own work are float32, and all else (states between jobs, channels,
answers) stays in the machine's memory, in float64 where it is elsewhere.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from consilience.wire.encodings import WITHOUT_FLOAT64


def has_float64(device: torch.device) -> bool:
    """Whether a device can compute in float64."""
    return device.type not in WITHOUT_FLOAT64


def widest_float(device: torch.device) -> torch.dtype:
    """The most precise type that a device can compute in."""
    return torch.float64 if has_float64(device) else torch.float32


def be_deterministic() -> None:
    """Use deterministic operations from now on, where torch has them."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when the GPU is first used
    torch.use_deterministic_algorithms(True, warn_only=True)


def state_device(device: torch.device) -> torch.device:
    """Where learners' states, their uploads and channels are kept."""
    return device if has_float64(device) else torch.device("cpu")


def drawn_on(device: torch.device, drawn: Tensor) -> Tensor:
    """Random numbers on a device."""
    return drawn.to(device) if has_float64(device) else drawn.to(torch.float32).to(device)


@contextmanager
def seeded(device: torch.device, seed: int) -> Iterator[None]:
    """For a while, torch's own random numbers on the CPU and the device follow this seed; then as before."""
    cpu = torch.default_generator.get_state()
    torch.default_generator.manual_seed(seed)
    cuda = torch.cuda.default_generators[device.index or 0] if device.type == "cuda" else None
    other = cuda.get_state() if cuda is not None else torch.mps.get_rng_state() if device.type == "mps" else None
    if cuda is not None:
        cuda.manual_seed(seed)
    elif device.type == "mps":
        torch.mps.manual_seed(seed)
    try:
        yield
    finally:
        torch.default_generator.set_state(cpu)
        if cuda is not None and other is not None:
            cuda.set_state(other)
        elif other is not None:
            torch.mps.set_rng_state(other)
