"""One class for each token of a text, such as the names in it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from device_sdk.data.unlabelled import NO_CLASS
from device_sdk.errors import InputError
from device_sdk.runtimes.port import Array
from device_sdk.tasks.port import AnswerTask, Prediction, Predictions, ScoredAlone, Scores, Targets, integers

OUTSIDE = "O"
"""The class of words that belong to no span."""

_MARKS = "BIESLU"  # of IOB2, and of schemes that mark the end of a span and spans of one word too
_CONTINUING = "IEL"
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

    def predictions(self, answers: Array, class_names: Sequence[str]) -> Predictions:
        """See the port: spans; where no class is O, the class of each token, marks of the tokenizer included."""
        return [
            tuple(Prediction(kind, tokens=(first, end)) for first, end, kind in token_spans(class_names, classes))
            for classes in self.stand_in(answers)
        ]

    def compared(self, answers: Array) -> Array:
        """See the port: the logits of the first tokens, each token's centred to a mean of 0; as many at any length."""
        some = answers[:, :, :_COMPARED]
        found = np.zeros((*answers.shape[:2], _COMPARED), dtype=np.float32)
        found[:, :, : some.shape[2]] = some - some.mean(axis=1, keepdims=True)
        return found.reshape(len(answers), -1)


class SpansFound(TokensRight):
    """F1 of the spans that tokens of one kind form, of models with a class O for tokens outside of them.

    Classes B-NAME and I-NAME begin and continue a span of NAME (IOB2, or with ends and spans of one word marked); other
    classes are spans of one token. A span counts if its tokens and its kind are those of the targets. Tokens that do
    not count are passed over. Implements the port; a text without spans, of which none are found, scores 1.
    """

    name = "span F1"

    def __init__(self, class_names: Sequence[str]) -> None:
        super().__init__(len(class_names))
        self._names = class_names

    def of(self, answers: Array, targets: Targets) -> float:
        """See the port: of the spans of all texts together."""
        matched, both = self._counts(answers, targets).sum(axis=0)
        return float(2 * matched / both) if both else 1.0

    def scores(self, answers: Array, targets: Targets) -> Scores:
        """See the port: of each text's spans."""
        matched, both = self._counts(answers, targets).T
        return np.where(both > 0, 2 * matched / np.maximum(both, 1), 1.0).astype(np.float32)

    def _counts(self, answers: Array, targets: Targets) -> npt.NDArray[np.int64]:
        """[count, 2]: the spans of each text that are found and correct, and the sum of those found and those there."""
        common = min(answers.shape[2], targets.shape[1])
        classes = np.full_like(targets, list(self._names).index(OUTSIDE))
        classes[:, :common] = answers[:, :, :common].argmax(axis=1)
        pairs = []
        for found, wanted in zip(classes, targets, strict=True):
            counted = wanted >= 0
            own, there = (set(token_spans(self._names, one[counted])) for one in (found, wanted))
            pairs.append((len(own & there), len(own) + len(there)))
        return np.array(pairs, dtype=np.int64).reshape(-1, 2)


def tag_parts(class_name: str) -> tuple[str, str]:
    """The mark of a class, such as B or I, or an empty one, and the kind of span that it names."""
    if len(class_name) > len("B-") and class_name[0] in _MARKS and class_name[1] == "-":
        return class_name[0], class_name[2:]
    return "", class_name


def token_spans(
    class_names: Sequence[str], classes: Targets, joined: npt.NDArray[np.bool_] | None = None
) -> list[tuple[int, int, str]]:
    """The spans of one text: their first token, the one behind them, and their kind.

    ``classes`` [tokens]: below 0 for what is no token. ``joined``: tokens that continue the word of the one before, and
    belong to its span whatever their class is.
    """
    parts = [tag_parts(name) for name in class_names]
    found: list[tuple[int, int, str]] = []
    for at, number in enumerate(classes.tolist()):
        if number < 0:
            continue
        mark, kind = parts[number]
        continues = mark != "" and mark in _CONTINUING and bool(found) and kind == found[-1][2]
        if found and (continues or (joined is not None and joined[at])):
            found[-1] = (found[-1][0], at + 1, found[-1][2])
        else:
            found.append((at, at + 1, kind))
    return [one for one in found if one[2] != OUTSIDE]


def tokens_task(class_names: Sequence[str]) -> AnswerTask:
    """The task of a model with these classes: spans are judged where one of them is O, else tokens."""
    return SpansFound(class_names) if OUTSIDE in class_names else TokensRight(len(class_names))


def _right(answers: Array, targets: Targets) -> Array:
    """Mask [count, tokens] of the tokens that count, have an answer, and a correct one."""
    common = min(answers.shape[2], targets.shape[1])
    wanted = targets[:, :common]
    return np.asarray((answers[:, :, :common].argmax(axis=1) == wanted) & (wanted >= 0))
