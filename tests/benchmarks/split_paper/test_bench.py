from __future__ import annotations

import pytest

pytest.importorskip("torch")

from benchmarks.split_paper.bench import _figures, _largest_error

METHODS = {"Auto-Split": 30.0, "U8": 40.0, "QDMP": 60.0, "QDMP_E+U4": 40.0, "Neurosurgeon": 60.0, "server": 100.0}


def rows(own_ms):
    for source in ("systolic", "roofline", "34 GMAC/s"):
        for bits in (16, 8) if source == "systolic" else (16,):
            for method, ms in (METHODS | {"Auto-Split": own_ms, "server, JPEG": 20.0}).items():
                yield {
                    "network": "resnet50",
                    "latencies": source,
                    "input_bits": bits,
                    "limit_of": "both",
                    "method": method,
                    "latency_ms": ms,
                    "kind": "split",
                    "paper": "split",
                    "optimal": False,
                    "within_limits": method not in ("QDMP_E+U4",),
                }


def test_reductions_are_shares_of_the_baselines_latency():
    figures = _figures(list(rows(30.0)))
    assert figures["vs_u8"] == pytest.approx(0.25)
    assert figures["vs_qdmp"] == pytest.approx(0.5)
    assert figures["vs_cloud_8_bit_input"] == pytest.approx(0.7)
    assert figures["vs_jpeg_8_bit_input"] == pytest.approx(-0.5)
    assert figures["worse_than_best_baseline"] == 0


def test_a_baseline_that_is_faster_within_the_limits_counts():
    assert _figures(list(rows(45.0)))["worse_than_best_baseline"] == 4  # U8, in every case


def test_the_largest_error_ends_at_the_first_allocation_that_loses_too_much():
    drops = [(0.1, 0.0), (0.5, 0.04), (0.9, 0.06), (1.2, 0.01)]
    assert _largest_error([{"error": error, "drop": drop} for error, drop in drops]) == 0.5
    assert _largest_error([{"error": 0.1, "drop": 0.5}]) == 0.0
