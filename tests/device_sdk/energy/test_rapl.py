from __future__ import annotations

import pytest

from device_sdk.energy import Rapl, find_meter, find_rapl

RANGE_UJ = 262_143_328_850


def add_domain(sysfs, folder, name, energy_uj, range_uj=RANGE_UJ):
    path = sysfs / "class/powercap" / folder
    path.mkdir(parents=True)
    for file, text in (("name", name), ("energy_uj", energy_uj), ("max_energy_range_uj", range_uj)):
        (path / file).write_text(f"{text}\n")
    return path / "energy_uj"


def spend(*steps):
    """Work that sets counter files: (file, new value)."""

    def work():
        for path, value in steps:
            path.write_text(f"{value}\n")

    return work


def test_packages_and_memory_are_added_and_their_other_parts_are_in_them(tmp_path):
    package = add_domain(tmp_path, "intel-rapl:0", "package-0", 1_000_000)
    core = add_domain(tmp_path, "intel-rapl:0:0", "core", 500_000)
    memory = add_domain(tmp_path, "intel-rapl:0:1", "dram", 10_000)
    add_domain(tmp_path, "intel-rapl:1", "psys", 7)
    meter = find_rapl(tmp_path)
    assert meter.source == "RAPL package-0 + dram"
    energy = meter.measure(spend((package, 3_500_000), (core, 9_000_000), (memory, 510_000)))
    assert energy.energy_mj == pytest.approx(2500 + 500)
    assert energy.source == meter.source


def test_a_counter_that_starts_again_is_counted_on(tmp_path):
    package = add_domain(tmp_path, "intel-rapl:0", "package-0", RANGE_UJ - 400_000)
    assert find_rapl(tmp_path).measure(spend((package, 600_000))).energy_mj == pytest.approx(1000)


@pytest.mark.parametrize("text", ["", "n/a", None])
def test_a_counter_that_cannot_be_read_later_makes_the_energy_unknown(tmp_path, text):
    package = add_domain(tmp_path, "intel-rapl:0", "package-0", 1)
    meter = find_rapl(tmp_path)

    def work():
        package.unlink()
        if text is not None:
            package.write_text(text)

    energy = meter.measure(work)
    assert energy.energy_mj is None
    assert energy.mean_w is None


def test_counters_that_may_not_be_read_are_no_meter(tmp_path):
    add_domain(tmp_path, "intel-rapl:0", "package-0", 1).unlink()
    assert find_rapl(tmp_path) is None
    assert find_meter(stated_w=5, sysfs=tmp_path).source.startswith("model")


def test_memory_alone_is_not_the_device(tmp_path):
    add_domain(tmp_path, "intel-rapl:0:0", "dram", 1)
    assert find_rapl(tmp_path) is None


def test_two_packages_are_added(tmp_path):
    counters = [add_domain(tmp_path, f"intel-rapl:{n}", f"package-{n}", 0) for n in range(2)]
    meter = find_rapl(tmp_path)
    assert meter.source == "RAPL package-0 + package-1"
    assert meter.measure(spend(*((path, 2000) for path in counters))).energy_mj == pytest.approx(4)


def test_a_boards_rails_come_first(tmp_path, hwmon_board):
    hwmon_board(tmp_path, 0, {"VDD_IN": (5000, 1000)})
    add_domain(tmp_path, "intel-rapl:0", "package-0", 1)
    assert find_meter(stated_w=5, sysfs=tmp_path).source == "sysfs rails VDD_IN"


def test_power_is_the_mean_while_it_waits(tmp_path):
    package = add_domain(tmp_path, "intel-rapl:0", "package-0", 0)
    now_s = [0.0]

    class Counter:
        name, range_uj = "package-0", RANGE_UJ

        def energy_uj(self):
            return float(package.read_text())

    def sleep(seconds):
        now_s[0] += seconds
        package.write_text(str(round(12e6 * now_s[0])))

    meter = Rapl([Counter()], clock=lambda: now_s[0], sleep=sleep)
    assert meter.power_w() == pytest.approx(12)
    assert now_s[0] > 0
