from __future__ import annotations

import logging

import numpy as np
import pytest

from device_sdk.bundles.bundle import Bundle
from device_sdk.errors import RuntimeFailedError, UsageError
from device_sdk.execution.home_check import BlockAtHome, HomeReport
from device_sdk.logs.adaptation_log import Opened, read_log
from device_sdk.policies import chooser
from device_sdk.runtimes.settings import RuntimeSettings
from device_sdk.session.adaptive_model import AdaptiveModel
from device_sdk.session.homes import all_homes, check_homes, wanted_homes
from device_sdk.supernet.goal import Goal
from device_sdk.supernet.home import Home
from device_sdk.supernet.plan import Plan, Subnet
from tests.device_sdk.plugins import CRASHES, install_plugin

OPENVINO = Home("openvino", 1)
SETTINGS = RuntimeSettings(homes=(Home("cpu", 1), OPENVINO))


class Checks:
    """Answers of checks, and how many there were."""

    def __init__(self, **report):
        self.count, self._report = 0, report

    def __call__(self, bundle, settings, home):
        self.count += 1
        return HomeReport(str(home), "runtime", **self._report)


def checked(bundle, tmp_path, check, settings=SETTINGS):
    return check_homes(bundle, settings, settings.first.make(), tmp_path, check=check)


def test_homes_are_named_by_text_or_all_of_them():
    assert wanted_homes(["cpu-1t", "cpu-2t"]) == (Home("cpu", 1), Home("cpu", 2))
    assert wanted_homes(None) == ()
    assert wanted_homes("all") == all_homes()
    assert all_homes()[0] == Home("cpu", 1)


@pytest.mark.parametrize("wrong", [["cpu"], [], ["cpu-1t", "cpu-1t"], "everything"])
def test_wrong_names_of_homes_are_refused(wrong):
    with pytest.raises(UsageError, match="home"):
        wanted_homes(wrong)


def test_a_named_provider_that_is_not_installed_is_refused_not_replaced():
    with pytest.raises(RuntimeFailedError, match="has no CoreMLExecutionProvider here"):
        wanted_homes(["cpu-1t", "coreml-1t"])


def test_a_home_that_fails_is_left_out_with_its_reason_and_not_tried_again(bundle, tmp_path, caplog):
    check = Checks(failure="it crashed its process with signal 11")
    with caplog.at_level(logging.WARNING):
        found = [checked(bundle, tmp_path, check) for _ in range(2)]
    assert check.count == 1
    for one in found:
        assert one.left_out == {"openvino-1t": "it crashed its process with signal 11"}
        assert not one.open.several
    assert "openvino-1t is left out" in caplog.text


def test_blocks_that_a_home_refuses_have_their_other_homes_alone(bundle, tmp_path, openvino):
    refused, *others = (block.id for block in bundle.supernet.blocks)
    blocks = (BlockAtHome(refused, failure="no kernel"), *(BlockAtHome(name, 3, 3) for name in others))
    found = checked(bundle, tmp_path, Checks(blocks=blocks))
    assert found.open.refused == {"openvino-1t": {refused}}
    edge = next(edge for edge in bundle.supernet.edges if edge.block == refused)
    assert [one.home for one in found.open.of(bundle.supernet, edge)] == [""]


def test_renditions_for_a_provider_that_is_left_out_are_not_searched(own_bundle, tmp_path):
    def for_openvino_alone(manifest):
        for block in manifest["blocks"]:
            for rendition in block["renditions"][1:]:
                rendition["providers"] = ["OpenVINOExecutionProvider"]

    own_bundle.edit(for_openvino_alone)
    settings = RuntimeSettings(homes=(Home("cpu", 1), Home("cpu", 2), OPENVINO))
    bundle = Bundle.open(own_bundle.folder, accepts=settings.accepts)
    assert {edge.rendition for edge in bundle.supernet.edges} > {"fp32"}
    found = checked(bundle, tmp_path, Checks(failure="no driver"), settings)
    assert {edge.rendition for edge in found.bundle.supernet.edges} == {"fp32"}
    alone = checked(bundle, tmp_path, Checks(failure="no driver"))
    assert {edge.rendition for edge in alone.bundle.supernet.edges} == {"fp32"}


def test_threads_of_the_processor_need_no_check(bundle, tmp_path):
    check = Checks()
    found = checked(bundle, tmp_path, check, RuntimeSettings(homes=(Home("cpu", 1), Home("cpu", 2))))
    assert check.count == 0
    assert found.open.several


