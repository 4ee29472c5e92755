"""`consilience advise`: whether working together pays on this data, for whom, and by which method."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from consilience.cli.known_methods import complete_method, refuse_unknown_method
from consilience.cli.options import Json, Set, with_settings
from consilience.config.config import KEYS

if TYPE_CHECKING:
    from consilience.config.config import Config

_OPTIONS = set(KEYS) - {"data", "eval_every", "probe", "ensemble", "metrics", "watch"}


@partial(with_settings, only=_OPTIONS)
def advise(
    data: Annotated[
        str,
        typer.Argument(help="a data set by name, a table, an .npz file, a folder, or a TOML file with settings"),
    ] = "digits",
    method: Annotated[
        str | None,
        typer.Option(
            help="the method asked about, NAME or FILE.py:NAME, with :KEY=VALUE; by default that of the TOML file, or "
            "consilience; two alternatives are tried beside it",
            autocompletion=complete_method,
        ),
    ] = None,
    bytes_per_round: Annotated[
        int | None,
        typer.Option(
            metavar="BYTES",
            help="most bytes that a learner may send and receive in a round, together; what needs more is not tried",
        ),
    ] = None,
    worth: Annotated[float, typer.Option(metavar="POINTS", help="the smallest gain worth having, in points")] = 2.0,
    time: Annotated[
        float | None, typer.Option(metavar="MINUTES", help="minutes that the trial may take: fewer rounds if need be")
    ] = None,
    table: Annotated[bool, typer.Option("--table", help="also print the numbers of every method and learner")] = False,
    set_: Set = None,
    out: Annotated[Path | None, typer.Option(help="a folder for the answer and its numbers, as JSON")] = None,
    json_: Json = False,
    settings: dict[str, Any] | None = None,
) -> None:
    """Say whether working together pays on this data, for whom and how, after a trial on held-out samples."""
    from consilience.config.config import Config, read_config
    from consilience.config.overrides import apply_override, parse_method

    given: dict[str, Any] = dict(settings or {})
    for text in set_ or ():
        apply_override(given, text)
    if method is not None:
        parsed = parse_method(method)
        refuse_unknown_method(parsed.pop("name"), list(parsed))
    config = read_config(Path(data)) if data.endswith(".toml") else None
    source = None if config is not None else data
    if "method" in given:
        config = _with_method(config or Config(), given.pop("method"))
    from consilience.cli.terminal import Screen
    from consilience.simulation.advise import advise as advise_on

    screen = Screen(json_)
    try:
        found = advise_on(
            config,
            data=source,
            method=method,
            bytes_per_round=bytes_per_round,
            worth=worth,
            time=time,
            out=out,
            on_progress=screen.progress,
            **given,
        )
    except KeyboardInterrupt:
        screen.say("stopped; a trial that is not finished says nothing")
        raise typer.Exit(130) from None
    screen.advice(found, table)
    if out is not None:
        screen.say(f"saved in {out}")


def _with_method(config: Config, own: Any) -> Config:
    """The configuration with the settings of `--set method.KEY=VALUE`."""
    from consilience.config.config import make_config

    same = isinstance(own, dict) and own.get("name", config.method.name) == config.method.name
    given = {"name": config.method.name, **config.method.settings, **own} if same else own
    return config.model_copy(update={"method": make_config({"method": given}).method})
