from __future__ import annotations

import pytest

from device_sdk.data.class_names import ClassNames, require_distinct
from device_sdk.errors import DataError

BIRDS = ClassNames(
    ("tench", "golden retriever", "crane (n02012849)", "crane (n03126707)"),
    (("n01440764", "Tinca tinca"), ("n02099601",), ("n02012849", "crane"), ("n03126707", "crane")),
)


@pytest.mark.parametrize(
    "label", ["golden retriever", "Golden_Retriever", " golden  RETRIEVER", "n02099601", "N02099601"]
)
def test_a_class_is_found_by_name_or_id_however_it_is_written(label):
    assert BIRDS.positions([label]) == [1]


def test_some_of_the_classes_are_enough():
    assert BIRDS.positions(["n03126707", "tinca_tinca"]) == [3, 0]


def test_an_exact_name_goes_before_another_spelling():
    assert ClassNames(("a", "A", "b")).positions(["A", "a", "B"]) == [1, 0, 2]


def test_an_unknown_class_is_named_with_those_that_are_known():
    with pytest.raises(DataError, match="does not know: trout, eel") as caught:
        BIRDS.positions(["tench", "trout", "eel"])
    assert "tench, golden retriever" in str(caught.value.hint)


def test_a_name_of_several_classes_names_them():
    with pytest.raises(DataError, match=r"crane could be .*n02012849.*n03126707") as caught:
        BIRDS.positions(["crane"])
    assert caught.value.hint


def test_two_spellings_of_one_class_are_refused_by_name():
    with pytest.raises(DataError, match="tench and n01440764 are two spellings of one class"):
        BIRDS.positions(["tench", "n01440764"])
    with pytest.raises(DataError, match="Cat and cat are two spellings"):
        require_distinct(["Cat", "dog", "cat"])


def test_more_ids_than_classes_name_nothing():
    with pytest.raises(DataError, match="does not know: c"):
        ClassNames(("a", "b"), ((), (), ("c",))).positions(["c"])
