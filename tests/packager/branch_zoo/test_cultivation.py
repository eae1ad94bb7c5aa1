from __future__ import annotations

import pytest
import torch

from packager.branch_zoo.cultivation import Cultivated
from packager.branch_zoo.features import FeatureBatch, StemmedBatches
from packager.branch_zoo.modules import build_branch
from packager.branch_zoo.rungs import BranchTraining
from packager.branch_zoo.self_merge import hidden_widths
from packager.branch_zoo.specs import parse
from packager.errors import ResumeError
from packager.torch_device import on_device
from tests.packager.conftest import DyingSource


def weights(found: Cultivated) -> dict[str, torch.Tensor]:
    return {
        f"{grown.exit.id}.{key}": value
        for grown in found.grown
        for key, value in grown.exit.module.state_dict().items()
    }


def equal(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_branches_learn_and_the_best_siblings_are_added(cultivation):
    found = cultivation().run()
    assert found.trained == 12
    assert found.steps == {2: 45, 3: 45}
    ids = [grown.exit.id for grown in found.grown]
    assert len(set(ids)) == len(ids)
    assert {grown.exit.position for grown in found.grown} == {2, 3}
    assert max(grown.accuracy for grown in found.grown) > 0.8
    merged = [grown.exit for grown in found.grown if grown.exit.branch.endswith("-merged")]
    assert merged
    for exit_ in merged:
        whole = next(grown.exit for grown in found.grown if f"{grown.exit.id}-merged" == exit_.id)
        assert exit_.parameters < whole.parameters
        assert sum(hidden_widths(exit_.module)) < sum(hidden_widths(whole.module))
    assert any("survival judged by MACs" in note for note in found.notes)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
def test_branches_and_siblings_grow_on_an_accelerator(cultivation, tiny_traced):
    device = torch.device("cuda")
    with on_device(tiny_traced.blocks, device):
        found = cultivation(device=device).run()
    assert max(grown.accuracy for grown in found.grown) > 0.8
    assert any(grown.exit.branch.endswith("-merged") for grown in found.grown)
    assert {p.device.type for grown in found.grown for p in grown.exit.module.parameters()} == {"cpu"}


def test_siblings_can_be_left_out(cultivation):
    found = cultivation(merge=False, positions=(2,)).run()
    assert not [grown for grown in found.grown if grown.exit.branch.endswith("-merged")]


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_same_weights(cultivation, tmp_path, digits, digits_preprocessing):
    def source() -> DyingSource:
        return DyingSource(digits("train", limit=256), digits_preprocessing, batch=64, seed=5, variants=1)

    expected = cultivation(work=folder(tmp_path, "whole"), source=source()).run()
    died, made = 0, None
    work = folder(tmp_path, "killed")
    for dies_at in (2, None):
        attempt = source()
        attempt.dies_at = dies_at
        try:
            made = cultivation(work=work, source=attempt).run()
        except DyingSource.Killed:
            died += 1
    assert died == 1
    assert equal(weights(made), weights(expected))


def test_a_finished_cut_point_is_not_trained_again(cultivation, tmp_path):
    work = folder(tmp_path, "work")
    first = next(iter(cultivation(work=work).cut_points()))
    again = cultivation(work=work)
    states = list(again.cut_points())
    assert equal(weights(states[0]), weights(first))
    assert {grown.exit.position for grown in states[1].grown} == {2, 3}


def test_a_damaged_checkpoint_is_named(cultivation, tmp_path):
    work = folder(tmp_path, "work")
    cultivation(work=work).run()
    (work / "branches-2.pt").write_bytes(b"no state")
    with pytest.raises(ResumeError, match=r"branches-2\.pt cannot be read"):
        cultivation(work=work).run()


@pytest.mark.slow
def test_two_processes_share_the_branches_and_come_to_the_same_exits(cultivation, tmp_path, together):
    alone = cultivation(work=folder(tmp_path, "alone"), positions=(2,)).run()
    work = folder(tmp_path, "shared")
    shared, followed = (
        future.result()
        for future in together(2, lambda ranks: cultivation(work=work, positions=(2,), ranks=ranks).run())
    )
    assert shared.trained == alone.trained == followed.trained
    assert weights(shared).keys() == weights(alone).keys()
    for name, value in weights(alone).items():
        torch.testing.assert_close(weights(shared)[name], value)


def test_time_instead_of_steps_ends_the_training(cultivation):
    made = cultivation(steps=None, positions=(2,), merge=False)
    made._seconds_left = lambda: 0.4
    assert made.run().steps[2] >= 1


# Training


def test_a_branch_that_diverges_leaves_the_others_alone(noise):
    branches = {name: build_branch(parse("none-p1h256"), (4, 4, 4), classes=3, seed=k) for k, name in enumerate("ab")}
    training = BranchTraining(branches, rate=1e-3, device=torch.device("cpu"))
    with torch.no_grad():
        branches["a"].dense[1].weight.fill_(float("inf"))
    batch = FeatureBatch(noise(8, 4, 4, 4), torch.arange(8) % 3, noise(8, 3))
    before = {key: value.clone() for key, value in branches["b"].state_dict().items()}
    training.step(batch, lambda answers, b: torch.nn.functional.cross_entropy(answers, b.labels), rate=1e-2)
    assert training.diverged == {"a"}
    assert training.accuracies(batch)["a"] == -1.0
    assert not torch.equal(branches["b"].dense[1].weight, before["dense.1.weight"])


def test_each_branch_trains_as_it_would_alone(noise):
    def made() -> dict:
        return {name: build_branch(parse(name), (4, 8, 8), classes=3, seed=1) for name in ("none-p1", "separable3-p2")}

    batches = [FeatureBatch(noise(16, 4, 8, 8, seed=k), torch.arange(16) % 3, noise(16, 3)) for k in range(4)]

    def trained(branches: dict, kept_after: int | None = None) -> dict:
        training = BranchTraining(branches, rate=1e-2, device=torch.device("cpu"))
        for number, batch in enumerate(batches):
            training.step(batch, lambda a, b: torch.nn.functional.cross_entropy(a, b.labels), rate=1e-2)
            if number == kept_after:
                training.keep(["separable3-p2"])
        return training.branches["separable3-p2"].state_dict()

    alone = trained({"separable3-p2": made()["separable3-p2"]})
    for found in (trained(made()), trained(made(), kept_after=1)):  # optimizer state survives the others' end
        assert all(torch.equal(found[key], value) for key, value in alone.items())


# Cached features


def test_batches_come_from_the_cache_and_stay_below_its_limit(tiny_traced, digit_batches, tmp_path):
    def batches(limit_bytes: float) -> StemmedBatches:
        return StemmedBatches(
            tiny_traced,
            digit_batches,
            (2, 3),
            folder=tmp_path,
            limit_bytes=limit_bytes,
            wanted=10,
            device=torch.device("cpu"),
        )

    whole = batches(1e9)
    assert whole.used == 4
    first, again = whole.at(2, 0), whole.at(2, 0)
    assert torch.equal(first.stemmed, again.stemmed)
    epoch = {whole.at(3, step).labels.sum().item() for step in range(4)}
    assert {whole.at(3, step).labels.sum().item() for step in range(4, 8)} == epoch
    assert batches(1.0).used == 1
    whole.close()
    assert not list(tmp_path.glob("features.*/*")) or batches(1.0).used == 1


def folder(parent, name):
    made = parent / name
    made.mkdir()
    return made
