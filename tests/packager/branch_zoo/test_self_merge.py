from __future__ import annotations

import pytest
import torch

from packager.branch_zoo.features import FeatureBatch
from packager.branch_zoo.modules import build_branch
from packager.branch_zoo.self_merge import (
    best_merge,
    closest_pairs,
    few_shot_loss,
    hidden_widths,
    resized,
    retrain,
    retrain_to_least_loss,
    self_merged,
)
from packager.branch_zoo.specs import parse
from packager.errors import PackagingError
from packager.tracing.traced_model import parameter_count

SHAPE = (8, 4, 4)


def branch(name: str = "none-p2h512h256"):
    return build_branch(parse(name), SHAPE, classes=10, seed=1).eval()


def test_pairs_are_disjoint_and_the_closest_first():
    neurons = torch.tensor([[0.0], [10.0], [0.1], [10.5], [50.0]])
    assert closest_pairs(neurons, 5) == [(0, 2), (1, 3)]
    assert closest_pairs(neurons, 1) == [(0, 2)]
    assert closest_pairs(neurons, 0) == []


def test_equal_neurons_are_folded_without_changing_the_answer(noise):
    whole = branch("none-p2h256")
    layer = whole.dense[1]
    with torch.no_grad():
        layer.weight[128:] = layer.weight[:128]
        layer.bias[128:] = layer.bias[:128]
    merged = self_merged(whole, 0.5)
    x = noise(4, *SHAPE)
    assert hidden_widths(merged.branch) == (128,)
    with torch.no_grad():
        torch.testing.assert_close(merged.branch.eval()(x), whole(x))


@pytest.mark.parametrize("share", [1 / 3, 0.4, 1 / 2])
def test_every_pair_makes_each_hidden_layer_a_neuron_smaller(share):
    merged = self_merged(branch(), share)
    assert hidden_widths(merged.branch) == (512 - round(share * 512), 256 - round(share * 256))
    assert [int(rows.sum()) for rows in merged.shared.values()] == [round(share * 512), round(share * 256)]
    assert parameter_count(merged.branch) < 0.7 * parameter_count(branch())


def test_merging_leaves_the_original_as_it_is():
    whole = branch()
    before = {name: value.clone() for name, value in whole.state_dict().items()}
    self_merged(whole, 0.5)
    assert all(torch.equal(value, before[name]) for name, value in whole.state_dict().items())


def test_the_most_accurate_number_of_pairs_is_taken_and_of_equals_the_smallest_branch():
    assert hidden_widths(best_merge(branch(), lambda one: 0.5).branch) == (256, 128)
    widest = best_merge(branch(), lambda one: hidden_widths(one)[0])
    assert hidden_widths(widest.branch)[0] == 512 - round(512 / 3)


def test_a_branch_without_hidden_layers_cannot_be_merged():
    with pytest.raises(PackagingError, match="no neurons to merge"):
        self_merged(branch("none-p2"), 0.5)


def test_a_merged_branch_is_rebuilt_from_its_widths():
    merged = self_merged(branch(), 0.4).branch
    rebuilt = resized(branch(), hidden_widths(merged))
    rebuilt.load_state_dict(merged.state_dict())
    assert hidden_widths(rebuilt) == hidden_widths(merged)


# Retraining (Eq. 2)


def test_equation_2_weighs_labels_and_full_model_equally_and_adds_the_drift():
    answers, labels, teacher = torch.zeros(1, 2), torch.tensor([0]), torch.tensor([[0.0, 0.0]])
    assert few_shot_loss(answers, labels, teacher).item() == pytest.approx(0.5 * 0.25)  # MSE of (½, ½) from (1, 0)
    assert few_shot_loss(answers, labels, teacher, drift=2.0).item() == pytest.approx(0.5 * 0.25 + 2.0)
    apart = torch.tensor([[100.0, -100.0]])
    assert few_shot_loss(answers, labels, apart).item() == pytest.approx(0.125 + 0.5 * 0.6931, abs=1e-3)


