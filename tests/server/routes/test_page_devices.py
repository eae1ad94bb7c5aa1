"""The list of devices: filters, orders, and pages that have every device once."""

from __future__ import annotations

import html
import re

import pytest

from server.fleet.listing import SORTS
from server.state.log_store import check_lines

pytestmark = pytest.mark.replicas(3)
COUNT = 110


@pytest.fixture
def fleet(serve, tiny, clock, log_line, ndjson):
    """A server with devices of many kinds; some have no latency, many share one."""
    server = serve(tiny.folder, now=clock)
    for number in range(COUNT):
        clock.forward(seconds=30 * (number % 3))
        lines = [log_line(number)]
        if number % 4:
            budget = 2.0 if number % 4 == 1 else None
            lines.append(log_line(number + 1, "adapted", measured_ms=float(number % 5), budget_latency_ms=budget))
        if number % 7 == 0:
            failed = {"event": "switch_failed", "subnet": "o0", "failure": "no memory"}
            lines.append({**log_line(number), "event": failed})
        body = ndjson(*({**line, "bundle": f"{number % 2}" * 64} for line in lines))
        name = f"{'Cam' if number % 2 else 'kiosk'}_{number:03d}"
        server.services.logs.add(name, check_lines(body, max_line_bytes=10_000))
    return server


def listed(server, path):
    """The names on all pages from ``path`` on, and the number of pages."""
    found, pages = [], 0
    while path:
        page = server.ask(path).body.decode()
        found += re.findall(r'<a href="/page/devices/([^"?]+)">', page)
        following = re.search(r'href="([^"]*)" rel="next"', page)
        path, pages = following and html.unescape(following.group(1)), pages + 1
    return found, pages


def test_pages_have_every_device_once_in_any_order(fleet):
    for sort in [*SORTS, *(f"-{name}" for name in SORTS)]:
        names, pages = listed(fleet, f"/page/devices?sort={sort}")
        assert pages == 3
        assert len(names) == len(set(names)) == COUNT
        exported = fleet.ask(f"/page/devices?sort={sort}&format=json").json()["devices"]
        assert [row["device"] for row in exported] == names
        values = [row[SORTS[sort.removeprefix("-")]] for row in exported]
        known = [value for value in values if value is not None]
        assert values == known + [None] * (COUNT - len(known))
        if SORTS[sort.removeprefix("-")] != "device":  # its order is the database's
            assert known == sorted(known, reverse=sort.startswith("-"))


FILTERS = {
    "search=cam_00": lambda number: number % 2 == 1 and number < 10,
    "search=%25": lambda number: False,
    "search=m_0": lambda number: number % 2 == 1 and number < 100,
    f"bundle={'1' * 64}": lambda number: number % 2 == 1,
    "plan=initial": lambda number: number % 4 == 0,
    "over=1": lambda number: number % 4 == 1 and number % 5 > 2,
    "failure=switch": lambda number: number % 7 == 0,
    "failed=24h&failure=switch": lambda number: number % 7 == 0,
    "failure=delivery": lambda number: False,
    "unseen=30d": lambda number: False,
    "seen=24h": lambda number: True,
    f"over=1&search=cam&bundle={'1' * 64}": lambda number: number % 4 == 1 and number % 5 > 2,
}


def test_filters(fleet):
    for query, wanted in FILTERS.items():
        names, _ = listed(fleet, f"/page/devices?{query}")
        assert sorted(int(name[-3:]) for name in names) == [number for number in range(COUNT) if wanted(number)], query


def test_devices_that_were_not_seen_for_long(fleet, clock, ndjson, log_line):
    clock.forward(days=8)
    headers = {"Pathweave-Device": "Cam_001"}
    fleet.ask("/v1/logs", method="POST", body=ndjson(log_line(900)), headers=headers)
    names, _ = listed(fleet, "/page/devices?unseen=7d")
    assert len(names) == COUNT - 1
    assert "Cam_001" not in names


def test_a_view_can_be_bookmarked(fleet):
    page = fleet.ask(f"/page/devices?search=cam&bundle={'1' * 64}&over=1&sort=-budget&unseen=&failed=24h").body.decode()
    assert 'name="search" value="cam"' in page
    assert f'<option value="{"1" * 64}" selected>' in page
    assert 'name="over" value="1" checked' in page
    assert '<option value="24h" selected>' in page
    assert 'aria-sort="descending"><a href="/page/devices?search=cam' in page
    csv = html.unescape(re.search(r'href="([^"]*format=csv[^"]*)"', page).group(1))
    assert f"search=cam&bundle={'1' * 64}&over=1&sort=-budget" in csv


def test_a_place_of_another_order_is_refused(fleet):
    page = fleet.ask("/page/devices?sort=-latency").body.decode()
    place = re.search(r'after=([^"&]*)" rel="next"', page).group(1)
    assert fleet.ask(f"/page/devices?sort=seen&after={place}").status == 400
    assert fleet.ask("/page/devices?sort=seen&after=W10").status == 400
