"""What every node does, whatever it trains with: say who it is, refuse what it did not agree to, and reply."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict

from consilience.errors import ConfigurationError, ConsilienceError
from consilience.wire.charter import read_charter
from consilience_flower.requests import RECORD

Metrics = Mapping[str, float | int]


def member_name(context: Context) -> str:
    """The node's name in the federation: `consilience-member` of its node configuration, or its number at Flower."""
    return str(context.node_config.get("consilience-member", f"node-{context.node_id}"))


def member_folder(context: Context, federation: str) -> Path:
    """Where the node keeps its state: `consilience-folder` of its node configuration, by default under `peers/`."""
    given = context.node_config.get("consilience-folder")
    return Path("peers") / f"{federation}-{member_name(context)}" if given is None else Path(str(given)).expanduser()


def own_charter(context: Context) -> str:
    """The fingerprint of the charter that the node agreed to, `consilience-charter`; empty where it takes any."""
    given = context.node_config.get("consilience-charter")
    if given is None:
        return ""
    file = Path(str(given)).expanduser()
    try:
        return read_charter(file.read_text(encoding="utf-8"), str(file)).fingerprint
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"consilience-charter: {file} cannot be read: {error}") from error


def introduce_node(message: Message, context: Context) -> Message:
    """The reply to the question who the node is."""

    def answer() -> ConfigRecord:
        asked, known = message.content[RECORD], own_charter(context)
        if known not in ("", asked["charter"]):
            raise ConfigurationError(
                f"the charter of {member_name(context)} has the fingerprint {known[:16]}, and that of federation "
                f"{asked['federation']!r} at the server {str(asked['charter'])[:16]}; give all the same file"
            )
        return ConfigRecord({"member": member_name(context)})

    return reply_or_refuse(message, answer)


def reply_or_refuse(message: Message, work: Callable[[], ConfigRecord]) -> Message:
    """The reply with a record, or with why the node takes no part: its error, which the server shows."""
    try:
        record = work()
    except ConsilienceError as error:
        record = ConfigRecord({"refused": str(error)})
    return Message(RecordDict({RECORD: record}), reply_to=message)


def with_metrics(record: ConfigRecord, metrics: Metrics) -> ConfigRecord:
    """A record, and numbers that the server shows."""
    for name, value in metrics.items():
        record[f"metric.{name}"] = value
    return record
