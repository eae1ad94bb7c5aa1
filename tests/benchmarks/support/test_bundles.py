from __future__ import annotations

from pathlib import Path

from benchmarks.support.bundles import makers_digest


def test_a_bundle_is_made_anew_once_the_code_that_makes_fragments_changes(tmp_path: Path) -> None:
    for room in ("renditions", "doctor"):
        (tmp_path / "packager" / room).mkdir(parents=True)
        (tmp_path / "packager" / room / "int8.py").write_text("levels = 255\n")
    before = makers_digest(tmp_path)
    (tmp_path / "packager" / "doctor" / "int8.py").write_text("levels = 15\n")
    assert makers_digest(tmp_path) == before
    (tmp_path / "packager" / "renditions" / "int8.py").write_text("levels = 15\n")
    assert makers_digest(tmp_path) != before
