"""Fitting on latencies that a known model made: its crossings and scales come back."""

from __future__ import annotations

import pytest

from device_sdk.profiling.home_fitting import Crossing, fit_homes, homes_of
from device_sdk.supernet.plan import Subnet

HOME = "openvino-1t"


@pytest.fixture
def supernet(elastic_supernet):
    return elastic_supernet(8)


def blocks_of(supernet):
    return {
        edge.on(home): (1.0 + 0.1 * number) * (0.5 if home else 1.0)
        for number, edge in enumerate(supernet.edges)
        for home in ("", HOME)
    }


def subnets_of(supernet, all_subnets):
    paths = all_subnets(supernet)[::7][:16]
    at_home = [Subnet(tuple(edge.on(HOME) for edge in path.edges)) for path in paths]
    mixed = [
        Subnet(
            tuple(
                edge.on(HOME if (place < len(path.edges) // 2) == first else "")
                for place, edge in enumerate(path.edges)
            )
        )
        for path in paths
        if len(path.edges) > 1
        for first in (True, False)
    ]
    return [*paths, *at_home, *mixed]


def true_ms(supernet, blocks_ms, subnet, *, into, out):
    total = sum(blocks_ms[edge] * (0.8 if edge.home else 0.9) for edge in subnet.edges)
    for before, after in zip(subnet.edges, subnet.edges[1:], strict=False):
        if before.home != after.home:
            total += into if after.home else out
    return total


def test_crossings_and_scales_are_found_again(supernet, all_subnets):
    blocks_ms, subnets = blocks_of(supernet), subnets_of(supernet, all_subnets)
    latencies = [true_ms(supernet, blocks_ms, one, into=0.4, out=0.15) for one in subnets]
    fit = fit_homes(supernet, blocks_ms, subnets, latencies)
    nbytes = supernet.ends(supernet.edges[-1])[0].nbytes
    found = {(one.before, one.after): one.ms(nbytes) for one in fit.crossings}
    assert found["", HOME] == pytest.approx(0.4, abs=0.05)
    assert found[HOME, ""] == pytest.approx(0.15, abs=0.05)
    edge = supernet.edges[0]
    assert fit.scale * fit.factors[edge] == pytest.approx(0.9, rel=0.05)
    assert fit.scale * fit.factors[edge.on(HOME)] == pytest.approx(0.8, rel=0.05)


def test_a_crossing_never_saves_time(supernet, all_subnets):
    blocks_ms, subnets = blocks_of(supernet), subnets_of(supernet, all_subnets)
    latencies = [true_ms(supernet, blocks_ms, one, into=-0.3, out=-0.3) for one in subnets]
    fit = fit_homes(supernet, blocks_ms, subnets, latencies)
    assert all(one.fixed_ms >= 0 and one.ms_per_mb >= 0 for one in fit.crossings)


def test_one_home_has_no_crossings(supernet, all_subnets):
    blocks_ms = {edge: ms for edge, ms in blocks_of(supernet).items() if not edge.home}
    subnets = [one for one in subnets_of(supernet, all_subnets) if homes_of(one) == {""}]
    fit = fit_homes(supernet, blocks_ms, subnets, [sum(blocks_ms[edge] for edge in one.edges) for one in subnets])
    assert (fit.crossings, fit.home_offset_ms) == ((), {})


def test_a_crossing_has_a_fixed_cost_and_one_per_byte():
    assert Crossing("", HOME, 0.2, 3.0).ms(500_000) == pytest.approx(1.7)
