from __future__ import annotations

import pytest

from packager.errors import PackagingError
from packager.output.ownership import is_work, require_bundle, require_work
from tests.packager.output.small_bundle import write


@pytest.fixture
def bundle(tmp_path):
    write(tmp_path / "out")
    return tmp_path / "out"


def test_a_bundle_may_be_replaced_even_if_a_file_of_it_is_damaged(bundle):
    require_bundle(bundle)
    for blob in (bundle / "blobs").iterdir():
        blob.write_bytes(b"damaged")
    (bundle / "manifest.sig").write_bytes(b"x")
    (bundle / ".DS_Store").write_bytes(b"x")
    require_bundle(bundle)
    (bundle / "packaging.json").write_text('{"pathweave": "0"}')
    (bundle / "manifest.json").write_text("{cut sho")
    require_bundle(bundle)


@pytest.mark.parametrize("name", ["notes.txt", ".env", "blobs/photo.jpg", "keys", "manifest.json.bak"])
def test_a_bundle_with_other_files_is_named_by_them(bundle, name):
    (bundle / name).write_text("mine")
    with pytest.raises(PackagingError, match=f"no part of a bundle: {name}"):
        require_bundle(bundle)


@pytest.mark.parametrize("manifest", ['{"name": "My app", "start_url": "/"}', "[]", "{", ""])
def test_a_manifest_of_another_kind_is_no_bundle(tmp_path, manifest):
    (tmp_path / "manifest.json").write_text(manifest)
    with pytest.raises(PackagingError, match="is not a bundle"):
        require_bundle(tmp_path)


def test_blobs_behind_a_link_are_no_part_of_a_bundle(bundle, tmp_path):
    (bundle / "blobs").rename(tmp_path / "elsewhere")
    (bundle / "blobs").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PackagingError, match="no part of a bundle: blobs"):
        require_bundle(bundle)


@pytest.mark.parametrize("content", [b"{}", b"[1]", b"broken", b'{"run": 3}'])
def test_work_needs_the_description_of_a_run(tmp_path, content):
    (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(PackagingError, match="not the unfinished work"):
        require_work(tmp_path)


@pytest.mark.parametrize("key", ["pathweave", "base pathweave"])
def test_a_description_of_a_run_makes_a_work_folder(tmp_path, key):
    (tmp_path / "run.json").write_text(f'{{"{key}": "0.1"}}')
    require_work(tmp_path)


def test_work_killed_before_its_description_was_written_is_work(tmp_path):
    (tmp_path / ".run.json.12.abc.tmp").write_text("{")
    assert is_work(tmp_path)
    (tmp_path / "other").touch()
    assert not is_work(tmp_path)


def test_a_link_is_no_work_folder(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "run.json").write_text('{"pathweave": "0"}')
    (tmp_path / "out.work").symlink_to(tmp_path / "real")
    assert not is_work(tmp_path / "out.work")
