from __future__ import annotations

import io
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import ExifTags, Image

from device_sdk.data.datasets import load_dataset
from device_sdk.data.image_files import decode_image
from device_sdk.errors import DataError


def png(shade: int = 0, *, size: tuple[int, int] = (4, 4), mode: str = "RGB") -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, size, shade if mode not in ("RGB", "RGBA") else (shade,) * len(mode)).save(buffer, "PNG")
    return buffer.getvalue()


def write_folder(root: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def write_zip(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


TWO_CLASSES = {"cat/1.png": png(1), "cat/2.png": png(2), "dog/1.png": png(3)}


def test_a_folder_and_a_zip_of_it_hold_the_same(tmp_path):
    folder = load_dataset(str(write_folder(tmp_path / "data", TWO_CLASSES)))
    archive = load_dataset(str(write_zip(tmp_path / "data.zip", TWO_CLASSES)))
    assert folder.names == archive.names == ("cat/1.png", "cat/2.png", "dog/1.png")
    assert folder.class_names == archive.class_names == ("cat", "dog")
    assert folder.labels.tolist() == archive.labels.tolist() == [0, 0, 1]
    assert folder.images.tobytes() == archive.images.tobytes()
    assert folder.images[:, 0, 0, 0].tolist() == [1, 2, 3]


def test_files_that_are_no_images_of_a_class_are_ignored(tmp_path):
    clutter = {
        "__MACOSX/cat/._1.png": b"",
        "cat/.hidden.png": b"",
        ".git/x.png": b"",
        "cat/notes.txt": b"",
        "preview.png": b"",
    }
    archive = write_zip(tmp_path / "data.zip", TWO_CLASSES | clutter)
    assert load_dataset(str(archive)).names == ("cat/1.png", "cat/2.png", "dog/1.png")


def test_a_folder_that_wraps_all_classes_is_no_part_of_the_names(tmp_path):
    wrapped = {f"pets/all/{name}": data for name, data in TWO_CLASSES.items()}
    assert load_dataset(str(write_zip(tmp_path / "data.zip", wrapped))).class_names == ("cat", "dog")


def test_images_deeper_than_their_class_folder_are_refused(tmp_path):
    files = {"train/cat/1.png": png(), "val/dog/1.png": png()}
    with pytest.raises(DataError, match=r"data\.zip: train/cat/1\.png does not lie directly in a class folder"):
        load_dataset(str(write_zip(tmp_path / "data.zip", files)))


def test_a_path_that_leaves_the_zip_is_ignored_and_nothing_is_extracted(tmp_path):
    archive = write_zip(tmp_path / "data.zip", {f"../{name}": data for name, data in TWO_CLASSES.items()})
    with pytest.raises(DataError, match="holds no images"):
        load_dataset(str(archive))
    assert [path.name for path in tmp_path.iterdir()] == ["data.zip"]


def test_grey_images_keep_one_channel(tmp_path):
    files = {"a/1.png": png(5, mode="L"), "b/1.png": png(1, mode="1")}
    images = load_dataset(str(write_folder(tmp_path, files))).images
    assert images.shape == (2, 4, 4, 1)
    assert images[:, 0, 0, 0].tolist() == [5, 255]


def test_grey_among_colour_becomes_colour(tmp_path):
    files = {"a/1.png": png(5, mode="L"), "b/1.png": png(7), "b/2.png": png(9, mode="RGBA")}
    images = load_dataset(str(write_folder(tmp_path, files))).images
    assert images.shape == (3, 4, 4, 3)
    assert images[:, 3, 3].tolist() == [[5, 5, 5], [7, 7, 7], [9, 9, 9]]


def turned(orientation: int) -> bytes:
    """A JPEG of 16×8 pixels, its left half white, to be looked at as EXIF says."""
    pixels = np.zeros((8, 16), dtype=np.uint8)
    pixels[:, :8] = 255
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", exif=exif, quality=100)
    return buffer.getvalue()


def test_photographs_are_turned_as_their_camera_says():
    upright, upside_down, lying = (decode_image(turned(one), where="x") > 127 for one in (1, 3, 6))
    assert upright[:, :8].all()
    assert not upright[:, 8:].any()
    np.testing.assert_array_equal(upside_down, upright[::-1, ::-1])
    assert lying.shape == (16, 8, 1)
    assert lying[:8].all()
    assert not lying[8:].any()


@pytest.mark.parametrize(
    ("mode", "kind", "options"),
    [
        ("CMYK", "TIFF", {}),
        ("YCbCr", "TIFF", {}),
        ("P", "PNG", {}),
        ("P", "PNG", {"transparency": b"\x00\x80\xff"}),
        ("RGBA", "PNG", {}),
    ],
)
def test_images_of_every_mode_become_colour(mode, kind, options):
    buffer = io.BytesIO()
    Image.new("RGB", (4, 4), (255, 0, 51)).convert(mode).save(buffer, kind, **options)
    found = decode_image(buffer.getvalue(), where="x")
    assert found.shape == (4, 4, 3)
    assert np.abs(found.astype(int) - (255, 0, 51)).max() <= 2


def test_sixteen_bit_images_are_refused_instead_of_clipped(tmp_path):
    buffer = io.BytesIO()
    Image.fromarray(np.full((4, 4), 1000, dtype=np.uint16)).save(buffer, "PNG")
    with pytest.raises(DataError, match=r"a/1\.png has more than 8 bits"):
        load_dataset(str(write_folder(tmp_path, {"a/1.png": buffer.getvalue(), "b/1.png": png()})))


@pytest.mark.parametrize("as_zip", [False, True], ids=["folder", "zip"])
@pytest.mark.parametrize("damage", ["truncated", "flipped", "text", "empty"])
def test_a_corrupt_image_is_named(tmp_path, damage, as_zip):
    whole = png(9, size=(64, 64))
    data = {
        "truncated": whole[:-40],
        "flipped": whole[:50] + bytes([whole[50] ^ 255]) + whole[51:],
        "text": b"not an image",
        "empty": b"",
    }[damage]
    files = {"cat/good.png": whole, "dog/bad.png": data}
    path = write_zip(tmp_path / "d.zip", files) if as_zip else write_folder(tmp_path, files)
    with pytest.raises(DataError, match=r"dog/bad\.png is not a readable image"):
        load_dataset(str(path))


def test_a_zip_entry_with_a_wrong_checksum_is_named(tmp_path):
    path = write_zip(tmp_path / "d.zip", TWO_CLASSES)
    data = bytearray(path.read_bytes())
    data[data.index(TWO_CLASSES["dog/1.png"]) + 20] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"d\.zip: dog/1\.png is not a readable image"):
        load_dataset(str(path))


@pytest.mark.parametrize("side", [8_000, 60_000], ids=["above our limit", "above Pillow's limit"])
def test_an_image_that_decodes_to_too_many_pixels_is_refused(tmp_path, side):
    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    chunk = b"IHDR" + header
    bomb = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk))
    data = b"IDAT" + zlib.compress(b"")
    bomb += struct.pack(">I", len(data) - 4) + data + struct.pack(">I", zlib.crc32(data))
    with pytest.raises(DataError, match=r"a/bomb\.png .*pixels"):
        load_dataset(str(write_folder(tmp_path, {"a/bomb.png": bomb, "b/1.png": png()})))


