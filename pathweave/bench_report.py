"""All bench results on one self-contained page: tables, bars as inline SVG, missed targets in plain sight."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from pathweave.bench import BenchResult, Target

BAR_WIDTH, BAR_HEIGHT = 160, 12  # pixels

STYLE = """
:root { color-scheme: light dark; --ink: #1d2733; --paper: #fff; --line: #d5dbe1; --soft: #6b7683;
        --bar: #3b7dd8; --bad: #c02f1d; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e9ee; --paper: #14191f; --line: #36404a; --soft: #98a4b0;
          --bar: #6ca4f0; --bad: #ff7b66; }
}
body { font: 15px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--paper);
       max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
section { margin: 2.5rem 0; }
.wide { overflow-x: auto; }
.soft { color: var(--soft); }
.bad { color: var(--bad); font-weight: 600; }
table { border-collapse: collapse; margin: .8rem 0; }
th, td { text-align: left; padding: .25rem .9rem .25rem 0; border-bottom: 1px solid var(--line);
         white-space: nowrap; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
rect { fill: var(--bar); }
.missed rect { fill: var(--bad); }
line { stroke: var(--ink); stroke-width: 2; }
"""


def render_report(results: Sequence[BenchResult]) -> str:
    """The page, as HTML that loads nothing else."""
    missed = sum(len(result.missed) for result in results)
    verdict = f'<span class="bad">{missed} targets missed</span>' if missed else "all targets met"
    sections = "\n".join(_section(result) for result in results)
    return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Pathweave: measurements</title>
<style>{STYLE}</style>
<h1>Measurements</h1>
<p>{len(results)} results, {verdict}.</p>
{sections}
</html>
"""


def _section(result: BenchResult) -> str:
    title = f"{result.bench} (quick)" if result.quick else result.bench
    return f"""<section>
<h2>{escape(title)}</h2>
<p>{escape(result.data)}</p>
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
    return _table(("figure", "value", "", "target", ""), rows)


def _target_bar(value: float | None, target: Target | None) -> str:
    """A bar for the value, and a mark where each bound is."""
    if value is None or target is None:
        return ""
    bounds = [bound for bound in (target.minimum, target.maximum) if bound is not None]
    full = 1.15 * max(abs(number) for number in (value, *bounds))
    return _bar(value, full=full, marks=bounds)


def _rows(table: Sequence[Mapping[str, object]]) -> str:
    """The rows behind the figures; the bars of a column share one scale."""
    if not table:
        return ""
    columns = list(dict.fromkeys(column for row in table for column in row))
    full = {
        column: max((abs(n) for row in table if (n := _as_number(row.get(column))) is not None), default=0)
        for column in columns
    }
    rows = []
    for row in table:
        cells = (_cell(row.get(column), full=full[column]) for column in columns)
        rows.append(f"<tr>{''.join(cells)}</tr>")
    return _table(columns, rows)


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

    def at(number: float) -> str:
        return f"{width * min(max(number / full, 0), 1) if full else 0:.1f}"

    lines = "".join(f'<line x1="{at(mark)}" x2="{at(mark)}" y1="0" y2="{BAR_HEIGHT}"/>' for mark in marks)
    return (
        f'<svg width="{width}" height="{BAR_HEIGHT}" role="presentation">'
        f'<rect width="{at(value)}" y="2" height="{BAR_HEIGHT - 4}"/>{lines}</svg>'
    )


def _table(columns: Iterable[str], rows: Iterable[str]) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    return f'<div class="wide"><table><tr>{head}</tr>\n{chr(10).join(rows)}\n</table></div>'
