"""A section of a page: a heading with words, a table, a chart, pictures, or all of it, and the HTML that it becomes."""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from consilience.presentation.chart import Chart

_NARROW = 60  # pixels of a legend's shortest entry


@dataclass(frozen=True)
class Picture:
    """A PNG, and what it shows in words."""

    content: bytes
    words: str


@dataclass(frozen=True)
class Section:
    """A heading and what stands under it.

    `name` is what links and the files of the figure go by; `level` 1 begins a part of the page, 2 is a section of it;
    `notes` are warnings to be seen; `details` are long texts, each under a line that opens it.
    """

    heading: str
    text: str = ""
    table: Sequence[Mapping[str, Any]] | None = None
    figure: Chart = None
    name: str = ""
    level: int = 2
    notes: Sequence[str] = ()
    details: Sequence[tuple[str, str]] = ()
    pictures: Sequence[Picture] = ()

    @property
    def slug(self) -> str:
        """The name, or the heading, in letters that a link or a file may have."""
        return re.sub(r"[^a-z0-9.]+", "-", (self.name or self.heading).lower()).strip("-.") or "section"


def spec_of(section: Section) -> dict[str, Any]:
    """A section's chart as Vega-Lite, its numbers to four digits and described by its heading."""
    spec: dict[str, Any] = _short(section.figure.to_dict())
    spec.pop("config", None)  # the theme's
    return {**spec, "description": section.heading}


def entry_width(spec: Any) -> int:
    """How many pixels an entry of a chart's legend takes, at most."""
    return max([_NARROW, *(45 + 6 * len(name) for name in _words(spec))])


def _words(spec: Any) -> Iterator[str]:
    """The names that a chart's scales know."""
    if isinstance(spec, dict):
        known = spec.get("domain")
        yield from (name for name in known if isinstance(name, str)) if isinstance(known, list) else ()
    inner = spec.values() if isinstance(spec, dict) else spec if isinstance(spec, list) else ()
    for each in inner:
        yield from _words(each)


def html_of(section: Section, slug: str) -> str:
    """A section as HTML; `slug` is the name that links to it."""
    rank = f"h{section.level + 1}"
    parts = [f'<section id="{escape(slug)}"><{rank}>{escape(section.heading)}</{rank}>']
    parts += [f'<p class="note" role="note">{escape(note)}</p>' for note in section.notes]
    parts += [f"<p>{escape(paragraph)}</p>" for paragraph in section.text.split("\n\n") if paragraph.strip()]
    if section.table:
        parts.append(_table(section.table))
    if section.figure is not None:
        parts.append(_figure(section))
    parts += [_picture(picture) for picture in section.pictures]
    parts += [
        f"<details><summary>{escape(line)}</summary><pre>{escape(text)}</pre></details>"
        for line, text in section.details
    ]
    return "\n".join([*parts, "</section>"])


def as_data(value: Any) -> str:
    """JSON that may stand in a script of a page, whatever words are in it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def _figure(section: Section) -> str:
    spec = spec_of(section)
    script = f'<script type="application/json">{as_data(spec)}</script>'
    name = escape(section.slug)
    return f'<figure data-chart="{name}" data-entry="{entry_width(spec)}"><div class="chart"></div>{script}</figure>'


def _picture(picture: Picture) -> str:
    """A picture that stands in the page itself."""
    source, words = base64.b64encode(picture.content).decode(), escape(picture.words)
    return f'<figure><img src="data:image/png;base64,{source}" alt="{words}"><figcaption>{words}</figcaption></figure>'


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A table whose first column names the rows; each cell knows its column, for a screen too narrow for columns."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    numeric = {key: all(_is_number(row.get(key)) for row in rows) for key in columns}
    head = "".join(f'<th scope="col"{_kind(numeric[key])}>{escape(key)}</th>' for key in columns)
    body = []
    for row in rows:
        first, *rest = (escape(_cell(row.get(key))) for key in columns)
        cells = "".join(
            f'<td data-label="{escape(key)}"{_kind(numeric[key])}>{cell}</td>'
            for key, cell in zip(columns[1:], rest, strict=True)
        )
        body.append(f'<tr><th scope="row">{first}</th>{cells}</tr>')
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{"".join(body)}</tbody></table></div>'


def _kind(numeric: bool) -> str:
    return ' class="number"' if numeric else ""


def _is_number(value: Any) -> bool:
    """Whether a cell is a number, or words that begin with one, or empty."""
    return value is None or isinstance(value, int | float) or bool(re.match(r"[-+±–]?\d|–$|$", str(value)))


def _cell(value: Any) -> str:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "–"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _short(value: Any) -> Any:
    """The same, with numbers to four digits; what JSON has no number for becomes null."""
    if isinstance(value, dict):
        return {key: _short(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_short(inner) for inner in value]
    if isinstance(value, float):
        return float(f"{value:.4g}") if math.isfinite(value) else None
    return value
