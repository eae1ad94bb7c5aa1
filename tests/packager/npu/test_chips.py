from __future__ import annotations

import pytest

from device_sdk.errors import UsageError
from packager.inputs.recipe import Recipe
from packager.npu.chips import CHIPS, DEFAULT_CHIPS, chips_named


def test_chips_come_in_the_order_given_each_once():
    assert [chip.name for chip in chips_named(("v75", "v73", "v75"))] == ["v75", "v73"]
    assert [chip.htp_arch for chip in chips_named(DEFAULT_CHIPS)] == [73]


def test_an_unknown_chip_is_refused_with_those_that_are_known():
    with pytest.raises(UsageError, match="there is no chip 'v12'") as caught:
        chips_named(("v73", "v12"))
    assert caught.value.hint == "known: " + ", ".join(CHIPS)


@pytest.mark.parametrize(("chips", "said"), [((), "chips are empty"), (("x1",), "there is no chip 'x1'")])
def test_a_recipe_with_wrong_chips_is_refused(chips, said):
    with pytest.raises(UsageError, match=said):
        Recipe(steps=0, chips=chips)
