from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from device_sdk.errors import InputError, ProtocolError
from device_sdk.offload.packing import Activations, can_travel, pack, packet_bytes, unpack
from device_sdk.supernet.blocks import Block, CutPoint, Golden, InputSize, Rendition, TensorSpec
from device_sdk.supernet.plan import Edge
from device_sdk.supernet.supernet import Supernet

TAIL = (Edge("o2"), Edge("o3"), Edge("o4"))


@pytest.fixture
def activations(bundle):
    values = np.random.default_rng(0).normal(size=(3, *bundle.supernet.cut_points[2].tensors[0].shape))
    return Activations(bundle.digest, 2, TAIL, (np.maximum(values, 0).astype(np.float32),))


def unpacked(bundle, packet):
    return unpack(packet, supernet=bundle.supernet, bundle=bundle.digest)


def test_what_is_packed_comes_out_within_half_a_level(bundle, activations):
    found = unpacked(bundle, pack(activations))
    assert (found.bundle, found.position, found.tail) == (bundle.digest, 2, TAIL)
    scale = activations.tensors[0].max() / 255
    np.testing.assert_allclose(found.tensors[0], activations.tensors[0], atol=scale * 0.501)
    assert np.all(found.tensors[0][activations.tensors[0] == 0] == 0)


def test_an_answer_does_not_depend_on_batch_neighbours(bundle, activations):
    loud = activations.tensors[0].copy()
    loud[1:] *= 1e4
    together = unpacked(bundle, pack(Activations(bundle.digest, 2, TAIL, (loud,))))
    alone = unpacked(bundle, pack(Activations(bundle.digest, 2, TAIL, (loud[:1],))))
    np.testing.assert_array_equal(together.tensors[0][:1], alone.tensors[0])


def test_the_length_is_known_beforehand(bundle, activations):
    cut = bundle.supernet.cut_points[2]
    assert (
        len(pack(activations)) == packet_bytes(cut, TAIL, batch=3) == 46 + len("o2 o3 o4") + 3 * (5 + cut.nbytes // 4)
    )


@settings(max_examples=60)
@given(arrays.arrays(np.float32, 40, elements=st.floats(-1e6, 1e6, width=32)))
def test_any_finite_values_come_out_within_a_level(elastic_supernet, values):
    supernet = elastic_supernet(3, values=40)
    tensor = values.reshape(1, 40)
    sent = Activations("0" * 64, 1, (Edge("o1"), Edge("o2")), (tensor,))
    found = unpack(pack(sent), supernet=supernet, bundle="0" * 64)
    spread = max(values.max(), 0) - min(values.min(), 0)
    assert np.abs(found.tensors[0] - tensor).max() <= spread / 255 * 1.01 + 1e-30


def test_several_tensors_travel_together(build_supernet):
    supernet = build_supernet(3, tensors=2)
    tensors = tuple(np.full((2, 4), value, np.float32) for value in (1.0, -3.0))
    sent = Activations("a" * 64, 1, (Edge("o1"), Edge("o2")), tensors)
    found = unpack(pack(sent), supernet=supernet, bundle="a" * 64)
    for expected, actual in zip(tensors, found.tensors, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-3)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_none_are_not_sent(activations, value):
    activations.tensors[0][0, 0, 0, 0] = value
    with pytest.raises(InputError, match="NaN or infinity"):
        pack(activations)


def test_only_float32_travels(bundle, activations):
    with pytest.raises(InputError, match="float32"):
        pack(Activations(bundle.digest, 2, TAIL, (activations.tensors[0].astype(np.float64),)))
    assert can_travel(bundle.supernet.cut_points[2])


def test_a_packet_cut_anywhere_or_too_long_is_refused(bundle, activations):
    packet = pack(activations)
    for length in [0, 1, 10, 45, 46, 50, 60, len(packet) - 1]:
        with pytest.raises(ProtocolError):
            unpacked(bundle, packet[:length])
    with pytest.raises(ProtocolError, match="bytes"):
        unpacked(bundle, packet + b"\0")


@pytest.mark.parametrize(
    ("at", "data", "said"),
    [
        (0, b"XXXX", "not a packet"),
        (4, b"\x01", "layout 1"),
        (5, b"\x04", "4 bits"),
        (6, b"\x09\x00", "tail does not fit"),
        (6, b"\x03\x00", "tail does not fit"),
        (8, b"\xff" * 32, "another version of the bundle"),
        (40, struct.pack("<I", 0), "0 samples"),
        (40, struct.pack("<I", 2**32 - 1), "4294967295 samples"),
        (46, b"x2", "tail does not fit"),
        (46, b"\xff\xff", "tail does not fit"),
        (46, b":x", "tail does not fit"),
        (54, struct.pack("<f", 0.0), "scale"),
        (54, struct.pack("<f", np.nan), "scale"),
    ],
)
def test_a_field_that_is_wrong_is_refused(bundle, activations, at, data, said):
    packet = bytearray(pack(activations))
    packet[at : at + len(data)] = data
    with pytest.raises(ProtocolError, match=said):
        unpacked(bundle, bytes(packet))


def test_a_tail_at_another_input_size_is_refused():
    cuts = [CutPoint(index, (TensorSpec(f"cut_{index}", (1, 2, 2)),)) for index in range(3)]
    rendition = Rendition("fp32", "none", "0" * 64, 1, Golden((), 0.0), any_size=True)
    blocks = [Block(f"o{k}", k, k + 1, "original", parameters=0, macs=0, renditions=(rendition,)) for k in range(2)]
    shapes = (((1, 4, 4),), ((1, 4, 4),), ((1, 2, 2),))
    supernet = Supernet(cuts, blocks, input_sizes=[InputSize((4, 4), shapes, Golden((), 0.0))])
    packet = pack(Activations("0" * 64, 1, (Edge("o1", input_size=(4, 4)),), (np.ones((1, 1, 2, 2), np.float32),)))
    with pytest.raises(ProtocolError, match="input size"):
        unpack(packet, supernet=supernet, bundle="0" * 64)


@given(st.binary(max_size=200))
def test_any_bytes_raise_nothing_else(elastic_supernet, data):
    supernet = elastic_supernet(3)
    with pytest.raises(ProtocolError):
        unpack(data, supernet=supernet, bundle="0" * 64)
    with pytest.raises(ProtocolError):
        unpack(b"PWAP\x01\x08\x01\x00" + bytes(32) + data, supernet=supernet, bundle="0" * 64)
