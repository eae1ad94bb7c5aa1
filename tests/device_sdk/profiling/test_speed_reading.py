from __future__ import annotations

import pytest

from device_sdk.profiling.speed_reading import SpeedReading, SystemSpeed, Zone, thermal_zones

CPU, THERMAL = "sys/devices/system/cpu", "sys/class/thermal"
STAT = "cpu  100 10 40 800 50 5 5 20 7 0\ncpu0 50 5 20 400 25 3 2 10 3 0\ncpu1 50 5 20 400 25 2 3 10 4 0\nctxt 5\n"


@pytest.fixture
def system(tmp_path):
    """Writes files of a system, by their paths."""

    def write(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{text}\n")
        return tmp_path

    return write


def read(root, cores=(0, 1)):
    return SystemSpeed(root, cores=cores).read()


def test_a_system_that_tells_nothing_gives_an_empty_reading(tmp_path):
    assert read(tmp_path / "missing") == SpeedReading()


def test_the_fastest_core_counts_and_the_core_whose_limit_was_lowered_most(system):
    files = {}
    for core, (now, allowed, most) in enumerate([(800_000, 2_000_000, 2_000_000), (1_500_000, 1_500_000, 3_000_000)]):
        for name, value in [("scaling_cur_freq", now), ("scaling_max_freq", allowed), ("cpuinfo_max_freq", most)]:
            files[f"{CPU}/cpu{core}/cpufreq/{name}"] = value
    found = read(system(files))
    assert (found.frequency_mhz, found.limit_share) == (1500.0, 0.5)
    assert read(system(files), cores=(0,)).limit_share == 1.0


def test_throttle_counts_of_cores_and_packages_add_up(system):
    names = [
        f"{CPU}/cpu{core}/thermal_throttle/{kind}_throttle_count" for core in (0, 1) for kind in ("core", "package")
    ]
    assert read(system({name: 3 for name in names})).throttles == 12


def test_heat_and_cooling_devices_are_read(system):
    files = {
        f"{THERMAL}/thermal_zone0/temp": 71_500,
        f"{THERMAL}/cooling_device0/type": "cpufreq-cpu0",
        f"{THERMAL}/cooling_device0/cur_state": 3,
    }
    found = read(system(files))
    assert (found.hottest_c, found.held_back) == (71.5, ("cpufreq-cpu0",))


def test_ticks_count_idle_and_waiting_for_disks_as_not_busy_and_guests_once(system):
    found = read(system({"proc/stat": STAT, "proc/self/stat": "7 (a (b) c) S 1 2 3 4 5 6 7 8 9 10 30 12 0 0"}))
    assert (found.busy_ticks, found.total_ticks, found.cores, found.own_ticks) == (180, 1030, 2, 42)


def test_waits_of_all_threads_add_up(system):
    files = {"proc/self/task/1/schedstat": "1000 200 5", "proc/self/task/2/schedstat": "500 50 1"}
    found = read(system(files))
    assert (found.run_ns, found.waited_ns) == (1500, 250)


def test_a_laptops_battery_saver_is_seen(system):
    assert not read(system({"sys/firmware/acpi/platform_profile": "balanced"})).saving
    assert read(system({"sys/firmware/acpi/platform_profile": "low-power"})).saving


@pytest.mark.parametrize("odd", ["", "cpu", "cpu a b c d e f g h", "\0", "cpu 1 2"])
def test_nonsense_counts_as_unknown(system, odd):
    paths = ["proc/stat", "proc/self/stat", "proc/self/task/1/schedstat", f"{CPU}/cpu0/cpufreq/scaling_cur_freq"]
    paths += [f"{THERMAL}/thermal_zone0/temp", f"{CPU}/cpu0/thermal_throttle/core_throttle_count"]
    assert read(system(dict.fromkeys(paths, odd))) == SpeedReading()


def test_zones_name_the_first_trip_point_that_slows_the_processor(system):
    zone = f"{THERMAL}/thermal_zone0"
    files = {f"{zone}/temp": 65_000, f"{zone}/type": "cpu-thermal"}
    for number, (kind, value) in enumerate([("critical", 110_000), ("hot", 95_000), ("passive", 80_000)]):
        files |= {f"{zone}/trip_point_{number}_type": kind, f"{zone}/trip_point_{number}_temp": value}
    files |= {f"{THERMAL}/thermal_zone1/temp": 70_000, f"{THERMAL}/thermal_zone2/temp": "off"}
    assert thermal_zones(system(files)) == (Zone("thermal_zone1", 70.0), Zone("cpu-thermal", 65.0, 80.0))


def test_this_machine_is_read_without_an_error():
    assert SystemSpeed().read().cores >= 1
