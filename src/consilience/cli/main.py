"""The command: `consilience init | data | run | compare | sweep | reproduce | methods | show | report | leakage`, and
over a network `federation | relay | join`.

Options mirror the keys of the configuration file; they are made from it, so that there is one list. What is asked for
goes to standard output, everything else to standard error.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import shlex
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import consilience
from consilience.cli.relay import app as relay
from consilience.config.config import KEYS, Config, field_of_key
from consilience.errors import ConfigurationError, ConsilienceError, TrainingError

if TYPE_CHECKING:
    from consilience.cli.terminal import Screen

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Learn together without sharing data or models.",
)

app.add_typer(relay, name="relay")

_NO_OPTION = {"method", "groups", "variants"}
_OF_DATA = {"data_dir", "train", "test", "test_share", "image_size", "image_mode"}
_OF_DEALS = {"learners", "partition", "shift", "seed"}
_OF_TRAINING = _OF_DATA | {"data", "model", "width", "rounds", "epochs", "batch_size", "optimizer", "optimizer_state"}
_OF_TRAINING |= {"lr", "momentum", "weight_decay", "device", "precision"}
_EXTRAS = {"learn": {"torch", "sklearn", "pooch", "PIL", "httpcore"}, "relay": {"starlette", "uvicorn", "httptools"}}
"""What comes with an extra: a relay needs no torch, and a learner no server."""
COMPARED = (
    "centralized, independent, self-distillation, federated-distillation, fedavg, representation-sharing, fedavg-1bit, "
    "consilience"
)


def _tell_version(wanted: bool) -> None:
    if wanted:
        print(f"consilience {consilience.__version__}")
        raise typer.Exit


@app.callback()
def _program(
    version: Annotated[
        bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="print the version and leave")
    ] = False,
) -> None:
    """Learn together without sharing data or models."""


ConfigFile = Annotated[Path | None, typer.Argument(help="a TOML file with settings; options override it")]
Method = Annotated[
    str | None, typer.Option(help="the method, NAME or FILE.py:NAME, with :KEY=VALUE; see `consilience methods`")
]
Out = Annotated[Path | None, typer.Option(help="folder to keep the run in (default: a new one under runs/)")]
Resume = Annotated[Path | None, typer.Option(help="go on with the run in this folder")]
Track = Annotated[str | None, typer.Option(metavar="NAME", help="show the curves as rounds are played: tensorboard")]
Json = Annotated[bool, typer.Option("--json", help="print one JSON object a line on standard output, nothing else")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="any setting, such as method.kd=3; may be repeated"),
]


def with_settings(command: Callable[..., None], only: Collection[str] = ()) -> Callable[..., None]:
    """Give a command an option for every key of the configuration, or for some only."""
    own = inspect.signature(command, eval_str=True)
    parameters = [p for p in own.parameters.values() if p.name != "settings"]
    names = [name for name in KEYS if name not in _NO_OPTION and (not only or name in only)]
    for name, field in ((name, field_of_key(name)) for name in names):
        kind = {int: int, float: float, bool: bool}.get(_plain_type(field.annotation), str)
        shown = f"{field.description} (default {field.default})" if field.default is not None else field.description
        option = typer.Option(help=shown, show_default=False, rich_help_panel="Settings")
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


def _plain_type(annotation: Any) -> Any:
    kinds = [a for a in getattr(annotation, "__args__", ()) if isinstance(a, type) and a is not type(None)]
    return str if str in kinds else kinds[0] if kinds else annotation


@app.command()
@with_settings
def init(
    file: Annotated[Path, typer.Argument(help="the file to write")] = Path("experiment.toml"),
    method: Method = None,
    set_: Set = None,
    force: Annotated[bool, typer.Option("--force", help="overwrite the file if it is there")] = False,
    settings: dict[str, Any] | None = None,
) -> None:
    """Write a settings file to start from, with every key explained."""
    from consilience.cli.config_template import starting_file
    from consilience.files import replace_file, report_write_errors
    from consilience.methods import build_method

    wanted = _gather(None, set_, settings or {}, method)
    build_method(wanted.method.name, wanted.method.settings)
    if file.exists() and not force:
        raise ConfigurationError(f"{file} is there already; choose another name, or overwrite it with --force")
    with report_write_errors(file, "choose another place"):
        replace_file(file, starting_file(wanted).encode())
    print(f"{file} is written; run it with: consilience run {file}")


@app.command()
@partial(with_settings, only=_OF_DATA | _OF_DEALS)
def data(
    name: Annotated[str, typer.Argument(help="a data set by name, a .npz file, or a folder of images")] = "digits",
    out: Annotated[Path | None, typer.Option(help="write the pictures to this file, such as grid.png")] = None,
    json_: Json = False,
    settings: dict[str, Any] | None = None,
) -> None:
    """Show a data set: samples, classes, pictures; with --learners, --partition or --shift as learners have it."""
    from consilience.cli.terminal import Screen
    from consilience.config.config import make_config
    from consilience.simulation.setup.inputs import in_full

    given = settings or {}
    config = in_full(make_config({**given, "data": name}))
    Screen(json_).data(config, dealt=bool(_OF_DEALS & set(given)), out=out)


@app.command()
@with_settings
def run(
    config: ConfigFile = None,
    method: Method = None,
    set_: Set = None,
    out: Out = None,
    resume: Resume = None,
    track: Track = None,
    json_: Json = False,
    settings: dict[str, Any] | None = None,
) -> None:
    """Run one method and keep the run in a folder."""
    from consilience.cli.terminal import Screen
    from consilience.report.tracking import tracking
    from consilience.simulation.compare import how_to_resume, new_folder
    from consilience.simulation.simulate import simulate

    screen, tracked = Screen(json_), tracking(track)
    if resume is not None:
        _refuse_beside_resume(config, method, set_, out, settings)
        folder, begun = resume, partial(simulate, resume=resume)
    else:
        wanted = _gather(config, set_, settings or {}, method)
        folder = out or new_folder(wanted, wanted.method.label)
        begun = partial(simulate, wanted, out=folder)
    with _told_how_to_go_on(screen, folder), tracked(folder, screen.on_round) as on_round:
        result = begun(on_round=on_round)
    screen.show([result.summary()])
    if not result.finished:
        screen.say(f"stopped after round {result.history.rounds}; go on with: {how_to_resume(folder)}")
        raise typer.Exit(130)


@app.command()
@with_settings
def compare(
    config: ConfigFile = None,
    methods: Annotated[
        str | None,
        typer.Option(help=f"methods to compare, separated by commas, each NAME or NAME:KEY=VALUE (default {COMPARED})"),
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
    from consilience.simulation import compare as comparison

    screen, tracked = Screen(json_), tracking(track)
    if resume is not None:
        _refuse_beside_resume(config, methods, set_, out, settings)
        work = comparison.reopen(resume)
    else:
        wanted = _gather(config, set_, settings or {}, None)
        names = split_list(COMPARED if methods is None else methods)
        work = comparison.begin(wanted, names, out or comparison.new_folder(wanted, "compare"))
    summaries = []
    with _told_how_to_go_on(screen, work.folder), tracked(work.folder, screen.on_round) as on_round:
        for summary in work.play(on_round):
            summaries.append(summary)
            screen.each(summary)
            if not summary["finished"]:
                resume_with = comparison.how_to_resume(work.folder)
                screen.say(f"stopped in {summary['method']!r}; go on with: {resume_with}")
                raise typer.Exit(130)
    screen.table(summaries)
    screen.say(f"kept in {work.folder}")


@app.command()
@with_settings
def sweep(
    config: ConfigFile = None,
    method: Method = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=A,B,...", help="a setting and the values to try, such as method.kd=0,1,10; repeat it"
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
    from consilience.simulation import sweep as sweeping
    from consilience.simulation.compare import how_to_resume, new_folder

    screen, tracked = Screen(json_), tracking(track)
    if resume is not None:
        _refuse_beside_resume(config, method, set_, out, settings)
        work = sweeping.reopen(resume)
    else:
        grid, fixed = sweeping.axes(set_ or ())
        wanted = _gather(config, fixed, settings or {}, method)
        work = sweeping.begin(wanted, grid, out or new_folder(wanted, f"sweep-{wanted.method.label}"))
    if work.apart:
        screen.say(f"{', '.join(work.apart)} cannot differ within a run: {len(work.parts)} runs, one after the other")
    with _told_how_to_go_on(screen, work.folder), tracked(work.folder, screen.on_round) as on_round:
        for finished in work.play(on_round):
            if not finished:
                screen.say(f"stopped; go on with: {how_to_resume(work.folder)}")
                raise typer.Exit(130)
    outcomes = work.outcomes()
    screen.swept(outcomes, work.folder)
    if all(outcome["diverged"] for outcome in outcomes):
        first = outcomes[0]["diverged"][0]
        raise TrainingError(f"in every setting something was no number in the end, first {first}; try smaller values")


@app.command()
def reproduce(
    name: Annotated[str | None, typer.Argument(help="a table or figure by name; see --list")] = None,
    list_: Annotated[bool, typer.Option("--list", help="list what can be reproduced")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="a short version for two cores")] = False,
    seeds: Annotated[int | None, typer.Option(min=1, help="seeds of each cell (default: as many as stated)")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    data_dir: Annotated[str | None, typer.Option(help="folder with the files of the data sets")] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LABEL=VALUE", help="some cells only, such as task=MNIST; may be repeated, also for one label"
        ),
    ] = None,
    precision: Annotated[str, typer.Option(help="of the models' arithmetic: auto, float32, bf16 or float64")] = "auto",
    kept: Annotated[bool, typer.Option("--kept", help="run nothing: show the cells that are there")] = False,
    out: Annotated[Path | None, typer.Option(help="folder for cells and results (default: reproduced/NAME)")] = None,
    track: Track = None,
) -> None:
    """Make a published table or figure again; cells that are done already are found again."""
    from consilience.cli.terminal import Screen
    from consilience.config.overrides import split_setting
    from consilience.errors import UnknownName
    from consilience.papers import REPRODUCTIONS, Scale
    from consilience.papers.run import run_reproduction, write_reproduction_page
    from consilience.presentation.tables import rows_table
    from consilience.report.tracking import tracking

    screen, tracked = Screen(False), tracking(track)
    if list_ or name is None:
        screen.print(rows_table([{"name": each.name, "what": each.summary} for each in REPRODUCTIONS.values()]))
        return
    if name not in REPRODUCTIONS:
        raise UnknownName("reproduction", name, REPRODUCTIONS)
    folder = out or Path("reproduced") / (f"{name}-quick" if quick else name)
    some = [split_setting(text, "no label of cells; write LABEL=VALUE, such as task=MNIST") for text in only or ()]
    scale = Scale(quick, seeds, device, data_dir, some, precision)
    try:
        with tracked(folder, screen.on_round) as on_round:
            found = run_reproduction(REPRODUCTIONS[name], scale, folder, on_round, kept)
    except KeyboardInterrupt:
        found = run_reproduction(REPRODUCTIONS[name], scale, folder, saved_only=True)
    for section in found.sections:
        screen.section(section.heading, section.text, section.table)
    command = shlex.join(["consilience", *sys.argv[1:]])
    try:
        page = write_reproduction_page(REPRODUCTIONS[name], found.sections, folder, command)
        screen.say(f"the page is {page}")
    except ConfigurationError as error:  # what draws it is an extra
        screen.say(f"no page: {error}")
    screen.say(f"kept in {folder}")
    if found.missing and not kept:
        screen.say("stopped; the same command goes on")
        raise typer.Exit(130)


@app.command()
@partial(with_settings, only=_OF_DATA | {"model", "width", "seed"})
def federation(
    method: Annotated[
        str, typer.Argument(help="the method, NAME or FILE.py:NAME, with :KEY=VALUE; see `consilience methods`")
    ],
    data: Annotated[str, typer.Option(help="data as members have it, for shapes and classes")] = "digits",
    name: Annotated[str | None, typer.Option(help="what the federation is called (default: the data's name)")] = None,
    out: Annotated[Path, typer.Option(help="the file to write")] = Path("federation.toml"),
    set_: Set = None,
    settings: dict[str, Any] | None = None,
) -> None:
    """Write a federation's charter: what is learned, how, and what may travel. A relay founds it from this file."""
    from consilience.cli.join import federation as write

    config = _gather(None, set_, {**(settings or {}), "data": data}, method)
    print(write(config, name or config.data_name.lower(), out), file=sys.stderr)


