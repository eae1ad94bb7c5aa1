"""``pathweave admin rollouts``."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from device_sdk.errors import UsageError
from server.admin import admin
from tests.server.rollouts.conftest import fleet, folder  # noqa: F401 - fixtures

pytestmark = pytest.mark.embedded


@pytest.fixture
def run(fleet):  # noqa: F811
    def run(*arguments, ok=True):
        done = CliRunner().invoke(admin, ["rollouts", arguments[0], fleet.server.url, *map(str, arguments[1:])])
        assert (done.exit_code == 0) == ok, done.output
        return done

    return run


def test_a_rollout_from_its_start_to_its_end(run, fleet):  # noqa: F811
    fleet.version("a", "region=eu")
    stages = ("--stage", "50,min_devices=0,tag:region=us,device=a", "--stage", "100%,approval=operator")
    done = run("start", "tiny", 2, *stages, "--limit", "latency_rise=0.3", "--limit", "fallback=none")
    assert "stage 1: 1 known devices" in done.stdout
    plan = json.loads(run("show", 1, "--json").stdout)["plan"]
    assert plan["stages"][0]["tags"] == {"region": "us"}
    assert (plan["stages"][0]["devices"], plan["stages"][1]["approval"]) == (["a"], "operator")
    assert (plan["limits"]["latency_rise"], plan["limits"]["fallback"]) == (0.3, None)
    assert "running, stage 1 of 2" in run("list").stdout
    assert "paused" in run("pause", 1).stdout
    assert "running" in run("resume", 1).stdout
    assert "stage 2 of 2" in run("approve", 1).stdout
    assert "done" in run("approve", 1).stdout
    assert "reversing" in run("reverse", 1).stdout


def test_signals_are_shown_with_intervals_and_limits(run, fleet):  # noqa: F811
    run("start", "tiny", 2, "--stage", "100", "--against", 1)
    for number in range(8):
        version = fleet.version(f"d{number}")
        fleet.say(f"d{number}", version)
    shown = run("show", 1).stdout
    assert "self_test: +0.00% (+0.00% to " in shown
    assert "version 1: self_test 0.00%" in shown


@pytest.mark.parametrize(
    "options",
    [(), ("--stage", "x"), ("--stage", "101"), ("--stage", "1,more=2"), ("--stage", "1", "--limit", "nothing=1")],
)
def test_options_that_make_no_plan_are_refused(run, options):
    done = run("start", "tiny", 2, *options, ok=False)
    assert isinstance(done.exception, UsageError)


def test_a_plan_may_be_a_file(run, tmp_path):
    (tmp_path / "plan.json").write_text('{"stages": [{"percent": 100}], "on_halt": "pause"}')
    done = run("start", "tiny", 2, "--plan", tmp_path / "plan.json", "--json")
    assert json.loads(done.stdout)["plan"]["on_halt"] == "pause"
    (tmp_path / "plan.json").write_text("{}")
    assert isinstance(run("start", "tiny", 2, "--plan", tmp_path / "plan.json", ok=False).exception, UsageError)
