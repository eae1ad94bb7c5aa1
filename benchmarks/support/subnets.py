"""Subnets loaded as they are deployed."""

from __future__ import annotations

from benchmarks.support.judged import Loaded
from device_sdk.bundles.bundle import Bundle
from device_sdk.runtimes import OnnxRuntime
from device_sdk.supernet.plan import Subnet


def load_subnet(bundle: Bundle, runtime: OnnxRuntime, subnet: Subnet) -> Loaded:
    """A subnet as one model, for its input size."""
    channels, *own = bundle.supernet.cut_points[0].tensors[0].shape
    height, width = subnet.input_size or own
    return Loaded(runtime.load(bundle.stretch(subnet.edges)), (channels, height, width))