@app.command()
@partial(with_settings, only=_OF_TRAINING)
def join(
    url: Annotated[str, typer.Argument(help="the relay's address, such as https://relay.example:8443")],
    token: Annotated[
        str, typer.Option(envvar="CONSILIENCE_TOKEN", help="the token you were invited with", show_envvar=True)
    ],
    method: Annotated[
        str | None,
        typer.Option(metavar="FILE.py:NAME", help="your copy of the file, where the federation's method is in one"),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="folder for the model and all that a restart needs")] = None,
    wait: Annotated[float, typer.Option(min=0, help="seconds to wait in a round for the others, where needed")] = 120.0,
    ca_file: Annotated[str | None, typer.Option(help="a file with the certificates to trust")] = None,
    json_: Json = False,
    settings: dict[str, Any] | None = None,
) -> None:
    """Train in a federation with no code of your own; goes on where it was stopped, and saves the model."""
    from consilience.cli.join import JoinOptions
    from consilience.cli.join import join as train

    options = JoinOptions(out, method, wait, ca_file, json_)
    train(_gather(None, None, settings or {}, None), url, token, options)


@app.command()
def methods(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[METHOD]...", help="only these: NAME or FILE.py:NAME, with settings or without"),
    ] = None,
    data: Annotated[str, typer.Option(help="the task's data set, for the bytes")] = "mnist",
    model: Annotated[str | None, typer.Option(help="the learners' model, for the bytes")] = None,
    json_: Json = False,
) -> None:
    """List the methods: what each does, what leaves the learner, and bytes a round for a task."""
    from consilience.cli.terminal import Screen
    from consilience.presentation.method_table import catalog, catalog_table

    rows = catalog(data, model, names or ())
    if json_:
        for row in rows:
            print(json.dumps(row))
    else:
        Screen(False).print(catalog_table(rows))


