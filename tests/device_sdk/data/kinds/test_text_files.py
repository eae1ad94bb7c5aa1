from __future__ import annotations

import pytest

from device_sdk.data.kinds.text_files import load_texts
from device_sdk.errors import DataError

ROWS = [("a warm day", "weather"), ('she said "no", twice', "speech"), ("líneas\ny más", "weather"), ("ok", "speech")]


@pytest.fixture
def write(tmp_path):
    def written(name: str, text: str) -> str:
        (tmp_path / name).write_text(text, encoding="utf-8")
        return str(tmp_path / name)

    return written


def _load(reference: str, *, labelled: bool | None = True, limit: int | None = None):
    return load_texts(reference, limit=limit, labelled=labelled)


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


@pytest.mark.parametrize(("suffix", "separator"), [(".csv", ","), (".tsv", "\t")])
def test_a_table_has_the_columns_text_and_label(write, suffix, separator):
    lines = [separator.join(("text", "label")), *(f"{_quoted(text)}{separator}{label}" for text, label in ROWS)]
    found = _load(write(f"texts{suffix}", "\n".join(lines)))
    assert found.class_names == ("speech", "weather")
    assert [(text, found.class_names[label]) for text, label in zip(found.samples, found.labels, strict=True)] == ROWS


def test_lines_of_json_have_the_same_fields_and_whole_numbers_as_labels_too(write):
    found = _load(write("texts.jsonl", '{"text": "a", "label": 1}\n\n{"text": "b", "label": "no", "more": []}\n'))
    assert found.samples == ["a", "b"]
    assert found.class_names == ("1", "no")


def test_a_folder_per_class_holds_a_file_per_text(tmp_path):
    for place, text in (("b/1.txt", "zwei"), ("a/1.txt", "eins"), ("a/.hidden.txt", "x"), ("a/2.md", "x")):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).write_text(text)
    found = _load(str(tmp_path))
    assert found.names == ("a/1.txt", "b/1.txt")
    assert found.samples == ["eins", "zwei"]
    assert found.labels.tolist() == [0, 1]


def test_parts_and_a_limit_are_those_of_the_names_and_stay_when_texts_are_added(write):
    rows = [f"text {at},{'ab'[at % 2]}" for at in range(200)]
    whole = _load(write("t.csv", "\n".join(["text,label", *rows])))
    search = _load(write("t.csv", "\n".join(["text,label", *rows])) + "#search")
    few = _load(write("t.csv", "\n".join(["text,label", *rows])), limit=10)
    assert 0 < len(search) < len(whole) == 200
    assert len(few) == 10
    longer = _load(write("t.csv", "\n".join(["text,label", *rows, "one more,a"])) + "#search")
    assert set(search.names) <= set(longer.names)


def test_labels_are_put_aside_or_taken_where_there_are_some(write):
    with_labels, without = write("a.csv", "text,label\nx,1\ny,2\n"), write("b.csv", "text\nx\ny\n")
    assert _load(with_labels, labelled=False).class_names == ()
    assert _load(with_labels, labelled=None).class_names == ("1", "2")
    assert _load(without, labelled=None).class_names == ()


def test_labels_become_positions_of_the_models_classes(write):
    found = _load(write("a.csv", "text,label\nx,cat\ny,dog\n")).relabelled(("dog", "emu", "cat"))
    assert found.labels.tolist() == [2, 0]
    with pytest.raises(DataError, match="does not know"):
        _load(write("a.csv", "text,label\nx,cat\ny,cow\n")).relabelled(("dog", "cat"))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "texts,label\nx,1\n", "has no column text"),
        ("a.csv", "text,label\nx,1\n ,2\n", r"1 texts are empty: line 3"),
        ("a.csv", "text,label\nx,1\ny,\n", "1 of the 2 samples of .* have no label"),
        ("a.csv", "text,label\nx,1\ny,1\n", "holds only one class, 1"),
        ("a.csv", "text,label\n", "holds no samples"),
        ("a.jsonl", '{"text": "a", "label": "b"}\n{"label": "b"}\n', "line 2 is not an object with text and label"),
        ("a.jsonl", "nothing", "line 1 is not an object"),
        ("a.doc", "x", "unknown suffix"),
    ],
)
def test_what_cannot_be_read_is_named(write, name, text, message):
    with pytest.raises(DataError, match=message):
        _load(write(name, text))


def test_a_file_of_another_encoding_is_refused(tmp_path):
    (tmp_path / "a.csv").write_bytes("text,label\nä,1\n".encode("latin-1"))
    with pytest.raises(DataError, match="no UTF-8 text"):
        _load(str(tmp_path / "a.csv"))


def test_missing_data_says_what_is_taken(tmp_path):
    with pytest.raises(DataError, match="there is no data") as caught:
        _load(str(tmp_path / "none.csv"))
    assert ".jsonl" in str(caught.value.hint)
