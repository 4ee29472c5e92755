"""What every node does, whatever it trains with: say who it is, refuse what it did not agree to, and reply."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from consilience.errors import ConfigurationError, ConsilienceError, RelayUnreachable, WireError
from consilience.wire.charter import Charter, read_charter
from consilience_flower.link import NodeBusy
from consilience_flower.requests import RECORD, SAME_VERSION, STATUS, record_of, unpack_responses

Metrics = Mapping[str, float | int]
INTRODUCTION = "query.consilience"
"""The type of the message that asks a node who it is."""
_METRIC = "metric."
_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
log = logging.getLogger("flwr")


def member_name(context: Context) -> str:
    """The node's name in the federation: `consilience-member` of its node configuration, or its number at Flower."""
    return str(context.node_config.get("consilience-member", f"node-{context.node_id}"))


def member_folder(context: Context, federation: str) -> Path:
    """Where the node keeps its state: `consilience-folder` of its node configuration, by default under `peers/`."""
    given = context.node_config.get("consilience-folder")
    if given is not None:
        return Path(str(given)).expanduser()
    name = member_name(context)
    if not _PART.fullmatch(name):
        raise ConfigurationError(
            f"consilience-member is {name[:80]!r}; use lower-case letters, digits and dashes, and start with a letter "
            f"or digit"
        )
    return Path("peers") / f"{federation}-{name}"


def check_own_charter(context: Context, charter: Charter) -> None:
    """Refuse a federation whose charter is not the one in the node's own file, `consilience-charter`, if it has one."""
    given = context.node_config.get("consilience-charter")
    if given is None:
        return
    file = Path(str(given)).expanduser()
    try:
        known = read_charter(file.read_text(encoding="utf-8"), str(file))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"consilience-charter: {file.absolute()} cannot be read: {error}") from error
    if known.with_relay_key("") != charter.with_relay_key(""):
        raise ConfigurationError(
            f"{file} is the charter that {member_name(context)} agreed to, of federation {known.name!r} with method "
            f"{known.method['name']!r}, and the server runs another one, {charter.name!r} with "
            f"{charter.method['name']!r}; give the server and all nodes the same file"
        )


def charter_of(message: Message) -> Charter:
    """The charter that came with a message, in the member's status."""
    status = unpack_responses(record_of(message)).get(STATUS.key)
    try:
        found = json.loads(status.body if status else b"{}")
        if status is not None and status.status != 200:
            raise RelayUnreachable(f"the relay behind Flower answers: {found['message']}")
        return read_charter(str(found["charter"]), "the relay's charter")
    except (ValueError, KeyError, TypeError) as error:
        raise WireError(f"the message says nothing of the federation: {error}; {SAME_VERSION}") from error


def answer_introduction(app: ClientApp, *, every_message: bool) -> None:
    """Let a ClientApp say who its node is. every_message: whether it takes the messages before training and to test."""

    @app.query("consilience")
    def introduce(message: Message, context: Context) -> Message:
        def answer() -> ConfigRecord:
            check_own_charter(context, read_charter(str(record_of(message)["charter"]), "the server's charter"))
            return ConfigRecord({"member": member_name(context), "every_message": every_message})

        return reply_or_refuse(message, answer)


def reply_or_refuse(message: Message, work: Callable[[], ConfigRecord]) -> Message:
    """The reply with a record, or with the error for which the node takes no part, which the server shows.

    An error that may be gone at the next message is told as such, and the node is asked again.
    """
    try:
        record = work()
    except (RelayUnreachable, NodeBusy) as error:
        log.warning("%s", error)
        record = ConfigRecord({"failed": str(error)})
    except ConsilienceError as error:
        log.error("%s", error)
        record = ConfigRecord({"refused": str(error)})
    return Message(RecordDict({RECORD: record}), reply_to=message)


def with_metrics(record: ConfigRecord, metrics: Metrics) -> ConfigRecord:
    """A record, and numbers that the server writes down."""
    for name, value in metrics.items():
        record[_METRIC + name] = value
    return record


def metrics_of(record: ConfigRecord) -> dict[str, float | int]:
    """The numbers that the server writes down."""
    named = {k.removeprefix(_METRIC): v for k, v in record.items() if k.startswith(_METRIC)}
    return {k: v for k, v in named.items() if isinstance(v, int | float)}
