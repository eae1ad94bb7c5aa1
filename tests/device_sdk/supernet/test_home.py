from __future__ import annotations

import pytest

from device_sdk.errors import UsageError
from device_sdk.supernet.home import Home
from device_sdk.supernet.plan import Edge, Plan, Subnet, decode_plan, encode_plan, without_homes


@pytest.mark.parametrize("text", ["cpu-1t", "cpu-16t", "openvino-2t", "cpu-4t-big", "qnn-1t"])
def test_a_home_is_read_as_it_is_written(text):
    assert str(Home.parse(text)) == text


@pytest.mark.parametrize(
    "text", ["", "cpu", "cpu-0t", "cpu-257t", "tpu-1t", "cpu-1t-BIG", "CPU-1t", "cpu-1t~", "cpu 1t"]
)
def test_what_is_no_home_is_refused_with_the_form_that_is(text):
    with pytest.raises(UsageError, match="is no home") as caught:
        Home.parse(text)
    assert "cpu-2t" in caught.value.hint


def test_only_threads_of_the_processor_are_on_the_processor():
    assert Home("cpu", 4).on_processor
    assert not Home("openvino", 4).on_processor


def test_an_edge_is_written_with_its_home_and_without_one_as_before():
    edge = Edge("o0", "int8", (8, 8), "cpu-2t")
    assert str(edge) == "o0@int8~cpu-2t:8x8"
    assert Edge.parse(str(edge)) == edge
    assert str(Edge("o0")) == "o0"
    assert edge.at(()) == Edge("o0", "int8", (), "cpu-2t")
    assert without_homes([edge, Edge("o1")]) == (Edge("o0", "int8", (8, 8)), Edge("o1"))


def test_plans_name_homes_only_where_they_have_them():
    there, nowhere = (Plan(Subnet((Edge("o0", home=home),))) for home in ("cpu-2t", ""))
    assert b"home" not in encode_plan(nowhere)
    assert b'"home":"cpu-2t"' in encode_plan(there)
    assert decode_plan(encode_plan(there)) == there


@pytest.mark.parametrize("home", ["CPU", "a b", "x" * 65, "cpu-2t;"])
def test_a_plan_with_what_cannot_be_a_home_is_refused(home):
    text = encode_plan(Plan(Subnet((Edge("o0", home="cpu-2t"),)))).replace(b"cpu-2t", home.encode())
    with pytest.raises(UsageError):
        decode_plan(text)
