from __future__ import annotations

import json

import numpy as np
import pytest

from device_sdk.errors import ProtocolError
from device_sdk.offload.open_inference import InferRequest, NamedTensor, decode_request, encode_request


def strings(*values: bytes) -> NamedTensor:
    data = np.empty(len(values), object)
    data[:] = values
    return NamedTensor("image", data)


def body(tail: bytes, *, shape=(1,), size=None) -> tuple[bytes, int]:
    tensor = {"name": "image", "datatype": "BYTES", "shape": list(shape)}
    tensor["parameters"] = {"binary_data_size": len(tail) if size is None else size}
    head = json.dumps({"inputs": [tensor]}).encode()
    return head + tail, len(head)


@pytest.mark.parametrize("values", [(b"a",), (b"", b"\x00\xff" * 9, b"abc"), ()])
def test_byte_strings_travel_behind_the_json(values):
    sent = strings(*values)
    encoded, headers = encode_request(InferRequest((sent, NamedTensor("x", np.arange(3, dtype=np.float32)))))
    length = int(headers["Inference-Header-Content-Length"])
    found, numbers = decode_request(encoded, header_length=length).inputs
    assert found.datatype == "BYTES"
    assert list(found.data) == list(values)
    assert numbers.data.tolist() == [0, 1, 2]
    assert sent.size_bytes == len(encoded) - length - 12


def test_byte_strings_do_not_travel_in_json():
    with pytest.raises(ProtocolError, match="BYTES in JSON"):
        encode_request(InferRequest((strings(b"a"),)), binary=False)


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (body(b"\x01\x00\x00"), "cut short"),
        (body(b"\x05\x00\x00\x00ab"), "cut short"),
        (body(b"\xff\xff\xff\xff"), "cut short"),
        (body(b"\x01\x00\x00\x00a", shape=(2,)), "cut short"),
        (body(b"\x01\x00\x00\x00a", shape=(2**31 - 1,)), "cut short"),
        (body(b"\x01\x00\x00\x00ab"), "strings take 5 bytes"),
        (body(b"\x01\x00\x00\x00a", size=4), "cut short"),
        (body(b"\x01\x00\x00\x00a", size=9), "strings take 5 bytes"),
        (body(b"\x01\x00\x00\x00a", shape=(1, 1)), "one axis"),
        (body(b"\x01\x00\x00\x00a", shape=()), "one axis"),
    ],
)
def test_byte_strings_that_do_not_add_up_are_refused(sent, message):
    data, length = sent
    with pytest.raises(ProtocolError, match=message):
        decode_request(data, header_length=length)
