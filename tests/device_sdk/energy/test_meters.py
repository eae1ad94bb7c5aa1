"""What every energy meter must do. A new adapter is one line in ``ADAPTERS``."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from device_sdk.energy import FINDERS, EnergyMeter, PowerModel, Rapl, find_meter, find_rails
from device_sdk.errors import UsageError

WATTS = 6.0  # of every board and model here


def _hwmon(sysfs: Path, build: Callable[..., Path]) -> EnergyMeter:
    build(sysfs, 3, {"VDD_IN": (5000, 1200)})
    return find_rails(sysfs)


def _iio(sysfs: Path, build: Callable[..., Path]) -> EnergyMeter:
    build(sysfs, "7-0040", {"POM_5V_IN": 6000, "POM_5V_GPU": 2000})
    return find_rails(sysfs)


class _SteadyCounter:
    """Counts a device that always draws ``WATTS``, on the meter's own clock. Implements the counter port."""

    name, range_uj = "package-0", 1e12

    def __init__(self) -> None:
        self._now_s = 0.0

    def clock(self) -> float:
        self._now_s = time.perf_counter()
        return self._now_s

    def energy_uj(self) -> float:
        return WATTS * self._now_s * 1e6 % self.range_uj


def _rapl(*_: object) -> EnergyMeter:
    counter = _SteadyCounter()
    return Rapl([counter], clock=counter.clock)


ADAPTERS = {
    "hwmon rails": _hwmon,
    "iio rails": _iio,
    "RAPL": _rapl,
    "model": lambda *_: PowerModel(busy_w=WATTS),
}


@pytest.fixture(params=ADAPTERS)
def meter(request, tmp_path, hwmon_board, iio_board) -> EnergyMeter:
    return ADAPTERS[request.param](tmp_path, iio_board if request.param.startswith("iio") else hwmon_board)


def test_it_says_where_its_figures_come_from(meter):
    assert meter.source
    assert meter.measure(lambda: None).source == meter.source


def test_energy_is_power_times_the_time_that_the_work_took(meter):
    energy = meter.measure(lambda: time.sleep(0.08))
    assert energy.seconds >= 0.08
    assert energy.energy_mj == pytest.approx(WATTS * energy.seconds * 1e3)
    assert energy.mean_w == pytest.approx(WATTS)


def test_the_power_is_known_while_it_measures(meter):
    seen = []
    meter.measure(lambda: seen.append(meter.power_w()))
    assert seen == [pytest.approx(WATTS)]


def test_work_too_short_for_a_second_reading_is_measured_as_well(meter):
    energy = meter.measure(lambda: None)
    assert energy.energy_mj == pytest.approx(WATTS * energy.seconds * 1e3)


def test_what_the_work_raises_goes_through_and_leaves_no_thread_behind(meter):
    before = threading.active_count()
    with pytest.raises(ZeroDivisionError):
        meter.measure(lambda: 1 / 0)
    assert threading.active_count() == before
    assert meter.measure(lambda: None).mean_w == pytest.approx(WATTS)


def test_two_works_can_be_measured_at_once(meter):
    inner = []
    outer = meter.measure(lambda: inner.append(meter.measure(lambda: time.sleep(0.01))))
    assert inner[0].seconds <= outer.seconds
    assert [inner[0].mean_w, outer.mean_w] == pytest.approx([WATTS, WATTS])


def test_rails_are_preferred_to_a_model(tmp_path, hwmon_board):
    hwmon_board(tmp_path, 0, {"VDD_IN": (5000, 1000)})
    meter = find_meter(stated_w=10, sysfs=tmp_path)
    assert meter.source == "sysfs rails VDD_IN"
    assert meter.power_w() == pytest.approx(5)


@pytest.mark.parametrize("sysfs", ["", "missing"])
def test_without_rails_the_figure_is_called_a_model(tmp_path, sysfs):
    assert find_meter(stated_w=7.5, sysfs=tmp_path / sysfs).source == "model: 7.5 W × busy time"


@pytest.mark.parametrize("watts", [0, -1, float("nan"), float("inf")])
def test_a_stated_power_that_is_none_is_refused_even_where_rails_are(tmp_path, hwmon_board, watts):
    hwmon_board(tmp_path, 0, {"VDD_IN": (5000, 1000)})
    with pytest.raises(UsageError, match="stated power"):
        find_meter(stated_w=watts, sysfs=tmp_path)


def test_what_can_measure_finds_nothing_in_an_empty_folder(tmp_path):
    assert [find(tmp_path) for find in FINDERS.values()] == [None] * len(FINDERS)
