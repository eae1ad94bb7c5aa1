from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torchvision", reason="needs the extra vision")

from benchmarks.providers.npu import NETWORKS, figures_of

RESULT = Path(__file__).parents[3] / "benchmarks" / "results" / "generality.json"


def test_the_networks_are_among_those_of_generality():
    measured = [row["model"] for row in json.loads(RESULT.read_text())["table"]]
    assert len(NETWORKS) == 35
    assert set(NETWORKS) <= set(measured)


def test_a_failed_network_counts_as_one_of_which_nothing_is_taken():
    rows = [{"network": "a", "macs_assigned": 0.9}, {"network": "b", "failure": "it died"}]
    assert figures_of(rows, {}) == {"htp_macs_assigned": pytest.approx(0.45), "htp_networks": 2.0}


def test_a_network_whose_accuracy_was_not_measured_has_no_figure():
    judged = {"one": {"accuracy_drop_points": -0.5, "images": 200}, "other": {"failure": "it died"}}
    found = figures_of([{"macs_assigned": 1.0}], judged)
    assert found["htp_accuracy_drop_points_one"] == -0.5
    assert not any(name.endswith("other") for name in found)
