"""A section of a page: heading, text, table, chart and pictures, and its HTML."""

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

_MIN_ENTRY = 60  # pixels of an entry of a legend


@dataclass(frozen=True)
class Picture:
    """A PNG and its caption."""

    content: bytes
    caption: str


@dataclass(frozen=True)
class Section:
    """A section of a page.

    `lead`: what the section says, in a sentence. `answers`: questions, each with a short answer. `notes`: warnings.
    `best`: the row of the table that is marked. `explanation`: of the table's columns, folded. `details`: files, folded
    under their names. `name`: used in links and as the name of the figure's files. `level`: 1 is a part of the page, 2
    a section of it. `beside`: sections in a row with the same name here stand side by side where there is room.
    `folded`: only the heading is seen until it is opened.
    """

    heading: str
    text: str = ""
    table: Sequence[Mapping[str, Any]] | None = None
    figure: Chart = None
    name: str = ""
    level: int = 2
    notes: Sequence[str] = ()
    explanation: str = ""
    details: Sequence[tuple[str, str]] = ()
    pictures: Sequence[Picture] = ()
    lead: str = ""
    answers: Sequence[tuple[str, str]] = ()
    best: int | None = None
    beside: str = ""
    folded: bool = False

    @property
    def slug(self) -> str:
        """The name, or the heading, in characters that are safe in links and file names."""
        return re.sub(r"[^a-z0-9.]+", "-", (self.name or self.heading).lower()).strip("-.") or "section"


def chart_spec(section: Section) -> dict[str, Any]:
    """A section's chart as Vega-Lite, with numbers of four digits and the heading as its description."""
    spec: dict[str, Any] = _rounded(section.figure.to_dict())
    spec.pop("config", None)  # the theme's
    return {**spec, "description": section.heading}


def entry_width(spec: Any) -> int:
    """The width of the longest entry of a chart's legend, in pixels."""
    return max([_MIN_ENTRY, *(45 + 6 * len(name) for name in _domain_names(spec))])


def _domain_names(spec: Any) -> Iterator[str]:
    """The names in the domains of a chart's scales."""
    if isinstance(spec, dict):
        known = spec.get("domain")
        yield from (name for name in known if isinstance(name, str)) if isinstance(known, list) else ()
    inner = spec.values() if isinstance(spec, dict) else spec if isinstance(spec, list) else ()
    for each in inner:
        yield from _domain_names(each)


def section_html(section: Section, slug: str) -> str:
    """A section as HTML; `slug`: its anchor."""
    rank = f"h{section.level + 1}"
    heading = f"<{rank}>{escape(section.heading)}</{rank}>"
    content = "\n".join(_parts(section))
    if section.level == 1 or section.beside:
        return f'<section id="{escape(slug)}">{heading}\n{content}</section>'
    opened = "" if section.folded else " open"
    return (
        f'<section id="{escape(slug)}"><details class="fold"{opened}><summary>{heading}</summary>\n'
        f"{content}</details></section>"
    )


def _parts(section: Section) -> list[str]:
    """The parts of a section below its heading."""
    parts = [f'<p class="lead">{_prose(section.lead)}</p>'] if section.lead else []
    parts += [_answers(section.answers)] if section.answers else []
    parts += [f'<p class="note" role="note">{_prose(note)}</p>' for note in section.notes]
    parts += [f"<p>{escape(paragraph)}</p>" for paragraph in section.text.split("\n\n") if paragraph.strip()]
    if section.table:
        parts.append(_table(section.table, section.best))
    if section.explanation:
        paragraphs = "".join(f"<p>{escape(each)}</p>" for each in section.explanation.split("\n\n"))
        parts.append(f'<details class="quiet"><summary>What the columns mean</summary>{paragraphs}</details>')
    if section.figure is not None:
        parts.append(_figure(section))
    parts += [_picture(picture) for picture in section.pictures]
    parts += [
        f"<details><summary>{escape(line)}</summary><pre>{escape(text)}</pre></details>"
        for line, text in section.details
    ]
    return parts


def _answers(answers: Sequence[tuple[str, str]]) -> str:
    """Questions and their answers, side by side where there is room."""
    each = (f"<div><dt>{escape(question)}</dt><dd>{_prose(answer)}</dd></div>" for question, answer in answers)
    return f'<dl class="answers">{"".join(each)}</dl>'


def _prose(text: str) -> str:
    """Sentences as HTML, in which no line ends between a number and its unit."""
    return re.sub(r"(\d) (%|[kMG]?B\b|points\b)", r"\1&nbsp;\2", escape(text))


def script_json(value: Any) -> str:
    """JSON that is safe inside a script element of a page."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def _figure(section: Section) -> str:
    spec = chart_spec(section)
    script = f'<script type="application/json">{script_json(spec)}</script>'
    name = escape(section.slug)
    return f'<figure data-chart="{name}" data-entry="{entry_width(spec)}"><div class="chart"></div>{script}</figure>'


def _picture(picture: Picture) -> str:
    """A picture, embedded in the page."""
    source, caption = base64.b64encode(picture.content).decode(), escape(picture.caption)
    return (
        f'<figure><img src="data:image/png;base64,{source}" alt="{caption}"><figcaption>{caption}</figcaption></figure>'
    )


def _table(rows: Sequence[Mapping[str, Any]], best: int | None = None) -> str:
    """A table whose first column has the row headings and stays in view when the others are scrolled."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    numeric = {key: all(_is_number(row.get(key)) for row in rows) for key in columns}
    head = "".join(f'<th scope="col"{_kind(numeric[key])}>{escape(key)}</th>' for key in columns)
    body = []
    for i, row in enumerate(rows):
        first, *rest = (escape(_cell(row.get(key))) for key in columns)
        cells = "".join(f"<td{_kind(numeric[key])}>{cell}</td>" for key, cell in zip(columns[1:], rest, strict=True))
        badge = "most accurate" if "accuracy %" in columns else "best"
        mark = f' <b class="badge">{badge}</b>' if i == best else ""
        body.append(f'<tr{" class=best" if i == best else ""}><th scope="row">{first}{mark}</th>{cells}</tr>')
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{"".join(body)}</tbody></table></div>'


def _kind(numeric: bool) -> str:
    return ' class="number"' if numeric else ""


def _is_number(value: Any) -> bool:
    """Whether a cell is a number, text that starts with a number, or empty."""
    return value is None or isinstance(value, int | float) or bool(re.match(r"[-+±–]?\d|–$|$", str(value)))


def _cell(value: Any) -> str:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "–"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _rounded(value: Any) -> Any:
    """The value with numbers of four digits; NaN and infinity become null."""
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(inner) for inner in value]
    if isinstance(value, float):
        return float(f"{value:.4g}") if math.isfinite(value) else None
    return value