def test_retraining_changes_unshared_neurons_only_and_lowers_the_loss(noise):
    merged = self_merged(branch(), 1 / 3)
    x, labels = noise(32, *SHAPE), torch.arange(32) % 10
    batch = FeatureBatch(x, labels, 5.0 * torch.nn.functional.one_hot(labels, 10).float())
    made = merged.branch
    before = {name: value.clone() for name, value in made.state_dict().items()}

    def loss() -> float:
        with torch.no_grad():
            return float(few_shot_loss(made.eval()(x), labels, batch.teacher))

    first = loss()
    retrain(merged, [batch], epochs=60)
    assert loss() < 0.9 * first
    for index, shared in merged.shared.items():
        for part in ("weight", "bias"):
            now, then = made.state_dict()[f"dense.{index}.{part}"], before[f"dense.{index}.{part}"]
            assert torch.equal(now[shared], then[shared])
            assert not torch.equal(now[~shared], then[~shared])
    fixed = [name for name in before if name.startswith("conv") or name.startswith("dense.0")]
    assert fixed
    assert all(torch.equal(made.state_dict()[name], before[name]) for name in fixed)


def batch_of(x, labels):
    return FeatureBatch(x, labels, 5.0 * torch.nn.functional.one_hot(labels, 10).float())


def test_retraining_on_other_labels_than_the_held_out_ones_is_taken_back(noise):
    merged = self_merged(branch(), 1 / 3)
    x = noise(8, *SHAPE)
    with torch.no_grad():
        right = merged.branch(x).argmax(1)
    before = {name: value.clone() for name, value in merged.branch.state_dict().items()}
    misleading = batch_of(x, (right + 1) % 10)
    retrain_to_least_loss(merged, [misleading], FeatureBatch(x, right, merged.branch(x).detach()))
    assert all(torch.equal(value, before[name]) for name, value in merged.branch.state_dict().items())
    retrain_to_least_loss(merged, [misleading], misleading)
    assert not all(torch.equal(value, before[name]) for name, value in merged.branch.state_dict().items())


def test_what_is_kept_has_the_least_loss_on_held_out_samples_of_all_epochs(noise):
    def loss_of(dense, judged_on) -> float:
        with torch.no_grad():
            return float(few_shot_loss(dense(judged_on.stemmed.flatten(1)), judged_on.labels, judged_on.teacher))

    x, labels = noise(32, *SHAPE), torch.arange(32) % 10
    seen, held_out = batch_of(x[:16], labels[:16]), batch_of(x[16:], labels[16:])
    start = self_merged(branch("none-p4h256"), 1 / 3)
    again, by_epoch = self_merged(branch("none-p4h256"), 1 / 3), []
    retrain(again, [seen], epochs=10, after_step=lambda _: by_epoch.append(loss_of(again.branch.dense, held_out)))
    retrain_to_least_loss(start, [seen], held_out, epochs=10)
    assert len(by_epoch) == 10
    assert loss_of(start.branch.dense, held_out) <= min(by_epoch)


def test_the_layer_behind_merged_neurons_is_fitted_to_what_it_computed_before(noise):
    whole = branch()
    x = noise(400, *SHAPE)
    with torch.no_grad():
        vectors, target = whole.vectors(x), whole(x)
        folded, fitted = (self_merged(whole, 0.5, seen).branch.eval() for seen in (None, vectors))
        folded_error, fitted_error = ((one(x) - target).square().mean() for one in (folded, fitted))
    assert hidden_widths(fitted) == hidden_widths(folded)
    assert fitted_error < 0.5 * folded_error


def test_few_samples_move_the_layer_behind_merged_neurons_little(noise):
    whole = branch("none-p2h256")
    with torch.no_grad():
        few = whole.vectors(noise(2, *SHAPE))
        folded, fitted = (self_merged(whole, 1 / 3, seen).branch for seen in (None, few))
        moved = (fitted.dense[-1].weight - folded.dense[-1].weight).norm() / folded.dense[-1].weight.norm()
    assert 0 < moved < 0.5