def test_a_bundle_is_adapted_over_its_homes_and_the_plan_opens_again(tiny_bundle, tmp_path):
    homes = ["cpu-1t", "cpu-2t"]
    with AdaptiveModel.open(tiny_bundle.folder, state_folder=tmp_path, homes=homes) as model:
        profile = model.profile()
        assert {one.edge.home for one in profile.edges} == {"", "cpu-2t"}
        assert {(one.before, one.after) for one in profile.crossings} == {("", "cpu-2t"), ("cpu-2t", "")}
        found = model.adapt(tiny_bundle.images, Goal(latency_ratio=1.5), labels=tiny_bundle.labels)
        assert {edge.home for edge in found.plan.subnet.edges} <= {"", "cpu-2t"}
        first = model(tiny_bundle.images[:3])
        plan = found.plan
    with AdaptiveModel.open(tiny_bundle.folder, state_folder=tmp_path, homes=homes) as again:
        assert again.plan == plan
        np.testing.assert_allclose(again(tiny_bundle.images[:3]).output, first.output, atol=1e-4)
        opened = [line.event for line in read_log(again.log.path) if isinstance(line.event, Opened)]
    assert opened[-1].homes == ("cpu-1t", "cpu-2t")
    assert opened[-1].homes_left_out == {}


def test_a_limit_on_threads_is_kept_by_the_plan(tiny_bundle, tmp_path):
    with AdaptiveModel.open(tiny_bundle.folder, state_folder=tmp_path, homes=["cpu-1t", "cpu-2t"]) as model:
        goal = Goal(latency_ratio=1.5, threads=1)
        found = model.adapt(tiny_bundle.images, goal, labels=tiny_bundle.labels)
    assert {edge.home for edge in found.plan.subnet.edges} == {""}


@pytest.mark.parametrize("second_ms", [1.0, 9.0])
def test_a_plan_with_exits_runs_at_the_home_where_it_measures_faster(tiny_bundle, tmp_path, monkeypatch, second_ms):
    monkeypatch.setattr(chooser, "measured_in_turns", lambda *_: [1.0, 2.0])
    monkeypatch.setattr(chooser, "paced_in_turns", lambda workspace, plans, inputs, pause_s: [3.0, second_ms])
    with AdaptiveModel.open(tiny_bundle.folder, state_folder=tmp_path, homes=["cpu-1t", "cpu-2t"]) as model:
        goal = Goal(optimise="latency_ms", max_drop=0.5)
        found = model.adapt(tiny_bundle.images, goal, labels=tiny_bundle.labels, consider={"exits"})
        assert any(choice.decides for choice in found.plan.exits)
        assert {edge.home for edge in found.plan.subnet.edges} == {"cpu-2t" if second_ms < 3 else ""}
        assert model(tiny_bundle.images[:2]).output.shape[0] == 2


def test_a_plan_at_a_home_that_is_not_open_is_refused_and_the_old_one_stays(tiny_bundle, tmp_path):
    with AdaptiveModel.open(tiny_bundle.folder, state_folder=tmp_path) as model:
        before = model.plan
        moved = Plan(Subnet(tuple(edge.on("cpu-2t") for edge in before.subnet.edges)))
        with pytest.raises(RuntimeFailedError, match="cpu-2t"):
            model.use(moved)
        assert model.plan == before


def test_a_provider_that_crashes_does_not_take_the_application_with_it(tiny_bundle, tmp_path, monkeypatch):
    install_plugin(tmp_path / "path", CRASHES)
    monkeypatch.syspath_prepend(str(tmp_path / "path"))
    homes = ["cpu-1t", "openvino-1t"]
    with AdaptiveModel.open(tiny_bundle.folder, state_folder=tmp_path / "state", homes=homes) as model:
        assert model(tiny_bundle.images[:1]).output.shape[0] == 1
        assert [report.failure for report in model.home_reports] == ["it crashed its process with signal 9"]
        opened = next(line.event for line in read_log(model.log.path) if isinstance(line.event, Opened))
        assert set(opened.homes_left_out) == {"openvino-1t"}


def test_a_bundle_with_homes_runs_on_a_real_second_provider(tiny_bundle, tmp_path, openvino):
    homes = ["cpu-1t", "openvino-1t"]
    with AdaptiveModel.open(tiny_bundle.folder, state_folder=tmp_path, homes=homes) as model:
        expected = model(tiny_bundle.images[:4]).output
        original = Bundle.open(tiny_bundle.folder).supernet.original.edges
        moved = Subnet(tuple(edge.on("openvino-1t" if number % 2 else "") for number, edge in enumerate(original)))
        model.use(Plan(moved))
        np.testing.assert_allclose(model(tiny_bundle.images[:4]).output, expected, atol=1e-3)
