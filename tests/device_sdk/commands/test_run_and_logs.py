from __future__ import annotations

import json
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from device_sdk.policies import chooser
from device_sdk.policies.confirmation import EQUAL_LATENCY
from device_sdk.session.adaptive_model import AdaptiveModel
from device_sdk.supernet.plan import ANY_SERVER, UNREACHABLE_CONFIDENCE, Abstain, Ask, MaxConfidence, Plan


@pytest.fixture
def as_json(pathweave):
    """Runs a command line that succeeds with --json; gives the one object that it prints."""

    def run(*arguments):
        status, out, err = pathweave(*arguments, "--json")
        assert status == 0, err
        assert out.count("\n") == 1
        return json.loads(out)

    return run


@pytest.fixture
def options(slow_state):
    """The state of a device with the slow profile, as options."""
    return "--state", slow_state


def test_profile_prints_every_block_and_the_fitted_subnets(as_json, tiny_bundle, bundle, tmp_path):
    printed = as_json("profile", tiny_bundle.folder, "--state", tmp_path)
    assert set(printed["blocks"]) == {str(edge) for edge in bundle.supernet.edges}
    assert {"latency_ms", "p95_latency_ms", "peak_bytes"} == set(printed["blocks"]["o1@int8"])
    assert printed["original_ms"] == printed["subnets"][0]["measured_ms"] > 0
    assert as_json("profile", tiny_bundle.folder, "--state", tmp_path) == printed
    assert as_json("profile", tiny_bundle.folder, "--state", tmp_path, "--again") != printed


def test_profile_shows_a_person_a_table(pathweave, tiny_bundle, options):
    status, out, _ = pathweave("profile", tiny_bundle.folder, *options)
    assert status == 0
    assert "m1-4" in out
    assert "full model: 320.000 ms" in out


def test_adapt_chooses_within_a_budget_and_run_uses_it_from_then_on(as_json, tiny_bundle, pictures, options):
    adapted = as_json(
        "adapt", tiny_bundle.folder, "--data", pictures, "--latency-ratio", "3", "--memory-mb", "8", "--percentile",
        "60", "--calls-per-second", "500", *options,
    )  # fmt: skip
    measured, expected = adapted["measured"], adapted["expected"]
    assert adapted["subnet"] == ["o0", "o1", "m2-4", "o4"]
    assert adapted["taken"]
    assert adapted["goal"]["latency_ms"] == pytest.approx(3 * measured["full_ms"])
    assert measured["within_budget_probability"] > 0.9
    assert measured["interval_ms"][0] < measured["latency_ms"] < measured["interval_ms"][1]
    assert expected["latency_ms"] == 150.0
    assert (adapted["samples"], adapted["judged"]) == (60, 18)
    assert adapted["full_accuracy"] == 1.0
    assert adapted["considered"] >= 3

    ran = as_json("run", tiny_bundle.folder, "--data", pictures, *options)
    assert ran["plan"] == "o0 o1 m2-4 o4"
    assert ran["samples"] == 60
    share = 42 * expected["accuracy"] + 18 * adapted["held_out"]["accuracy"]
    assert ran["accuracy"] == pytest.approx(share / 60)


def test_adapt_takes_milliseconds_memory_unlabelled_data_and_fewer_images(as_json, tiny_bundle, pictures, options):
    adapted = as_json(
        "adapt", tiny_bundle.folder, "--data", pictures, "--latency-ms", "300", "--memory-mb", "8.5", "--unlabelled",
        "--limit", "20", "--seed", "3", *options,
    )  # fmt: skip
    assert (adapted["goal"]["latency_ms"], adapted["goal"]["memory_mb"]) == (300.0, 8.5)
    assert adapted["expected"]["peak_bytes"] <= 8_500_000
    assert adapted["samples"] == 20


