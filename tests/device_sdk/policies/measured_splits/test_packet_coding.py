from __future__ import annotations

import numpy as np
import pytest

from device_sdk.offload.packing import Activations, pack, packet_bytes, unpack
from device_sdk.policies.measured_splits.packet_coding import as_received, packet_codings

POSITION = 2


@pytest.fixture
def tensors(bundle):
    """Half zeros, as behind a ReLU, in channels of very different ranges where there are any."""
    found = []
    for spec in bundle.supernet.cut_points[POSITION].tensors:
        values = np.random.default_rng(0).normal(size=(8, *spec.shape)).astype(np.float32)
        scale = np.geomspace(0.01, 1.0, spec.shape[0]).reshape(-1, *[1] * (len(spec.shape) - 1))
        found.append(np.maximum(values, 0) * scale.astype(np.float32))
    return found


def packets(bundle, tensors, **choices):
    supernet = bundle.supernet
    tail = tuple(edge for edge, block in supernet.walk(supernet.original) if block.start >= POSITION)
    samples = [tuple(tensor[at : at + 1] for tensor in tensors) for at in range(len(tensors[0]))]
    return tail, [pack(Activations(bundle.digest, POSITION, tail, one), **choices) for one in samples]


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("bits", [8, 4, 1])
def test_predicted_bytes_are_the_mean_of_real_packets(bundle, tensors, bits, per_channel):
    coding, widths = packet_codings(tensors)[bits, per_channel], (bits,) * len(tensors)
    tail, real = packets(bundle, tensors, bits=widths, per_channel=per_channel, compress=True)
    whole = packet_bytes(bundle.supernet.cut_points[POSITION], tail, batch=1, bits=widths, per_channel=per_channel)
    assert whole - coding.packed_bytes + coding.deflated_bytes == pytest.approx(np.mean(list(map(len, real))))


def test_the_error_is_that_of_what_arrives_and_less_with_ranges_per_channel(bundle, tensors):
    found = packet_codings(tensors)
    for bits in (4, 2):
        for per_channel in (False, True):
            _, real = packets(bundle, tensors, bits=(bits,) * len(tensors), per_channel=per_channel)
            there = [unpack(one, supernet=bundle.supernet, bundle=bundle.digest).tensors[0] for one in real]
            arrived = np.concatenate(there)
            np.testing.assert_array_equal(as_received(tensors[0], bits, per_channel), arrived)
            expected = np.square(arrived - tensors[0]).sum() / np.square(tensors[0]).sum()
            assert found[bits, per_channel].error == pytest.approx(expected, rel=1e-4)
        assert found[bits, True].error <= found[bits, False].error


def test_what_cannot_travel_has_no_coding():
    assert packet_codings(()) == {}
    assert packet_codings([np.zeros((4, 3), np.int64)]) == {}
