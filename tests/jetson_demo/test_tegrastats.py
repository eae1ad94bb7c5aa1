from __future__ import annotations

import pytest

from jetson_demo.tegrastats import parse

ORIN = (
    "11-20-2026 10:03:21 RAM 3162/7620MB (lfb 5x4MB) SWAP 0/3810MB (cached 0MB) CPU [12%@1510,8%@1510,off,off]"
    " EMC_FREQ 1%@2133 GR3D_FREQ 33%@[611] NVDEC off NVJPG off VIC off APE 200 cpu@48.5C soc2@46.187C tboard@39C"
    " gpu@-256C tj@49.25C VDD_IN 5120mW/5080mW VDD_CPU_GPU_CV 1120mW/1100mW VDD_SOC 1440mW/1440mW"
)
NANO = (
    "RAM 1891/3964MB (lfb 254x4MB) SWAP 0/1982MB (cached 0MB) IRAM 0/252kB(lfb 252kB) CPU [27%@1479,15%@1479]"
    " EMC_FREQ 5%@1600 GR3D_FREQ 0%@76 APE 25 PLL@37C CPU@41.5C PMIC@100C GPU@39C AO@46C thermal@40.5C"
    " POM_5V_IN 3245/3245 POM_5V_GPU 0/0 POM_5V_CPU 1182/1182"
)
THOR = (
    "RAM 8011/125771MB (lfb 9x4MB) CPU [1%@972,0%@972] cpu@41.4C tj@43.2C gpu@40.9C"
    " VDD_GPU 0mW/0mW VDD_CPU_SOC_MSS 3970mW/3970mW VIN_SYS_5V0 4745mW/4745mW VIN 21500mW/21450mW"
)


@pytest.mark.parametrize(
    ("line", "memory_mb", "hottest_c", "rails_mw"),
    [
        (ORIN, (3162, 7620), 49.25, {"VDD_IN": 5120, "VDD_CPU_GPU_CV": 1120, "VDD_SOC": 1440}),
        (NANO, (1891, 3964), 100.0, {"POM_5V_IN": 3245, "POM_5V_GPU": 0, "POM_5V_CPU": 1182}),
        (
            THOR,
            (8011, 125771),
            43.2,
            {"VDD_GPU": 0, "VDD_CPU_SOC_MSS": 3970, "VIN_SYS_5V0": 4745, "VIN": 21500},
        ),
    ],
    ids=["JetPack 6", "JetPack 4", "a board with a rail for all"],
)
def test_memory_temperatures_and_rails_are_read_from_a_line(line, memory_mb, hottest_c, rails_mw):
    read = parse(line)
    assert (read.used_mb, read.total_mb) == memory_mb
    assert read.hottest_c == hottest_c
    assert read.rails_mw == rails_mw


def test_sensors_of_parts_that_are_off_state_no_temperature():
    assert parse(ORIN).temperatures_c == {"cpu": 48.5, "soc2": 46.187, "tboard": 39.0, "tj": 49.25}


@pytest.mark.parametrize("line", ["", "no such file", "RAM x/yMB cpu@C VDD_IN mW"])
def test_what_a_line_lacks_is_missing(line):
    read = parse(line)
    assert (read.used_mb, read.total_mb, read.hottest_c, read.rails_mw) == (None, None, None, {})
