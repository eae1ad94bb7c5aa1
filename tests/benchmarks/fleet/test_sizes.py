"""Predictions of rows and bytes."""

from __future__ import annotations

import pytest

pytest.importorskip("sqlalchemy", reason="needs the extra: pip install 'pathweave[server]'")

from benchmarks.fleet.sizes import Prices, Sizes, rows_of


def test_rows_grow_with_devices_days_and_lines():
    assert rows_of(devices=0, days=9, lines=0) == 0
    assert rows_of(devices=10, days=0, lines=0) == 30
    assert rows_of(devices=10, days=2, lines=400) == 30 + 20 + 400


def test_bytes_are_those_of_an_empty_database_of_devices_and_of_lines():
    prices = Prices(empty_bytes=1000.0, bytes_per_device=10.0, overhead_bytes_per_line=2.0)
    assert prices.database_bytes(devices=0, lines=0, text_bytes=0) == 1000.0
    assert prices.database_bytes(devices=5, lines=7, text_bytes=70) == 1000.0 + 50.0 + 14.0 + 70


def test_the_overhead_of_lines_is_what_their_table_has_beside_their_text():
    sizes = Sizes(rows=9, lines=4, text_bytes=400, log_bytes=1000, other_bytes=50, database_bytes=9000)
    assert sizes.overhead_bytes_per_line == 150.0
