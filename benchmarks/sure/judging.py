"""Chosen subnets and rungs of one bundle, measured in one interleaved run and judged on the same samples."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.support.judged import Loaded, Right, answered_rightly, measured_ratios
from benchmarks.support.subnets import load_subnet
from benchmarks.sure.networks import Samples
from device_sdk.bundles.bundle import Bundle
from device_sdk.runtimes import OnnxRuntime
from device_sdk.supernet.plan import Subnet


class Judge:
    """Loads each subnet once, on one thread, as deployed."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle
        self._runtime = OnnxRuntime(threads=1)
        self._loaded: dict[Subnet, Loaded] = {}

    def ratios(self, subnets: Sequence[Subnet]) -> dict[Subnet, float]:
        """Latencies relative to the full model's, all measured in turns."""
        full = self._bundle.supernet.original
        return measured_ratios({one: self._load(one) for one in [full, *subnets]}, full)

    def right(self, subnets: Sequence[Subnet], samples: Samples) -> dict[Subnet, Right]:
        """Correctness on each sample: [count]."""
        models = {one: self._load(one) for one in subnets}
        return answered_rightly(models, samples.inputs(self._bundle), samples.labels)

    def _load(self, subnet: Subnet) -> Loaded:
        if subnet not in self._loaded:
            self._loaded[subnet] = load_subnet(self._bundle, self._runtime, subnet)
        return self._loaded[subnet]

    def close(self) -> None:
        """Close the sessions."""
        for one in self._loaded.values():
            one.session.close()
