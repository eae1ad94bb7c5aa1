"""Evidence that may be looked at after every report: e-values, and intervals for people. Pure.

An e-value is a likelihood ratio against the limit; a version within the limit ever reaches 1/α with probability α at
most (Ville 1939; Ramdas et al. 2023, "Game-theoretic statistics and safe anytime-valid inference", section 2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

_SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)  # that a faulty version may have, equally likely
_EFFECT = 1.0  # standard deviation of the effect that is expected, in deviations of one device
_Z = 1.959963984540054  # two-sided 95 %
LEAST_PRECISE = 1e-4  # deviation of a device; less is not believed


@dataclass(frozen=True)
class Counts:
    """Devices that a signal was observed on: how many, of them with an event, and sums of values and their squares."""

    devices: int = 0
    events: int = 0
    total: float = 0.0
    squares: float = 0.0

    @property
    def mean(self) -> float:
        """The mean value (0 without devices)."""
        return self.total / self.devices if self.devices else 0.0

    @property
    def variance(self) -> float:
        """The sample variance, not below what is believed."""
        spread = max(0.0, self.squares - self.devices * self.mean**2) / max(1, self.devices - 1)
        return max(spread, LEAST_PRECISE**2)


def share_evidence(counts: Counts, limit: float) -> float:
    """The e-value against "at most ``limit`` of the devices have an event".

    The mean of binomial likelihood ratios over shares above the limit. One device adds one factor, whatever it reports.
    """
    if counts.devices == 0 or limit >= 1:
        return 0.0
    least = max(limit, 1e-9)
    above = [share for share in _SHARES if share > least] or [(1 + least) / 2]
    good = counts.devices - counts.events
    ratios = (counts.events * math.log(share / least) + good * math.log((1 - share) / (1 - least)) for share in above)
    return sum(math.exp(min(700.0, ratio)) for ratio in ratios) / len(above)


@dataclass(frozen=True)
class Difference:
    """A difference of means: its standard error, and the effective numbers of devices and degrees of freedom."""

    value: float
    error: float
    devices: float
    freedom: float

    def low(self) -> float:
        """The lower end of the 95 % interval (normal)."""
        return self.value - _Z * self.error

    def high(self) -> float:
        """The upper end of it."""
        return self.value + _Z * self.error


def paired(changes: Counts) -> Difference | None:
    """The mean change from old to new on the same devices; None below two."""
    if changes.devices < 2:
        return None
    error = math.sqrt(changes.variance / changes.devices)
    return Difference(changes.mean, error, changes.devices, changes.devices - 1)


def unpaired(new: Counts, old: Counts) -> Difference | None:
    """The difference of two groups of devices (Welch); None if one has fewer than two."""
    if min(new.devices, old.devices) < 2:
        return None
    parts = new.variance / new.devices, old.variance / old.devices
    freedom = sum(parts) ** 2 / sum(part**2 / (one.devices - 1) for part, one in zip(parts, (new, old), strict=True))
    devices = 1 / (1 / new.devices + 1 / old.devices)
    return Difference(new.mean - old.mean, math.sqrt(sum(parts)), devices, freedom)


def rise_evidence(difference: Difference, limit: float) -> float:
    """The e-value against "the mean rises by ``limit`` at most"; 0 while the estimate is below that.

    Bayes factor of the t statistic with a normal prior on the effect (Lai 1976; Wang & Ramdas 2023, "Anytime-valid
    t-tests and confidence sequences", section 3): exact for pairs with normal changes, approximate for two groups.
    """
    above = difference.value - limit
    if above <= 0:
        return 0.0
    t_squared = (above / difference.error) ** 2
    wider = 1 + difference.devices * _EFFECT**2
    exponent = (difference.freedom + 1) / 2
    ratio = (1 + t_squared / difference.freedom) / (1 + t_squared / (difference.freedom * wider))
    return math.exp(min(700.0, exponent * math.log(ratio) - 0.5 * math.log(wider)))


def share_interval(counts: Counts) -> tuple[float, float]:
    """The 95 % interval of a share (Wilson 1927); 0 to 1 without devices."""
    n = counts.devices
    if not n:
        return 0.0, 1.0
    share, z2 = counts.events / n, _Z**2
    centre, spread = share + z2 / (2 * n), _Z * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    return max(0.0, (centre - spread) / (1 + z2 / n)), min(1.0, (centre + spread) / (1 + z2 / n))
