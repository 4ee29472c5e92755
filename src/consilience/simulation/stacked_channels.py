"""Channels of many federations in one operation, (federations, ...), in the place of one after the other.

Seeds of a run and settings of a sweep are federations with the same channels. Standing means and pools of those that as
many members upload to are stacked for an operation and taken apart again. On a CPU the bits are those of each channel
alone. Moving means, and channels that resist bad members, are scoped or answer with one bit, are left to themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from consilience.channels import Answer, EntryPool, StandingMean, Tensors, draw_entries, gather_entries
from consilience.channels.base import check_members
from consilience.simulation.federation import Federation, as_decoded
from consilience.wire import schema
from consilience.wire.encodings import Array, Bit
from consilience.wire.robustness import Robustness

_Channel = TypeVar("_Channel", StandingMean, EntryPool)
_WORTH = 2  # federations, from which on one operation is faster than several
Uploads = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Of each row that uploads: its federation, its number there, and its place among the tensors."""


def upload_stacked(
    federations: Sequence[Federation], name: str, rows: Uploads, tensors: Tensors, weights: Tensor, now: int
) -> list[int]:
    """Put contributions into a channel of several federations; return the federations that are left to do."""
    federation, member, place = rows
    left: list[int] = []
    uploading = {int(f): np.flatnonzero(federation == f) for f in np.unique(federation)}
    for some in _groups(federations, name, {f: len(mine) for f, mine in uploading.items()}, left):
        entries = np.stack([uploading[f] for f in some])  # (federations, uploads)
        who = _checked(member[entries], federations[some[0]].channels[name].members, name)
        taken = torch.from_numpy(place[entries]).to(weights.device)
        new = {key: tensor[taken] for key, tensor in tensors.items()}
        _upload([federations[f].channels[name] for f in some], who, new, weights[taken].double(), now)
    return left


def answer_stacked(
    federations: Sequence[Federation], name: str, readers: Mapping[int, np.ndarray], *when: int, draw: int = 0
) -> tuple[list[tuple[Answer, dict[int, np.ndarray]]], list[int]]:
    """Answers to the readers of several federations, and which of them each gets; and federations left to do."""
    found, left = [], list[int]()
    for some in _groups(federations, name, {f: len(who) for f, who in readers.items()}, left):
        channels = [federations[f].channels[name] for f in some]
        who = _checked(np.stack([readers[f] for f in some]), channels[0].members, name)  # (federations, readers)
        first = channels[0]
        if isinstance(first, EntryPool):
            all_alike = {each.same_for_all_readers(draw or first.channel.draw) for each in channels}  # type: ignore[union-attr]
            if len(all_alike) > 1:
                left += some
                continue
            asking = who[:, :1] if all_alike == {True} else who
            answer = _pool_answers(channels, asking, [federations[f].seed for f in some], when, draw)
            shared = all_alike == {True}
        else:
            shared = first.channel.scope != "oneself"
            answer = _means(channels) if shared else _own(channels, who)
        each = 1 if shared else who.shape[1]
        place = {f: i * each + (0 if shared else 1) * np.arange(who.shape[1]) for i, f in enumerate(some)}
        found.append((as_decoded(answer, first.channel), place))
    return found, left


def _checked(who: np.ndarray, members: int, name: str) -> np.ndarray:
    """The member numbers, (federations, ...), each federation's as `check_members` wants them."""
    ordered = np.sort(who, axis=1)
    if not (who.size and ordered[:, 0].min() >= 0 and ordered[:, -1].max() < members and (np.diff(ordered) > 0).all()):
        for each in who:
            check_members(each, members, name)
    return who