@pytest.mark.slow
def test_adapt_on_this_very_machine_stays_within_the_budget(as_json, tiny_bundle, pictures, tmp_path):
    adapted = as_json("adapt", tiny_bundle.folder, "--data", pictures, "--latency-ratio", "0.8", "--state", tmp_path)
    measured = adapted["measured"]
    assert measured["latency_ms"] <= adapted["goal"]["latency_ms"] * EQUAL_LATENCY
    assert measured["ratio"] == measured["latency_ms"] / measured["full_ms"]


def test_adapt_tells_a_person_in_lines(pathweave, tiny_bundle, pictures, options):
    status, out, _ = pathweave("adapt", tiny_bundle.folder, "--data", pictures, "--memory-mb", "4.5", *options)
    assert status == 0
    assert out.splitlines()[0] == "subnet: o0 m1-4 o4"
    assert "on 18 samples that did not choose" in out


def test_run_classifies_files(as_json, pathweave, tiny_bundle, pictures, options):
    files = [sorted((pictures / name).iterdir())[0] for name in ("red", "blue")]
    printed = as_json("run", tiny_bundle.folder, *files, *options)
    assert [answer["label"] for answer in printed["answers"]] == ["red", "blue"]
    assert [answer["image"] for answer in printed["answers"]] == list(map(str, files))
    assert all(0 < answer["confidence"] <= 1 and answer["source"] == "subnet" for answer in printed["answers"])
    _, out, _ = pathweave("run", tiny_bundle.folder, *files, *options)
    assert out.splitlines()[0].startswith(f"{files[0]}: red (")


def test_logs_show_the_last_events_in_order(as_json, pathweave, tiny_bundle, pictures, options):
    as_json("adapt", tiny_bundle.folder, "--data", pictures, "--memory-mb", "4.5", *options)
    as_json("run", tiny_bundle.folder, "--data", pictures, *options)
    events = as_json("logs", tiny_bundle.folder, *options)["events"]
    assert [line["event"]["event"] for line in events] == ["opened", "adapted", "opened"]  # looking opens nothing
    assert events[-1]["event"]["restored"] is True
    assert len(as_json("logs", tiny_bundle.folder, "--last", "2", *options)["events"]) == 2
    _, out, _ = pathweave("logs", tiny_bundle.folder, "--last", "1", *options)
    assert "event=opened" in out


def test_a_latency_budget_below_the_cheapest_subnet_names_the_nearest(pathweave, tiny_bundle, pictures, options):
    status, out, err = pathweave(
        "adapt", tiny_bundle.folder, "--data", pictures, "--latency-ms", "0.000001", *options, "--json"
    )
    assert status == 1
    assert json.loads(out)["error"]["type"] == "InfeasibleBudgetError"
    assert err[0].startswith("error: no subnet ran in 1e-06 ms; the fastest candidate took ")
    assert err[1].startswith("hint: allow at least ")


@pytest.mark.parametrize(
    ("budget", "status", "message"),
    [
        (("--latency-ratio", "0"), 1, "the goal's latency_ratio is 0; it must be above zero"),
        (("--latency-ratio", "-0.5"), 1, "the goal's latency_ratio is -0.5; it must be above zero"),
        (("--latency-ratio", "nan"), 1, "the goal's latency_ratio is nan; it must be above zero"),
        (("--memory-mb", "-1"), 1, "the goal's memory_mb is -1; it must be above zero"),
        (("--latency-ratio", "0.5", "--latency-ms", "3"), 1, "the goal has latency_ms and latency_ratio"),
        (("--accuracy", "0.5", "--max-drop", "0.1"), 1, "the goal has accuracy and max_drop"),
        (("--share-asked", "1.1"), 1, "the goal's share_asked is 1.1; it must lie between 0 and 1"),
        (("--latency-ratio", "half"), 2, "'half' is not a valid float"),
    ],
)
def test_a_budget_that_is_none_is_one_clear_line(pathweave, tiny_bundle, pictures, options, budget, status, message):
    found, out, err = pathweave("adapt", tiny_bundle.folder, "--data", pictures, *budget, *options)
    assert (found, out) == (status, "")
    assert err[0].startswith("error: ")
    assert message in err[0]
    assert len(err) <= 2


