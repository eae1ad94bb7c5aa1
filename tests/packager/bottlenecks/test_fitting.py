"""Candidates: fewer channels lose more, training keeps what it finds, cut points stay in order."""

from __future__ import annotations

import pytest
import torch

from device_sdk.progress import SilentProgress
from packager.bottlenecks.fitting import BottleneckFitter
from packager.joining.training import JointTraining, trained


@pytest.fixture(scope="module")
def fitter(network, make_job):
    job = make_job()
    judges = torch.from_numpy(job.prepared(count=60))
    return BottleneckFitter(network, job.training_samples(60), judges, seed=0, progress=SilentProgress())


def test_fewer_channels_send_less_and_lose_more(fitter):
    cut = fitter.usable_cuts[0]
    counts = sorted(channels for place, channels in fitter.possible if place == cut)
    found = {one.channels: one for one in fitter.candidates((cut, count) for count in counts)}
    few, many = found[counts[0]], found[counts[-1]]
    assert few.crossing.size_bytes < many.crossing.size_bytes
    assert few.loss > many.loss
    assert 0 <= many.changed <= 1


def test_all_channels_lose_no_more_than_rounding(fitter, network):
    cut = fitter.usable_cuts[-1]
    [found] = fitter.candidates([(cut, network.cuts[cut][0].shape[0])])
    assert found.loss < 0.1


def test_training_lowers_the_loss(fitter, network, make_job, tmp_path):
    job, pair = make_job(), max(fitter.possible)
    [start] = fitter.candidates([pair])
    made = trained(
        [start],
        [network],
        job.batches(),
        job.recipe,
        JointTraining(steps=40),
        state=tmp_path / "state.pt",
        title="train",
        progress=SilentProgress(),
    )
    [after] = fitter.judged(made)
    assert after.loss < start.loss
    assert fitter.judged([start])[0].loss == pytest.approx(start.loss), "the closed-form start is as it was"
