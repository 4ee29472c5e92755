"""The samples, batches and draws of the learners in a stack, in tensors with fixed addresses."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from consilience.learner.batches import StackedKeys, batch_widths, plan_stacked_batches
from consilience.learner.draws import draw_stacked_uniform
from consilience.learner.noise_source import stacked_normal
from consilience.simulation.engines.cohort import CohortPlan, Members


class StackedSamples:
    """Which samples each row trains on at each step of a round.

    even: whether all learners of a federation have equally many samples; then a last partial batch stays partial.
    """

    def __init__(self, plan: CohortPlan, rows: int, even: bool, device: torch.device) -> None:
        members, work, dtype = plan.members, plan.work, plan.spec.dtype
        self.work, self.even = work, even
        self.index = torch.from_numpy(members.index).to(device)
        shared = None if members.shared is None else torch.from_numpy(members.shared).to(device, dtype)
        self.shareable = shared  # 1 where a sample may enter uploads
        shares = members.draw_shares
        self.draw_shares = None if shares is None else torch.from_numpy(shares).to(device)
        self._table = torch.zeros((5, rows), dtype=torch.int64, device=device)
        seed, number, self.start, size, steps = self._table
        self.keys = StackedKeys(seed, number, size, steps)
        self.longest = int(members.sizes.max())
        most_steps = len(batch_widths(work, self.longest, even=even))
        self.round, self.step = (torch.zeros(1, dtype=torch.int64, device=device) for _ in range(2))
        self.positions = torch.zeros((most_steps, rows, work.batch_size), dtype=torch.int64, device=device)
        self.active = torch.zeros((most_steps, rows), dtype=torch.bool, device=device)
        self.widths: list[int] = []
        self.ragged = False

    def assign(self, members: Members, rows: np.ndarray) -> None:
        """Work on these rows of the cohort. All shapes are known here, so that no step waits for values of the GPU."""
        sizes, batch = members.sizes[rows], self.work.batch_size
        columns = members.seed[rows], members.learner[rows], members.start[rows], sizes, -(-sizes // batch)
        self._table.copy_(torch.from_numpy(np.stack(columns)))
        self.widths = batch_widths(self.work, int(sizes.max()), even=self.even)
        self.ragged = bool((sizes.max() - 1) // batch != (sizes.min() - 1) // batch)

    @property
    def steps(self) -> Tensor:
        """How many steps each row takes in the round, (rows,)."""
        return self.keys.steps * self.work.epochs

    def plan_round(self) -> None:
        """Plan the round's batches, and go to the first step."""
        steps, most_steps = self.steps, len(self.active)
        self.positions.copy_(plan_stacked_batches(self.work, self.keys, self.round, self.longest, most_steps))
        self.active.copy_(torch.arange(most_steps, device=steps.device)[:, None] < steps)
        self.step.zero_()

    def batch(self, width: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """This step's batch: positions among each row's samples, positions in the data, (rows, width) each, and which
        rows have a step left, (rows,), None where all have."""
        positions = self.positions.index_select(0, self.step)[0, :, :width]
        chosen = self.index[self.start[:, None] + positions]
        return positions, chosen, self.active.index_select(0, self.step)[0] if self.ragged else None

    def all_samples(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Positions in the data of every row's samples, and which of them are valid, (rows, longest) each."""
        size, places = self.keys.size, self._places()
        column = torch.arange(self.longest, device=size.device)
        positions, valid = self.index[places], (column < size[:, None]).to(dtype)
        return positions, valid if self.shareable is None else valid * self.shareable[places]

    def draw_share(self) -> Tensor | None:
        """How often each row's samples are drawn, as a share of the rate, (rows, longest); None if all alike."""
        return None if self.draw_shares is None else self.draw_shares[self._places()]

    def _places(self) -> Tensor:
        """Where each row's samples are listed, (rows, longest); the last one again where a row has fewer."""
        column = torch.arange(self.longest, device=self.start.device)
        places: Tensor = self.start[:, None] + torch.minimum(column, self.keys.size[:, None] - 1)
        return places

    def draw(self, owner: str, draws: int, samples: int, step: Tensor) -> Tensor:
        """Uniform numbers, the same as the loop's, (rows, draws, samples)."""
        return draw_stacked_uniform(owner, (draws, samples), self.keys, self.round, step)

    def normal(self, purpose: str, size: int, step: Tensor) -> Tensor:
        """Standard normal numbers, the same as the loop's, (rows, size)."""
        return stacked_normal(purpose, self.keys, self.round, step, size)
