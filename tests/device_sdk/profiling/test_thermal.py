from __future__ import annotations

import pytest

from device_sdk.profiling.timing import Thermal, read_thermal


@pytest.fixture
def system(tmp_path):
    """Writes files of a system, by their paths below the thermal class."""

    def write(files):
        for name, text in files.items():
            path = tmp_path / "sys/class/thermal" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return write


def test_without_sensors_the_temperature_is_unknown(tmp_path):
    assert read_thermal(tmp_path) == Thermal(None, ())


def test_the_hottest_zone_counts_and_sensors_that_are_off_do_not(system):
    zones = {"thermal_zone0/temp": "48500", "thermal_zone1/temp": "51250", "thermal_zone2/temp": "-256000"}
    assert read_thermal(system({**zones, "thermal_zone3/temp": "broken", "thermal_zone4/temp": ""})).hottest_c == 51.25


def test_a_limited_processor_is_named_and_a_turning_fan_is_not(system):
    devices = {
        "cooling_device0/type": "cpufreq-cpu0\n",
        "cooling_device0/cur_state": "2\n",
        "cooling_device1/type": "devfreq-17000000.gpu\n",
        "cooling_device1/cur_state": "0\n",
        "cooling_device2/type": "pwm-fan\n",
        "cooling_device2/cur_state": "4\n",
        "cooling_device3/cur_state": "1\n",
    }
    assert read_thermal(system(devices)).held_back == ("cooling_device3", "cpufreq-cpu0")
