"""Joint training: exits learn, the blocks behind them and the model stay, a stopped run goes on."""

from __future__ import annotations

import copy

import pytest
import torch

from device_sdk.progress import SilentProgress
from packager.errors import TrainingError
from packager.expanding import examples_of
from packager.joining.training import JointTraining
from packager.joint_exits.network import with_new_exits
from packager.joint_exits.training import judge, train_jointly
from packager.tracing.traced_model import trace


@pytest.fixture
def train(make_job, tmp_path):
    """Trains a fresh copy; returns it and its steps."""

    def run(*, length, name="state.pt", **choices):
        job = make_job(**choices)
        traced = trace(job.model.module, torch.from_numpy(examples_of(job)))
        network = with_new_exits(traced, count=2, structures=(), seed=0)
        steps = train_jointly(
            network,
            job.model.module,
            job.batches(),
            job.recipe,
            length,
            task=job.task,
            state=tmp_path / name,
            progress=SilentProgress(),
        )
        return network, steps

    return run


def test_exits_learn_while_the_model_and_the_blocks_behind_them_stay(train, make_job):
    job = make_job()
    before = copy.deepcopy(job.model.module.state_dict())
    network, steps = train(length=JointTraining(steps=60))
    found = judge(network, job.model.module, *job.held_out(200))
    assert steps == 60
    assert min(found.exits.values()) > 0.3  # a tenth is chance
    assert found.end > 0.6
    assert all(torch.equal(value, before[name]) for name, value in job.model.module.state_dict().items())
    learned = {id(one) for block in network.learned for one in block.parameters()}
    rest = [one for block in network.traced.blocks for one in block.parameters() if id(one) not in learned]
    assert rest
    kept = {tuple(one.flatten().tolist()) for one in before.values() if one.is_floating_point()}
    assert all(tuple(one.flatten().tolist()) in kept for one in rest)


def test_a_stopped_run_goes_on_and_ends_alike(train):
    whole, _ = train(length=JointTraining(steps=6), name="whole.pt", checkpoint_seconds=0)

    class Stopping:
        def __init__(self):
            self.calls = 0

        def __call__(self):
            self.calls += 1
            if self.calls > 9:
                raise KeyboardInterrupt
            return float(self.calls)

    with pytest.raises(KeyboardInterrupt):
        train(length=JointTraining(steps=6, clock=Stopping()), name="cut.pt", checkpoint_seconds=0)
    again, steps = train(length=JointTraining(steps=6), name="cut.pt", checkpoint_seconds=0)
    assert steps == 6
    pairs = zip(whole.module.state_dict().values(), again.module.state_dict().values(), strict=True)
    assert all(torch.allclose(one.float(), other.float(), atol=1e-5) for one, other in pairs)


def test_a_loss_that_is_not_finite_ends_the_run(train):
    with pytest.raises(TrainingError, match="not finite"):
        train(length=JointTraining(steps=40), tune_rate=1e30, exit_rate=1e30)