def _groups(
    federations: Sequence[Federation], name: str, counts: Mapping[int, int], left: list[int]
) -> Iterable[list[int]]:
    """Federations whose channel can be stacked, with as many members each; the others are added to `left`.

    counts: by federation, how many of its members take part.
    """
    groups: list[tuple[schema.Channel, int, list[int]]] = []
    plain: dict[int, bool] = {}  # by the channel's schema
    for f, count in counts.items():
        channel = federations[f].channels[name].channel
        if id(channel) not in plain:
            plain[id(channel)] = is_plain(channel)
        if not (plain[id(channel)] and everybody_uses(federations[f])):
            left.append(f)
            continue
        for like, as_many, some in groups:
            if as_many == count and (like is channel or like == channel):
                some.append(f)
                break
        else:
            groups.append((channel, count, [f]))
    for _, _, some in groups:
        if len(some) >= _WORTH:
            yield some
        else:
            left += some


def everybody_uses(federation: Federation) -> bool:
    """Whether everybody uses everybody's uploads, in all dimensions, and draws entries at random."""
    return federation.subspace is None and not federation.rules.scoped and federation.rules.choose == "random"


def is_plain(channel: schema.Channel) -> bool:
    """Whether a channel is a pool or a standing mean that resists nobody, and does not answer with one bit per value.

    The scale of one bit is a sum, which may round otherwise in another order.
    """
    if isinstance(channel, schema.Mean) and (channel.moving or channel.robustness != Robustness()):
        return False
    return not any(isinstance(channel.encoding(key, "down"), Bit) for key in channel.tensors)


# -- uploads -----------------------------------------------------------------------------------------------------------


def _upload(channels: Sequence[object], who: np.ndarray, new: Tensors, weights: Tensor, now: int) -> None:
    """Contributions (federations, uploads, ...) of these members, with weights (federations, uploads, ...)."""
    means = [channel for channel in channels if isinstance(channel, StandingMean)]
    pools = [channel for channel in channels if isinstance(channel, EntryPool)]
    _upload_to_means(means, who, new, weights, now) if means else _upload_to_pools(pools, who, new, weights)


def _upload_to_means(
    channels: Sequence[StandingMean], who: np.ndarray, new: Tensors, weights: Tensor, now: int
) -> None:
    """See `StandingMean.upload`: the same sums, for all federations at once."""
    at, held = _at(who, weights.device), _stack(channels, lambda c: c.weights)  # (federations, members, *rows)
    old_weights = held[at]
    count = _stack(channels, lambda c: c.count) + _sum(weights - old_weights)
    holders = _stack(channels, lambda c: c.holders) + (weights > 0).sum(1) - (old_weights > 0).sum(1)
    empty = holders == 0
    count = torch.where(empty, torch.zeros_like(count), count)
    for key in channels[0].sums:
        values, total = _stack(channels, lambda c: c.values[key]), _stack(channels, lambda c: c.sums[key])  # noqa: B023
        added, removed = new[key].double(), values[at].double()
        total = _added(total, _rows(weights, added) * added - _rows(old_weights, removed) * removed)
        total = torch.where(_rows(empty, total), torch.zeros_like(total), total)
        values[at] = new[key]
        for channel, mine, own in zip(channels, values.unbind(), total.unbind(), strict=True):
            channel.values[key] = mine
            channel.sums = {**channel.sums, key: own}
    held[at] = weights
    for i, (channel, numbers) in enumerate(zip(channels, who, strict=True)):
        channel.weights, channel.count, channel.holders = held[i], count[i], holders[i]
        channel.uploaded_at[numbers] = now


def _upload_to_pools(channels: Sequence[EntryPool], who: np.ndarray, new: Tensors, weights: Tensor) -> None:
    """See `EntryPool.upload`, with entries that replace all of a member's older ones."""
    at, count, keep = _at(who, weights.device), weights.shape[2], channels[0].channel.keep
    held = _stack(channels, lambda c: c.weights)
    held[at] = torch.cat([weights, held[at][:, :, : keep - count]], dim=2)
    for key in channels[0].values:
        values = _stack(channels, lambda c: c.values[key])  # noqa: B023
        values[at] = torch.cat([new[key], values[at][:, :, : keep - count]], dim=2)
        for channel, mine in zip(channels, values.unbind(), strict=True):
            channel.values[key] = mine
    for channel, numbers, own in zip(channels, who, held.unbind(), strict=True):
        channel.weights = own
        channel.present[numbers] = np.arange(keep) < count


