from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra: pip install 'pathweave[packager]'")

from benchmarks.tasks import sensors, sounds, texts
from benchmarks.tasks.bench import CASES, _with_worst
from benchmarks.tasks.case import Case, Part, accuracy_percent
from benchmarks.tasks.embeddings import recall_percent
from benchmarks.tasks.judging import ADAPTED, LADDER, UNLABELLED, Judged, case_figures
from benchmarks.tasks.texts import QUICK_COUNTS, texts_by_part
from device_sdk.supernet.plan import Edge, Plan, Subnet

PLAN = Plan(Subnet((Edge("o0"),)))


def case(name="texts", *, labelled=True):
    none = Part([], np.array([]))
    return Case(name, "accuracy", "data", None, none, none, accuracy_percent, labelled=labelled)


def judged(what, ratio, percent):
    return Judged(what, ratio, PLAN, ratio, percent)


def test_the_worst_budget_and_the_worst_case_count_in_points():
    plans = [
        *(judged(ADAPTED, 0.7, 80.0), judged(LADDER, 0.7, 78.0), judged(UNLABELLED, 0.7, 79.0)),
        *(judged(ADAPTED, 0.45, 70.0), judged(LADDER, 0.45, 72.0), judged(UNLABELLED, 0.45, 67.0)),
    ]
    figures = case_figures(case(), judged("full model", 1.0, 81.0), plans)
    assert figures["below_ladder_texts"] == pytest.approx(2.0)
    assert figures["unlabelled_texts"] == pytest.approx(3.0)
    assert (figures["full_texts"], figures["ladder_texts_at_0.45"]) == (81.0, 72.0)
    whole = _with_worst({**figures, "below_ladder_maps": 4.0, "unlabelled_maps": -1.0})
    assert (whole["worst_below_ladder"], whole["unlabelled_below_labelled"]) == (4.0, pytest.approx(3.0))


def test_a_case_without_labels_has_no_figure_of_them():
    plans = [judged(ADAPTED, 0.5, 80.0), judged(LADDER, 0.5, 81.0), judged(UNLABELLED, 0.5, 80.0)]
    assert "unlabelled_x" not in case_figures(case("x", labelled=False), judged("full model", 1.0, 82.0), plans)


def test_recall_is_of_the_nearest_other_vector():
    vectors = [np.array(one, dtype=np.float32) for one in ([1, 0], [2, 0.1], [0, 1], [0.1, 3])]
    assert recall_percent(vectors, np.array([0, 0, 1, 1])) == 100
    assert recall_percent(vectors, np.array([0, 0, 1, 2])) == 50


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


def test_no_recording_is_in_two_parts_and_no_person_of_sensors():
    numbers = [set(part) for part in (sounds._SEARCH, sounds._REPORT, sounds._VALIDATION, sounds._TRAINING)]
    assert sum(map(len, numbers)) == len(set().union(*numbers)) == 50
    people = [set(part) for part in (sensors._TRAINED, sensors._VALIDATED, sensors._SEARCHED, sensors._REPORTED)]
    assert sum(map(len, people)) == len(set().union(*people)) == 10


@pytest.mark.parametrize("name", ["sounds", "sensors"])
def test_missing_data_are_told_with_where_they_come_from(name, tmp_path, monkeypatch):
    monkeypatch.setattr(sensors.importlib.util, "find_spec", lambda package: None)
    with pytest.raises(FileNotFoundError, match="the data folder"):
        CASES[name](SimpleNamespace(data_folder=tmp_path, quick=True))
