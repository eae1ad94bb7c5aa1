from __future__ import annotations

import pytest

from device_sdk.errors import DataError
from packager.inputs.labels import load_classes


def test_imagenet_has_its_thousand_classes_in_the_order_of_the_outputs(shared_data):
    pytest.importorskip("timm")
    classes = load_classes("imagenet-1k")
    published = (shared_data / "imagenette" / "imagenet_wnids.txt").read_text().split()
    assert [ids[0] for ids in classes.ids] == published
    assert len(set(classes.names)) == 1000
    assert classes.names[0] == "tench"
    assert "Tinca tinca" in classes.ids[0]


def test_a_model_that_names_its_classes_keeps_the_names_and_gets_the_ids():
    pytest.importorskip("timm")
    own = [f"class {number}" for number in range(1000)]
    known = load_classes("imagenet-1k").for_model(1000, own, reference="imagenet-1k")
    assert known.names == tuple(own)
    assert known.ids[0][0] == "n01440764"
    assert "tench" in known.ids[0]


def test_a_file_has_one_class_per_line_and_further_names_after_tabs(tmp_path):
    (tmp_path / "classes.txt").write_text("\ufeffcat\tn02121808\tFelis catus\ndog\n\n")
    classes = load_classes(str(tmp_path / "classes.txt"))
    assert classes.names == ("cat", "dog")
    assert classes.ids == (("n02121808", "Felis catus"), ())


def test_a_file_replaces_the_names_that_a_model_has(tmp_path):
    (tmp_path / "classes.txt").write_text("cat\ndog\n")
    known = load_classes(str(tmp_path / "classes.txt")).for_model(2, ["0", "1"], reference="classes.txt")
    assert (known.names, known.ids) == (("cat", "dog"), ())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"cat\n\ndog\n", "line 2 names no class"),
        (b"cat\ndog\ncat\n", "cat is in line 1 and in line 3"),
        (b"", "lists 0 classes"),
        (b"cat\n", "lists 1 classes"),
        (b"\xff\xfe\x00c", "no UTF-8 text"),
        (None, "No such file"),
    ],
)
def test_a_file_without_a_list_of_classes_says_where(tmp_path, text, message):
    if text is not None:
        (tmp_path / "classes.txt").write_bytes(text)
    with pytest.raises(DataError, match=message):
        load_classes(str(tmp_path / "classes.txt"))


def test_a_list_for_another_model_is_refused(tmp_path):
    (tmp_path / "classes.txt").write_text("cat\ndog\n")
    with pytest.raises(DataError, match="lists 2 classes, the model has 10 outputs"):
        load_classes(str(tmp_path / "classes.txt")).for_model(10, None, reference="classes.txt")
