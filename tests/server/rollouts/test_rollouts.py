"""Rollouts on a server, embedded and as three replicas: who gets what, what halts, what operators do."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from device_sdk.bundles.releasing import sign_rollback
from server.access.scopes import Scope
from server.rollouts.cohorts import stage_of
from server.rollouts.plan import Plan, Stage
from tests.server.rollouts.conftest import ALL_AT_ONCE, OPENED, profiled, refused

pytestmark = pytest.mark.replicas(3)
FIRST_ALONE = {"stages": [{"devices": ["a"]}, {"percent": 100}]}


def test_without_a_rollout_every_device_gets_the_highest_version(fleet):
    assert fleet.ask().json() == {"version": 2, "rollout": None, "stage": None, "rollback": False}
    assert fleet.ask().headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    "headers", [{"Pathweave-Device": "a b"}, {"Pathweave-Tags": "x"}, {"Pathweave-Tags": "a=b,a=c"}]
)
def test_a_device_has_to_say_who_it_is(fleet, headers):
    assert fleet.ask(**headers).status == 400
    assert fleet.server.ask("/v1/bundles/tiny/assignment").status == 400
    assert fleet.server.ask("/v1/bundles/none/assignment", headers={"Pathweave-Device": "a"}).status == 404


def test_stages_follow_each_other_as_devices_report(fleet):
    report = fleet.start(FIRST_ALONE)
    assert (report["state"], report["stage"], report["baseline"]) == ("running", 0, 1)
    assert "no device has asked for tiny yet" in report["warnings"][0]
    assert (fleet.version("a"), fleet.version("b")) == (2, 1)
    fleet.say("a", 2)
    assert fleet.version("b") == 1  # the stage has to last
    fleet.clock.forward(minutes=61)
    assert fleet.version("b") == 2
    assert fleet.show()["stages"][0]["devices"] == {"2": {"got": 1, "run": 1}}
    fleet.say("b", 2)
    fleet.clock.forward(minutes=61)
    assert fleet.version("c") == 2
    assert fleet.show()["state"] == "done"


def test_a_version_that_is_not_published_yet_is_planned(fleet, folder, tiny):
    plan = {**ALL_AT_ONCE, "no_rollback": True}
    report = fleet.start(plan, version=3)
    assert (report["state"], report["stages"][0]["bytes"], fleet.version()) == ("planned", None, 2)
    publish(fleet, folder, tiny, 3)
    assert fleet.version() == 3
    assert fleet.show()["state"] == "running"


def publish(fleet, folder, tiny, version):
    made = tiny.copy_to(folder / f"made-{version}", version=version)
    store = fleet.server.services.bundles
    if store.name == str(folder):
        return
    store.publish(made, name="tiny", version=version)
    for one in getattr(fleet.server, "replicas", ()):
        one.services.bundles.refresh()


def test_what_is_published_after_a_rollout_waits_for_one(fleet, folder, tiny):
    fleet.start()
    fleet.say("a", 2)
    fleet.change("approve")
    assert fleet.show()["state"] == "done"
    publish(fleet, folder, tiny, 3)
    assert fleet.version() == 2


def test_two_devices_that_fail_their_self_test_reverse_it_at_once(fleet):
    fleet.start()
    for device in "abcd":
        assert fleet.version(device) == 2
    fleet.say("a", 2)
    fleet.say("b", 1, refused(digest=fleet.digests[2]))
    assert fleet.show()["state"] == "running"
    assert fleet.version("b") == 1  # it is not offered it again
    fleet.say("c", 1, refused(digest=fleet.digests[2]))
    report = fleet.show()
    assert (report["state"], report["why"]) == ("reversing", "self_test: 2 of 3 devices, the limit is 0.05%")
    assert fleet.ask("a").json() == {"version": 1, "rollout": 1, "stage": None, "rollback": True}
    fleet.say("a", 1, {**OPENED, "restored": True})
    assert fleet.show()["state"] == "reversed"
    assert fleet.version("new") == 1


def test_one_device_halts_nothing_however_much_it_sends(fleet):
    fleet.start()
    fleet.version("liar")
    events = [refused(digest=fleet.digests[2], reason=one) for one in ("self_test", "bundle", "memory")]
    for number in range(5):
        fleet.say("liar", 1, *events, at=fleet.clock.time + timedelta(seconds=number))
        fleet.say("liar", 2, profiled(1e9 + number))
    shares = fleet.show()["versions"][1]["shares"]
    assert fleet.show()["state"] == "running"
    assert shares["self_test"] == {**shares["self_test"], "devices": 1, "events": 1}


def test_lines_that_are_replayed_old_or_about_something_else_do_not_count(fleet):
    fleet.start()
    for device in "abcd":
        fleet.version(device)
    event = refused(digest=fleet.digests[2])
    assert (fleet.say("a", 1, event), fleet.say("a", 1, event)) == (1, 0)
    old = fleet.clock.time - timedelta(minutes=10)
    fleet.say("b", 1, event, at=old)
    fleet.say("c", 1, refused(digest="0" * 64))
    fleet.say("d", 1, refused(version=3))
    fleet.say("d", 1, refused(digest=fleet.digests[2], reason="transfer"))
    assert fleet.show()["state"] == "running"
    assert fleet.show()["versions"][1]["shares"]["self_test"]["events"] == 1


def test_a_release_that_is_slower_on_one_board_is_halted_by_what_devices_measured_before(fleet):
    devices = {f"d{number}": "pi" if number < 30 else "orin" for number in range(45)}
    for number, (device, board) in enumerate(devices.items()):
        fleet.ask(device, f"board={board}")
        fleet.say(device, 1, profiled(10.0 + number))
    fleet.start()
    for number, (device, board) in enumerate(devices.items()):
        assert fleet.version(device) in (1, 2)
        if fleet.show()["state"] == "running":
            factor = (1.3 if board == "orin" else 1.0) * (1 + 0.01 * (number % 3))
            fleet.say(device, 2, profiled((10.0 + number) * factor))
    report = fleet.show()
    assert report["state"] == "reversing"
    assert "board=orin" in report["why"]
    found = next(one for one in report["signals"] if one["halts"])
    assert found["low"] < 0.31 < found["high"] + 0.02
    assert report["versions"][1]["means"]["model_ms_change"]["devices"] >= 10


def test_a_comparison_reports_both_versions(fleet):
    fleet.start({"stages": [{"percent": 100}], "against": 1})
    got = {device: fleet.version(device) for device in (f"d{number}" for number in range(24))}
    assert set(got.values()) == {1, 2}
    for number, (device, version) in enumerate(got.items()):
        fleet.say(device, version, OPENED, profiled(10.0 + number))
    versions = fleet.show()["versions"]
    counted = {one["version"]: one["shares"]["self_test"]["devices"] for one in versions}
    assert counted == {1: list(got.values()).count(1), 2: list(got.values()).count(2)}
    assert all(one["means"]["model_ms"]["low"] < one["means"]["model_ms"]["high"] for one in versions)
    fleet.clock.forward(minutes=61)
    fleet.version("d0")
    assert fleet.show()["waits_for_approval"]
    assert fleet.change("approve")["state"] == "done"
    assert {fleet.version(device) for device in got} == {2}


# Operators


def test_pausing_stops_further_devices_and_reversing_sends_all_back(fleet):
    fleet.start(FIRST_ALONE)
    fleet.version("a")
    assert fleet.change("pause")["state"] == "paused"
    assert (fleet.version("a"), fleet.version("b")) == (2, 1)
    fleet.change("pause", status=409)
    assert fleet.change("resume")["state"] == "running"
    assert fleet.change("reverse")["state"] == "reversing"
    assert fleet.version("a") == 1
    fleet.change("resume", status=409)
    assert fleet.change("reverse", number=9, status=404)
    assert fleet.server.ask("/v1/rollouts/x/reverse", method="POST").status == 404


def test_what_is_done_can_be_reversed_until_another_begins(fleet):
    fleet.start()
    fleet.change("approve")
    assert fleet.change("reverse")["state"] == "reversing"
    fleet.start(status=409)
    fleet.version("a")
    fleet.clock.forward(minutes=1)
    fleet.version("a")
    assert fleet.show()["state"] == "reversed"
    assert fleet.start()["number"] == 2
    fleet.change("reverse", status=409)


def test_of_operators_who_start_a_rollout_at_once_one_does(fleet):
    body = {"bundle": "tiny", "version": 2, "plan": ALL_AT_ONCE}
    with ThreadPoolExecutor(6) as pool:
        replies = list(pool.map(lambda _: fleet.server.post("/v1/rollouts", body), range(6)))
    assert sorted(one.status for one in replies) == [201, *[409] * 5]
    assert len(fleet.server.ask("/v1/rollouts").json()["rollouts"]) == 1


def test_a_rollout_needs_a_rollback_unless_the_operator_does_without(fleet, folder):
    report = fleet.start({**ALL_AT_ONCE, "no_rollback": True})
    assert any("without a rollback" in one for one in report["warnings"])
    fleet.version("a")
    assert fleet.change("reverse")["why"].endswith("devices that have it keep it")
    assert (fleet.version("a"), fleet.version("b")) == (2, 1)


@pytest.mark.embedded
@pytest.mark.parametrize("problem", ["absent", "damaged", "expired", "too low"])
def test_a_rollback_has_to_be_valid(fleet, folder, tiny, problem):
    path = folder / "tiny-1" / "rollback.json"
    if problem == "damaged":
        path.write_bytes(b"{}")
    elif problem == "absent":
        path.unlink()
    elif problem == "expired":
        sign_rollback(folder / "tiny-1", None, tiny.private_key, from_version=2, now_s=1_000, days=1)
    else:
        tiny.copy_to(folder / "tiny-3", version=3)
    reply = fleet.start(status=422, version=3 if problem == "too low" else 2, baseline=1)
    assert "there is no valid rollback" in reply["error"]
    assert "--no-rollback" in reply["hint"]


@pytest.mark.parametrize(
    ("plan", "more", "said"),
    [
        ({"stages": [{"percent": 1, "tags": {"region": "mars"}}]}, {}, "none of the 1 known devices"),
        ({"stages": [{"hold_minutes": 1}]}, {}, "adds no devices"),
        (ALL_AT_ONCE, {"version": 1}, "to go back to"),
        (ALL_AT_ONCE, {"baseline": 2}, "leads to a higher version"),
        ({**ALL_AT_ONCE, "against": 2}, {}, "compares with a version"),
        (ALL_AT_ONCE, {"baseline": 9, "version": 10}, "no version 9"),
    ],
)
def test_plans_that_make_no_sense_are_refused_with_a_reason(fleet, plan, more, said):
    fleet.version("a")
    assert said in fleet.start(plan, status=422, **more)["error"]
    assert fleet.server.ask("/v1/rollouts").json() == {"rollouts": []}


@pytest.mark.parametrize(
    "plan", [{}, {"stages": []}, {"stages": [{"percent": 101}]}, {"stages": [{"percent": 1}], "more": 1}]
)
def test_plans_are_checked(fleet, plan):
    fleet.start(plan, status=400)


def test_bytes_of_each_stage_are_known_before_it_starts(fleet, folder):
    sizes = {path.name: path.stat().st_size for path in (folder / "tiny-2" / "blobs").iterdir()}
    manifest = (folder / "tiny-2" / "manifest.json").stat().st_size
    fleet.version("new")
    for device in ("b", "c"):
        fleet.version(device)
        fleet.say(device, 1)
    stages = fleet.start()["stages"]
    assert stages[0]["known_devices"] == 3
    assert stages[0]["bytes"] == sum(sizes.values()) + 3 * manifest  # the blobs of both versions are the same


# Who may


def test_a_device_is_known_by_its_token_and_not_by_its_header(fleet):
    services = fleet.server.services
    mine, shared = (services.tokens.new(name, days=1, device=device) for name, device in (("a", "a"), ("s", None)))
    operator = services.tokens.new("op", days=1, scope=Scope.OPERATOR)
    bearer = {token: {"Authorization": f"Bearer {token}"} for token in (mine, shared, operator)}
    body = {"bundle": "tiny", "version": 2, "plan": ALL_AT_ONCE}
    assert fleet.server.post("/v1/rollouts", body, **bearer[mine]).status == 403
    assert fleet.server.post("/v1/rollouts", body, **bearer[operator]).status == 201
    for device, token in (("a", mine), ("other", mine), ("b", shared)):
        assert fleet.ask(device, **bearer[token]).json()["version"] == 2
    report = fleet.server.ask("/v1/rollouts/1", headers=bearer[operator]).json()
    assert (report["fleet_devices"], report["stages"][0]["devices"]) == (1, {"2": {"got": 1, "run": 0}})
    fleet.say("b", 2, **bearer[shared])  # its first lines bind the token, and say what it runs
    report = fleet.server.ask("/v1/rollouts/1", headers=bearer[operator]).json()
    assert report["stages"][0]["devices"] == {"2": {"got": 2, "run": 1}}


def test_tags_are_kept_until_others_are_sent(fleet):
    fleet.start({"stages": [{"percent": 100, "tags": {"region": "eu"}}]})
    assert (fleet.version("a", "region=eu"), fleet.version("b", "region=us"), fleet.version("c")) == (2, 1, 1)
    fleet.change("pause")
    assert fleet.version("a") == 2
    fleet.change("resume")
    assert fleet.version("b") == 1
    assert fleet.version("b", "region=eu") == 2


def test_replicas_agree_on_the_stage_of_a_device(fleet):
    fleet.start({"stages": [{"percent": 50, "min_devices": 0}]}, baseline=1)
    got = [fleet.version("same") for _ in range(6)]
    assert len(set(got)) == 1
    assert stage_of(Plan((Stage(percent=100),)), "x", "same", {}) == 0


def test_a_version_that_is_assigned_and_gone_is_no_reason_to_take_the_highest(fleet, folder):
    fleet.start()
    fleet.change("reverse")
    fleet.server.services.bundles.remove("tiny", 1)
    for one in getattr(fleet.server, "replicas", ()):
        one.services.bundles.refresh()
    reply = fleet.ask()
    assert (reply.status, "assigned and not served" in reply.json()["error"]) == (409, True)


def test_metrics_say_what_runs(fleet):
    fleet.start()
    fleet.version("a")
    fleet.say("a", 2)
    text = fleet.server.ask("/metrics").body.decode()
    assert 'pathweave_rollouts{state="running"} 1.0' in text
    assert 'pathweave_bundle_devices{bundle="tiny 2"} 1.0' in text


def test_devices_that_do_not_ask_keep_the_old_version_until_the_rollout_is_done(fleet):
    def without_asking():
        return fleet.server.ask("/v1/bundles/tiny/manifest.json").json()["version"]

    assert without_asking() == 2
    fleet.start()
    assert (without_asking(), fleet.version("a")) == (1, 2)
    fleet.say("a", 2)
    fleet.clock.forward(minutes=61)
    fleet.version("a")
    assert fleet.show()["state"] == "done"
    assert without_asking() == 2
    fleet.change("reverse")
    assert without_asking() == 1


def test_a_device_above_the_baseline_goes_back_by_a_rollback_also_outside_all_stages(fleet):
    fleet.say("b", 2)
    fleet.ask("b")
    fleet.start(FIRST_ALONE, baseline=1)
    assert fleet.ask("b").json() == {"version": 1, "rollout": 1, "stage": None, "rollback": True}
    fleet.say("b", 1)
    assert not fleet.ask("b").json()["rollback"]
    assert not fleet.ask("c").json()["rollback"]


def test_without_a_rollback_a_baseline_below_what_devices_have_is_refused(fleet, folder, tiny):
    publish(fleet, folder, tiny, 3)
    fleet.say("b", 2)
    plan = {**FIRST_ALONE, "no_rollback": True}
    reply = fleet.start(plan, version=3, baseline=1, status=422)
    assert "devices with a version above 1: 1" in reply["error"]
    assert fleet.start(plan, version=3, baseline=2)["state"] == "running"
