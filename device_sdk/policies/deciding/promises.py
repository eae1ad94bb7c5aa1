"""The bounds for new samples that every promise stands on: exact, from counts of samples. Pure.

Accuracies and shares are shares of samples: answered wrongly, sent on; their bound is that of Clopper and Pearson
(1934). A drop is a share that is lost less one that is won; its bound is the exact unconditional one for paired samples
(Hsueh, Liu and Chen 2001). A limit is promised if the samples seen rule out, with the stated certainty, that it is
broken among new ones. Where many plans compete, either other samples test what was chosen, or each takes its own part
of the doubt.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

USUAL_CERTAINTY = 0.8  # of a drop, where none is stated and the samples suffice
SHARES_CERTAINTY = 0.9  # of shares of samples that are sent on, where a goal states none

_ROUNDING = 1e-9  # of sums of differences
_CAUTION = 0.5  # standard errors of a drop without a certainty
_BISECTIONS, _DROP_BISECTIONS = 40, 14
_RARE = 0.01  # of the doubt, that the share won lies outside of the shares that are tried
_SHARES = 12
_MOST_TERMS, _CONVERGED, _TINY = 500, 1e-12, 1e-300

Column = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Promise:
    """Evidence for an accuracy: of a plan's answers to ``samples`` new samples, ``wrong`` were wrong.

    With ``won`` it is evidence for a drop: ``wrong`` is what the reference answers rightly and the plan does not,
    ``won`` what the plan does and the reference does not. An accuracy of ``1 - drop`` is then a drop.
    """

    certainty: float
    samples: int
    wrong: int
    won: int | None = None

    @property
    def least_accuracy(self) -> float:
        """Lower bound of the accuracy at this certainty, to 1e-9; of a drop to 1e-4 of it."""
        if self.won is not None and self.samples:
            return 1 - most_drop(self.wrong, self.won, self.samples, self.certainty)
        low, high = 0.0, 1.0
        while high - low > 1e-9:
            middle = (low + high) / 2
            low, high = (middle, high) if self.holds(middle) else (low, middle)
        return low

    def holds(self, accuracy: float) -> bool:
        """True if an accuracy below ``accuracy`` is ruled out with the certainty (exact test)."""
        return self.doubt(accuracy) <= 1 - self.certainty

    def doubt(self, accuracy: float) -> float:
        """The greatest probability of so few wrong answers if the accuracy were below ``accuracy``, 0 to 1."""
        if accuracy <= 0:
            return 0.0
        if self.won is not None and self.samples:
            rare = _RARE * (1 - self.certainty)
            shares = _shares_won(self.won, self.samples, rare)
            return min(1.0, _tail_of_drop(self.wrong, self.won, self.samples, max(1 - accuracy, 0.0), shares) + rare)
        return 1.0 if accuracy >= 1 else binomial_tail(self.wrong, self.samples, 1 - accuracy)


def binomial_tail(successes: int, trials: int, probability: float) -> float:
    """P(X ≤ ``successes``) for X ~ Binomial(``trials``, ``probability``)."""
    counts, factorials = np.arange(successes + 1), _log_factorials(trials)
    chances = (
        factorials[trials]
        - factorials[counts]
        - factorials[trials - counts]
        + counts * math.log(probability)
        + (trials - counts) * math.log1p(-probability)
    )
    highest = chances.max()
    return min(1.0, float(math.exp(highest) * np.exp(chances - highest).sum()))


@lru_cache(maxsize=4)
def _log_factorials(most: int) -> Column:
    """The logarithms of 0! to ``most``!."""
    return np.append(0.0, np.cumsum(np.log(np.arange(1, most + 1))))


@lru_cache(maxsize=4)
def most_shares(samples: int, certainty: float) -> Column:
    """Upper bounds of a share among new samples, by the number of ``samples`` seen that have it: [samples + 1].

    The thresholds of one decider are nested, so a bound that holds at one of them holds at all that send fewer.
    """
    counts = np.arange(samples)
    low, high = np.zeros(samples), np.ones(samples)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        is_ruled_out = _tails(counts, samples, middle) <= 1 - certainty
        low, high = np.where(is_ruled_out, low, middle), np.where(is_ruled_out, middle, high)
    return np.append(high, 1.0)


def _tails(counts: npt.NDArray[np.int64], trials: int, probabilities: Column) -> Column:
    """``binomial_tail`` of many counts below ``trials``, each with its own probability.

    As the regularised incomplete beta function I(1 - p; trials - count, count + 1), from whichever end converges.
    """
    first, second, point = (trials - counts).astype(float), counts + 1.0, 1 - probabilities
    factorials = _log_factorials(trials)
    scale = factorials[trials] - factorials[trials - counts - 1] - factorials[counts]
    with np.errstate(divide="ignore"):
        factor = np.exp(scale + first * np.log(point) + second * np.log1p(-point))
    turned = point > (first + 1) / (first + second + 2)
    found = _fraction(
        np.where(turned, second, first), np.where(turned, first, second), np.where(turned, 1 - point, point)
    )
    part = factor * found / np.where(turned, second, first)
    return np.where(turned, 1 - part, part)


def _fraction(first: Column, second: Column, point: Column) -> Column:
    """The continued fraction of the incomplete beta function, by Lentz's method (Numerical Recipes §6.4)."""
    above = np.ones_like(point)
    below = 1 / _away_from_zero(1 - (first + second) * point / (first + 1))
    found = below.copy()
    for term in range(1, _MOST_TERMS):
        twice = first + 2 * term
        for step in (
            term * (second - term) * point / ((twice - 1) * twice),
            -(first + term) * (first + second + term) * point / (twice * (twice + 1)),
        ):
            below = 1 / _away_from_zero(1 + step * below)
            above = _away_from_zero(1 + step / above)
            found *= below * above
        if np.abs(below * above - 1).max() < _CONVERGED:
            break
    return found


