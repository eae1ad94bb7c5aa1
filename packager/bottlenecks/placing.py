"""Places for bottlenecks: predicted savings over a table of uplinks and devices, with and without sending inputs.

Crossing at a cut point with share s of the work before it beats both ends only if bytes(cut) / bytes(input) < 1 − s. A
bottleneck meets this by design; the table says at which cut points it gains most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_LEAST_GAIN = 0.002  # of latency, in the mean over the table


@dataclass(frozen=True)
class Crossing:
    """A way to go on at a server: ``share`` of the work runs here, then ``size_bytes`` are sent."""

    share: float
    size_bytes: int


@dataclass(frozen=True)
class Table:
    """Uplinks and devices for which bottlenecks are placed.

    ``device_factors``: of a device's latencies to the server's, which does ``server_macs_per_ms`` (a core in float32).
    ``call_ms``, ``call_bytes``: of a request, beside what it sends.
    """

    uplinks_mbps: tuple[float, ...] = (1.0, 3.0, 10.0, 20.0)
    device_factors: tuple[float, ...] = (3.0, 5.0, 10.0, 14.0, 20.0, 40.0)
    server_macs_per_ms: float = 20e6
    call_ms: float = 2.0
    call_bytes: int = 300

    def latencies_ms(self, crossing: Crossing, macs: int) -> Floats:
        """Predicted latency of a network of ``macs``, [uplinks, devices]."""
        whole_ms = macs / self.server_macs_per_ms
        uplinks, devices = np.array(self.uplinks_mbps)[:, None], np.array(self.device_factors)[None, :]
        sent_ms = (crossing.size_bytes + self.call_bytes) * 8 / (1e3 * uplinks)
        there_ms = (1 - crossing.share) * whole_ms + sent_ms + self.call_ms
        found: Floats = crossing.share * devices * whole_ms + there_ms
        return found

    def baseline_ms(self, plain: Sequence[Crossing], input_bytes: int, macs: int) -> Floats:
        """The fastest without bottlenecks: the device alone, a plain cut, or the input sent, [2, uplinks, devices].

        The first part is for inputs that may be sent, the second for inputs that may not.
        """
        alone_ms = np.array(self.device_factors)[None, :] * macs / self.server_macs_per_ms
        inside_ms = np.minimum.reduce(np.broadcast_arrays(alone_ms, *(self.latencies_ms(one, macs) for one in plain)))
        sent_ms = self.latencies_ms(Crossing(0.0, input_bytes), macs)
        return np.stack([np.minimum(inside_ms, sent_ms), inside_ms])

    def gains(self, crossing: Crossing, than_ms: Floats, macs: int) -> Floats:
        """The share of latency that a crossing saves against ``than_ms``, [2, uplinks, devices]; 0 where none."""
        found: Floats = np.maximum(0.0, 1 - self.latencies_ms(crossing, macs)[None] / than_ms)
        return found


def most_gaining(gains: Sequence[Floats], *, count: int) -> tuple[int, ...]:
    """Places of up to ``count`` crossings that together save most, by the ``gains`` of each; none that adds nothing.

    Greedy: the mean over the table of the best saving is submodular in the set, so this reaches at least 1 − 1/e of the
    optimum (Nemhauser, Wolsey and Fisher 1978).
    """
    chosen: list[int] = []
    covered = np.zeros(())
    while len(chosen) < min(count, len(gains)):
        totals = [float(np.maximum(covered, one).mean()) for one in gains]
        best = max(range(len(gains)), key=totals.__getitem__)
        if totals[best] <= float(covered.mean()) + _LEAST_GAIN:
            break
        chosen.append(best)
        covered = np.maximum(covered, gains[best])
    return tuple(chosen)
