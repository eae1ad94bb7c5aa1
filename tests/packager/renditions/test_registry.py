from __future__ import annotations

from typing import get_args

from device_sdk.supernet.blocks import Golden
from packager.inputs.recipe import RenditionName
from packager.renditions import FP32, KINDS, make_renditions


def test_recipes_know_the_kinds_that_there_are():
    assert set(get_args(RenditionName)) == {FP32, *KINDS}


def test_fp32_comes_first_and_always(tiny_exported, calibrate, recorded, work):
    golden = {part: Golden((), 0.0) for part in tiny_exported.own}
    calibration = calibrate(tiny_exported.expansion)
    for names, expected in (((), ["fp32"]), (("fp16", "fp16", "fp32"), ["fp32", "fp16"])):
        made = make_renditions(names, tiny_exported, golden, calibration, progress=recorded, cache=work)
        assert [kind.name for kind in made] == expected
    assert made[0].own == tiny_exported.own
    assert made[0].golden == golden