@pytest.mark.parametrize(
    "command", [("profile",), ("adapt", "--data", "x", "--latency-ms", "1"), ("run", "x.png"), ("logs",)]
)
def test_a_bundle_that_is_not_there_is_one_clear_line(pathweave, tmp_path, command):
    name, *rest = command
    status, _, err = pathweave(name, tmp_path / "nowhere", *rest, "--state", tmp_path)
    assert status == 1
    assert err[0] == f"error: {tmp_path}/nowhere is not a bundle: cannot read manifest.json: No such file or directory"
    assert err[1].startswith("hint: ")


def test_an_untrusted_bundle_is_refused_by_every_command(pathweave, own_bundle, tmp_path):
    own_bundle.edit(lambda manifest: manifest.update(version=2))
    status, _, err = pathweave("profile", own_bundle.folder, "--trust", own_bundle.public_key, "--state", tmp_path)
    assert status == 1
    assert "is not signed" in err[0]


@pytest.mark.parametrize("arguments", [(), ("a.png", "--data", "b")])
def test_run_wants_files_or_data(pathweave, tiny_bundle, options, arguments):
    status, _, err = pathweave("run", tiny_bundle.folder, *arguments, *options)
    assert (status, err) == (2, ["error: give image files or --data, one of them"])


def test_data_with_classes_that_the_model_does_not_know_is_refused(pathweave, tiny_bundle, tmp_path, options):
    for name in ("red", "mauve"):
        (tmp_path / "data" / name).mkdir(parents=True)
        Image.fromarray(np.zeros((20, 20, 3), np.uint8)).save(tmp_path / "data" / name / "0.png")
    status, _, err = pathweave("run", tiny_bundle.folder, "--data", tmp_path / "data", *options)
    assert status == 1
    assert "classes that the model does not know: mauve" in err[0]


def test_an_image_that_is_none_or_of_another_size_is_named(pathweave, tiny_bundle, tmp_path, options):
    (tmp_path / "text.png").write_text("no picture")
    status, _, err = pathweave("run", tiny_bundle.folder, tmp_path / "text.png", *options)
    assert status == 1
    assert "text.png" in err[0]
    Image.fromarray(np.zeros((9, 9, 3), np.uint8)).save(tmp_path / "small.png")
    status, _, err = pathweave("run", tiny_bundle.folder, tmp_path / "small.png", *options)
    assert status == 1
    assert "expected images of height, width, channels (20, 20, 3)" in err[0]


SPLIT = ("--consider", "split")
EXITS = ("--consider", "exits", "--optimise", "latency", "--max-drop", "0.005")


def test_exits_are_chosen_for_the_subnet_in_use_and_run_tells_who_answered(
    as_json, pathweave, tiny_bundle, pictures, options, monkeypatch
):
    monkeypatch.setattr(chooser, "measured_in_turns", lambda *_: [1.0, 2.0])  # a busy machine would say otherwise
    chosen = as_json("adapt", tiny_bundle.folder, "--data", pictures, *EXITS, *options)
    assert chosen["exits"]
    assert chosen["expected"]["share_early"] > 0.5
    assert chosen["held_out"]["accuracy"] >= chosen["full_accuracy"] - 0.1
    assert (chosen["measured"]["latency_ms"], chosen["measured"]["without_exits_ms"]) == (1.0, 2.0)

    ran = as_json("run", tiny_bundle.folder, "--data", pictures, *options)
    early = sum(count for source, count in ran["sources"].items() if source.startswith("exit "))
    assert early / 60 == pytest.approx(chosen["expected"]["share_early"], abs=0.1)
    _, out, _ = pathweave("run", tiny_bundle.folder, "--data", pictures, *options)
    assert "answered by exit x" in out
    events = as_json("logs", tiny_bundle.folder, *options)["events"]
    assert [line["event"]["event"] for line in events][:2] == ["opened", "plan_chosen"]


