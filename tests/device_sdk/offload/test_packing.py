from __future__ import annotations

import struct
import tracemalloc
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from device_sdk.errors import InputError, ProtocolError, UsageError
from device_sdk.offload import packing
from device_sdk.offload.packing import (
    HEAD_BYTES,
    MAX_DECODED_BYTES,
    Activations,
    bundle_of_packet,
    can_travel,
    pack,
    packet_bytes,
    unpack,
)
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


def flat(activations):
    """The same activations, all of them zero but for one."""
    tensor = np.zeros_like(activations.tensors[0])
    tensor[0, 0, 0, 0] = 1
    return Activations(activations.bundle, activations.position, activations.tail, (tensor,))


def through_packet(supernet, values, **settings):
    """What ``values`` [batch, ...] come out as from a packet of the one tensor of cut point 1."""
    sent = Activations("0" * 64, 1, (Edge("o1"), Edge("o2")), (values,))
    return unpack(pack(sent, **settings), supernet=supernet, bundle="0" * 64).tensors[0]


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


def test_the_beginning_of_a_packet_names_its_bundle(bundle, activations):
    packet = pack(activations)
    assert bundle_of_packet(packet) == bundle_of_packet(packet[:HEAD_BYTES]) == activations.bundle
    assert bundle_of_packet(packet[: HEAD_BYTES - 1]) is None
    assert bundle_of_packet(b"x" + packet[1:]) is None


