from __future__ import annotations

import pytest

from device_sdk.energy.sysfs_rails import board_rails, find_rails


def test_volts_and_amperes_of_a_newer_kernel_make_watts(tmp_path, hwmon_board):
    hwmon_board(tmp_path, 2, {"VDD_IN": (4968, 953), "VDD_CPU_GPU_CV": (4968, 300), "VDD_SOC": (4968, 200)})
    meter = find_rails(tmp_path)
    assert meter.source == "sysfs rails VDD_IN"
    assert meter.power_w() == pytest.approx(4.968 * 0.953)


def test_milliwatts_of_an_older_kernel_make_watts(tmp_path, iio_board):
    iio_board(tmp_path, "6-0040", {"POM_5V_GPU": 1100, "POM_5V_IN": 4321, "POM_5V_CPU": 900})
    meter = find_rails(tmp_path)
    assert meter.source == "sysfs rails POM_5V_IN"
    assert meter.power_w() == pytest.approx(4.321)


def test_a_board_without_a_rail_for_all_adds_its_rails_up_and_names_them(tmp_path, hwmon_board):
    hwmon_board(tmp_path, 3, {"VDD_GPU_SOC": (20000, 150), "VDD_CPU_CV": (20000, 50), "VIN_SYS_5V0": (5000, 800)})
    hwmon_board(tmp_path, 4, {"NC": (0, 0), "VDDQ_VDD2_1V8AO": (5000, 100)})
    meter = find_rails(tmp_path)
    assert meter.source == "sysfs rails VDD_GPU_SOC + VDD_CPU_CV + VIN_SYS_5V0 + VDDQ_VDD2_1V8AO"
    assert meter.power_w() == pytest.approx(3 + 1 + 4 + 0.5)


def test_readings_follow_the_board(tmp_path, hwmon_board):
    folder = hwmon_board(tmp_path, 0, {"VDD_IN": (5000, 1000)})
    meter = find_rails(tmp_path)
    (folder / "curr1_input").write_text("2000\n")
    assert meter.power_w() == pytest.approx(10)


def test_energy_is_that_of_the_readings_during_the_work(tmp_path, hwmon_board):
    folder = hwmon_board(tmp_path, 0, {"VDD_IN": (5000, 1000)})
    meter = find_rails(tmp_path)
    energy = meter.measure(lambda: (folder / "curr1_input").write_text("2000\n"))
    assert 5 < energy.mean_w < 10


def test_sensors_of_other_chips_are_left_alone(tmp_path, hwmon_board):
    hwmon_board(tmp_path, 0, {"VDD_IN": (12000, 1000)}, chip="nct6775")
    assert find_rails(tmp_path) is None


@pytest.mark.parametrize("name", ["in1_input", "curr1_input"])
@pytest.mark.parametrize("text", [None, "", "n/a"])
def test_a_rail_that_cannot_be_read_is_none(tmp_path, hwmon_board, name, text):
    path = hwmon_board(tmp_path, 0, {"VDD_IN": (5000, 1000)}) / name
    path.unlink()
    if text is not None:
        path.write_text(text)
    assert find_rails(tmp_path) is None


def test_a_rail_that_vanishes_makes_the_power_unknown_never_smaller(tmp_path, hwmon_board):
    folder = hwmon_board(tmp_path, 0, {"VDD_GPU_SOC": (5000, 1000), "VDD_CPU_CV": (5000, 1000)})
    meter = find_rails(tmp_path)
    (folder / "curr2_input").unlink()
    assert meter.power_w() is None
    energy = meter.measure(lambda: None)
    assert energy.energy_mj is None
    assert energy.mean_w is None


def test_a_rail_without_a_name_is_left_out(tmp_path, hwmon_board):
    hwmon_board(tmp_path, 0, {"": (5000, 1000), "VDD_SOC": (5000, 100)})
    assert find_rails(tmp_path).source == "sysfs rails VDD_SOC"


THOR = {"VDD_GPU": (20000, 600), "VDD_CPU_SOC_MSS": (20000, 400), "VIN_SYS_5V0": (5000, 1500)}


def input_sensor(sysfs, number, *, chip="ina238", **files):
    folder = sysfs / "class/hwmon" / f"hwmon{number}"
    folder.mkdir(parents=True)
    for name, text in {"name": chip, **files}.items():
        (folder / name).write_text(f"{text}\n")
    return folder


@pytest.mark.parametrize("number", [1, 9])
@pytest.mark.parametrize("label", [{}, {"in1_label": "VIN"}])
def test_a_sensor_at_the_input_of_the_board_measures_all_of_it(tmp_path, hwmon_board, number, label):
    hwmon_board(tmp_path, 3, THOR)
    input_sensor(tmp_path, number, power1_input=44_000_000, in1_input=20000, curr1_input=2200, **label)
    meter = find_rails(tmp_path)
    assert meter.source == "sysfs rails VIN"
    assert meter.power_w() == pytest.approx(44)


def test_an_input_sensor_alone_is_enough(tmp_path):
    input_sensor(tmp_path, 0, power1_input=7_500_000)
    assert find_rails(tmp_path).power_w() == pytest.approx(7.5)


@pytest.mark.parametrize(
    "sensors",
    [
        [{"in1_label": "VDD_FAN", "power1_input": 2_000_000}],
        [{"power1_input": 44_000_000}, {"power1_input": 3_000_000}],
        [{}],
        [{"power1_input": "n/a"}],
        [{"chip": "ina226", "power1_input": 44_000_000}],
    ],
    ids=["of a part", "two of them", "without power", "not readable", "another chip"],
)
def test_what_may_not_be_the_input_does_not_pass_for_it(tmp_path, hwmon_board, sensors):
    hwmon_board(tmp_path, 3, THOR)
    for number, files in enumerate(sensors, start=5):
        input_sensor(tmp_path, number, **files)
    assert find_rails(tmp_path).source == "sysfs rails VDD_GPU + VDD_CPU_SOC_MSS + VIN_SYS_5V0"


def test_the_input_of_the_board_wins_over_that_of_the_module(tmp_path, hwmon_board):
    hwmon_board(tmp_path, 1, {"VDD_IN": (5000, 1000)})
    input_sensor(tmp_path, 2, power1_input=9_000_000)
    assert find_rails(tmp_path).power_w() == pytest.approx(9)


def test_the_rail_that_carries_all_wins_wherever_it_stands():
    assert board_rails(["VDD_SOC", "VDD_IN"]) == ("VDD_IN",)
    assert board_rails(["VDD_SOC", "VDD_CPU"]) == ("VDD_SOC", "VDD_CPU")
    assert board_rails([]) == ()
