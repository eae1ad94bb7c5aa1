"""Sdist and wheel: links of the README away from a checkout, and what an archive may hold."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from release.building import BuildError, address, check, described, linked

README = 'See [guide](docs/a.md#x), ![picture](docs/p.svg), [top](#top), [0.98](r.json "ratio"), [web](https://e.org).'
METADATA = "Metadata-Version: 2.4\nName: pathweave\nVersion: 1.0.0\nRequires-Dist: numpy<3,>=2\n\n# Pathweave\n"
GOOD = ("pathweave/__init__.py", "pathweave/py.typed", "pathweave-1.0.0.dist-info/licenses/LICENSE")


def distributions(
    folder: Path, *, names: tuple[str, ...] = GOOD, metadata: str = METADATA, sources: tuple[str, ...] = ("setup.py",)
) -> tuple[Path, Path]:
    wheel, sdist = folder / "pathweave-1.0.0-py3-none-any.whl", folder / "pathweave-1.0.0.tar.gz"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("pathweave-1.0.0.dist-info/METADATA", metadata)
        for name in names:
            archive.writestr(name, "")
    with tarfile.open(sdist, "w:gz") as archived:
        for name in sources:
            archived.addfile(tarfile.TarInfo(f"pathweave-1.0.0/{name}"), io.BytesIO())
    return sdist, wheel


def test_links_lead_to_the_files_of_the_tag() -> None:
    found = linked(README, url="https://example.org/p", tag="v1")
    assert "[guide](https://example.org/p/blob/v1/docs/a.md#x)" in found
    assert "![picture](https://example.org/p/raw/v1/docs/p.svg)" in found
    assert '[0.98](https://example.org/p/blob/v1/r.json "ratio")' in found
    assert "[top](#top)" in found
    assert "[web](https://e.org)" in found


def test_without_an_address_links_are_text_and_pictures_go() -> None:
    assert linked(README, url=None, tag="v1") == "See guide, , [top](#top), 0.98, [web](https://e.org)."


def test_the_address_gets_into_the_metadata(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(README)
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\n\n[project.scripts]\nx = "x:main"\n')
    address(tmp_path, url="https://example.org/p", tag="v1")
    assert 'Source = "https://example.org/p"' in (tmp_path / "pyproject.toml").read_text()
    assert "https://example.org/p/blob/v1/docs/a.md" in (tmp_path / "README.md").read_text()


def test_good_distributions_pass(tmp_path: Path) -> None:
    sdist, wheel = distributions(tmp_path)
    check(sdist, wheel, version="1.0.0")
    assert described(wheel)["Name"] == "pathweave"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"names": (*GOOD, "tests/test_x.py")}, "installs tests/test_x.py beside pathweave"),
        ({"names": GOOD[:1]}, "lacks pathweave/py.typed"),
        ({"sources": ("setup.py", "benchmarks/run.py")}, "holds benchmarks/run.py"),
        ({"metadata": METADATA.replace("numpy<3", "numpy<<3")}, "are invalid"),
        ({"metadata": METADATA.replace("1.0.0", "1.0.1")}, "has version 1.0.1"),
    ],
)
def test_other_files_or_metadata_are_refused(tmp_path: Path, changes: dict[str, object], said: str) -> None:
    sdist, wheel = distributions(tmp_path, **changes)  # type: ignore[arg-type]
    with pytest.raises(BuildError, match=said):
        check(sdist, wheel, version="1.0.0")
