"""`consilience run`, `compare` and `sweep`: thin over the functions of the same names."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from consilience.cli.options import ConfigFile, Json, MethodName, Out, Resume, Set, Track, gather_config, with_settings
from consilience.errors import ConfigurationError, TrainingError

if TYPE_CHECKING:
    from consilience.cli.terminal import Screen


@with_settings
def run(
    config: ConfigFile = None,
    method: MethodName = None,
    set_: Set = None,
    out: Out = None,
    resume: Resume = None,
    track: Track = None,
    json_: Json = False,
    settings: dict[str, Any] | None = None,
) -> None:
    """Run one method and save the run in a folder."""
    from consilience.cli.terminal import Screen
    from consilience.report.tracking import tracking
    from consilience.simulation.records.run_folder import new_folder, resume_command
    from consilience.simulation.simulate import simulate

    screen, tracked, wanted = Screen(json_), tracking(track), None
    if resume is not None:
        _refuse_beside_resume(config, method, set_, out, settings)
        folder = resume
    else:
        wanted = gather_config(config, set_, settings or {}, method)
        folder = out or new_folder(wanted, wanted.method.label)
    with _explain_resume(screen, folder), tracked(folder, screen.on_round) as on_round:
        if wanted is None:
            result = simulate(resume=folder, on_round=on_round)
        else:
            result = simulate(wanted, out=folder, on_round=on_round)
    screen.show([result.summary()])
    if not result.finished:
        screen.say(f"stopped after round {result.history.rounds}; resume with: {resume_command(folder)}")
        raise typer.Exit(130)


@with_settings
def compare(
    config: ConfigFile = None,
    methods: Annotated[
        str | None,
        typer.Option(
            help="methods to compare, separated by commas, each NAME or FILE.py:NAME, with :KEY=VALUE (default: eight)"
        ),
    ] = None,
    set_: Set = None,
    out: Out = None,
    resume: Resume = None,
    track: Track = None,
    json_: Json = False,
    settings: dict[str, Any] | None = None,
) -> None:
    """Run several methods on the same data and seeds, and print one table."""
    from consilience.cli.terminal import Screen
    from consilience.config.overrides import split_list
    from consilience.report.tracking import tracking
    from consilience.simulation.compare import compare as compare_methods
    from consilience.simulation.records.run_folder import new_folder, resume_command

    screen, tracked, wanted = Screen(json_), tracking(track), None
    names = None if methods is None else split_list(methods)
    if resume is not None:
        _refuse_beside_resume(config, methods, set_, out, settings)
        folder = resume
    else:
        wanted = gather_config(config, set_, settings or {}, None)
        folder = out or new_folder(wanted, "compare")
    with _explain_resume(screen, folder), tracked(folder, screen.on_round) as on_round:
        if wanted is None:
            found = compare_methods(resume=folder, on_round=on_round, on_summary=screen.each)
        else:
            found = compare_methods(wanted, methods=names, out=folder, on_round=on_round, on_summary=screen.each)
    if not found.finished:
        stopped = found.summaries[-1]["method"]
        screen.say(f"stopped in {stopped!r}; resume with: {resume_command(folder)}")
        raise typer.Exit(130)
    screen.table(found.summaries)
    screen.say(f"saved in {folder}")


@with_settings
def sweep(
    config: ConfigFile = None,
    method: MethodName = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=A,B,...",
            help="a setting and the values to try, such as method.kd=0,1,10; may be repeated",
        ),
    ] = None,
    out: Out = None,
    resume: Resume = None,
    track: Track = None,
    json_: Json = False,
    settings: dict[str, Any] | None = None,
) -> None:
    """Run one method under every combination of settings, and name the best."""
    from consilience.cli.terminal import Screen
    from consilience.report.tracking import tracking
    from consilience.simulation.records.run_folder import new_folder, resume_command
    from consilience.simulation.sweep import sweep as sweep_settings
    from consilience.simulation.sweep_plan import parse_grid

    screen, tracked, wanted = Screen(json_), tracking(track), None
    grid, fixed = parse_grid(set_ or ())
    if resume is not None:
        _refuse_beside_resume(config, method, set_, out, settings)
        folder = resume
    else:
        wanted = gather_config(config, fixed, settings or {}, method)
        folder = out or new_folder(wanted, f"sweep-{wanted.method.label}")
    with _explain_resume(screen, folder), tracked(folder, screen.on_round) as on_round:
        if wanted is None:
            found = sweep_settings(resume=folder, on_round=on_round)
        else:
            found = sweep_settings(wanted, grid=grid, out=folder, on_round=on_round)
    if not found.finished:
        screen.say(f"stopped; resume with: {resume_command(folder)}")
        raise typer.Exit(130)
    screen.show_sweep(found.rows, folder)
    if all(row["diverged"] for row in found.rows):
        first = found.rows[0]["diverged"][0]
        raise TrainingError(f"every setting diverged to NaN or infinite values, first {first}; try smaller values")


@contextlib.contextmanager
def _explain_resume(screen: Screen, folder: Path) -> Iterator[None]:
    """Say how to resume after Ctrl-C outside the rounds, or after a second one in a round."""
    from consilience.simulation.records.run_folder import resume_command

    try:
        yield
    except KeyboardInterrupt:
        if folder.is_dir():
            screen.say(f"stopped; resume with: {resume_command(folder)}")
        raise typer.Exit(130) from None


def _refuse_beside_resume(*others: object) -> None:
    if any(others):
        raise ConfigurationError("--resume takes its settings from the run's folder; give it no others")