def test_the_length_is_known_beforehand(bundle, activations):
    cut = bundle.supernet.cut_points[2]
    assert (
        len(pack(activations))
        == packet_bytes(cut, TAIL, batch=3)
        == 46 + len("o2 o3 o4") + 6 + 3 * (5 + cut.nbytes // 4)
    )
    for bits in range(1, 9):
        packet = pack(activations, bits=(bits,), per_channel=True)
        assert len(packet) == packet_bytes(cut, TAIL, batch=3, bits=(bits,), per_channel=True)
        assert len(pack(activations, bits=(bits,), per_channel=True, compress=True)) <= len(packet)


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
    short = pack(flat(activations), compress=True)
    assert len(short) < len(packet)
    for whole in (packet, short):
        for length in range(len(whole)):
            with pytest.raises(ProtocolError):
                unpacked(bundle, whole[:length])
        with pytest.raises(ProtocolError, match="bytes"):
            unpacked(bundle, whole + b"\0")


@pytest.mark.parametrize(
    ("at", "data", "said"),
    [
        (0, b"XXXX", "not a packet"),
        (4, b"\x01", "layout 1"),
        (4, b"\x02", "layout 2"),
        (5, b"\x04", "4 tensors"),
        (6, b"\x09\x00", "tail does not fit"),
        (6, b"\x03\x00", "tail does not fit"),
        (8, b"\xff" * 32, "another version of the bundle"),
        (40, struct.pack("<I", 0), "0 samples"),
        (40, struct.pack("<I", 2**32 - 1), "4294967295 samples"),
        (46, b"x2", "tail does not fit"),
        (46, b"\xff\xff", "tail does not fit"),
        (46, b":x", "tail does not fit"),
        (54, b"\x00", "0 bits"),
        (54, b"\x09", "9 bits"),
        (55, b"\x04", "flags 4"),
        (56, struct.pack("<I", 2**32 - 1), "4294967295 bytes of codes"),
        (60, struct.pack("<f", 0.0), "scale"),
        (60, struct.pack("<f", np.nan), "scale"),
        (60, struct.pack("<f", 3e38), "scale"),
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


SHAPE = (2, 3, 5)  # of a sample: 30 values do not fill the last group of eight
FLOATS = st.floats(-1e6, 1e6, width=32)


def shaped_supernet(shape):
    cuts = [CutPoint(index, (TensorSpec(f"cut_{index}", shape),)) for index in range(4)]
    forms = (Rendition("fp32", "none", "0" * 64, 1, Golden((), 0.0)),)
    return Supernet(cuts, [Block(f"o{k}", k, k + 1, "original", 1, 1, forms) for k in range(3)])


@settings(max_examples=80)
@given(
    arrays.arrays(np.float32, (3, *SHAPE), elements=FLOATS), st.integers(1, 8), st.booleans(), st.booleans(), st.data()
)
def test_values_come_out_within_half_a_level_and_do_not_depend_on_neighbours(values, bits, per_channel, compress, data):
    supernet = shaped_supernet(SHAPE)
    settings = {"bits": (bits,), "per_channel": per_channel}
    found = through_packet(supernet, values, compress=compress, **settings)
    axes = (2, 3) if per_channel else (1, 2, 3)
    low, high = (np.asarray(end(values, axis=axes, keepdims=True), np.float64) for end in (np.min, np.max))
    level = (np.maximum(high, 0) - np.minimum(low, 0)) / (2**bits - 1)
    assert (np.abs(found - values.astype(np.float64)) <= 0.5 * level * (1 + 2**-9) + 2.0**-127).all()
    assert (found[values == 0] == 0).all()
    chosen = data.draw(st.integers(0, 2))
    np.testing.assert_array_equal(through_packet(supernet, values[chosen : chosen + 1], **settings)[0], found[chosen])


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("shape", [(1,), (7,), (8,), (4, 33, 31), (1, 300, 300)])
def test_every_size_of_sample_comes_out_at_every_width(bits, shape):
    values = np.random.default_rng(bits).normal(size=(5, *shape)).astype(np.float32)
    found = through_packet(shaped_supernet(shape), values, bits=(bits,))
    level = (max(values.max(), 0) - min(values.min(), 0)) / (2**bits - 1)
    assert found.shape == values.shape
    assert np.abs(found - values).max() <= 0.51 * level


@pytest.mark.parametrize("value", [0.0, 3.0, -3.0, 1e-42, -1e37])
def test_a_constant_tensor_comes_out_at_every_width(value):
    values = np.full((2, *SHAPE), value, np.float32)
    for bits in range(1, 9):
        found = through_packet(shaped_supernet(SHAPE), values, bits=(bits,), per_channel=True)
        np.testing.assert_allclose(found, values, rtol=2**-9, atol=2.0**-127)


def test_a_channel_of_its_own_range_keeps_what_a_loud_one_drowns():
    values = np.ones((1, *SHAPE), np.float32)
    values[0, 1] = 1e6
    supernet = shaped_supernet(SHAPE)
    assert (through_packet(supernet, values, bits=(4,))[0, 0] == 0).all()
    np.testing.assert_allclose(through_packet(supernet, values, bits=(4,), per_channel=True), values, rtol=1e-3)


def test_a_tensor_of_one_axis_has_one_range_per_sample():
    values = np.arange(12, dtype=np.float32).reshape(2, 6)
    supernet = shaped_supernet((6,))
    found = through_packet(supernet, values, per_channel=True)
    np.testing.assert_array_equal(found, through_packet(supernet, values))


def test_codes_are_compressed_only_where_that_saves_an_eighth(activations):
    assert len(pack(flat(activations), compress=True)) < len(pack(flat(activations)))
    noise = np.random.default_rng(0).random(activations.tensors[0].shape, dtype=np.float32)
    sent = Activations(activations.bundle, 2, TAIL, (noise,))
    assert pack(sent, compress=True) == pack(sent)


@pytest.mark.parametrize("bits", [(), (0,), (9,), (8, 8)])
def test_bits_that_do_not_fit_are_a_usage_error(activations, bits):
    with pytest.raises(UsageError):
        pack(activations, bits=bits)


def test_batches_that_no_packet_holds_are_refused(activations, monkeypatch):
    tensor = activations.tensors[0]
    with pytest.raises(InputError, match="not 0"):
        pack(Activations(activations.bundle, 2, TAIL, (tensor[:0],)))
    with pytest.raises(InputError, match="same size"):
        pack(Activations(activations.bundle, 2, TAIL, (tensor, tensor[:1])))
    with pytest.raises(InputError, match="closer together"):
        pack(Activations(activations.bundle, 2, TAIL, (np.full_like(tensor, 3e38),)))
    monkeypatch.setattr(packing, "MAX_DECODED_BYTES", tensor.nbytes - 1)
    with pytest.raises(InputError, match="at most"):
        pack(activations)


def hostile(*, batch, size, stored, bits=8, codes=b""):
    """A packet of one tensor of ``size`` values whose table promises ``stored`` bytes of compressed codes."""
    tail = b"o1 o2"
    head = struct.pack("<4sBBH32sIH", b"PWAP", 3, 1, 1, bytes(32), batch, len(tail))
    ranges = struct.pack("<fB", 1.0, 0) * batch
    return head + tail + struct.pack("<BBI", bits, 2, stored) + ranges + codes


def refusal(packet, size):
    """The reason of the refusal, which must come before memory for the values is taken."""
    supernet = shaped_supernet((size,))
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError) as caught:
            unpack(packet, supernet=supernet, bundle="0" * 64)
        return str(caught.value), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_packet_that_promises_more_than_it_holds_costs_no_memory():
    size = 1 << 20
    stream = zlib.compressobj(9, zlib.DEFLATED, -15)
    bomb = stream.compress(bytes(64 * size)) + stream.flush()
    said, peak_bytes = refusal(hostile(batch=1000, size=size, stored=len(bomb), codes=bomb), size)
    assert str(MAX_DECODED_BYTES) in said
    assert peak_bytes < size
    said, peak_bytes = refusal(hostile(batch=60, size=size, stored=len(bomb), codes=bomb), size)
    assert "bytes of codes" in said  # fewer than one for 32 values
    assert peak_bytes < size


def test_a_stream_of_more_codes_than_the_tensor_has_is_cut_off():
    size = 1 << 12
    stream = zlib.compressobj(9, zlib.DEFLATED, -15)
    bomb = stream.compress(bytes(size << 6)) + stream.flush()
    said, peak_bytes = refusal(hostile(batch=1, size=size, stored=len(bomb), codes=bomb), size)
    assert "do not hold 4096 bytes" in said
    assert peak_bytes < size << 4


@pytest.mark.parametrize("behind", [b"\1", b"\0\1"])
def test_bytes_behind_a_stream_are_refused_unless_zero(behind):
    stream = zlib.compressobj(1, zlib.DEFLATED, -15)
    codes = stream.compress(bytes(64)) + stream.flush()
    supernet = shaped_supernet((64,))
    good = hostile(batch=1, size=64, stored=len(codes) + 2, codes=codes + bytes(2))
    assert (unpack(good, supernet=supernet, bundle="0" * 64).tensors[0] == 0).all()
    bad = hostile(batch=1, size=64, stored=len(codes) + len(behind), codes=codes + behind)
    with pytest.raises(ProtocolError, match="do not hold"):
        unpack(bad, supernet=supernet, bundle="0" * 64)


@given(st.binary(max_size=200))
def test_any_bytes_raise_nothing_else(elastic_supernet, data):
    supernet = elastic_supernet(3)
    with pytest.raises(ProtocolError):
        unpack(data, supernet=supernet, bundle="0" * 64)
    with pytest.raises(ProtocolError):
        unpack(b"PWAP\x03\x01\x01\x00" + bytes(32) + data, supernet=supernet, bundle="0" * 64)
