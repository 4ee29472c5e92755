"""Gives a store the key with which its relay signs, and every charter in it the public part."""

from __future__ import annotations

import sqlite3

from consilience.relay.keys import KeyTable
from consilience.relay.tables import FederationTable
from consilience.wire.charter import read_charter
from consilience.wire.signatures import public_key


def use_key(sql: sqlite3.Connection, secret: bytes | None = None) -> None:
    """Sign with a private key from now on, a new random one if none is given; within a transaction of the caller."""
    keys, federations = KeyTable(sql), FederationTable(sql)
    keys.create(secret=secret)
    public = public_key(keys.get())
    for record in federations.all():
        charter = read_charter(record.charter).with_relay_key(public)
        federations.update_row(record, record._replace(charter=charter.to_toml()))