def test_exits_that_save_no_time_are_left_out_and_a_person_is_told(
    pathweave, tiny_bundle, pictures, options, monkeypatch
):
    monkeypatch.setattr(chooser, "measured_in_turns", lambda *_: [2.0, 1.0])
    status, out, _ = pathweave("adapt", tiny_bundle.folder, "--data", pictures, *EXITS, *options)
    assert status == 0
    assert "note: exits are left out: with them calls took 2 ms, without 1 ms" in out


def test_exits_worth_their_memory_can_be_held_alone(as_json, pathweave, tiny_bundle, options):
    everything = as_json("fetch", tiny_bundle.folder, "--exit-memory-mb", "1", *options)["placed"]
    assert everything["exits"] == ["x1-pooled", "x2-pooled"]
    small = as_json("fetch", tiny_bundle.folder, "--exit-memory-mb", "0.0003", *options)["placed"]
    assert (len(small["exits"]), small["memory_bytes"], small["failure"]) == (1, 204, None)
    _, out, _ = pathweave("fetch", tiny_bundle.folder, "--exit-memory-mb", "0", *options)
    assert "exits: none" in out


@pytest.mark.parametrize("old", ["calibrate", "place", "plan", "plan-hybrid", "split"])
def test_an_old_command_names_the_new_one(pathweave, old):
    status, _, err = pathweave(old, "anything")
    assert status == 2
    assert err[0].startswith(f"error: `pathweave {old}` is now `")


def test_a_server_is_only_asked_with_leave(pathweave, tiny_bundle, pictures, options):
    arguments = ("--data", pictures, "--server", "http://127.0.0.1:1", *options)
    status, _, err = pathweave("run", tiny_bundle.folder, *arguments)
    assert status == 2
    assert err == [
        "error: the server http://127.0.0.1:1 may be sent nothing",
        "hint: allow what it needs with --privacy activations, or with --privacy inputs for samples too",
    ]
    status, out, _ = pathweave("run", tiny_bundle.folder, *arguments, "--privacy", "inputs")
    assert (status, out.splitlines()[1:]) == (0, [])  # nothing is hard before calibration


def test_hard_samples_of_an_unreachable_server_are_answered_here(as_json, tiny_bundle, pictures, options):
    with AdaptiveModel.open(tiny_bundle.folder, state_folder=options[1]) as model:
        confidences = np.sort(model(tiny_bundle.images).confidence)
        hard = Ask(MaxConfidence(float(confidences[12])), ANY_SERVER)
        model.use(Plan(model.plan.subnet, hard=hard))
    ran = as_json(
        "run", tiny_bundle.folder, "--data", pictures, "--server", "http://127.0.0.1:1", "--privacy", "inputs", *options
    )
    assert ran["sources"] == {"subnet": 48, "fallback": 12}
    assert ran["accuracy"] == 1.0
    events = as_json("logs", tiny_bundle.folder, *options)["events"]
    assert events[-1]["event"]["answering"] is False
    assert "refused" in events[-1]["event"]["failure"]


def test_looking_at_a_bundle_that_was_never_fetched_says_so(pathweave, tmp_path):
    status, _, err = pathweave("logs", "http://127.0.0.1:1/v1/bundles/tiny", "--no-trust", "--state", tmp_path)
    assert status == 2
    assert err[0] == "error: nothing was fetched from http://127.0.0.1:1/v1/bundles/tiny yet"


