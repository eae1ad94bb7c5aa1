"""One class for each token of a text, such as the names in it."""

from __future__ import annotations

import numpy as np

from device_sdk.data.unlabelled import NO_CLASS
from device_sdk.errors import InputError
from device_sdk.runtimes.port import Array
from device_sdk.tasks.port import ScoredAlone, Scores, Targets, integers

_COMPARED = 32  # first tokens of a text, whose logits are compared


class TokensRight(ScoredAlone):
    """The share of tokens with the correct class. Implements the port.

    Answers: logits [count, classes, tokens], all equal at a token that a text does not have; targets: a class for each
    token [count, tokens], below 0 where it does not count. Answers at a shorter length leave out the last tokens, which
    then count as wrong.
    """

    name = "token accuracy"

    def __init__(self, classes: int) -> None:
        self._classes = classes

    def checked(self, targets: object, count: int) -> Targets:
        """See the port."""
        classes = integers(targets, (count, None), f"targets must be a class for each token [{count}, tokens]")
        if (classes >= self._classes).any():
            raise InputError(f"classes of tokens must lie between 0 and {self._classes - 1}, or below 0 for none")
        return classes

    def of(self, answers: Array, targets: Targets) -> float:
        """See the port."""
        counted = int((targets >= 0).sum())
        return int(_right(answers, targets).sum()) / max(counted, 1)

    def scores(self, answers: Array, targets: Targets) -> Scores:
        """See the port: the share of each text's tokens, 1 of a text without any that counts."""
        right, counted = _right(answers, targets).sum(axis=1), (targets >= 0).sum(axis=1)
        return np.where(counted > 0, right / np.maximum(counted, 1), 1.0).astype(np.float32)

    def stand_in(self, answers: Array) -> Targets:
        """See the port."""
        is_token = answers.max(axis=1) > answers.min(axis=1)
        return np.where(is_token, answers.argmax(axis=1), NO_CLASS)

    def compared(self, answers: Array) -> Array:
        """See the port: the logits of the first tokens, each token's centred to a mean of 0; as many at any length."""
        some = answers[:, :, :_COMPARED]
        found = np.zeros((*answers.shape[:2], _COMPARED), dtype=np.float32)
        found[:, :, : some.shape[2]] = some - some.mean(axis=1, keepdims=True)
        return found.reshape(len(answers), -1)


def _right(answers: Array, targets: Targets) -> Array:
    """Mask [count, tokens] of the tokens that count, have an answer, and a correct one."""
    common = min(answers.shape[2], targets.shape[1])
    wanted = targets[:, :common]
    return np.asarray((answers[:, :, :common].argmax(axis=1) == wanted) & (wanted >= 0))
