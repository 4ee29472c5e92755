"""Options of several commands: one for every key of the configuration, and the common ones."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from consilience.cli.known_methods import complete_method, refuse_method_setting, refuse_unknown_method
from consilience.config.config import KEYS, PARTS, Config, field_of_key
from consilience.config.parts import DataConfig

_NO_OPTION = {"method", "groups", "variants"}
COMMON = ("data", "learners", "partition", "model", "rounds", "epochs", "batch_size", "lr", "seeds", "device")
"""The settings that most runs choose: the first options in the help of a command."""
DATA_KEYS = set(DataConfig.keys()) - {"data"}

ConfigFile = Annotated[Path | None, typer.Argument(help="a TOML file with settings; options override it")]
MethodName = Annotated[
    str | None,
    typer.Option(
        help="the method, NAME or FILE.py:NAME, with :KEY=VALUE; see `consilience methods`",
        autocompletion=complete_method,
    ),
]
Against = Annotated[
    str | None,
    typer.Option(
        metavar="METHOD",
        help="one of the methods; prints the others' differences to it with the same seeds, and 95 % intervals",
    ),
]
Out = Annotated[Path | None, typer.Option(help="folder to save the run in (default: a new one under runs/)")]
Resume = Annotated[Path | None, typer.Option(help="resume the run in this folder")]
Track = Annotated[str | None, typer.Option(metavar="NAME", help="record curves during the run: tensorboard")]
Json = Annotated[bool, typer.Option("--json", help="print one JSON object per line on standard output, nothing else")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="any setting, such as method.kd=3; may be repeated"),
]


def with_settings(command: Callable[..., None], only: Collection[str] = ()) -> Callable[..., None]:
    """Give a command an option for every key of the configuration, or for some only."""
    own = inspect.signature(command, eval_str=True)
    parameters = [p for p in own.parameters.values() if p.name != "settings"]
    names = [name for name in KEYS if name not in _NO_OPTION and (not only or name in only)]
    names = sorted(names, key=lambda name: COMMON.index(name) if name in COMMON else len(COMMON))
    for name, field in ((name, field_of_key(name)) for name in names):
        kind = {int: int, float: float, bool: bool}.get(_plain_type(field.annotation), str)
        shown = (
            f"{field.description} (default {field.default})" if field.default not in (None, ()) else field.description
        )
        option = typer.Option(help=shown, show_default=False, rich_help_panel=_panel(name))
        parameters.append(
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option]
            )
        )

    def wrapper(**given: Any) -> None:
        settings = {k: given.pop(k) for k in list(given) if k in names}
        command(**given, settings={k: v for k, v in settings.items() if v is not None})

    wrapper.__name__, wrapper.__doc__ = command.__name__, command.__doc__
    wrapper.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {p.name: p.annotation for p in parameters}
    return wrapper


def _panel(name: str) -> str:
    """The heading of the help under which a setting is listed."""
    heading = PARTS[KEYS[name][0]].heading.partition(":")[0].removesuffix("s")
    return "Common settings" if name in COMMON else f"{heading} settings"


def _plain_type(annotation: Any) -> Any:
    kinds = [a for a in getattr(annotation, "__args__", ()) if isinstance(a, type) and a is not type(None)]
    return str if str in kinds else kinds[0] if kinds else annotation


def gather_config(
    config: Path | None, overrides: Sequence[str] | None, settings: dict[str, Any], method: str | None
) -> Config:
    """The configuration: settings from a file, overridden by options, overridden by --set."""
    from consilience.config.config import make_config, read_config
    from consilience.config.overrides import apply_override, parse_method, split_setting

    given = read_config(config).settings() if config else {}
    given |= settings
    if method is not None:
        own, wanted = given.get("method", {}), parse_method(method)
        given["method"] = {**(own if own.get("name") == wanted["name"] else {}), **wanted}
    for text in overrides or ():
        apply_override(given, text)
    _refuse_wrong_method(given, [split_setting(text)[0] for text in overrides or ()])
    return make_config(given)


def _refuse_wrong_method(given: dict[str, Any], overridden: Sequence[str]) -> None:
    """Refuse names that no method has, and settings of the method given as ones of the run, without importing torch."""
    table = given.get("method", {})
    name = table.get("name", "consilience") if isinstance(table, dict) else ""
    if name and isinstance(name, str):
        refuse_unknown_method(name, [key for key in table if key != "name"])
        refuse_method_setting(name, [key for key in overridden if key not in KEYS and "." not in key])
