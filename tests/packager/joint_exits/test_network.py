"""The copy: where its exits are, what it keeps of the model, and what is stored of it."""

from __future__ import annotations

import pytest
import torch

from packager.errors import WeightsError
from packager.expanding import examples_of
from packager.joint_exits.network import joint_positions, with_given_exits, with_new_exits
from packager.supernet.blocks.trainable import count_macs
from packager.tracing.traced_model import trace


@pytest.fixture
def job(make_job):
    return make_job()


@pytest.fixture
def traced(job):
    return trace(job.model.module, torch.from_numpy(examples_of(job)))


def test_exits_lie_from_a_third_to_two_thirds_of_the_work(traced):
    positions = joint_positions(traced, count=3)
    macs = [count_macs(block, traced.tensors[at].shape) for at, block in enumerate(traced.blocks)]
    shares = [sum(macs[:position]) / sum(macs) for position in positions]
    largest = max(macs) / sum(macs)
    assert len(set(positions)) == 3
    assert all(1 / 3 - largest <= share <= 2 / 3 + largest for share in shares)
    assert joint_positions(traced, count=99) == tuple(range(1, len(traced.blocks)))


def test_the_untrained_copy_answers_as_the_model_at_its_end(job, traced):
    network = with_new_exits(traced, count=2, structures=(), seed=0)
    images = torch.from_numpy(job.prepared(count=20))
    with torch.no_grad():
        *exits, end = network.answers(images)
        assert torch.allclose(end, job.model.module(images), atol=1e-4)
    assert [one.shape for one in exits] == [end.shape] * 2


def test_structures_may_be_named(traced):
    network = with_new_exits(traced, count=1, structures=("none-p1", "none-p2"), seed=0)
    assert [one.branch for one in network.exits] == ["none-p1", "none-p2"]


def test_what_was_learned_is_stored_as_a_difference_and_taken_again(job, traced):
    network = with_new_exits(traced, count=1, structures=("none-p1",), seed=0)
    with torch.no_grad():
        for one in network.learned[0].parameters():
            one += 0.25
    stored = network.difference(job.model.module.state_dict())
    changed = [name for name in stored if name.startswith("joint-trunk.")]
    assert len(changed) == len(list(network.learned[0].parameters()))
    assert all(torch.allclose(stored[name], torch.tensor(0.25), atol=1e-6) for name in changed)
    again = with_given_exits(trace(job.model.module, torch.from_numpy(examples_of(job))), stored)
    images = torch.from_numpy(job.prepared(count=8))
    with torch.no_grad():
        for one, other in zip(network.answers(images), again.answers(images), strict=True):
            assert torch.allclose(one, other, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("joint-trunk.nothing.weight", "of another model"),
        ("joint-x99-none-p1.dense.0.weight", "where there can be none"),
        ("joint-else", "name no joint exit"),
    ],
)
def test_weights_of_another_model_are_refused(job, traced, name, message):
    network = with_new_exits(traced, count=1, structures=("none-p1",), seed=0)
    stored = network.difference(job.model.module.state_dict()) | {name: torch.zeros(3)}
    with pytest.raises(WeightsError, match=message):
        with_given_exits(traced, stored)
