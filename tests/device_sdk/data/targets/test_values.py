from __future__ import annotations

import numpy as np
import pytest

from device_sdk.data.targets.values import NAMES, TABLES, label_table, labels_in, number_table, numbers_in
from device_sdk.errors import DataError


def test_labels_are_divided_and_a_dash_is_none():
    written = ["red|round", "-", " round ", "red|red"]
    assert labels_in(written) == ("red", "round")
    assert label_table(written, ("round", "red")).tolist() == [[1, 1], [0, 0], [1, 0], [0, 1]]


def test_numbers_are_divided_and_named_by_their_place():
    written = ["0.5|-2", "1e3|0"]
    assert numbers_in(written) == ("value 1", "value 2")
    table = number_table(written, numbers_in(written))
    assert table.dtype == np.float32
    assert table.tolist() == [[0.5, -2], [1000, 0]]


@pytest.mark.parametrize(
    ("table", "written", "said"),
    [
        (label_table, ["blue"], "no label 'blue'"),
        (number_table, ["1|2|3"], "answers with 2 numbers; a sample has '1|2|3'"),
        (number_table, ["1|inf"], "'inf' is not a number"),
    ],
)
def test_what_the_model_does_not_answer_is_a_line(table, written, said):
    with pytest.raises(DataError) as caught:
        table(written, ("red", "round"))
    assert said in str(caught.value)


def test_no_numbers_are_refused():
    with pytest.raises(DataError, match="there are no numbers"):
        numbers_in([])


def test_every_kind_of_written_targets_can_name_its_classes():
    assert TABLES.keys() == NAMES.keys()
