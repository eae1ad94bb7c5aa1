from __future__ import annotations

import math
import random

import pytest

from device_sdk.profiling.latency_belief import LatencyBelief
from device_sdk.profiling.timing import Ratio
from device_sdk.supernet.cost import CostModel, EdgeCost
from device_sdk.supernet.plan import Edge, Subnet

BLOCKS = 8
SHARES = {"fp32": 1.0, "int8": 0.4}


def path(*renditions: str, size: int = 1) -> Subnet:
    return Subnet(
        tuple(Edge(f"o{place}", name, () if size == 1 else (size, size)) for place, name in enumerate(renditions))
    )


def whole(rendition: str, size: int = 1) -> Subnet:
    return path(*[rendition] * BLOCKS, size=size)


FULL = whole("fp32")
COSTS = CostModel(
    {
        Edge(f"o{place}", name, () if size == 1 else (size, size)): EdgeCost(share / size, share / size, 10, 10)
        for place in range(BLOCKS)
        for name, share in SHARES.items()
        for size in (1, 2, 4)
    }
)


def predicted(subnet: Subnet) -> float:
    return COSTS.latency_ms(subnet) / COSTS.latency_ms(FULL)


def test_without_measurements_the_prediction_stands_and_is_less_sure_for_short_calls():
    belief = LatencyBelief(FULL, COSTS)
    large, small = belief.estimate(whole("int8")), belief.estimate(whole("int8", 4))
    assert large.ratio == pytest.approx(predicted(whole("int8")))
    assert not large.measured
    assert small.error > 1.5 * large.error


def test_a_measured_subnet_has_its_measurement_and_two_are_joined():
    belief = LatencyBelief(FULL, COSTS)
    belief.observe(whole("int8"), Ratio(0.5, 0.02))
    assert belief.estimate(whole("int8")).ratio == 0.5
    belief.observe(whole("int8"), Ratio(0.52, 0.01))
    joined = belief.estimate(whole("int8"))
    assert joined.ratio == pytest.approx(0.516, abs=0.001)
    assert joined.error == pytest.approx(0.01 / math.sqrt(1.25), rel=0.01)


def test_time_per_call_is_learnt_from_one_size_for_another():
    """Each call takes 0.05 of the full model's latency beyond what is predicted."""
    belief = LatencyBelief(FULL, COSTS)

    def real(one: Subnet) -> float:
        return (predicted(one) + 0.05) / 1.05

    for size in (1, 2):
        belief.observe(whole("int8", size), Ratio(real(whole("int8", size)), 0.006))
    small = whole("int8", 4)
    assert belief.estimate(small).ratio == pytest.approx(real(small), rel=0.08)
    assert real(small) > 1.4 * predicted(small)


def test_near_copies_of_a_measured_subnet_are_known_better_than_others():
    belief = LatencyBelief(FULL, COSTS)
    measured = path("fp32", "int8", "int8", "int8", "int8", "int8", "int8", "int8")
    belief.observe(measured, Ratio(1.15 * predicted(measured), 0.006))
    near = path("fp32", "int8", "int8", "int8", "int8", "int8", "int8", "fp32")
    far = whole("fp32", 2)
    assert belief.estimate(near).ratio / predicted(near) > 1.08
    assert belief.estimate(near).ratio / predicted(near) > belief.estimate(far).ratio / predicted(far)
    assert belief.estimate(near).error < belief.estimate(far).error


def test_errors_are_as_large_as_stated():
    """Devices drawn from the model itself: about 95 % of the true ratios lie within two errors."""
    chance, inside = random.Random(0), []
    paths = [path(*chance.choices(["fp32", "int8"], k=BLOCKS), size=chance.choice([1, 2, 4])) for _ in range(40)]
    paths = [one for one in dict.fromkeys(paths) if one != FULL]
    for _ in range(60):
        bias, per_call = chance.gauss(0, 0.03), chance.gauss(0, 0.03)
        of_rendition = {name: chance.gauss(0, 0.03) for name in SHARES}
        belief = LatencyBelief(FULL, COSTS)

        def real(one: Subnet, bias=bias, per_call=per_call, of_rendition=of_rendition) -> float:
            own_ms = [(edge.rendition, COSTS.edge_latency_ms(edge)) for edge in one.edges]
            per_call += sum(of_rendition[name] * ms for name, ms in own_ms) / sum(ms for _, ms in own_ms)
            return predicted(one) * math.exp(bias + per_call * (1 / predicted(one) - 1))

        for one in paths[:5]:
            belief.observe(one, Ratio(real(one) * math.exp(chance.gauss(0, 0.01)), 0.01))
        for one in paths[5:]:
            estimate = belief.estimate(one)
            inside.append(abs(math.log(estimate.ratio / real(one))) <= 2 * estimate.error)
    assert sum(inside) / len(inside) > 0.9
