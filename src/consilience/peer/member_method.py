"""The method of a federation at one of its members: what the charter names, or the member's own copy of a file."""

from __future__ import annotations

from collections.abc import Mapping

from consilience.config.overrides import parse_method
from consilience.errors import ConfigurationError, UnknownName
from consilience.functional.group_channels import refuse_single_samples
from consilience.method import Method
from consilience.methods import build_method
from consilience.methods.task_kinds import method_for_kind
from consilience.user_code import is_file_name
from consilience.wire import schema
from consilience.wire.agreement import describe_difference, without_local_choices
from consilience.wire.charter import Charter


def member_method(charter: Charter, own: str | Method | None = None) -> Method:
    """The method a member of the federation uses, with the charter's settings, for its kind of task.

    own: FILE.py:NAME where the charter's method is from a file, of which every member needs a copy; or a Method.
    """
    return method_for_kind(_named_method(charter, own), charter.kind)


def _named_method(charter: Charter, own: str | Method | None) -> Method:
    settings = dict(charter.method)
    name = str(settings.pop("name"))
    if isinstance(own, Method):
        return own
    if own is None and is_file_name(name):
        raise ConfigurationError(
            f"federation {charter.name!r} uses the method {name!r}, which is in a file; ask its creator for the file, "
            f"and name it: `consilience join --method PATH/TO/{name}`, or consilience.join(..., method=...)"
        )
    if own is None:
        return build_method(name, settings)
    given = parse_method(own)
    source = str(given.pop("name"))
    if given:
        raise ConfigurationError(
            f"method {source!r}: its settings are those in the charter of federation {charter.name!r}; leave out "
            f"{next(iter(given))!r}"
        )
    if source != name and not is_file_name(source):
        raise ConfigurationError(
            f"federation {charter.name!r} uses the method {name!r}, and not {source!r}; leave `method` out"
            + (f", or name your copy of the file, PATH/TO/{name}" if is_file_name(name) else "")
        )
    return build_method(source, settings)


def check_exchanges(method: Method, charter: Charter) -> None:
    """Refuse a method whose exchanges are not those of the charter, or that would upload single samples."""
    for exchange in method.exchanges:
        refuse_single_samples(getattr(exchange, "min_count", 2))
    mine = [e.name for e in method.exchanges if e.scope == "everybody"]
    for name in (n for n in charter.channels if n not in mine):
        raise UnknownName(
            "exchange", name, mine, f"method {_named(method)!r}", f"federation {charter.name!r} shares it; {_ADVICE}"
        )
    for name in (n for n in mine if n not in charter.channels):
        raise UnknownName(
            "exchange", name, charter.channels, f"federation {charter.name!r}", f"{_named(method)!r} has it; {_ADVICE}"
        )


def check_charter_channels(method: Method, own: Mapping[str, schema.Channel], charter: Charter, model: str) -> None:
    """Refuse a method or a model whose channels differ from those of the charter; own: those of the member's roles."""
    check_exchanges(method, charter)
    for name, theirs in ((name, channel) for name, channel in charter.channels.items() if name in own):
        if without_local_choices(own[name]) != without_local_choices(theirs):
            in_file = f"method {method.source!r}: " if is_file_name(method.source) else ""
            files = "the method's file and " if in_file else ""
            raise ConfigurationError(
                f"{in_file}{model} cannot share {name!r} in federation {charter.name!r}: "
                f"{describe_difference(own[name], theirs)}; use {files}the model the federation was "
                f"created with, or a model of its feature width"
            )


_ADVICE = "use the method, and the file, that the federation was created with"


def _named(method: Method) -> str:
    return method.source or method.name
