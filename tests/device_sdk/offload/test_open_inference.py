from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays, from_dtype

from device_sdk.errors import ProtocolError
from device_sdk.offload.open_inference import (
    DATATYPES,
    HEADER_LENGTH,
    InferRequest,
    InferResponse,
    NamedTensor,
    RequestedOutput,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)

NAMES = st.text(min_size=1, max_size=12).filter(lambda text: text.isprintable())


@st.composite
def tensors(draw: st.DrawFn, *, finite: bool) -> tuple[NamedTensor, ...]:
    """Some tensors of every datatype, without values and without axes too."""
    names = draw(st.lists(NAMES, min_size=1, max_size=3, unique=True))
    made = []
    for name in names:
        dtype = draw(st.sampled_from(sorted(DATATYPES.values(), key=str)))
        shape = draw(array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
        plain = {"allow_nan": False, "allow_infinity": False} if finite and dtype.kind == "f" else {}
        made.append(NamedTensor(name, draw(arrays(dtype, shape, elements=from_dtype(dtype, **plain)))))
    return tuple(made)


def length(headers: dict[str, str]) -> int | None:
    return int(headers[HEADER_LENGTH]) if HEADER_LENGTH in headers else None


def assert_same(decoded: tuple[NamedTensor, ...], sent: tuple[NamedTensor, ...]) -> None:
    assert [tensor.name for tensor in decoded] == [tensor.name for tensor in sent]
    for one, other in zip(decoded, sent, strict=True):
        assert (one.data.dtype, one.data.shape) == (other.data.dtype, other.data.shape)
        assert one.data.tobytes() == other.data.tobytes()


@settings(deadline=None, max_examples=150)
@given(sent=tensors(finite=False), id_=st.none() | NAMES, binary_output=st.booleans(), asked=st.booleans())
def test_a_binary_request_comes_back_bit_by_bit(sent, id_, binary_output, asked):
    outputs = (RequestedOutput("a", True), RequestedOutput("b", False)) if asked else ()
    request = InferRequest(sent, outputs, id_, binary_output)
    body, headers = encode_request(request, binary=True)
    decoded = decode_request(body, header_length=length(headers))
    assert_same(decoded.inputs, sent)
    assert (decoded.outputs, decoded.id, decoded.binary_output) == (outputs, id_, binary_output)


@settings(deadline=None, max_examples=150)
@given(sent=tensors(finite=True))
def test_a_json_request_comes_back_bit_by_bit(sent):
    body, headers = encode_request(InferRequest(sent), binary=False)
    assert length(headers) is None
    assert_same(decode_request(body, header_length=None).inputs, sent)


@settings(deadline=None, max_examples=150)
@given(data=st.data(), sent=tensors(finite=True))
def test_a_reply_with_some_outputs_as_bytes_comes_back(data, sent):
    binary = data.draw(st.sets(st.sampled_from([tensor.name for tensor in sent])))
    body, headers = encode_response(InferResponse("model", sent, "3", "id"), binary=binary)
    decoded = decode_response(body, header_length=length(headers))
    assert_same(decoded.outputs, sent)
    assert (decoded.model_name, decoded.model_version, decoded.id) == ("model", "3", "id")


@settings(deadline=None, max_examples=300)
@given(body=st.binary(max_size=200), header_length=st.none() | st.integers(-10, 300))
def test_any_bytes_raise_nothing_but_a_protocol_error(body, header_length):
    for decode in (decode_request, decode_response):
        with pytest.raises(ProtocolError):
            decode(body, header_length=header_length)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
)
ALMOST = st.fixed_dictionaries(
    {
        "name": st.just("x") | JSON,
        "datatype": st.sampled_from([*DATATYPES, "BYTES"]) | JSON,
        "shape": st.lists(st.integers(-1, 3), max_size=3) | JSON,
    },
    optional={
        "data": st.lists(st.integers(-300, 300), max_size=9) | JSON,
        "parameters": st.fixed_dictionaries({"binary_data_size": st.integers(0, 40)}) | JSON,
    },
)


@settings(deadline=None, max_examples=400)
@given(tensor=ALMOST, tail=st.binary(max_size=16))
def test_messages_that_are_almost_right_raise_nothing_but_a_protocol_error(tensor, tail):
    head = json.dumps({"model_name": "m", "inputs": [tensor], "outputs": [tensor]}).encode()
    for decode in (decode_request, decode_response):
        try:
            decoded = decode(head + tail, header_length=len(head))
        except ProtocolError:
            continue
        found = (decoded.inputs if isinstance(decoded, InferRequest) else decoded.outputs)[0].data
        assert list(found.shape) == tensor["shape"]
        assert found.dtype == {**DATATYPES, "BYTES": np.dtype(object)}[tensor["datatype"]]


