"""Rollouts on the page: what is running, why it stopped, stage by stage."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from tests.server.rollouts.conftest import refused

pytestmark = pytest.mark.replicas(3)


def tables(fleet, path):
    reply = fleet.server.ask(f"{path}?format=json")
    assert reply.status == 200
    return reply.json()


def test_without_rollouts_the_page_says_how_to_start_one(fleet):
    page = fleet.server.ask("/page/rollouts")
    assert page.status == 200
    assert b"pathweave admin rollouts start" in page.body


def test_a_rollout_that_halted_is_shown_with_its_reason_stages_and_signals(fleet):
    stages = [{"devices": ["a", "b", "c"], "hold_minutes": 5}, {"percent": 100, "tags": {"board": "orin"}}]
    fleet.start({"stages": stages})
    for device in "abc":
        fleet.version(device)
    fleet.say("a", 2)
    for device in "bc":
        fleet.say(device, 1, refused(digest=fleet.digests[2]))
    (listed,) = tables(fleet, "/page/rollouts")["rollouts"]
    assert (listed["rollout"], listed["state"], listed["stage"]) == ("tiny 1 → 2", "reversing", "1 of 2")
    found = tables(fleet, "/page/rollouts/1")
    first, second = found["stages"]
    assert (first["adds"], first["state"], first["got"], first["run"]) == ("0 %, 3 by name", "now", 3, 1)
    assert (second["adds"], second["state"]) == ("100 %, board=orin", "later")
    assert {one["signal"]: one["said"] for one in found["signals"]}["self_test"] == "halts"
    facts = {one["fact"]: one["value"] for one in found["rollout"]}
    assert facts["Why"] == "self_test: 2 of 3 devices, the limit is 0.05%"
    html = fleet.server.ask("/page/rollouts/1").body.decode()
    assert "tiny 1 → 2" in html
    assert "halts" in html


@pytest.mark.parametrize("number", ["0", "2", "x", "-1", "99999999999999999999", "١"])
def test_a_rollout_that_is_not_there_is_not_found(fleet, number):
    fleet.start()
    assert fleet.server.ask(f"/page/rollouts/{quote(number)}").status == 404
