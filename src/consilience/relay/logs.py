"""A relay's log: lines of text for people, or one JSON object per line for programs.

`event` names what happened and gives the fields that programs search by. No field is ever a token, a header, a value or
a body, and none is text that a client chose.
"""

from __future__ import annotations

import datetime
import json
import logging
import sys
from typing import Any, Literal, TextIO

Form = Literal["text", "json"]


def event(name: str, **fields: object) -> dict[str, Any]:
    """What a record says beside its message, for `log.info(message, extra=event(...))`; empty fields are left out."""
    return {"event": name, "fields": {key: value for key, value in fields.items() if value not in (None, "")}}


def configure_logging(form: Form, stream: TextIO | None = None) -> None:
    """Write the log of this process to a stream, standard error by default."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


class TextFormatter(logging.Formatter):
    """The time, the message, and the fields after it."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(message)s", datefmt="%H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:  # the name that logging calls
        """One line."""
        fields = ", ".join(f"{key} {value}" for key, value in getattr(record, "fields", {}).items())
        return super().formatMessage(record) + (f" ({fields})" if fields else "")


class JsonFormatter(logging.Formatter):
    """One object per line: time (UTC), level, event, message, and the fields of the event."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        time = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        content: dict[str, object] = {
            "time": time.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": getattr(record, "event", "log"),
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            content["traceback"] = self.formatException(record.exc_info)
        return json.dumps(content, default=str)