def _away_from_zero(values: Column) -> Column:
    return np.where(np.abs(values) < _TINY, _TINY, values)


def caution_of(differences: Column, certainty: float | None, *, turn: int) -> float:
    """The distance that a drop has to keep from its limit, given the ``differences`` of single samples [count].

    Without a certainty half the standard error. With one, the distance from the mean to its bound on new samples
    (``most_drop``). Many ways
    compete, so the ``turn``-th that is measured gets the share 1 / (turn (turn + 1)) of the doubt, and all together
    never exceed it. Differences that are not of right and wrong answers, such as those of mIoU, are bounded by the
    normal distribution of their mean, which holds for many samples.
    """
    if certainty is None:
        return _CAUTION * float(np.sqrt((differences**2).sum())) / len(differences)
    part, count, mean = (1 - certainty) / (turn * (turn + 1)), len(differences), float(differences.mean())
    if not np.isin(differences, (-1.0, 0.0, 1.0)).all():
        deviation = float(differences.std(ddof=1)) if count > 1 else math.inf
        return NormalDist().inv_cdf(1 - part) * deviation / math.sqrt(count)
    lost, won = (int(np.count_nonzero(differences == one)) for one in (1.0, -1.0))
    return max(0.0, most_drop(lost, won, count, 1 - part) - mean)


def most_drop(lost: int, won: int, samples: int, certainty: float) -> float:
    """Upper bound, with ``certainty``, of the share lost less the share won among new samples, of paired samples.

    The exact unconditional test by the score statistic of Tango (1998), over the shares won that the samples do not
    rule out (Berger and Boos 1994). Found by bisection, never too low.
    """
    doubt = 1 - certainty
    rare = _RARE * doubt
    low, high = max(0.0, (lost - won) / samples), 1 - Promise(certainty, samples, lost).least_accuracy
    high = min(1.0, 1.5 * high)  # what is lost alone is less; large drops are many counts
    shares = _shares_won(won, samples, rare)
    for _ in range(_DROP_BISECTIONS):
        middle = (low + high) / 2
        is_ruled_out = _tail_of_drop(lost, won, samples, middle, shares) <= doubt - rare
        low, high = (low, middle) if is_ruled_out else (middle, high)
    return high


