"""Backups of a store, and what it takes to continue from one: a history that no member mistakes for another.

Members know versions and revisions by their numbers. After a restore the relay would reach the same numbers again with
other values, so a restored store begins a new epoch: its versions and revisions continue from numbers that no relay has
used, and every member downloads the common values anew.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from consilience.errors import ConfigurationError, StorageError
from consilience.relay.backup_time import note_backup
from consilience.relay.copy_store import copy_store
from consilience.relay.integrity import check_store
from consilience.relay.lease import LeaseTable
from consilience.relay.renumber import next_number, renumber
from consilience.relay.store import Store, lock_store
from consilience.relay.tokens_since import NONE, EndedTokens, end_again, members_invited_since, tokens_ended_since
from consilience.wire.charter import read_charter


class Restored(NamedTuple):
    """What a restore did: the new epoch, where the store that it replaced is, and whose tokens were revoked again.

    unknown: members of the replaced store that were invited after the backup was made.
    """

    epoch: int
    replaced: Path | None
    revoked: list[str]
    unknown: list[str]


def back_up(path: Path, to: Path) -> int:
    """Copy a store into a new file, also while a relay serves it; the bytes of the copy. Damage is refused."""
    if to.exists():
        raise ConfigurationError(f"{to} exists; a backup is written to a new file")
    if not to.absolute().parent.is_dir():
        raise ConfigurationError(f"{to.parent} is not a folder; create it first")
    with contextlib.closing(Store(path)) as store:
        try:
            copy_store(store.sql, to)
        except (sqlite3.Error, OSError) as error:
            raise StorageError(f"{to} cannot be written: {error}") from error
    try:
        _check_sound(to, f"`consilience relay verify --store {path}` lists all damage, and a relay repairs most of it")
    except StorageError:
        to.unlink()
        raise
    with contextlib.closing(sqlite3.connect(to)) as sql:
        sql.execute("PRAGMA journal_mode = DELETE")  # one file, which can be moved
    note_backup(path)
    return to.stat().st_size


def restore(file: Path, path: Path, revoked: str | None = None) -> Restored:
    """Continue from a backup, in place of the store at `path` if there is one; that one is kept beside it.

    revoked: "revoke" or "keep", for tokens that were revoked after the backup was made.
    """
    if not file.is_file():
        raise ConfigurationError(f"{file}: no such backup; `consilience relay backup FILE` makes one")
    if path.exists() and file.samefile(path):
        raise ConfigurationError(f"{file} is the store itself; give the file of a backup")
    path.absolute().parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.restoring")
    with lock_store(path):
        try:
            _copy(file, unfinished)
            since = _ended_since(unfinished, path, revoked) if path.exists() else NONE
            if since.names and revoked not in ("revoke", "keep"):
                raise ConfigurationError(
                    f"these tokens were revoked after the backup was made: {', '.join(since.names)}. Decide: "
                    f"--revoked revoke revokes them again, --revoked keep accepts them from now on; a token that was "
                    f"replaced by a newer one counts as revoked, and the backup does not know the newer one"
                )
            again = since if revoked == "revoke" else NONE
            unknown = members_invited_since(unfinished, path) if path.exists() else []
            epoch = _begin_epoch(unfinished, file.name, again, _highest(path))
            if path.exists():
                _end_lease(path)
            replaced = _keep(path) if path.exists() else None
            unfinished.replace(path)
        finally:
            for leftover in path.parent.glob(f"{unfinished.name}*"):
                leftover.unlink()
    return Restored(epoch, replaced, again.names, unknown)


def _copy(file: Path, to: Path) -> None:
    """Copy a backup, with what is in its write-ahead log; one that is no store, damaged or newer is refused."""
    try:
        with contextlib.closing(sqlite3.connect(f"file:{quote(str(file.absolute()))}?mode=ro", uri=True)) as sql:
            copy_store(sql, to)
        _check_sound(to, "this backup is damaged; restore another one")
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise StorageError(f"{file} cannot be read as a backup of a store: {error}") from error
    except (StorageError, ConfigurationError) as error:
        raise type(error)(str(error).replace(str(to), str(file))) from None


def _end_lease(path: Path) -> None:
    """Let nobody write to a store that is replaced: a relay whose lock file was removed may still serve it."""
    with (
        contextlib.suppress(StorageError, ConfigurationError, sqlite3.Error),
        contextlib.closing(sqlite3.connect(path, isolation_level=None)) as sql,  # of any layout since there are leases
    ):
        LeaseTable(sql).take("replaced by a backup")


def _check_sound(path: Path, advice: str) -> None:
    with contextlib.closing(Store(path)) as store:
        damage = check_store(store).damage
    if damage:
        raise StorageError(f"{path}: {damage[0]}{f' and {len(damage) - 1} more' * (len(damage) > 1)}; {advice}")


def _ended_since(backup: Path, path: Path, revoked: str | None) -> EndedTokens:
    try:
        return tokens_ended_since(backup, path)
    except (sqlite3.Error, UnicodeDecodeError) as error:
        if revoked == "keep":
            return NONE
        raise ConfigurationError(
            f"{path} cannot be read ({error}), so nobody can tell which tokens were revoked since the backup; "
            f"--revoked keep accepts every token of the backup"
        ) from error


def _highest(path: Path) -> int:
    """The largest version or revision that the store at a path has used."""
    try:
        with contextlib.closing(sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro", uri=True)) as sql:
            (revision,) = sql.execute("SELECT coalesce(max(revision), 0) FROM federations").fetchone()
            (version,) = sql.execute("SELECT coalesce(max(version), 0) FROM channel_states").fetchone()
    except sqlite3.Error:
        return 0  # there is none, or it cannot be read
    return max(int(revision), int(version))


def _begin_epoch(path: Path, name: str, ended: EndedTokens, highest: int) -> int:
    """Begin a new epoch, with numbers above the highest that was used."""
    with contextlib.closing(Store(path)) as store:
        with store.writing():
            epoch = store.epochs.begin(f"restored from {name}")
            store.audit.append("restored", file=name, epoch=epoch)
            for record in store.federations.all():
                revision = next_number(record.revision, highest)
                store.federations.update(record.id, revision, record.round, record.advanced_by)
                for channel in read_charter(record.charter).channels.values():
                    if channel.moves:
                        renumber(store, record.id, channel.name, highest)
            end_again(store, ended)
        store.sql.execute("PRAGMA journal_mode = DELETE")
    return epoch


def _keep(path: Path) -> Path:
    """Give a store a second name, and move its write-ahead log there: beside the new store it would change that one."""
    number = 1
    while (kept := path.with_name(f"{path.name}.replaced-{number}")).exists():
        number += 1
    with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(path)) as sql:
        sql.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    for suffix in ("-wal", "-shm"):
        log = path.with_name(path.name + suffix)
        if log.exists():
            log.replace(kept.with_name(kept.name + suffix))
    try:
        os.link(path, kept)  # until the new store is in its place, the old one stays there
    except OSError:  # a file system without hard links
        shutil.copy2(path, kept)
    return kept
