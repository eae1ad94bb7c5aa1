from __future__ import annotations

from collections import OrderedDict, namedtuple
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional

from packager.errors import ModelLoadError
from packager.inputs.answer_checks import NOISE_SAMPLES, check_answers, require_one_tensor

NOISE = torch.randn(NOISE_SAMPLES, 3, 8, 8, generator=torch.Generator().manual_seed(0))
Pair = namedtuple("Pair", "logits features")


class Ending(nn.Module):
    """A small classifier whose logits go through ``end``."""

    def __init__(self, end: Callable[[torch.Tensor], torch.Tensor] = lambda logits: logits, classes: int = 5) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 8, 3)
        self.norm = nn.BatchNorm2d(8)
        self.head = nn.Linear(8, classes)
        self.end = end

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.end(self.head(self.norm(self.conv(images)).relu().mean((2, 3))))


def refused(module: nn.Module) -> ModelLoadError:
    with pytest.raises(ModelLoadError) as caught:
        check_answers(module.eval(), NOISE)
    assert "\n" not in str(caught.value)
    return caught.value


def test_logits_pass_without_a_word():
    assert check_answers(Ending().eval(), NOISE) == ()


@pytest.mark.parametrize(
    ("end", "kind"),
    [
        (lambda x: x.softmax(1), "softmax"),
        (lambda x: x.exp() / x.exp().sum(1, keepdim=True), "softmax"),
        (lambda x: functional.normalize(x.relu() + 0.1, p=1, dim=1), "softmax"),
        (lambda x: x.sigmoid(), "sigmoid"),
        (lambda x: x.sigmoid().reshape(len(x), -1), "sigmoid"),
        (functional.hardsigmoid, "sigmoid"),
        (lambda x: x[:, :1].sigmoid(), "sigmoid"),
        (lambda x: x[:, :, None, None].softmax(1), "softmax"),
    ],
)
def test_probabilities_are_refused_with_the_remedy(end, kind):
    error = refused(Ending(end))
    assert f"probabilities (a {kind})" in str(error)
    assert "end the model at the logits" in str(error.hint)


def test_a_log_softmax_is_said():
    (note,) = check_answers(Ending(lambda x: x.log_softmax(1)).eval(), NOISE)
    assert "log-softmax" in note


@pytest.mark.parametrize("end", [lambda x: x.clamp(0, 1), lambda x: 0.01 * x + 0.5, lambda x: x.relu()])
def test_logits_that_happen_to_lie_between_0_and_1_pass(end):
    check_answers(Ending(end).eval(), NOISE)


def test_statistics_of_the_batch_are_refused_by_layer():
    module = Ending()
    module.norm = nn.BatchNorm2d(8, track_running_stats=False)
    error = refused(module)
    assert "differs with the other images of a batch" in str(error)
    assert "norm has no running statistics" in str(error)
    assert "track_running_stats=True" in str(error.hint)


def test_a_layer_that_eval_leaves_in_training_mode_is_named():
    class Stubborn(nn.BatchNorm2d):
        def train(self, mode: bool = True) -> nn.Module:
            return super().train(True)

    module = Ending()
    module.norm = Stubborn(8)
    assert "norm is in training mode" in str(refused(module))


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (lambda x: functional.dropout(x, 0.5), "from call to call"),
        (lambda x: x + torch.randn_like(x), "from call to call"),
        (lambda x: x - x.mean(0), "with the other images"),
        (lambda x: x if x.sum() > 1e9 else x / x.abs().max(), "with the other images"),
    ],
)
def test_other_answers_that_differ_are_refused(end, words):
    assert words in str(refused(Ending(end)))


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_answers_that_are_not_numbers_name_the_first_layer(value):
    module = Ending()
    module.norm.running_mean[0] = value
    error = refused(module)
    assert "answers noise with" in str(error)
    assert "layer norm" in str(error)


def test_a_model_for_one_image_is_refused():
    assert "does not take a batch of 4 samples" in str(refused(Ending(lambda x: x.reshape(1, 5))))


TENSOR = torch.zeros(1, 3)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((TENSOR, TENSOR), "model(x)[0]"),
        ([TENSOR], "model(x)[0]"),
        (Pair(TENSOR, TENSOR), "model(x)[0]"),
        ({"logits": TENSOR, "features": TENSOR}, "model(x)['logits']"),
        (OrderedDict(features=TENSOR, logits=TENSOR), "model(x)['logits']"),
        ({"out": TENSOR}, "model(x)['out']"),
        (None, "logits alone"),
        ("text", "logits alone"),
    ],
)
def test_an_answer_of_several_tensors_is_refused_with_the_remedy(answer, words):
    with pytest.raises(ModelLoadError, match="not with one tensor") as caught:
        require_one_tensor(answer, "mine:net")
    assert "logits alone" in str(caught.value.hint)
    assert words in str(caught.value.hint)
