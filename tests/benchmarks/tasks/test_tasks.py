from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra: pip install 'pathweave[packager]'")

from benchmarks.tasks import texts
from benchmarks.tasks.bench import Judged, _Exits, _figures
from benchmarks.tasks.texts import QUICK_COUNTS, texts_by_part
from device_sdk.supernet.plan import Edge, Plan, Subnet

PLAN = Plan(Subnet((Edge("o0"),)))


def judged(what, ratio, right):
    mask = np.zeros(100, dtype=bool)
    mask[:right] = True
    return Judged(what, ratio, PLAN, ratio, mask)


def test_the_worst_budget_counts_in_points():
    plans = [
        *(judged("adapted", 0.7, 80), judged("ladder", 0.7, 78), judged("without labels", 0.7, 79)),
        *(judged("adapted", 0.45, 70), judged("ladder", 0.45, 72), judged("without labels", 0.45, 67)),
    ]
    figures = _figures(judged("full model", 1.0, 81), plans, _Exits(PLAN, saved=0.4, lost_points=0.2))
    assert figures["worst_below_ladder"] == pytest.approx(2.0)
    assert figures["unlabelled_below_labelled"] == pytest.approx(3.0)
    assert (figures["exits_saved"], figures["exits_lost_points"]) == (0.4, 0.2)
    assert (figures["full_accuracy"], figures["ladder_at_0.45"]) == (0.81, 0.72)


def test_no_text_is_in_two_parts(monkeypatch, tmp_path):
    many = {topic: [f"{topic} {number}" for number in range(sum(QUICK_COUNTS.values()))] for topic in ("a", "b")}
    monkeypatch.setattr(texts, "glosses", lambda data_noun: many)
    (tmp_path / "wordnet").mkdir()
    (tmp_path / "wordnet" / "data.noun").write_text("")
    parts = texts_by_part(SimpleNamespace(data_folder=tmp_path, quick=True))
    every = [text for part in parts.values() for text in part.texts]
    assert len(every) == len(set(every)) == 2 * sum(QUICK_COUNTS.values())
    assert {part: len(found.texts) for part, found in parts.items()} == {p: 2 * n for p, n in QUICK_COUNTS.items()}
    assert all(set(found.labels) == {0, 1} for found in parts.values())