@app.command()
def show(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="folder of a run, a comparison or a sweep")],
    json_: Json = False,
) -> None:
    """Show what a run, a comparison or a sweep came to."""
    from consilience.cli.terminal import Screen
    from consilience.simulation import sweep as sweeping
    from consilience.simulation.compare import how_to_resume, summaries_of

    screen = Screen(json_)
    if (folder / sweeping.PLAN).is_file():
        work = sweeping.reopen(folder)
        if outcomes := work.outcomes():
            screen.swept(outcomes, folder)
        if not work.finished:
            screen.say(
                f"{len(outcomes)} of {len(work.settings)} settings are done; go on with: {how_to_resume(folder)}"
            )
        return
    found = summaries_of(folder)
    for summary in found:
        screen.each(summary)
    screen.table(found)
    screen.curves(folder)
    for summary in found:
        if not summary["finished"]:
            so_far = f"{summary['method']!r} was stopped after round {summary['rounds']}"
            screen.say(f"{so_far}; go on with: {how_to_resume(folder)}")


@app.command()
def report(
    folders: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="folders of runs, comparisons, sweeps or reproductions")
    ],
    out: Annotated[Path, typer.Option(help="the page to write")] = Path("report.html"),
    figures: Annotated[Path | None, typer.Option(help="folder for the figures as SVG and PNG")] = None,
) -> None:
    """Write one page with the tables and figures of runs; it opens anywhere, without a network."""
    from consilience.report.page import run_report

    print(f"the page is {run_report(folders, out, figures)}")


