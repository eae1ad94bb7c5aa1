from __future__ import annotations

from device_sdk.execution.loaded_plan import LoadedPlan
from device_sdk.live.live_update import PreparedPlan, WarmPlans
from device_sdk.search.port import Candidate
from device_sdk.supernet.cost import Cost
from device_sdk.supernet.plan import ANY_SERVER, Ask, Edge, MaxConfidence, Plan, Subnet


def asking(threshold):
    return Ask(MaxConfidence(threshold), ANY_SERVER)


def candidate(name: str, peak_bytes: int) -> Candidate:
    return Candidate(Plan(Subnet((Edge(name),))), Cost(latency_ms=1.0, peak_bytes=peak_bytes), 0.5)


A, B, C = candidate("a", 40), candidate("b", 50), candidate("c", 20)


def prepared(bundle, runtime, of: Candidate) -> PreparedPlan:
    return PreparedPlan(Plan(of.subnet), LoadedPlan(bundle, runtime, Plan(bundle.supernet.original)), 1.0)


def test_the_first_that_fit_under_the_cap_together_are_wanted():
    warm = WarmPlans()
    assert warm.want([A, B, C], cap_bytes=110) == [A, B, C]
    assert warm.want([A, B, C], cap_bytes=80) == [A, C]
    assert warm.want([A, B, C], cap_bytes=0) == []


def test_what_is_not_wanted_any_more_is_dropped(bundle, runtime):
    warm = WarmPlans()
    for one in (A, B):
        warm.put(prepared(bundle, runtime, one))
    assert warm.want([B, C], cap_bytes=100) == [C]
    assert warm.subnets == {B.subnet}
    warm.clear()
    assert warm.subnets == frozenset()


def test_a_plan_is_taken_once_and_only_if_it_is_just_that_plan(bundle, runtime):
    warm = WarmPlans()
    warm.put(prepared(bundle, runtime, A))
    assert warm.take(Plan(A.subnet, hard=asking(0.5))) is None
    taken = warm.take(Plan(A.subnet))
    assert taken is not None
    assert taken.plan == Plan(A.subnet)
    assert warm.take(Plan(A.subnet)) is None
