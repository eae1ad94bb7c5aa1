"""All bench results on one self-contained page: tables, bars as inline SVG, missed targets in plain sight."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from benchmarks.runner.age import Age
from benchmarks.runner.run import BenchResult, Target
from pathweave.page import element, page, table

BAR_WIDTH, BAR_HEIGHT = 160, 12  # pixels

STYLE = """
rect { fill: var(--bar); }
.missed rect { fill: var(--bad); }
line { stroke: var(--ink); stroke-width: 2; }
"""


def render_report(results: Sequence[BenchResult], ages: Mapping[str, Age]) -> str:
    """The self-contained HTML page. ``ages``: of the results, by the name of their bench."""
    missed = sum(len(result.missed) for result in results)
    verdict = f'<span class="bad">{missed} targets missed</span>' if missed else "all targets met"
    old = sum(ages[result.bench].is_old for result in results)
    sections = "\n".join(_section(result, ages[result.bench]) for result in results)
    aged = f'<span class="bad">{old} older than the code that they measure</span>' if old else "none is old"
    summary = f"<h1>Measurements</h1>\n<p>{len(results)} results, {verdict}, {aged}.</p>"
    return page("Pathweave: measurements", f"{summary}\n{sections}", style=STYLE)


def _section(result: BenchResult, age: Age) -> str:
    title = f"{result.bench} (quick)" if result.quick else result.bench
    return f"""<section>
<h2>{escape(title)}</h2>
<p>{escape(result.data)}{f'. <span class="bad">{escape(str(age))}</span>' if age.is_old else ""}</p>
{_figures(result)}
{_rows(result.table)}
<p class="soft">{escape(_circumstances(result))}</p>
</section>"""


def _circumstances(result: BenchResult) -> str:
    machine = result.machine
    libraries = (f"{name} {version}" for name, version in machine.libraries.items())
    software = ", ".join((f"Python {machine.python}", *libraries))
    commit = result.commit[:12] + ("-dirty" if result.commit.endswith("-dirty") else "")
    return f"{machine.cpu}, {machine.cores} cores, {machine.os}; {software}; {commit}; {result.seconds:.0f} s"


def _figures(result: BenchResult) -> str:
    absent = {figure: None for figure in result.missed if figure not in result.figures}
    rows = []
    for figure, value in {**result.figures, **absent}.items():
        target = result.targets.get(figure)
        missed = figure in result.missed
        verdict = "" if target is None else '<span class="bad">missed</span>' if missed else "met"
        cells = (
            f"<td>{escape(figure)}</td>",
            _number("not measured" if value is None else f"{value:.6g}"),
            f"<td>{_target_bar(value, target)}</td>",
            f"<td>{escape(str(target or ''))}</td>",
            f"<td>{verdict}</td>",
        )
        rows.append(f"<tr{' class=missed' if missed else ''}>{''.join(cells)}</tr>")
    return table(("figure", "value", "", "target", ""), rows)


def _target_bar(value: float | None, target: Target | None) -> str:
    """A bar for the value, with a mark at each bound."""
    if value is None or target is None:
        return ""
    bounds = [bound for bound in (target.minimum, target.maximum) if bound is not None]
    full = 1.15 * max(abs(number) for number in (value, *bounds))
    return _bar(value, full=full, marks=bounds)


def _rows(records: Sequence[Mapping[str, object]]) -> str:
    """The rows behind the figures; the bars of a column share one scale."""
    if not records:
        return ""
    columns = list(dict.fromkeys(column for record in records for column in record))
    full = {
        column: max((abs(n) for record in records if (n := _as_number(record.get(column))) is not None), default=0)
        for column in columns
    }
    rows = []
    for record in records:
        cells = (_cell(record.get(column), full=full[column]) for column in columns)
        rows.append(f"<tr>{''.join(cells)}</tr>")
    return table(columns, rows)


def _cell(value: object, *, full: float) -> str:
    number = _as_number(value)
    if number is None:
        return f"<td>{'' if value is None else escape(str(value))}</td>"
    return f'<td class="number">{number:.6g} {_bar(number, full=full, width=60)}</td>'


def _as_number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)


def _number(text: str) -> str:
    return f'<td class="number">{text}</td>'


def _bar(value: float, *, full: float, marks: Iterable[float] = (), width: int = BAR_WIDTH) -> str:
    """An SVG bar that is ``width`` pixels long at ``full``; negative values are drawn empty."""

    def at(number: float) -> float:
        return width * min(max(number / full, 0.0), 1.0) if full else 0.0

    lines = (element("line", x1=at(mark), x2=at(mark), y1=0, y2=BAR_HEIGHT) for mark in marks)
    bar = element("rect", width=at(value), y=2, height=BAR_HEIGHT - 4)
    return element("svg", bar, *lines, width=width, height=BAR_HEIGHT, role="presentation")