def _shares_won(won: int, samples: int, doubt: float) -> Column:
    """Shares won, over all that ``won`` of ``samples`` do not rule out from either side."""
    most = 1 - Promise(1 - doubt / 2, samples, won).least_accuracy
    least = Promise(1 - doubt / 2, samples, samples - won).least_accuracy if won else 0.0
    return np.linspace(least, most, _SHARES)


def _tail_of_drop(lost: int, won: int, samples: int, drop: float, shares_won: Column) -> float:
    """The greatest probability over ``shares_won`` of a score no higher than the one seen, if the drop is ``drop``."""
    shares = np.minimum(shares_won, (1 - drop) / 2)
    most_lost, most_won = (_most_likely(samples, float(shares.max()) + more) for more in (drop, 0.0))
    losses, wins = np.arange(most_lost + 1.0)[:, None], np.arange(most_won + 1.0)[None]
    scores = _scores(losses, wins, samples, drop)
    seen = float(_scores(np.array([float(lost)]), np.array([float(won)]), samples, drop)[0])
    losing, winning = np.nonzero((losses + wins <= samples) & (scores <= seen + _ROUNDING))
    neither, factorials = samples - losing - winning, _log_factorials(samples)
    ways = factorials[samples] - factorials[losing] - factorials[winning] - factorials[neither]

    def tail(share: float) -> float:
        lost_at, won_at, neither_at = (math.log(max(one, _TINY)) for one in (share + drop, share, 1 - 2 * share - drop))
        return float(np.exp(ways + losing * lost_at + winning * won_at + neither * neither_at).sum())

    return max(map(tail, shares.tolist()))


def _most_likely(samples: int, share: float) -> int:
    """An upper end of the counts that matter: eight standard deviations above the mean, and twelve more."""
    return min(samples, math.ceil(samples * share + 8 * math.sqrt(samples * share) + 12))


def _scores(lost: Column, won: Column, samples: int, drop: float) -> Column:
    """Tango's statistic: how far the drop seen lies above ``drop``, in standard errors as if it were that."""
    double, linear = 2 * samples, (2 * samples - lost + won) * drop - lost - won
    root = np.sqrt(np.maximum(linear**2 + 4 * double * won * drop * (1 - drop), 0.0))
    share_won = (root - linear) / (2 * double)
    variance = samples * (2 * share_won + drop * (1 - drop))
    return np.asarray((lost - won - samples * drop) / np.sqrt(np.maximum(variance, _TINY)))


def usual_certainty(count: int, max_drop: float) -> float | None:
    """``USUAL_CERTAINTY`` where ``count`` samples suffice to be sure of a way that loses none of them, else None."""
    return USUAL_CERTAINTY if count >= samples_for(max_drop) else None


@lru_cache(maxsize=64)
def samples_for(max_drop: float) -> float:
    """The fewest samples, about, on which the first way that is measured can be sure to lose at most ``max_drop``."""
    if not 0 < max_drop < 1:
        return math.inf
    certainty = 1 - (1 - USUAL_CERTAINTY) / 2
    count = math.ceil(math.log(1 - certainty) / math.log1p(-max_drop))
    while most_drop(0, 0, count, certainty) > max_drop:
        count = max(count + 1, math.ceil(1.01 * count))
    return count


def is_certain_gain(gains: Column) -> bool:
    """True if the mean of ``gains`` of single samples [count] is more than its standard error above zero.

    A single sample that is won makes no certain gain.
    """
    if len(gains) < 2:
        return False
    return bool(gains.mean() > (1 + _ROUNDING) * gains.std(ddof=1) / math.sqrt(len(gains)))
