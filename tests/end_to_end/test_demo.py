"""The demo as a person starts it: trained, packaged, adapted on three devices, reported."""

from __future__ import annotations

import json
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from device_sdk.bundles.bundle import Bundle
from device_sdk.errors import SignatureError
from device_sdk.signing.signatures import new_key_pair
from pathweave.demo import BUDGET_RATIOS

pytestmark = pytest.mark.alone


@dataclass(frozen=True)
class Demo:
    result: dict[str, Any]
    report: str

    @property
    def devices(self) -> list[dict[str, Any]]:
        return self.result["devices"]


@pytest.fixture(scope="module")
def demo(demo_folder: Path) -> Demo:
    result = json.loads((demo_folder.parent / "demo.json").read_text())
    return Demo(result, (demo_folder.parent / result["report"]).read_text())


def test_three_devices_stay_within_their_budgets(demo: Demo) -> None:
    assert [device["budget_ratio"] for device in demo.devices] == list(BUDGET_RATIOS) == [1.0, 0.6, 0.35]
    for device in demo.devices:
        assert 0 < device["measured_ms"] <= 1.05 * device["budget_ms"]


def test_predicted_latencies_are_near_the_measured_ones(demo: Demo) -> None:
    """Relative to the full model's: between profile and measurement the machine may have changed its speed."""
    for device in demo.devices:
        assert 0.5 < device["predicted_ratio"] / device["measured_ratio"] < 2.0  # on a busy machine too


def test_chosen_subnets_are_paths_that_were_searched_for(demo: Demo) -> None:
    for device in demo.devices:
        assert (device["subnet"][0], device["subnet"][-1]) == ("o0", "o11")  # stem and head stay
        assert device["subnets_evaluated"] > 1
    assert len(demo.devices[2]["subnet"]) < len(demo.devices[0]["subnet"])


def test_the_full_model_and_the_unhurried_device_are_accurate(demo: Demo) -> None:
    assert demo.result["full_model_accuracy"] >= 0.95
    assert demo.devices[0]["accuracy_local"] >= demo.devices[0]["full_accuracy_local"] - 0.05


def test_the_hurried_devices_still_know_most_digits(demo: Demo) -> None:
    assert all(device["accuracy_local"] >= 0.7 for device in demo.devices)  # the cheapest subnet: 74 %


def test_the_server_answers_hard_samples_and_does_no_harm(demo: Demo) -> None:
    for device in demo.devices:
        assert 0 <= device["share_asked"] <= 0.3  # a tenth was asked for, on other samples
        assert 0 <= device["share_early"] <= 1
        assert device["accuracy_with_server"] >= device["accuracy_local"] - 0.03
    # only what no exit was sure of can be hard
    assert any(device["share_asked"] > 0 or device["share_early"] == 1 for device in demo.devices)


def test_the_download_that_was_cut_went_on(demo: Demo) -> None:
    assert [device["resumed"] > 0 for device in demo.devices] == [False, True, False]


def test_the_server_has_the_logs_of_all_devices(demo: Demo) -> None:
    # delivered, opened, profiled, adapted, calibrated; and escalating where a sample was hard
    assert 5 * len(demo.devices) <= demo.result["log_lines_at_server"] <= 8 * len(demo.devices)


def test_a_plan_crosses_to_the_server_and_answers_alike(demo: Demo) -> None:
    split = demo.result["split"]
    assert 0 < split["position"] < 12
    assert split["bytes_sent"] > 0
    assert split["agreement"] >= 0.95
    assert split["measured_ms"] > split["bytes_sent"] * 8 / 3e3  # the uplink carries 3 Mbit/s


def test_the_server_packages_uploaded_weights(demo: Demo) -> None:
    job = demo.result["job"]
    assert (job["state"], job["version"]) == ("done", 1)
    assert job["accuracy"] == pytest.approx(demo.result["full_model_accuracy"], abs=1e-6)


def test_deadlines_and_memory_limits_are_kept_by_exits_and_pages(demo: Demo) -> None:
    elastic = demo.result["elastic"]
    deadlines, memory = elastic["deadlines"], elastic["memory"]
    assert deadlines[0]["answered"] > 0
    assert deadlines[-1]["answered"] == 0  # below the first exit
    assert all(sum(row["sources"].values()) == row["answered"] >= row["right"] for row in (*deadlines, *memory))
    assert len({row["answered"] for row in memory}) == 1
    assert [set(row["sources"]) == {"subnet"} for row in memory] == [True, True, True, False, True]
    assert memory[0]["right"] == memory[2]["right"] == memory[-1]["right"]


def test_the_report_is_well_formed_and_shows_every_device(demo: Demo) -> None:
    HTMLParser().feed(demo.report)
    pictures = ["<svg" + rest.split("</svg>")[0] + "</svg>" for rest in demo.report.split("<svg")[1:]]
    assert len(pictures) == 3 + len(demo.devices)
    for picture in pictures:
        ElementTree.fromstring(picture)
    for device in demo.devices:
        assert f"{device['budget_ratio']:.0%}".replace("%", " %") in demo.report
        assert f"{device['measured_ms']:.3f} ms" in demo.report


def test_the_bundle_it_leaves_behind_opens_with_its_key_only(demo_folder: Path) -> None:
    assert Bundle.open(demo_folder / "bundles" / "digits", trust=demo_folder / "demo.pub").has_signature
    stranger = demo_folder.parent / "stranger.pub"
    stranger.write_bytes(new_key_pair()[1])
    with pytest.raises(SignatureError):
        Bundle.open(demo_folder / "bundles" / "digits", trust=stranger)
