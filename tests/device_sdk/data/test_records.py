"""Every kind of data: the same images under the same names, and one clear line for what cannot be used."""

from __future__ import annotations

import io
import pickle
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from device_sdk.data.datasets import load_dataset
from device_sdk.data.image_files import MAX_IMAGE_FILE_BYTES
from device_sdk.data.sources import open_records
from device_sdk.errors import CorruptImageError, DataError


def png(shade: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (4, 4), (shade,) * 3).save(buffer, "PNG")
    return buffer.getvalue()


FILES = {"cat/1.png": png(1), "cat/2.png": png(2), "dog/1.png": png(3)}


def write_folder(root: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def write_zip(path: Path, files: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def write_tar(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def write_csv(root: Path, lines: str) -> Path:
    write_folder(root, FILES)
    (root / "list.csv").write_text(lines)
    return root / "list.csv"


def records_of(location: Path):
    return open_records(str(location))


def contents(records) -> dict[str, bytes]:
    return {name: records.read(position) for position, name in enumerate(records.names)}


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_folder_and_a_zip_of_it_are_the_same_records(tmp_path, method):
    folder = records_of(write_folder(tmp_path / "data", FILES))
    archive = records_of(write_zip(tmp_path / "data.zip", FILES, method))
    assert contents(folder) == contents(archive) == FILES
    assert tuple(folder.labels) == tuple(archive.labels) == ("cat", "cat", "dog")
    assert folder.stamps[:, 0].tolist() == archive.stamps[:, 0].tolist() == [len(data) for data in FILES.values()]
    assert all(archive.stamps[:, 1])


def test_every_kind_of_source_gives_the_same_images_and_classes(tmp_path):
    folder, archive = write_folder(tmp_path / "data", FILES), write_zip(tmp_path / "data.zip", FILES)
    listed = write_csv(tmp_path / "listed", "image,label\ncat/1.png,cat\ncat/2.png,cat\ndog/1.png,dog\n")
    shard = write_tar(
        tmp_path / "data.tar",
        {f"{name[:-4]}.png": image for name, image in FILES.items()}
        | {f"{name[:-4]}.cls": name[:3].encode() for name in FILES},
    )
    for location in (folder, archive, listed, shard):
        found = load_dataset(str(location)).relabelled(["bird", "cat", "dog"])
        assert found.images[:, 0, 0, 0].tolist() == [1, 2, 3]
        assert found.labels.tolist() == [1, 1, 2]
        assert found.report.used == found.report.seen == 3


def test_numbered_classes_of_shards_are_positions_in_the_models_classes(tmp_path):
    files = {f"{at}.{kind}": data for at in range(12) for kind, data in (("png", png(at)), ("cls", str(at).encode()))}
    found = load_dataset(str(write_tar(tmp_path / "data.tar", files)))
    assert found.relabelled([f"class {at}" for at in range(12)]).labels.tolist() == found.images[:, 0, 0, 0].tolist()
    with pytest.raises(DataError, match="does not know: 11"):
        found.relabelled([f"class {at}" for at in range(11)])


def test_a_list_without_labels_is_refused_where_labels_are_needed_and_read_where_not(tmp_path):
    listed = write_csv(tmp_path, "image\ncat/1.png\ndog/1.png\n")
    with pytest.raises(DataError, match="no labels"):
        load_dataset(str(listed))
    assert len(load_dataset(str(listed), labelled=False)) == 2


def test_images_beside_class_folders_are_left_out_and_counted(tmp_path):
    folder = write_folder(tmp_path / "data", {**FILES, "5.png": png(5), "6.png": png(6)})
    for location in (folder, write_zip(tmp_path / "data.zip", {**FILES, "5.png": png(5), "6.png": png(6)})):
        assert load_dataset(str(location)).report.notes == ("2 images that lie beside the class folders were left out",)
        assert len(load_dataset(str(location), labelled=False)) == 5


@pytest.mark.slow
def test_a_member_that_unpacks_to_more_than_is_accepted_is_refused_without_unpacking_it_all(tmp_path):
    bomb = write_zip(tmp_path / "data.zip", {**FILES, "cat/3.png": bytes(MAX_IMAGE_FILE_BYTES + 1000)})
    records = records_of(bomb)
    assert len(records.read(records.names.index("cat/3.png"))) == MAX_IMAGE_FILE_BYTES + 1
    with pytest.raises(DataError, match="is larger than"):
        load_dataset(str(bomb))


def test_some_of_the_records_read_as_before(tmp_path):
    records = records_of(write_zip(tmp_path / "data.zip", FILES)).take(np.array([2, 0]))
    assert contents(records) == {"dog/1.png": FILES["dog/1.png"], "cat/1.png": FILES["cat/1.png"]}
    assert records.labels == ("dog", "cat")
    assert contents(records.take(np.array([1]))) == {"cat/1.png": FILES["cat/1.png"]}


def test_another_process_reads_an_archive_that_is_open_here(tmp_path):
    records = records_of(write_zip(tmp_path / "data.zip", FILES))
    records.read(0)
    assert contents(pickle.loads(pickle.dumps(records))) == FILES


@pytest.mark.parametrize("as_zip", [False, True])
def test_images_in_no_folder_have_no_labels(tmp_path, as_zip):
    flat = {"1.png": png(1), "2.png": png(2), "notes.txt": b""}
    records = records_of(write_zip(tmp_path / "d.zip", flat) if as_zip else write_folder(tmp_path, flat))
    assert (list(records.names), list(records.labels)) == (["1.png", "2.png"], [])


def test_a_member_with_a_wrong_checksum_is_corrupt_by_name(tmp_path):
    path = write_zip(tmp_path / "d.zip", FILES, zipfile.ZIP_STORED)
    data = bytearray(path.read_bytes())
    data[data.index(FILES["dog/1.png"]) + 20] ^= 1
    path.write_bytes(data)
    records = records_of(path)
    assert records.read(0) == FILES["cat/1.png"]
    with pytest.raises(CorruptImageError, match=r"d\.zip: dog/1\.png is not a readable image: wrong checksum"):
        records.read(2)


def test_a_zip_packed_in_another_way_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"packed in another way than deflate: cat/1\.png"):
        records_of(write_zip(tmp_path / "d.zip", FILES, zipfile.ZIP_LZMA))


def test_a_file_that_vanishes_is_corrupt_by_name(tmp_path):
    records = records_of(write_folder(tmp_path, FILES))
    (tmp_path / "dog/1.png").unlink()
    with pytest.raises(CorruptImageError, match=r"dog/1\.png is not a readable image: No such file"):
        records.read(2)


# Lists


def test_a_csv_labels_images_by_path(tmp_path):
    lines = "\ufeffimage,label,more\ncat/2.png,Tier a,x\ndog/1.png,Tier b,y\n"
    records = records_of(write_csv(tmp_path, lines))
    assert list(records.names) == ["Tier a/cat/2.png", "Tier b/dog/1.png"]
    assert records.labels == ("Tier a", "Tier b")
    assert records.read(1) == FILES["dog/1.png"]


@pytest.mark.parametrize("lines", ["image\ncat/2.png\ndog/1.png\n", "image,label\ncat/2.png,\ndog/1.png,\n"])
def test_a_csv_without_labels_lists_images_alone(tmp_path, lines):
    records = records_of(write_csv(tmp_path, lines))
    assert (list(records.names), list(records.labels)) == (["cat/2.png", "dog/1.png"], [])


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("", "has no column image"),
        ("path,label\ncat/1.png,a\n", "has no column image"),
        ("image,label\n", "lists no images"),
        ("image,label\ncat/1.png,a\ncat/1.png,b\n", r"lists an image twice: cat/1\.png"),
        ("image,label\ncat/1.png,a\ncat/9.png,b\n", r"1 of the 2 images .* are missing: cat/9\.png"),
        ("image,label\ncat/1.png,a\n,b\n", "1 of the 2 images .* are missing"),
        ("image,label\ncat/1.png,a\ncat/2.png,\n", r"1 of the 2 images .* have no label: cat/2\.png"),
        ("image,label\ncat/1.png,a\ncat/2.png\n", r"1 of the 2 images .* have no label: cat/2\.png"),
    ],
)
def test_a_csv_that_does_not_say_it_all_is_refused(tmp_path, lines, message):
    with pytest.raises(DataError, match=message):
        records_of(write_csv(tmp_path, lines))


