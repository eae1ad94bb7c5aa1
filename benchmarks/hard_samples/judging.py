"""Quality of a decider's ranking of hard samples: joint accuracy of device and server at any share that is sent."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Right = npt.NDArray[np.bool_]
Eases = npt.NDArray[np.float64]
SENT = (0.1, 0.2, 0.3)
TWO_SIDED_95 = 1.96  # standard deviations


@dataclass(frozen=True)
class Pair:
    """Masks of the samples that the device, and that the server, classifies correctly: [count] each."""

    here: Right
    server: Right

    @property
    def easy(self) -> Right:
        """Mask of the samples that gain nothing from the server: [count]."""
        return self.here | ~self.server

    @property
    def losses(self) -> Right:
        """Mask of the samples whose right answer the server's wrong one would replace: [count]."""
        return self.here & ~self.server

    def system(self, eases: Eases, share: float) -> Right:
        """Mask of correct answers if the hardest ``share`` of the samples is sent: [count]."""
        sent = np.argsort(eases, kind="stable")[: round(share * len(eases))]
        right = self.here.copy()
        right[sent] = self.server[sent]
        return right

    def area(self, eases: Eases) -> float:
        """Mean accuracy over all shares sent from none to half."""
        return float(np.mean([self.system(eases, share).mean() for share in np.linspace(0, 0.5, 51)]))

    def gains(self, name: str, eases: Eases, rival: Eases) -> dict[str, float]:
        """Points by which ``eases`` ranks better than ``rival``, and the lower end of the paired 95 % interval."""
        figures = {}
        for share in SENT:
            kept = round(100 - 100 * share)
            change = self.system(eases, share).astype(float) - self.system(rival, share)
            figures[f"{name}_minus_entropy_{kept}"], figures[f"{name}_minus_entropy_low_{kept}"] = mean_and_low(change)
        return figures

    def pool_gains(self, name: str, pooled: Pair, eases: Eases) -> dict[str, float]:
        """Points by which ``pooled`` answers are better than the server's alone, and the paired lower ends."""
        figures = {}
        for share in SENT:
            kept = round(100 - 100 * share)
            change = pooled.system(eases, share).astype(float) - self.system(eases, share)
            figures[f"{name}_pool_gain_{kept}"], figures[f"{name}_pool_gain_low_{kept}"] = mean_and_low(change)
        return figures

    def equal_share(self, eases: Eases) -> float:
        """The least share that must be sent for the server's accuracy."""
        wanted, order = int(self.server.sum()), np.argsort(eases, kind="stable")
        gained = np.cumsum(self.server[order].astype(int) - self.here[order])
        reached = np.flatnonzero(int(self.here.sum()) + np.concatenate([[0], gained]) >= wanted)
        return float(reached[0]) / len(eases)


def mean_and_low(change: npt.NDArray[np.float64]) -> tuple[float, float]:
    """The mean of a change per sample [count] in points, and the lower end of its 95 % interval."""
    mean, half = float(change.mean()), TWO_SIDED_95 * float(change.std()) / len(change) ** 0.5
    return 100 * mean, 100 * (mean - half)


def f1(found: Right, wanted: Right) -> float:
    """The harmonic mean of precision and recall of what was ``found``: [count]."""
    hits = int(np.count_nonzero(found & wanted))
    return 2 * hits / max(1, int(np.count_nonzero(found)) + int(np.count_nonzero(wanted)))
