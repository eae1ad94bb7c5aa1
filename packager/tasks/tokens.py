"""Token classification: one class for each token of a text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch.nn import functional

from device_sdk.data.unlabelled import NO_CLASS
from device_sdk.tasks.tokens import tokens_task
from packager.tasks.port import OfWholeSamples, imitation

_AXES = 2  # classes, tokens


@dataclass(frozen=True)
class TokenClassification(OfWholeSamples):
    """Answers: logits [batch, classes, tokens], all equal at a token that a text does not have.

    Targets: classes [batch, tokens], below 0 where a token does not count. Answers at a shorter length leave out the
    last tokens, which then count as wrong. ``class_names``: say whether spans are scored, or tokens.
    """

    class_names: tuple[str, ...] = ()
    kind: Literal["token_classification"] = "token_classification"

    def with_classes(self, class_names: tuple[str, ...]) -> TokenClassification:
        """See the port."""
        return TokenClassification(class_names)

    def class_count(self, output: tuple[int, ...]) -> int:
        """See the port."""
        return output[0] if len(output) == _AXES else 0

    def complaint(self, output: tuple[int, ...], class_names: tuple[str, ...]) -> str | None:
        """See the port."""
        if self.class_count(output) == len(class_names):
            return None
        return f"the model answers with {'×'.join(map(str, output))}, not {len(class_names)} classes × tokens"

    def target_loss(self, answers: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Cross-entropy of the tokens that count and have an answer."""
        wanted = targets[:, : answers.shape[2]].long()
        wanted = torch.where(wanted < 0, NO_CLASS, wanted)
        losses = functional.cross_entropy(answers, wanted, ignore_index=NO_CLASS, reduction="sum")
        return losses / (wanted >= 0).sum().clamp_min(1)

    def imitation_loss(self, answers: torch.Tensor, teacher: torch.Tensor, temperature: float) -> torch.Tensor:
        """Kullback-Leibler divergence from the teacher's class probabilities, at the tokens that have an answer."""
        return imitation(answers, teacher[:, :, : answers.shape[2]], temperature)

    def score(self, answers: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The score of the device: F1 of each text's spans, or where no class is O, the share of its tokens."""
        names = self.class_names or tuple(map(str, range(answers.shape[1])))
        scores = tokens_task(names).scores(answers.detach().cpu().numpy(), targets.cpu().numpy())
        return torch.from_numpy(scores).to(answers.device)

    def distance(self, answers: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        """The mean total variation distance of the class probabilities of the tokens of ``others``.

        A token without an answer is as far as can be.
        """
        common = min(answers.shape[2], others.shape[2])
        is_token = others.amax(1) > others.amin(1)
        apart = torch.ones_like(is_token, dtype=answers.dtype)
        shares, other_shares = (one[:, :, :common].softmax(1) for one in (answers, others))
        apart[:, :common] = (shares - other_shares).abs().sum(1) / 2
        return (apart * is_token).sum(1) / is_token.sum(1).clamp_min(1)
