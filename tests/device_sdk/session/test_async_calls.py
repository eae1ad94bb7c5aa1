from __future__ import annotations

import asyncio

import numpy as np
import pytest

from device_sdk.errors import ClosedError, InputError
from device_sdk.session.adaptive_model import AdaptiveModel


@pytest.fixture
def model(tiny_bundle, slow_state):
    with AdaptiveModel.open(tiny_bundle.folder, state_folder=slow_state) as opened:
        yield opened


def test_coroutines_get_the_same_answers(model, tiny_bundle):
    expected = [model(image).output for image in tiny_bundle.images[:8]]

    async def ask():
        answers = await asyncio.gather(*(model.acall(image) for image in tiny_bundle.images[:8]))
        tensor = model.prepare(tiny_bundle.images[0])
        return [*answers, await model.acall(tensor)]

    found = [answer.output for answer in asyncio.run(ask())]
    assert all(np.array_equal(a, b) for a, b in zip(found, [*expected, expected[0]], strict=True))


def test_coroutines_are_told_what_is_wrong(model, tiny_bundle):
    with pytest.raises(InputError, match="expected"):
        asyncio.run(model.acall(np.zeros((1, 2), np.float32)))
    model.close()
    with pytest.raises(ClosedError):
        asyncio.run(model.acall(tiny_bundle.images[0]))
