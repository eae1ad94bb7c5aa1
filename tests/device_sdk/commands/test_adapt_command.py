from __future__ import annotations

import json

import pytest

from device_sdk.commands.adapt_report import told_of_exits
from device_sdk.policies.planning.choice import Choice, Option
from device_sdk.session.adaptive_model import AdaptiveModel
from device_sdk.supernet.cost import PlanCost
from device_sdk.supernet.plan import (
    UNREACHABLE_CONFIDENCE,
    Ask,
    Edge,
    ExitChoice,
    MaxConfidence,
    Plan,
    RemoteRef,
    Subnet,
    decode_plan,
)
from pathweave.cli import main


@pytest.fixture
def plan(capsys, tiny_bundle, pictures, slow_state):
    """Runs ``pathweave adapt`` among all kinds on the tiny bundle; gives exit status, standard output and error."""

    def run(*arguments):
        base = ["adapt", str(tiny_bundle.folder), "--data", str(pictures), "--state", str(slow_state)]
        base += ["--consider", "all"]
        status = main([*base, *map(str, arguments)])
        return status, *capsys.readouterr()

    return run


def test_the_chosen_plan_is_told_and_runs_from_then_on(plan, tiny_bundle, slow_state):
    status, out, _ = plan("--accuracy", 0.6, "--optimise", "latency", "--json")
    told = json.loads(out)
    assert (status, told["samples"], told["judged"]) == (0, 60, 18)
    assert told["expected"]["accuracy"] >= 0.6
    assert told["kinds"][told["kind"]]["misses"] == []
    assert {"subnet", "exits", "abstain"} <= set(told["kinds"])
    with AdaptiveModel.open(tiny_bundle.folder, state_folder=slow_state) as model:
        assert model.plan == decode_plan(told["plan"].encode())


def test_a_person_sees_the_best_of_each_kind_and_what_limits_it(plan):
    status, out, _ = plan("--latency-ms", 50, "--coverage", 0.9)
    assert status == 0
    assert "abstain" in out
    assert "misses" in out
    assert "on 18 samples that did not choose" in out


def test_without_limits_the_most_accurate_plan_that_answers_everything_is_chosen(plan):
    told = json.loads(plan("--json")[1])
    assert told["expected"]["share_abstained"] == 0
    assert told["expected"]["accuracy"] == max(
        kind["expected"]["accuracy"] for kind in told["kinds"].values() if not kind["misses"]
    )


def test_a_promise_says_what_it_rests_on(plan):
    options = ("--accuracy", 0.8, "--certainty", 0.9, "--coverage", 1, "--optimise", "latency")
    status, out, _ = plan(*options, "--json")
    promise = json.loads(out)["promise"]
    assert (status, promise["samples"], promise["certainty"]) == (0, 18, 0.9)
    assert promise["least_accuracy"] >= 0.8
    assert "with a certainty of 90% its accuracy is at least 8" in plan(*options)[1]


def test_energy_follows_from_the_powers_that_are_stated(plan):
    status, out, _ = plan("--accuracy", 0.5, "--optimise", "energy", "--active-w", 2, "--json")
    told = json.loads(out)["expected"]
    assert status == 0
    assert told["energy_mj"] == pytest.approx(2 * told["latency_ms"])


@pytest.mark.parametrize(
    ("options", "status", "said"),
    [
        (("--accuracy", 0.5, "--optimise", "energy"), 2, "give --active-w"),
        (("--accuracy", 0.5, "--network", "pigeons"), 2, "known: wifi, lte, 3g, ble, lora"),
        (("--accuracy", 0.5, "--network", "lte", "--uplink-mbps", 3), 2, "not both"),
        (("--accuracy", 0.5, "--server-model", "digits:images"), 2, "give --server too"),
        (("--accuracy", 0.5, "--consider", "exit"), 2, "there is no kind of plan 'exit'"),
        (("--accuracy", 0.5, "--consider", "split"), 2, "give --uplink-mbps"),
        (("--accuracy", 0.5, "--consider", "ask"), 2, "no server is connected that answers samples"),
        (("--latency-ms", 5, "--latency-ratio", 0.5), 1, "one of them is enough"),
        (("--accuracy", 0.5, "--server", "http://127.0.0.1:1"), 2, "may be sent nothing"),
        (("--latency-ms", 1e-6), 1, "no plan keeps the requirement"),
        (("--accuracy", 1.5), 1, "must lie between 0 and 1"),
    ],
)
def test_what_cannot_be_planned_is_one_clear_line(plan, options, status, said):
    got, _, err = plan(*options)
    assert (got, said in err) == (status, True), err