def test_split_compares_all_cut_points(as_json, pathweave, tiny_bundle, options):
    printed = as_json(
        "adapt", tiny_bundle.folder, "--consider", "split", "--uplink-mbps", "3", "--round-trip-ms", "5", *options
    )["split"]
    assert [one["position"] for one in printed["splits"]] == [0, 1, 2, 3, 4, 5]
    assert printed["latency_ms"] == min(one["latency_ms"] for one in printed["splits"])
    parts = ("device_ms", "packing_ms", "transfer_ms", "handling_ms", "unpacking_ms", "server_ms")
    last = printed["splits"][-1]
    assert [last[part] for part in parts] == [320.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    assert (last["latency_ms"], last["bytes_sent"], last["bits"]) == (320.0, 0, [])
    for one in printed["splits"]:
        assert one["latency_ms"] == pytest.approx(sum(one[part] for part in parts))
    assert "this device's own" in printed["server_profile"]
    _, out, _ = pathweave("adapt", tiny_bundle.folder, *SPLIT, "--uplink-mbps", "3", *options)
    assert "best: everything on the device, 320.000 ms" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "the uplink's bandwidth is unknown"),
        (("--uplink-mbps", "0"), "the uplink has 0 Mbit/s; it must be above zero"),
        (("--uplink-mbps", "-3"), "the uplink has -3 Mbit/s; it must be above zero"),
        (("--uplink-mbps", "3", "--round-trip-ms", "-1"), "the round trip takes -1 ms; it cannot be negative"),
    ],
)
def test_an_uplink_of_nothing_is_one_clear_line(pathweave, tiny_bundle, options, arguments, said):
    status, _, err = pathweave("adapt", tiny_bundle.folder, *SPLIT, *arguments, *options)
    assert status == 2
    assert err[0] == f"error: {said}"


def test_a_split_for_a_slower_device_scales_its_part_only(as_json, tiny_bundle, options):
    own = as_json("adapt", tiny_bundle.folder, *SPLIT, "--uplink-mbps", "3", *options)["split"]
    slower = as_json(
        "adapt", tiny_bundle.folder, "--consider", "split", "--uplink-mbps", "3", "--device-factor", "20", *options
    )["split"]
    for one, other in zip(own["splits"], slower["splits"], strict=True):
        assert other["device_ms"] == pytest.approx(20 * one["device_ms"])
        assert (other["transfer_ms"], other["server_ms"]) == (one["transfer_ms"], one["server_ms"])
    assert slower["position"] == 0
    with AdaptiveModel.open(tiny_bundle.folder, state_folder=options[1]) as model:
        assert model.plan.split is None  # it stays as it was


def test_memory_below_any_part_leaves_the_server(as_json, pathweave, tiny_bundle, options):
    limits = ("--uplink-mbps", "3", "--memory-mb", "0.000001")
    printed = as_json("adapt", tiny_bundle.folder, *SPLIT, *limits, *options)["split"]
    assert printed["position"] == 0
    assert "need more memory" in printed["reason"]
    _, out, _ = pathweave("adapt", tiny_bundle.folder, *SPLIT, *limits, *options)
    assert "best: everything at the server" in out


def test_few_bits_on_the_way_are_tried_where_their_accuracy_can_be_measured(
    as_json, pathweave, tiny_bundle, options, pictures
):
    arguments = ("--uplink-mbps", "0.01", "--device-factor", "50", "--data", pictures)
    printed = as_json("adapt", tiny_bundle.folder, *SPLIT, *arguments, "--max-drop", "0.01", *options)["split"]
    assert {tuple(one["bits"]) for one in printed["splits"]} == {*((bits,) for bits in range(1, 9)), ()}
    assert {edge for one in printed["splits"] for edge in one["head"]} > {"o1", "o1@int8"}
    assert printed["drop"] <= 0.01
    measured = [one for one in printed["splits"] if one["drop"] is not None]
    assert printed["latency_ms"] == min(one["latency_ms"] for one in measured if one["drop"] <= 0.01)
    assert 1 <= len(measured) < len(printed["splits"])
    assert printed["not_measured"] == 0
    _, out, _ = pathweave(
        "adapt", tiny_bundle.folder, "--consider", "split", *arguments, "--max-drop", "0.01", *options
    )
    assert " lost" in out.splitlines()[0]
    assert "the device's blocks, from the input on: " in out or printed["position"] == 0