@app.command()
def leakage(
    folders: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="folders of runs, comparisons or sweeps that keep models")
    ],
    layer: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="a module of the models, features, or cut; may be repeated (default: the cut, else the features)",
        ),
    ] = None,
    learners: Annotated[int, typer.Option(min=1, help="look at the first so many")] = 3,
    epochs: Annotated[int, typer.Option(min=1, help="that an attacker trains")] = 30,
    auxiliary: Annotated[
        int | None, typer.Option(min=1, help="test samples an attacker has (default: half of them, 2000 at most)")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    json_: Json = False,
    out: Annotated[Path | None, typer.Option(help="write a page about the runs, as `consilience report` does")] = None,
) -> None:
    """Measure what a run's models tell of the data they were trained on; kept in the run's folder, for `report`."""
    from consilience.cli.leakage import look
    from consilience.cli.terminal import Screen
    from consilience.leakage.settings import LeakageSettings

    screen, settings = Screen(json_), LeakageSettings(tuple(layer or ()), learners, epochs, auxiliary, device)
    try:
        look(screen, folders, settings, out)
    except KeyboardInterrupt:
        screen.say("stopped; what was found of runs before is kept")
        raise typer.Exit(130) from None


def _gather(
    config: Path | None, overrides: Sequence[str] | None, settings: dict[str, Any], method: str | None
) -> Config:
    """Settings from a file, then options, then --set; the last word counts."""
    from consilience.config.config import make_config, read_config
    from consilience.config.overrides import apply_override, parse_method

    given = read_config(config).settings() if config else {}
    given |= settings
    if method is not None:
        own, wanted = given.get("method", {}), parse_method(method)
        given["method"] = {**(own if own.get("name") == wanted["name"] else {}), **wanted}
    for text in overrides or ():
        apply_override(given, text)
    _point_to_the_method(given, overrides or ())
    return make_config(given)