# WebDataset


def test_shards_hold_images_with_their_classes(tmp_path):
    write_tar(tmp_path / "a-0.tar", {"x/1.png": png(1), "x/1.cls": b"7", "x/2.cls": b"3\n", "x/2.seg.png": png(2)})
    write_tar(tmp_path / "a-1.tar", {"y.json": b"{}", "y.cls": b"7", "y.PNG": png(3)})
    records = records_of(tmp_path)
    assert contents(records) == {"x/1": png(1), "x/2": png(2), "y": png(3)}
    assert (records.labels, records.indexed) == (("7", "3", "7"), True)
    assert contents(records_of(tmp_path / "a-1.tar")) == {"y": png(3)}


def test_shards_may_name_classes_or_have_none(tmp_path):
    named = records_of(write_tar(tmp_path / "a.tar", {"1.png": png(1), "1.cls": b"cat"}))
    assert (named.labels, named.indexed) == (("cat",), False)
    assert records_of(write_tar(tmp_path / "b.tar", {"1.png": png(1)})).labels == ()


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"1.png": png(1), "2.png": png(2), "1.cls": b"3"}, r"1 of the 2 images .* have no \.cls beside them: 2"),
        ({"1.a.png": png(1), "1.b.png": png(2)}, "several images under one key"),
        ({"1.cls": b"3"}, "holds no images"),
    ],
)
def test_shards_that_do_not_say_it_all_are_refused(tmp_path, files, message):
    with pytest.raises(DataError, match=message):
        records_of(write_tar(tmp_path / "a.tar", files))


