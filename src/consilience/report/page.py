"""A page of tables and charts in one file that needs no network.

The page contains the Vega bundle, and its content security policy forbids loading anything else.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from functools import cache
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any

from consilience.errors import ConfigurationError
from consilience.extras import install_command
from consilience.files import replace_file, report_write_errors
from consilience.presentation.chart import WIDTH, altair
from consilience.presentation.theme import CSS, SCRIPT, theme
from consilience.report.section import Section as Section
from consilience.report.section import chart_spec, entry_width, script_json, section_html

_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
_PNG_SCALE = 2.0  # pixels of a PNG per pixel of the screen
_HINT = "choose another path"


def write_page(path: Path, title: str, sections: Sequence[Section], command: str) -> None:
    """Write a page with these sections, atomically; `command`: the command that writes it."""
    _refuse_folder(path)
    content = _page(title, sections, command).encode()
    with report_write_errors(path, _HINT):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, content)


def write_figures(folder: Path, sections: Sequence[Section]) -> list[Path]:
    """Write the chart of every section as SVG and PNG; returns the paths of the files."""
    convert = _convert()
    config, drawn = theme(), []
    for section, slug in _with_slugs(sections):
        if section.figure is not None:
            spec = chart_spec(section)
            config["legend"]["columns"] = max(1, WIDTH // entry_width(spec))
            svg = convert.vegalite_to_svg(spec, config=config).encode()
            drawn += [
                (f"{slug}.svg", svg),
                (f"{slug}.png", convert.vegalite_to_png(spec, config=config, scale=_PNG_SCALE)),
            ]
    with report_write_errors(folder, _HINT):
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in drawn:
            replace_file(folder / name, content)
    return [folder / name for name, _ in drawn]


def write_report(
    paths: str | Path | Sequence[str | Path], out: str | Path = "report.html", figures: str | Path | None = None
) -> Path:
    """Write a page of tables and figures about runs, and return its path.

    paths: folders of runs, comparisons, sweeps and reproductions. figures: a folder for the figures as SVG and PNG.
    """
    from consilience.report.runs import read_runs
    from consilience.report.sections import report_sections
    from consilience.report.story import report_title

    folders = [Path(path) for path in ([paths] if isinstance(paths, str | Path) else paths)]
    out, figures = Path(out), None if figures is None else Path(figures)
    if not folders:
        raise ConfigurationError("no run to report on; name at least one folder")
    check_page(out)
    found = read_runs(folders)
    sections = report_sections(found)
    options = ["--out", str(out), *(["--figures", str(figures)] if figures else [])]
    command = shlex.join(["consilience", "report", *map(str, folders), *options])
    if figures is not None:
        write_figures(figures, sections)
    write_page(out, report_title(found), sections, command)
    return out


def check_page(out: Path) -> None:
    """Raise an error if no page can be written there, or if the libraries that draw charts are missing."""
    _refuse_folder(out)
    altair(), _convert()


def _refuse_folder(path: Path) -> None:
    if path.is_dir():
        raise ConfigurationError(
            f"{path} is a folder, and a page is a file; choose a file, such as {path / 'report.html'}"
        )


def _page(title: str, sections: Sequence[Section], command: str) -> str:
    body = "\n".join(_body(sections))
    themes = script_json({"light": theme(), "dark": theme(dark=True)})
    charts = any(section.figure is not None for section in sections)
    drawing = f'<script type="module">{_bundle()}</script>\n<script type="module">{SCRIPT}</script>' if charts else ""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<title>{escape(title)}</title>
<style>{CSS}</style>
</head>
<body>
{_contents(sections)}
<h1>{escape(title)}</h1>
{body}
<noscript><p class="note">Charts need JavaScript, which is switched off.</p></noscript>
<footer><p>Made with <code>{escape(command)}</code></p></footer>
<script type="application/json" id="themes">{themes}</script>
{drawing}
</body>
</html>
"""


def _body(sections: Sequence[Section]) -> Iterator[str]:
    """The sections as HTML; those that stand side by side are in a grid."""
    for beside, group in groupby(_with_slugs(sections), key=lambda each: each[0].beside):
        content = "\n".join(section_html(section, slug) for section, slug in group)
        yield f'<div class="grid">{content}</div>' if beside else content


def _contents(sections: Sequence[Section]) -> str:
    """A folded list of links: to the parts of the page, and to the sections of each."""
    items = [
        f'<li class="level-{section.level}"><a href="#{escape(slug)}">{escape(section.heading)}</a></li>'
        for section, slug in _with_slugs(sections)
    ]
    return (
        f"<nav><details><summary>Contents</summary><ul>{''.join(items)}</ul></details></nav>" if len(items) > 1 else ""
    )


def _with_slugs(sections: Sequence[Section]) -> Iterator[tuple[Section, str]]:
    """Each section with a unique slug."""
    taken: set[str] = set()
    for section in sections:
        slug, number = section.slug, 1
        while slug in taken:
            number += 1
            slug = f"{section.slug}-{number}"
        taken.add(slug)
        yield section, slug


@cache
def _bundle() -> str:
    found: str = _convert().javascript_bundle()
    return found.replace("</script", "<\\/script")


def _convert() -> Any:
    """The library vl-convert, or an error that says how to install it."""
    try:
        import vl_convert
    except ImportError as error:
        raise ConfigurationError(f"pages need vl-convert: {install_command('report')}") from error
    return vl_convert