@settings(deadline=None, max_examples=150)
@given(data=st.data(), sent=tensors(finite=False))
def test_a_message_that_is_cut_or_has_bytes_added_is_refused(data, sent):
    body, headers = encode_request(InferRequest(sent))
    cut = data.draw(st.integers(0, len(body) - 1))
    with pytest.raises(ProtocolError):
        decode_request(body[:cut], header_length=length(headers))
    with pytest.raises(ProtocolError):
        decode_request(body + b"\0", header_length=length(headers))


def message(**tensor: object) -> bytes:
    described = {"name": "x", "datatype": "FP32", "shape": [2, 2], "data": [1, 2, 3, 4]}
    described.update(tensor)
    return json.dumps({"inputs": [{key: value for key, value in described.items() if value is not None}]}).encode()


@pytest.mark.parametrize(
    ("tensor", "says"),
    [
        ({"data": [1, 2, 3]}, "needs 4 values, there are 3"),
        ({"data": [[1, 2], [3]]}, "inhomogeneous"),
        ({"data": [[1, 2, 3, 4]]}, "nested as"),
        ({"data": [[[1], [2]], [[3], [4]]]}, "Expected `float`"),
        ({"data": [1, 2, 3, "4"]}, "Expected `float`"),
        ({"data": [1, 2, 3, None]}, "Expected `float`"),
        ({"data": [1, 2, 3, True]}, "Expected `float`"),
        ({"data": [1, 2, 3, 1e39]}, "too large for FP32"),
        ({"data": [1, 2, 3, math.nan]}, "malformed"),
        ({"data": [1, 2, 3, 300], "datatype": "INT8"}, "out of bounds"),
        ({"data": [1, 2, 3, -1], "datatype": "UINT64"}, "out of bounds"),
        ({"data": [1, 2, 3, 4.5], "datatype": "INT32"}, "Expected `int`"),
        ({"data": [1, 0, 1, 0], "datatype": "BOOL"}, "Expected `bool`"),
        ({"data": [1], "datatype": "BYTES", "shape": [1]}, "list of texts"),
        ({"data": ["a"], "datatype": "BYTES", "shape": [2]}, "1 texts, the shape is"),
        ({"data": ["a"], "datatype": "BYTES", "shape": [1, 1]}, "1 texts, the shape is"),
        ({"data": None}, "either data or binary_data_size"),
        ({"parameters": {"binary_data_size": 16}}, "either data or binary_data_size"),
        ({"data": None, "parameters": {"binary_data_size": 12}}, "takes 16 bytes"),
        ({"data": None, "parameters": {"binary_data_size": 16}}, "cut short"),
        ({"data": None, "parameters": {"shared_memory_region": "r", "shared_memory_byte_size": 16}}, "shared memory"),
        ({"shape": [2, -2]}, ">= 0"),
        ({"shape": [2.5, 2]}, "Expected `int`"),
        ({"shape": [2**31, 2**31, 2**31]}, "<= 2147483647"),
        ({"shape": [2**31 - 1] * 3}, "needs"),
        ({"shape": [0, 2**31 - 1, 2**31 - 1, 2**31 - 1], "data": []}, "too big"),
        ({"shape": [1] * 17}, "length <= 16"),
        ({"shape": None}, "missing required field `shape`"),
        ({"name": 7}, "Expected `str`"),
    ],
)
def test_a_tensor_that_does_not_fit_is_refused_with_the_reason(tensor, says):
    with pytest.raises(ProtocolError, match=says):
        decode_request(message(**tensor), header_length=None)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b'{"inputs": []}', "no inputs"),
        (b"{}", "missing required field `inputs`"),
        (b'{"more": ' + b"[" * 100_000, "nested too deeply"),
        (message()[:-1] + b', "outputs": [{"name": "o", "parameters": {"classification": 3}}]}', "classification"),
        (message()[:-1] + b', "outputs": [{"name": "o", "parameters": {"shared_memory_region": "r"}}]}', "shared"),
        (message()[:-1] + b', "outputs": [{"name": "o"}, {"name": "o"}]}', "appears twice"),
        (message().replace(b'"inputs": [', b'"inputs": [' + message()[12:-2] + b", "), "appears twice"),
        (message() + b"{}", "malformed"),
    ],
)
def test_a_request_that_breaks_the_protocol_is_refused_with_the_reason(body, says):
    with pytest.raises(ProtocolError, match=says):
        decode_request(body, header_length=None)


