"""Go back to older common values, for a federation whose mean a bad upload has ruined."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from consilience.errors import ConfigurationError, UnknownName
from consilience.relay.admin import federation_id, open_store
from consilience.relay.renumber import renumber
from consilience.relay.store import Store, lock_store
from consilience.wire.charter import read_charter


class RolledBack(NamedTuple):
    """What a rollback did: the channel, the version it was at, and the number under which the older values go on."""

    channel: str
    before: int
    version: int


def stored_versions(path: Path, federation: str, channel: str | None = None) -> tuple[str, list[int]]:
    """A moving mean, and the versions of its common values that are stored, oldest first."""
    with open_store(path) as store, store.reading():
        number = federation_id(store, federation)
        name = _moving_mean(store, number, channel)
        return name, store.channel_states.versions(number, name)


def roll_back(path: Path, federation: str, version: int, channel: str | None = None) -> RolledBack:
    """Continue from an older version of a moving mean's common values.

    They get a new number, above all that were used: members who have a newer version download them in full.
    Contributions that wait are dropped, since they were made from the values that are given up.
    """
    with open_store(path) as store, lock_store(path), store.writing():
        number = federation_id(store, federation)
        name = _moving_mean(store, number, channel)
        known = store.channel_states.versions(number, name)
        if version not in known:
            raise ConfigurationError(
                f"{name}: version {version} is not stored; choose one of {', '.join(map(str, known))}"
            )
        for newer in known[known.index(version) + 1 :]:
            store.channel_states.delete(number, name, newer)
        uploads = {waiting.upload for waiting in store.contributions.all(number, name)}
        store.contributions.delete(number, name)
        store.uploads.delete_unused(uploads)
        done = RolledBack(name, known[-1], renumber(store, number, name, used=known[-1]))
        store.audit.append("rolled-back", number, channel=name, before=done.before, to=version, version=done.version)
    return done


def _moving_mean(store: Store, federation: int, channel: str | None) -> str:
    """The moving mean that is meant; it need not be named if there is one."""
    record = store.federations.get(federation)
    assert record is not None
    moving = [name for name, each in read_charter(record.charter).channels.items() if each.moves]
    if not moving:
        raise ConfigurationError(
            f"{record.name} has no common values; what a member contributed to a mean or a pool goes when the member "
            f"is revoked: consilience relay revoke MEMBER"
        )
    if channel is None and len(moving) > 1:
        raise ConfigurationError(f"{record.name} has several moving means; choose one: --channel {'|'.join(moving)}")
    if channel is not None and channel not in moving:
        raise UnknownName("moving mean", channel, moving)
    return channel or moving[0]
