from __future__ import annotations

import json
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.errors import MalformedError, UnprocessableError
from server.jobs.job_request import RECIPE_FIELDS, check_request, read_request, recipe_toml

KNOWN = ("digits#train", "cifar-train")
GOOD = {"name": "a", "model": "zoo:b", "data": "cifar-train", "validation": "digits#train", "recipe": {"steps": 3}}

scalars = (
    st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=200)
)
fields = st.from_regex(r"[a-z][a-z0-9_]{0,20}", fullmatch=True)


def read(**changes):
    return read_request(json.dumps({**GOOD, **changes}).encode())


def refused(**changes):
    with pytest.raises(UnprocessableError) as caught:
        check_request(read(**changes), known_data=KNOWN)
    return f"{caught.value} {caught.value.hint}"


def test_a_good_request_passes():
    request = read()
    check_request(request, known_data=KNOWN)
    assert (request.name, request.recipe) == ("a", {"steps": 3})


@pytest.mark.parametrize("model", ["timm:resnet18.a1_in1k", "torchvision:resnet50", "zoo:resnet20_cifar10"])
def test_models_of_the_three_kinds_pass(model):
    check_request(read(model=model), known_data=KNOWN)


@pytest.mark.parametrize(
    "model",
    [
        "os:system",
        "package.module:callable",
        "resnet50",
        "",
        ":resnet50",
        "/srv/model.pth",
        "ZOO:resnet",
        "zoo:",
        "zoo:../x",
        "zoo:a:b",
        "timm:hf-hub:someone/model",
        "timm:local-dir:/srv",
        "torchvision:-x",
        "zoo:a b",
        "zoo:a\n",
    ],
)
def test_other_models_are_refused(model):
    assert "model" in refused(model=model)


def test_a_callable_is_refused_with_the_reason():
    assert "requests cannot contain code" in refused(model="users_models:build")


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "a b", "a\n", "-x", "a" * 129, "é", "a\0b"])
def test_names_with_a_trick_are_refused(name):
    assert "name of a bundle" in refused(name=name)


@pytest.mark.parametrize("data", ["", "/srv/data", "../data", "cifar", "digits", "cifar-train#search", "digits#trai"])
@pytest.mark.parametrize("which", ["data", "validation"])
def test_data_that_the_server_does_not_know_are_refused_with_those_that_it_knows(which, data):
    assert "it has cifar-train, digits#train" in refused(**{which: data})


@pytest.mark.parametrize(
    "changes",
    [
        {"recipe": {"steps": [1]}},
        {"recipe": {"steps": None}},
        {"recipe": {"steps": {"a": 1}}},
        {"recipe": {"steps": 2**60}},
        {"recipe": {"precision": "a\nseed = 1"}},
        {"recipe": {"precision": "é"}},
        {"recipe": {"precision": "a" * 201}},
        {"recipe": {"steps = 1\nseed": 1}},
        {"recipe": {"steps\n": 1}},
        {"recipe": {"Steps": 1}},
        {"recipe": {"": 1}},
        {"recipe": []},
        {"name": 7},
        {"name": None},
        {"weights": "/etc/passwd"},
    ],
)
def test_what_is_no_job_is_malformed(changes):
    with pytest.raises(MalformedError, match="the job is invalid"):
        read(**changes)


@pytest.mark.parametrize("missing", ["name", "model", "data", "validation"])
def test_a_field_that_is_missing_is_named(missing):
    body = {name: value for name, value in GOOD.items() if name != missing}
    with pytest.raises(MalformedError, match=f"`{missing}`"):
        read_request(json.dumps(body).encode())


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b"[" * 100_000, b'{"name": NaN}'])
def test_what_is_no_json_is_malformed(body):
    with pytest.raises(MalformedError):
        read_request(body)


@pytest.mark.parametrize("field", ["branch_weights", "cache_mb", "renditions", "fused", "speed"])
def test_other_fields_of_the_recipe_are_refused(field):
    assert f"cannot set the recipe's {field}" in refused(recipe={"steps": 3, field: "x"})


def test_each_field_of_the_recipe_is_allowed_or_left_out_on_purpose():
    pytest.importorskip("torch", reason="needs the extra: pip install 'pathweave[packager]'")
    from packager.inputs.recipe import Recipe

    # a path, the operator's disk, lists, and what hybrid training sets
    left_out = {"branch_weights", "cache_mb", "renditions", "chips", "fused", "copied"}
    assert set(Recipe.__struct_fields__) == RECIPE_FIELDS | left_out


@given(st.dictionaries(fields, scalars, max_size=8))
def test_the_packager_reads_the_recipe_that_was_sent(recipe):
    sent = read(recipe=recipe).recipe
    assert tomllib.loads(recipe_toml(sent)) == recipe