def test_a_bool_that_is_neither_0_nor_1_is_refused():
    body, headers = encode_request(InferRequest((NamedTensor("x", np.array([True, False])),)))
    with pytest.raises(ProtocolError, match="0 or 1"):
        decode_request(body[:-1] + b"\2", header_length=length(headers))


def test_json_data_may_be_nested_as_its_shape_says():
    decoded = decode_request(message(data=[[1, 2], [3, 4]]), header_length=None).inputs[0]
    assert decoded.data.tolist() == [[1, 2], [3, 4]]
    empty = decode_request(message(data=[[], []], shape=[2, 0]), header_length=None).inputs[0]
    assert empty.data.shape == (2, 0)


def test_an_output_that_says_nothing_follows_the_request():
    body = message()[:-1] + b', "outputs": [{"name": "a"}, {"name": "b", "parameters": {"binary_data": false}}]'
    request = decode_request(body + b', "parameters": {"binary_data_output": true}}', header_length=None)
    assert request.outputs == (RequestedOutput("a", True), RequestedOutput("b", False))
    assert request.binary_output


@pytest.mark.parametrize("data", [np.array(["a"]), np.array([object()]), np.array([1j]), np.zeros(1, "M8[s]")])
def test_arrays_that_have_no_datatype_do_not_travel(data):
    with pytest.raises(ProtocolError, match="cannot be sent"):
        encode_request(InferRequest((NamedTensor("x", data),)))


def test_what_json_cannot_hold_is_not_written():
    response = InferResponse("m", (NamedTensor("x", np.array([np.nan], np.float32)),))
    with pytest.raises(ProtocolError, match="NaN"):
        encode_response(response)
    body, headers = encode_response(response, binary=["x"])
    assert np.isnan(decode_response(body, header_length=length(headers)).outputs[0].data).all()


def test_arrays_of_other_byte_order_and_memory_layout_travel_by_value():
    data = np.arange(6, dtype=">i4").reshape(2, 3).T
    body, headers = encode_request(InferRequest((NamedTensor("x", data),)))
    decoded = decode_request(body, header_length=length(headers)).inputs[0].data
    assert decoded.dtype == np.dtype("<i4")
    np.testing.assert_array_equal(decoded, data)


@settings(deadline=None, max_examples=100)
@given(sent=tensors(finite=True), binary=st.booleans())
def test_requests_of_tritonclient_are_understood(sent, binary):
    http = pytest.importorskip("tritonclient.http", reason="needs the extra: pip install 'pathweave[dev]'")
    inputs = [http.InferInput(tensor.name, list(tensor.data.shape), tensor.datatype) for tensor in sent]
    for one, tensor in zip(inputs, sent, strict=True):
        one.set_data_from_numpy(tensor.data, binary_data=binary)
    body, header_length = http.InferenceServerClient.generate_request_body(inputs, request_id="7")
    decoded = decode_request(body, header_length=header_length)
    assert_same(decoded.inputs, sent)
    assert (decoded.id, decoded.binary_output) == ("7", True)


@settings(deadline=None, max_examples=100)
@given(sent=tensors(finite=True), binary=st.booleans())
def test_tritonclient_understands_our_replies(sent, binary):
    http = pytest.importorskip("tritonclient.http", reason="needs the extra: pip install 'pathweave[dev]'")
    body, headers = encode_response(
        InferResponse("m", sent, "1", "7"), binary=[tensor.name for tensor in sent] if binary else ()
    )
    result = http.InferenceServerClient.parse_response_body(body, header_length=length(headers))
    assert_same(tuple(NamedTensor(tensor.name, result.as_numpy(tensor.name)) for tensor in sent), sent)
    assert result.get_response()["id"] == "7"


def test_asking_tritonclient_for_outputs_reaches_the_server():
    http = pytest.importorskip("tritonclient.http", reason="needs the extra: pip install 'pathweave[dev]'")
    given_input = http.InferInput("x", [1], "FP32")
    given_input.set_data_from_numpy(np.ones(1, np.float32))
    outputs = [http.InferRequestedOutput("a"), http.InferRequestedOutput("b", binary_data=False)]
    body, header_length = http.InferenceServerClient.generate_request_body([given_input], outputs=outputs)
    request = decode_request(body, header_length=header_length)
    assert request.outputs == (RequestedOutput("a", True), RequestedOutput("b", False))