@pytest.mark.parametrize("content", [b"not a tar" * 99, b"\x1f\x8b\x08 packed"])
def test_a_file_that_is_no_tar_is_named(tmp_path, content):
    (tmp_path / "a.tar").write_bytes(content)
    with pytest.raises(DataError, match=r"a\.tar is not a readable tar file"):
        records_of(tmp_path / "a.tar")


# Hugging Face


@pytest.fixture
def hub(tmp_path):
    datasets = pytest.importorskip("datasets")
    images = [{"bytes": data, "path": None} for data in FILES.values()]

    def write(labels, *, splits: bool = False) -> Path:
        features = {"picture": datasets.Image(), "kind": datasets.ClassLabel(names=["cat", "dog"])}
        columns = {"picture": images, "kind": labels}
        if labels is None:
            del features["kind"], columns["kind"]
        found = datasets.Dataset.from_dict(columns, features=datasets.Features(features))
        (datasets.DatasetDict({"train": found}) if splits else found).save_to_disk(tmp_path / "hub")
        return tmp_path / "hub"

    return write


def test_a_hugging_face_data_set_gives_its_images_and_classes(hub):
    records = records_of(hub([0, 0, 1]))
    assert list(contents(pickle.loads(pickle.dumps(records))).values()) == list(FILES.values())
    assert records.labels == ("cat", "cat", "dog")


def test_a_split_of_a_hugging_face_data_set_is_named_like_a_part(hub):
    folder = hub([0, 0, 1], splits=True)
    assert len(open_records(f"{folder}#train")) == 3
    with pytest.raises(DataError, match="has the splits train"):
        open_records(str(folder))


def test_a_hugging_face_data_set_without_classes_has_no_labels(hub):
    assert records_of(hub(None)).labels == ()


def test_a_hugging_face_data_set_with_labels_missing_is_refused(hub):
    with pytest.raises(DataError, match=r"1 of the 3 images .* have no label"):
        records_of(hub([0, -1, 1]))


def test_nothing_there_says_what_can_be_given(tmp_path):
    with pytest.raises(DataError, match="there is no data at") as caught:
        records_of(tmp_path / "nowhere")
    assert ".csv" in str(caught.value.hint)
