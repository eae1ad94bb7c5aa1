"""Sdist and wheel of a commit, built from its files alone, and checks of what is in them."""

from __future__ import annotations

import email
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from pathlib import Path

from packaging.metadata import Metadata

_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:)([^)\s]+)((?: \"[^\"]*\")?)\)")
_FOREIGN = ("tests/", "benchmarks/", "android_demo/", "jetson_demo/", "release/", "docs/", "zoo/")


class BuildError(Exception):
    """The distribution cannot be built, or holds what it should not."""


def export(repository: Path, commit: str, folder: Path) -> None:
    """The files of ``commit``, and nothing else of the checkout."""
    archive = folder.with_suffix(".tar")
    _run(["git", "archive", "--format=tar", "-o", str(archive), commit], repository)
    with tarfile.open(archive) as opened:
        opened.extractall(folder, filter="data")
    archive.unlink()


def address(folder: Path, *, url: str | None, tag: str) -> None:
    """Write the project's address into exported sources, and make the README readable away from them.

    With ``url``, links lead to the files of ``tag`` there; without, they become plain text and pictures go.
    """
    readme = folder / "README.md"
    readme.write_text(linked(readme.read_text(encoding="utf-8"), url=url, tag=tag), encoding="utf-8")
    if url is None:
        return
    project = folder / "pyproject.toml"
    urls = f'[project.urls]\nSource = "{url}"\nChangelog = "{url}/blob/{tag}/CHANGELOG.md"\n\n'
    text = project.read_text(encoding="utf-8")
    project.write_text(text.replace("[project.scripts]", urls + "[project.scripts]", 1), encoding="utf-8")


def linked(text: str, *, url: str | None, tag: str) -> str:
    """Markdown whose relative links are absolute, or plain text where there is no address."""

    def replaced(found: re.Match[str]) -> str:
        picture, shown, path, title = found.groups()
        if path.startswith("#"):
            return found[0]
        if url is None:
            return "" if picture else shown
        return f"{picture}[{shown}]({url}/{'raw' if picture else 'blob'}/{tag}/{path}{title})"

    return _LINK.sub(replaced, text)


def build(sources: Path, out: Path, *, timestamp: int) -> tuple[Path, Path]:
    """Build the sdist, and the wheel from it; ``timestamp``: of files in both, seconds since 1970.

    Raises:
        BuildError: the build failed; the message ends with what it printed.
    """
    out.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(sources)]
    _run(command, sources, {"SOURCE_DATE_EPOCH": str(timestamp)})
    [sdist], [wheel] = out.glob("*.tar.gz"), out.glob("*.whl")
    return sdist, wheel


def described(wheel: Path) -> Message:
    """The wheel's metadata."""
    return email.message_from_bytes(_metadata(wheel))


def _metadata(wheel: Path) -> bytes:
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA")))


def check(sdist: Path, wheel: Path, *, version: str) -> None:
    """Refuse distributions that an index would refuse, or that hold other files than the four packages.

    Raises:
        BuildError: says what is wrong, and in which file.
    """
    stated = described(wheel)
    try:
        Metadata.from_email(_metadata(wheel), validate=True)
    except ExceptionGroup as error:
        raise BuildError(f"the metadata of {wheel.name} are invalid: {error.exceptions[0]}") from error
    if stated["Version"] != version:
        raise BuildError(f"{wheel.name} has version {stated['Version']}, the sources {version}")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    outside = [name for name in names if not name.startswith(("pathweave/", f"pathweave-{version}.dist-info/"))]
    if outside:
        raise BuildError(f"{wheel.name} installs {outside[0]} beside pathweave")
    for needed in ("pathweave/py.typed", f"pathweave-{version}.dist-info/licenses/LICENSE"):
        if needed not in names:
            raise BuildError(f"{wheel.name} lacks {needed}")
    with tarfile.open(sdist) as archived:
        inner = [name.partition("/")[2] for name in archived.getnames()]
    foreign = [name for name in inner if name.startswith(_FOREIGN)]
    if foreign:
        raise BuildError(f"{sdist.name} holds {foreign[0]}")


def _run(command: list[str], folder: Path, variables: dict[str, str] | None = None) -> None:
    environment = {**os.environ, **(variables or {})}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise BuildError(" / ".join((done.stderr or done.stdout).strip().splitlines()[-3:]))
