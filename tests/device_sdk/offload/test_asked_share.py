"""The share of samples that is asked about, kept while samples come."""

from __future__ import annotations

import numpy as np
import pytest

from device_sdk.errors import UsageError
from device_sdk.offload.remote_model import AskedShare, RemoteModel
from device_sdk.supernet.deciders.port import confidence, hard
from device_sdk.supernet.plan import MaxConfidence

DECIDER = MaxConfidence(0.5)


def samples(count: int, *, sure: float = 2.0, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).normal(size=(count, 5)) * sure).astype(np.float32)


def asked(keeper: AskedShare, logits: np.ndarray, batch: int) -> np.ndarray:
    return np.concatenate([keeper.hard(DECIDER, logits[at : at + batch]) for at in range(0, len(logits), batch)])


@pytest.mark.parametrize("share", [0.05, 0.2, 0.7])
@pytest.mark.parametrize("batch", [1, 64, 4000])
def test_the_share_is_kept(share, batch):
    found = asked(AskedShare(share), samples(4000), batch)
    assert found.mean() == pytest.approx(share, abs=0.01)


def test_the_hardest_are_asked_about_as_by_a_fixed_threshold():
    logits = samples(4000)
    found = asked(AskedShare(0.2), logits, 64)
    hardest = confidence(logits) < np.quantile(confidence(logits), 0.2)
    assert (found[1000:] == hardest[1000:]).mean() > 0.97


def test_the_share_is_kept_when_samples_become_harder():
    logits = np.concatenate([samples(3000, sure=4.0), samples(6000, sure=1.0, seed=1)])
    threshold = MaxConfidence(float(np.quantile(confidence(logits[:3000]), 0.2)))
    assert hard(threshold, logits[3000:]).mean() > 0.6
    found = asked(AskedShare(0.2), logits, 32)
    assert found.mean() == pytest.approx(0.2, abs=0.02)
    assert found[-2000:].mean() == pytest.approx(0.2, abs=0.05)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_none_and_all(share):
    keeper = AskedShare(share)
    asked(keeper, samples(200), 64)
    assert asked(keeper, samples(500, seed=2), 64).mean() == share


def test_few_samples_are_decided_by_the_calibrated_limit():
    logits = samples(40)
    assert np.array_equal(AskedShare(0.9).hard(DECIDER, logits), hard(DECIDER, logits))


@pytest.mark.parametrize("share", [0.0, 0.005, 0.3])
def test_logits_that_are_no_answer_are_hard(share):
    keeper = AskedShare(share)
    logits = samples(1000)
    logits[::100] = np.nan
    found = asked(keeper, logits, 100)
    assert found[::100].all()
    assert len(keeper.hard(DECIDER, logits[:0])) == 0


def test_another_decider_begins_anew():
    keeper = AskedShare(0.2)
    asked(keeper, samples(500), 50)
    other = MaxConfidence(0.9)
    logits = samples(20, seed=3)
    assert np.array_equal(keeper.hard(other, logits), hard(other, logits))


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_a_share_that_is_none_is_refused(share):
    with pytest.raises(UsageError, match="share"):
        RemoteModel(server="http://x", model="m", share=share)