def test_the_input_as_jpeg_has_a_row_and_a_bar_where_its_accuracy_can_be_measured(
    as_json, pathweave, tiny_bundle, options, pictures, tmp_path
):
    arguments = ("--uplink-mbps", "0.01", "--device-factor", "50", "--data", pictures, "--max-drop", "1")
    printed = as_json("adapt", tiny_bundle.folder, *SPLIT, *arguments, *options)["split"]
    [jpeg] = [one for one in printed["splits"] if one["sends"] == "jpeg"]
    assert (jpeg["position"], jpeg["bits"], jpeg["device_ms"]) == (0, [], 0.0)
    assert jpeg["packing_ms"] > 0
    assert jpeg["bytes_sent"] > 0
    picture = tmp_path / "latencies.svg"
    _, out, _ = pathweave(
        "adapt", tiny_bundle.folder, "--consider", "split", *arguments, "--picture", picture, *options
    )
    assert any(line.split()[:2] == ["0", "JPEG"] for line in out.splitlines())
    texts = [element.text for element in ElementTree.parse(picture).getroot().iter("{http://www.w3.org/2000/svg}text")]
    assert "jpeg" in texts
    without = as_json("adapt", tiny_bundle.folder, *SPLIT, "--uplink-mbps", "3", *options)["split"]
    assert all(one["sends"] != "jpeg" for one in without["splits"])


@pytest.mark.parametrize("name", ["latencies.svg", "latencies.png"])
def test_a_picture_has_a_bar_for_every_way(as_json, tiny_bundle, options, tmp_path, name):
    as_json(
        "adapt", tiny_bundle.folder, "--consider", "split", "--uplink-mbps", "3", "--picture", tmp_path / name, *options
    )["split"]
    if name.endswith("svg"):
        root = ElementTree.parse(tmp_path / name).getroot()
        texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
        assert [text for text in texts if text in list("012345")] == list("012345")
    else:
        with Image.open(tmp_path / name) as image:
            colours = {colour for _, colour in image.convert("RGB").getcolors(1 << 16)}
        assert {(0x4C, 0x72, 0xB0), (0xDD, 0x84, 0x52)} <= colours


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--max-drop", "0.01"), "plans are chosen on private images"),
        (("--device-factor", "0"), "the device's factor is 0; it must be above zero"),
        (("--device-factor", "2", "--server", "http://127.0.0.1:1"), "for a slower device a split is only estimated"),
        (("--picture", "x.gif"), "a picture is a .svg or .png file, not x.gif"),
    ],
)
def test_limits_of_a_split_that_make_no_sense_are_one_clear_line(pathweave, tiny_bundle, options, arguments, said):
    status, _, err = pathweave("adapt", tiny_bundle.folder, *SPLIT, "--uplink-mbps", "3", *arguments, *options)
    assert status == 2
    assert err[0] == f"error: {said}"


def test_samples_without_an_answer_lower_the_coverage_not_the_accuracy(as_json, tiny_bundle, options, pictures):
    before = as_json("run", tiny_bundle.folder, "--data", pictures, *options)
    with AdaptiveModel.open(tiny_bundle.folder, state_folder=options[1]) as model:
        never = Abstain(MaxConfidence(UNREACHABLE_CONFIDENCE))
        model.use(Plan(model.bundle.supernet.original, hard=never))
    after = as_json("run", tiny_bundle.folder, "--data", pictures, *options)
    assert (before["coverage"], after["coverage"]) == (1.0, 0.0)
    assert after["accuracy"] is None
    assert after["sources"] == {"abstained": after["samples"]}


def test_run_answers_by_a_deadline(as_json, pathweave, tiny_bundle, pictures, options):
    ran = as_json("run", tiny_bundle.folder, "--data", pictures, "--limit", "5", "--deadline-ms", "60000", *options)
    assert ran["sources"] == {"subnet": 5}
    status, _, err = pathweave("run", tiny_bundle.folder, "--data", pictures, "--deadline-ms", "0.000001", *options)
    assert status == 1
    assert "no answer is sure to be there" in err[-2]


def test_a_deadline_and_a_server_are_not_combined(pathweave, tiny_bundle, pictures, options):
    arguments = ("--deadline-ms", "5", "--server", "http://127.0.0.1:9", "--privacy", "inputs")
    status, _, err = pathweave("run", tiny_bundle.folder, "--data", pictures, *arguments, *options)
    assert status == 2
    assert "no server is asked" in " ".join(err)