def _point_to_the_method(given: dict[str, Any], overrides: Sequence[str]) -> None:
    """Refuse a method's setting that was given as if it were the run's, saying where it belongs."""
    from consilience.config.overrides import split_setting
    from consilience.methods import settings_of

    table = given.get("method", {})
    name = table.get("name", "consilience") if isinstance(table, dict) else ""
    for key in (split_setting(text)[0] for text in overrides):
        if key not in KEYS and name and key in settings_of(name):
            raise ConfigurationError(f"{key!r} is a setting of the method {name!r}; write --set method.{key}=VALUE")


@contextlib.contextmanager
def _told_how_to_go_on(screen: Screen, folder: Path) -> Iterator[None]:
    """For Ctrl-C outside the rounds, where there is nothing to finish first, and for a second one in a round."""
    from consilience.simulation.compare import how_to_resume

    try:
        yield
    except KeyboardInterrupt:
        if folder.is_dir():
            screen.say(f"stopped; go on with: {how_to_resume(folder)}")
        raise typer.Exit(130) from None


def _refuse_beside_resume(*others: object) -> None:
    if any(others):
        raise ConfigurationError("--resume takes its settings from the run's folder; give it no others")


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point: errors become one line on standard error, and an exit code."""
    try:
        app(args=list(arguments) if arguments is not None else None)
    except ConsilienceError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, ConfigurationError) else 1)
    except ModuleNotFoundError as error:
        extra = next((extra for extra, needed in _EXTRAS.items() if (error.name or "").split(".")[0] in needed), None)
        if extra is None:
            raise
        print(
            f"error: {error.name} is not installed, and this needs it: pip install 'consilience[{extra}]'",
            file=sys.stderr,
        )
        sys.exit(2)


if __name__ == "__main__":
    main()
