"""Self-contained HTML pages with inline style and inline SVG."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

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
"""


def page(title: str, body: str, *, style: str) -> str:
    """A whole page; ``style`` is added to the common one, ``title`` is plain text, ``body`` HTML."""
    return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{escape(title)}</title>
<style>{STYLE}{style}</style>
{body}
</html>
"""


def table(columns: Iterable[str], rows: Iterable[str]) -> str:
    """A table with horizontal scrolling; ``columns`` are plain text, ``rows`` HTML."""
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    return f'<div class="wide"><table><tr>{head}</tr>\n{chr(10).join(rows)}\n</table></div>'


def element(name: str, *children: str, **attributes: object) -> str:
    """An element of SVG or HTML: ``element("line", x1=0, stroke_width=2)``; ``class_`` becomes ``class``.

    Children are markup, attributes are plain values; floats are rounded to hundredths.
    """
    written = "".join(f' {key.rstrip("_").replace("_", "-")}="{_value(value)}"' for key, value in attributes.items())
    return f"<{name}{written}>{''.join(children)}</{name}>" if children else f"<{name}{written}/>"


def label(text: str, **attributes: object) -> str:
    """An SVG text element."""
    return element("text", escape(text), **attributes)


def hint(text: str) -> str:
    """A tooltip: the child element that gives its parent one."""
    return element("title", escape(text))


def picture(*children: str, width: float, height: float, name: str) -> str:
    """A responsive SVG picture; ``name`` is its accessible label."""
    return element(
        "svg", *children, viewBox=f"0 0 {_value(width)} {_value(height)}", width=width, role="img", aria_label=name
    )


def _value(value: object) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else escape(str(value))