def test_a_missing_path_is_named():
    with pytest.raises(DataError, match="there is no data at nowhere/data"):
        load_dataset("nowhere/data#search")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 truncated", b"hello" * 99])
def test_a_file_that_is_not_a_zip_is_named(tmp_path, content):
    (tmp_path / "data.zip").write_bytes(content)
    with pytest.raises(DataError, match=r"data\.zip is not a readable zip file"):
        load_dataset(str(tmp_path / "data.zip"))


def test_a_zip_cut_short_is_refused(tmp_path):
    path = write_zip(tmp_path / "data.zip", TWO_CLASSES)
    path.write_bytes(path.read_bytes()[:-60])
    with pytest.raises(DataError, match=r"data\.zip"):
        load_dataset(str(path))


@pytest.mark.parametrize("files", [{}, {"cat/readme.txt": b"x"}, {"lonely.png": png()}])
def test_a_set_without_images_in_class_folders_is_refused(tmp_path, files):
    with pytest.raises(DataError, match=r"holds no images in class folders|have no labels") as caught:
        load_dataset(str(write_zip(tmp_path / "data.zip", files)))
    assert caught.value.hint


def test_a_set_of_one_class_is_refused(tmp_path):
    with pytest.raises(DataError, match="only one class, cat"):
        load_dataset(str(write_folder(tmp_path, {"cat/1.png": png(), "cat/2.png": png()})))


