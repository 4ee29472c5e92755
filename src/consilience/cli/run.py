"""`consilience run`, `compare` and `sweep`: thin over the functions of the same names."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from consilience.cli.known_methods import refuse_unknown_method
from consilience.cli.options import (
    Against,
    ConfigFile,
    Json,
    MethodName,
    Out,
    Resume,
    Set,
    Track,
    gather_config,
    with_settings,
)
from consilience.errors import ConfigurationError, TrainingError

if TYPE_CHECKING:
    from consilience.config.config import Config
    from consilience.simulation.run import OnRound


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
    _refuse_beside_resume(resume, (config, method, set_, out, settings))
    wanted = gather_config(config, set_, settings or {}, method) if resume is None else None  # before torch is imported
    from consilience.simulation.simulate import simulate

    task = _Task(json_, track, resume)
    if wanted is not None:
        task.choose_folder(out, wanted, wanted.method.label)
        with task.running() as on_round:
            result = simulate(wanted, out=task.folder, on_round=on_round)
    else:
        with task.running() as on_round:
            result = simulate(resume=resume, on_round=on_round)
    task.screen.show([result.summary()])
    if not result.finished:
        task.exit_stopped(f"stopped after round {result.history.rounds}")


@with_settings
def compare(
    config: ConfigFile = None,
    methods: Annotated[
        str | None,
        typer.Option(
            help="methods to compare, separated by commas, each NAME or FILE.py:NAME, with :KEY=VALUE (default: eight)"
        ),
    ] = None,
    against: Against = None,
    control: Annotated[
        bool,
        typer.Option(help="beside independent, also run it with another batch order, the control of helped and harmed"),
    ] = True,
    set_: Set = None,
    out: Out = None,
    resume: Resume = None,
    track: Track = None,
    json_: Json = False,
    settings: dict[str, Any] | None = None,
) -> None:
    """Run several methods on the same data and seeds, and print one table."""
    from consilience.config.overrides import parse_method, split_list

    _refuse_beside_resume(resume, (config, methods, against, set_, out, settings))
    wanted = gather_config(config, set_, settings or {}, None) if resume is None else None
    names = None if methods is None else split_list(methods)
    for name in names or ():
        given = parse_method(name)
        refuse_unknown_method(given.pop("name"), list(given))
    from consilience.simulation.compare import compare as compare_methods

    task = _Task(json_, track, resume)
    each = task.screen.each
    if wanted is not None:
        task.choose_folder(out, wanted, "compare")
        with task.running() as on_round:
            found = compare_methods(
                wanted,
                methods=names,
                against=against,
                control=control,
                out=task.folder,
                on_round=on_round,
                on_summary=each,
            )
    else:
        with task.running() as on_round:
            found = compare_methods(resume=resume, on_round=on_round, on_summary=each)
    if not found.finished:
        task.exit_stopped(f"stopped in {found.summaries[-1]['method']!r}")
    task.screen.table(found.summaries)
    task.screen.say(f"saved in {task.folder}")


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
    from consilience.config.grid import parse_grid

    _refuse_beside_resume(resume, (config, method, set_, out, settings))
    grid, fixed = parse_grid(set_ or ())
    wanted = gather_config(config, fixed, settings or {}, method) if resume is None else None
    from consilience.simulation.sweep import sweep as sweep_settings

    task = _Task(json_, track, resume)
    if wanted is not None:
        task.choose_folder(out, wanted, f"sweep-{wanted.method.label}")
        with task.running() as on_round:
            found = sweep_settings(wanted, grid=grid, out=task.folder, on_round=on_round)
    else:
        with task.running() as on_round:
            found = sweep_settings(resume=resume, on_round=on_round)
    if not found.finished:
        task.exit_stopped("stopped")
    task.screen.show_sweep(found.rows, task.folder)
    if all(row["diverged"] for row in found.rows):
        first = found.rows[0]["diverged"][0]
        raise TrainingError(f"every setting diverged to NaN or infinite values, first {first}; try smaller values")


def _refuse_beside_resume(resume: Path | None, others: tuple[object, ...]) -> None:
    """Refuse options that cannot be given beside --resume."""
    if resume is not None and any(others):
        raise ConfigurationError("--resume takes its settings from the run's folder; give it no others")


class _Task:
    """What the three commands have in common: output, the folder of the run, tracking, Ctrl-C."""

    def __init__(self, json_: bool, track: str | None, resume: Path | None) -> None:
        from consilience.cli.terminal import Screen
        from consilience.report.tracking import tracking

        self.screen, self._tracking = Screen(json_), tracking(track)
        if resume is not None:
            self.folder = resume

    def choose_folder(self, out: Path | None, config: Config, label: str) -> None:
        """The folder asked for, or a new one named after the data and the label."""
        from consilience.simulation.records.run_folder import new_folder

        self.folder = out or new_folder(config, label)

    @contextlib.contextmanager
    def running(self) -> Iterator[OnRound]:
        """Show and track rounds; after Ctrl-C outside the rounds, or a second one in a round, say how to resume."""
        try:
            with self._tracking(self.folder, self.screen.on_round) as on_round:
                yield on_round
        except KeyboardInterrupt:
            if self.folder.is_dir():
                self.exit_stopped("stopped")
            raise typer.Exit(130) from None

    def exit_stopped(self, what: str) -> NoReturn:
        """Say what stopped and how to resume it, and end the command."""
        from consilience.simulation.records.run_folder import resume_command

        self.screen.say(f"{what}; resume with: {resume_command(self.folder)}")
        raise typer.Exit(130)