def test_a_plan_that_is_only_shown_is_not_taken(plan, tiny_bundle, slow_state):
    told = json.loads(plan("--accuracy", 0.6, "--optimise", "latency", "--no-take", "--json")[1])
    assert not told["taken"]
    with AdaptiveModel.open(tiny_bundle.folder, state_folder=slow_state) as model:
        assert model.plan == Plan(model.bundle.supernet.original)


def test_a_split_is_estimated_without_a_server(plan, tmp_path):
    picture = tmp_path / "split.svg"
    options = ("--consider", "split", "--uplink-mbps", 3, "--device-factor", 100, "--picture", picture, "--json")
    status, out, err = plan(*options)
    told = json.loads(out)
    assert (status, told["taken"]) == (0, False), err
    assert told["split"]["latency_ms"] == min(one["latency_ms"] for one in told["split"]["splits"])
    assert picture.read_text().startswith("<svg")


def test_the_map_shows_who_is_fastest_over_uplinks_and_devices(plan, tmp_path):
    picture = tmp_path / "map.svg"
    options = ("--consider", "split", "--uplink-mbps", 3, "--max-drop", 0.05, "--map", picture)
    status, out, err = plan(*options, "--json")
    assert status == 0, err
    cells = json.loads(out)["map"]
    drops = (0.0, 0.01, 0.03, 0.05)
    assert [one["max_drop"] for one in cells] == [drop for drop in drops for _ in range(4 * 7)]
    cells = cells[-4 * 7 :]
    assert {one["kind"] for one in cells} <= {"device", "split", "server"}
    for one in cells:
        assert one["latency_ms"][one["kind"]] == min(one["latency_ms"].values())
    slow, fast = (one for one in cells if one["uplink_mbps"] == 20 and one["device_factor"] in (1, 40))
    assert fast["latency_ms"]["device"] == pytest.approx(40 * slow["latency_ms"]["device"])
    assert picture.read_text().count("<rect") > 1 + len(cells)
    status, out, _ = plan(*options)
    assert "20 Mbit/s" in out


def test_privacy_holds_for_an_estimate(plan, tmp_path):
    options = ("--consider", "split", "--uplink-mbps", 1000, "--device-factor", 100, "--json")
    everything = json.loads(plan(*options)[1])["split"]["splits"]
    inside = json.loads(plan(*options, "--privacy", "activations")[1])["split"]["splits"]
    assert min(one["position"] for one in everything) == 0
    assert min(one["position"] for one in inside) == 1
    status, _, err = plan(*options, "--privacy", "never")
    assert status != 0
    assert "a split sends activations" in err


def test_a_map_needs_an_estimate_or_a_server(plan, tmp_path):
    status, _, err = plan("--latency-ms", 100, "--map", tmp_path / "map.svg")
    assert status == 2
    assert "--server" in err
    assert "--consider split --uplink-mbps" in err


def test_what_exits_decide_and_what_asking_from_them_saves_is_told():
    subnet, server = Subnet((Edge("o0"), Edge("o1"))), RemoteRef("big")
    exits = (
        ExitChoice("x1", UNREACHABLE_CONFIDENCE, ask_below=0.25),
        ExitChoice("x2", 0.9, ask_below=0.5),
        ExitChoice("x3", UNREACHABLE_CONFIDENCE),
    )
    late = Plan(subnet, hard=Ask(MaxConfidence(0.5), server))

    def cost(ms: float) -> PlanCost:
        return PlanCost(
            accuracy=0.9, latency_ms=ms, p95_latency_ms=ms, bytes_sent=100.0, peak_bytes=1, energy_mj=2 * ms
        )

    early = Plan(subnet, exits, hard=late.hard)
    choice = Choice(early, cost(2.5), {}, 3, late=Option(late, cost(3.0), {}))
    assert list(told_of_exits(choice)) == [
        "exit x1 asks below 0.250",
        "exit x2 answers from a confidence of 0.900 on and asks below 0.500",
        "against asking at the end alone it saves on average 0.5 ms, 1 mJ, 0 bytes per sample",
    ]
    assert list(told_of_exits(Choice(late, cost(3.0), {}, 3))) == []
