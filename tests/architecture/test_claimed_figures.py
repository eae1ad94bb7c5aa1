"""Figures that documents claim are those of ``benchmarks/results``."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\[([^\]]+)\]\((?:\.\./)*benchmarks/results/([\w-]+)\.json(?: \"([^\"]*)\")?\)")
NUMBER = re.compile(r"(-?[\d,]+)(\.\d+)?( %)?")


def wrong_claims(text: str, results: Path) -> list[str]:
    """Linked figures that their result does not have: ``[0.98](benchmarks/results/NAME.json "figure")``.

    A figure in percent may be a share in the result.
    """
    wrong = []
    for shown, bench, figure in LINK.findall(text):
        number, path = NUMBER.fullmatch(shown), results / f"{bench}.json"
        if not figure or number is None:
            wrong.append(f"{shown}: names no figure of {bench}")
            continue
        found = json.loads(path.read_bytes())["figures"].get(figure) if path.exists() else None
        digits = len(number[2] or ".") - 1
        claimed = float(number[1].replace(",", "") + (number[2] or ""))
        scales = (1.0, 100.0) if number[3] else (1.0,)
        if found is None or all(round(scale * found, digits) != claimed for scale in scales):
            wrong.append(f"{shown}: {figure} of {bench} is {found}")
    return wrong


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_claimed_figures_are_those_of_the_results(document: Path) -> None:
    assert wrong_claims(document.read_text(encoding="utf-8"), ROOT / "benchmarks" / "results") == []


def test_the_readme_claims_what_was_measured() -> None:
    assert LINK.search((ROOT / "README.md").read_text(encoding="utf-8"))


def test_claims_are_compared_to_the_digits_that_they_show(tmp_path: Path) -> None:
    (tmp_path / "one.json").write_text('{"figures": {"ratio": 0.9831, "many": 1234.5, "gone": null}}')
    link = '(benchmarks/results/one.json "{}")'
    right = ["[0.98]" + link.format("ratio"), "[98.3 %]" + link.format("ratio"), "[1,234.5]" + link.format("many")]
    assert wrong_claims(" ".join(right), tmp_path) == []
    wrong = ["[0.99]" + link.format("ratio"), "[98.3]" + link.format("ratio"), "[1]" + link.format("gone")]
    wrong += [
        "[1]" + link.format("unknown"),
        "[0.98](benchmarks/results/one.json)",
        '[1](benchmarks/results/two.json "x")',
    ]
    assert len(wrong_claims(" ".join(wrong), tmp_path)) == len(wrong)
