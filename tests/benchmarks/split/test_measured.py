from __future__ import annotations

from xml.etree import ElementTree

import pytest

from benchmarks.split.bench import _fastest, _is_worse, _over_the_drop, _split_gain
from benchmarks.split.measuring import Measured
from benchmarks.split.region import Cell, write_region
from device_sdk.commands.plan_map import COLOURS


def test_a_slower_device_stretches_its_own_part_only():
    measured = Measured([30.0, 31.0, 32.0], [2.0, 2.0, 2.0])
    assert measured.latency_ms(1) == 31.0
    assert measured.latency_ms(20) == 31.0 + 19 * 2.0


def test_the_error_grows_with_the_spread_and_falls_with_the_number_of_requests():
    few, many = (Measured([30.0, 32.0, 34.0, 36.0, 38.0] * times, [0.0] * 5 * times) for times in (5, 20))
    assert many.error_ms(1) == pytest.approx(few.error_ms(1) / 2, rel=0.05)
    assert Measured([30.0] * 5, [0.0] * 5).error_ms(20) == 0.0


@pytest.mark.parametrize(
    ("own_ms", "noise_ms", "worse"), [(100.0, 0.0, False), (104.0, 0.0, False), (106.0, 0.0, True), (106.0, 9.0, False)]
)
def test_ours_is_worse_beyond_five_percent_and_beyond_the_noise(own_ms, noise_ms, worse):
    own = {"latency_ms": own_ms, "error_ms": noise_ms, "allowed": True}
    assert _is_worse(own, {"latency_ms": 100.0, "error_ms": 0.0}) is worse


def test_ours_is_worse_where_it_loses_more_than_allowed_however_fast_it_is():
    own, best = {"latency_ms": 1.0, "error_ms": 0.0}, {"latency_ms": 100.0, "error_ms": 0.0}
    assert _is_worse(own | {"allowed": False}, best)
    assert _is_worse(own | {"allowed": False}, None)
    assert not _is_worse(own | {"allowed": True}, None)


def row(kind, latency_ms, *, allowed=True, factor=1.0):
    cell = {"what": "cell", "network": "net", "uplink_mbps": 3.0, "device_factor": factor}
    return cell | {
        "kind": kind,
        "way": f"{kind} way",
        "latency_ms": latency_ms,
        "allowed": allowed,
        "privacy": "inputs",
    }


def test_the_fastest_way_of_a_cell_loses_at_most_a_point():
    rows = [row("split", 1.0, allowed=False), row("device", 3.0), row("server", 2.0), row("split", 9.0, factor=20.0)]
    cells = list(_fastest([{"what": "position"}, *rows]))
    assert [(cell.kind, cell.latency_ms, cell.factor) for cell in cells] == [("server", 2.0, 1.0), ("split", 9.0, 20.0)]
    assert {one["fastest"] for one in rows[:3]} == {"server: server way"}


def test_the_region_has_a_box_of_its_kind_for_every_cell(tmp_path):
    cells = [Cell("net", mbps, 1.0, kind, 5.0, "way <1>") for mbps, kind in ((1.0, "device"), (3.0, "split"))]
    write_region(tmp_path / "region.svg", cells)
    root = ElementTree.parse(tmp_path / "region.svg").getroot()
    fills = [box.get("fill") for box in root.iter("{http://www.w3.org/2000/svg}rect")]
    assert fills.count(COLOURS["device"]) == 2  # of the legend, and its cell
    assert fills.count(COLOURS["split"]) == 2
    assert COLOURS["server"] not in fills, "the legend has what is there"


def test_a_way_of_a_network_counts_once_against_the_certainty():
    ours = [{"network": "net", "way": way, "allowed": way != "bad"} for way in ("a", "a", "bad", "bad", "b", "c")]
    assert _over_the_drop(ours) == pytest.approx(1 / 4)


def test_the_gain_of_a_split_is_over_the_best_form_of_the_device_where_only_activations_may_be_sent():
    def cell(kind, latency_ms, *, mbps=10.0, factor=10.0, privacy="activations", kept=True):
        found = row(kind, latency_ms, factor=factor) | {"uplink_mbps": mbps, "privacy": privacy, "surely_kept": kept}
        return found

    slow_link = [cell("device", 100.0, mbps=1.0), cell("split", 1.0, mbps=1.0)]
    other_privacy = [cell("split", 1.0, privacy="inputs"), cell("split", 1.0, kept=False)]
    saved = [cell("device", 100.0), cell("device", 50.0), cell("split", 30.0)]
    lost = [cell("device", 50.0, factor=40.0), cell("split", 90.0, factor=40.0)]
    assert _split_gain([*slow_link, *other_privacy, *saved, *lost]) == pytest.approx((0.4 + 0.0) / 2)