def _added(total: Tensor, changes: Tensor) -> Tensor:
    """Totals (federations, ...) plus changes (federations, uploads, ...), on a CPU one upload after the other."""
    if total.device.type != "cpu":
        return total + changes.sum(1)
    for change in changes.unbind(1):
        total = total + change
    return total


def _sum(changes: Tensor) -> Tensor:
    """The sums over uploads of (federations, uploads, ...); on a CPU by itself for each federation, as it rounds."""
    return changes.sum(1) if changes.device.type != "cpu" else torch.stack([each.sum(0) for each in changes.unbind()])


# -- answers -----------------------------------------------------------------------------------------------------------


def _means(channels: Sequence[object]) -> Answer:
    """Every federation's mean, (federations, ...): see `RunningMean.answer`."""
    means = [channel for channel in channels if isinstance(channel, StandingMean)]
    count, tensors = _stack(means, lambda c: c.count), {}
    for key in means[0].sums:
        total = _stack(means, lambda c: c.sums[key])  # noqa: B023
        by = _rows(count, total)
        mean = total / torch.where(by > 0, by, torch.ones_like(by))
        tensors[key] = torch.where(by > 0, mean, torch.zeros_like(mean)).to(means[0].dtype)
    return Answer(tensors, count)


def _own(channels: Sequence[object], who: np.ndarray) -> Answer:
    """Every reader's own contribution, (federations x readers, ...)."""
    means = [channel for channel in channels if isinstance(channel, StandingMean)]
    held = _stack(means, lambda c: c.weights)
    at = _at(who, held.device)
    tensors = {key: _stack(means, lambda c: c.values[key])[at].flatten(0, 1) for key in means[0].values}  # noqa: B023
    return Answer(tensors, held[at].flatten(0, 1))


def _pool_answers(
    channels: Sequence[object], who: np.ndarray, seeds: Sequence[int], when: tuple[int, ...], draw: int
) -> Answer:
    """The entries that readers draw, (federations x readers, draw, ...): see `EntryPool.answer`."""
    pools = [channel for channel in channels if isinstance(channel, EntryPool)]
    first, weights = pools[0].channel, _stack(pools, lambda c: c.weights)
    known = weights.numpy(force=True) if first.by != "member" else np.zeros((len(pools), 0))
    drawn: dict[tuple[int, bytes, bytes, bytes], np.ndarray] = {}  # settings of a sweep draw alike
    picks = []
    for i, (pool, seed) in enumerate(zip(pools, seeds, strict=True)):
        key = seed, pool.present.tobytes(), known[i].tobytes(), who[i].tobytes()
        if key not in drawn:
            drawn[key] = draw_entries(first, pool.present, known[i], who[i], (seed, *when), draw or first.draw)
        of = drawn[key]  # (readers, draw), or (readers, draw, *rows)
        picks.append(np.where(of >= 0, of + i * pool.members * first.keep, -1))
    values = {key: _stack(pools, lambda c: c.values[key]).flatten(0, 1) for key in pools[0].values}  # noqa: B023
    return gather_entries(first, np.concatenate(picks), values, weights.flatten(0, 1))


# -- shapes ------------------------------------------------------------------------------------------------------------


def _stack(channels: Sequence[_Channel], of: Callable[[_Channel], Array]) -> Tensor:
    """A tensor of every channel, (federations, ...)."""
    return torch.stack([of(channel) for channel in channels])


def _at(who: np.ndarray, device: torch.device) -> tuple[Tensor, Tensor]:
    """Where the values of these members are among stacked ones, (federations, uploads) each."""
    members = torch.from_numpy(who).to(device)
    return torch.arange(len(who), device=device)[:, None], members


def _rows(weight: Tensor, values: Tensor) -> Tensor:
    """A weight of fewer axes than the values, reshaped to broadcast over them."""
    return weight.reshape(tuple(weight.shape) + (1,) * (values.ndim - weight.ndim))
