from __future__ import annotations

import pytest

from device_sdk.errors import UsageError
from device_sdk.policies.placement import transferable_bytes


def test_request_search_and_branches_share_the_latency_budget() -> None:
    # 1 Mbit/s up: 125 bytes take 1 ms. 8 Mbit/s down: 1000 bytes per ms in what is left
    sizes = {"latency_budget_ms": 10.0, "search_ms": 4.0, "uplink_mbps": 1.0, "downlink_mbps": 8.0}
    assert transferable_bytes(**sizes, request_bytes=125) == 5000


def test_nothing_arrives_once_the_budget_is_spent() -> None:
    assert transferable_bytes(latency_budget_ms=1.0, search_ms=2.0, uplink_mbps=1.0, downlink_mbps=1.0) == 0


@pytest.mark.parametrize("change", [{"uplink_mbps": 0.0}, {"downlink_mbps": float("nan")}, {"search_ms": -1.0}])
def test_impossible_rates_and_times_are_refused(change):
    with pytest.raises(UsageError, match=next(iter(change))):
        transferable_bytes(
            **{"latency_budget_ms": 1.0, "search_ms": 0.0, "uplink_mbps": 1.0, "downlink_mbps": 1.0} | change
        )