def test_names_with_backslashes_in_a_zip_are_paths(tmp_path):
    files = {f"train\\{name}".replace("/", "\\"): data for name, data in TWO_CLASSES.items()}
    archive = write_zip(tmp_path / "windows.zip", files)
    found = load_dataset(str(archive))
    assert set(found.names) == set(TWO_CLASSES)
    assert len(found.class_names) == 2


def test_linked_class_folders_are_followed_but_not_in_circles(tmp_path):
    elsewhere = write_folder(tmp_path / "elsewhere", {"1.png": png(5), "2.png": png(6)})
    root = write_folder(tmp_path / "data", {"a/1.png": png(7)})
    (root / "b").symlink_to(elsewhere, target_is_directory=True)
    (elsewhere / "round").symlink_to(root / "b", target_is_directory=True)
    assert set(load_dataset(str(root)).names) == {"a/1.png", "b/1.png", "b/2.png"}


def test_numbers_as_class_names_are_ordered_by_value(tmp_path):
    root = write_folder(tmp_path, {f"{number}/1.png": png(number) for number in (0, 2, 10, 11)})
    assert load_dataset(str(root)).class_names == ("0", "2", "10", "11")


def test_files_of_formats_that_are_not_read_are_counted(tmp_path):
    root = write_folder(tmp_path, {**TWO_CLASSES, "a/1.heic": b"x", "a/2.dng": b"x", "a/.hidden.heic": b"x"})
    [note] = load_dataset(str(root)).report.notes
    assert note == "2 files of formats that are not read (.dng, .heic) were left out"


def test_one_corrupt_image_of_many_is_left_out_and_named(tmp_path):
    files = {f"{kind}/{number}.png": png(number) for kind in "ab" for number in range(10)}
    root = write_folder(tmp_path, files | {"a/3.png": png(3)[:40]})
    found = load_dataset(str(root))
    assert len(found) == len(found.labels) == 19
    assert "a/3.png" not in found.names
    assert found.report.notes[0].startswith("1 of 20 images are corrupt and were left out:")
    write_folder(tmp_path, {"a/4.png": b"x", "b/4.png": b"x"})
    with pytest.raises(DataError, match=r"3 of the 20 images .* are corrupt, more than 10%"):
        load_dataset(str(root))


@pytest.mark.parametrize(
    "files", [("1.png", "2.png"), ("photos/1.png",), ("DCIM/100APPLE/1.png", "DCIM/101APPLE/2.png")]
)
def test_unlabelled_images_lie_anywhere(tmp_path, files):
    root = write_folder(tmp_path / "root", {name: png(number) for number, name in enumerate(files)})
    found = load_dataset(str(root), labelled=False)
    assert set(found.names) == set(files)
    assert found.class_names == ()
    assert not found.labels.any()
    one = load_dataset(str(root / files[0]), labelled=False)
    assert len(one) == 1
