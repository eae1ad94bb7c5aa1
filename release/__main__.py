"""``python -m release``: everything of a release but its upload.

1. Read the version, and the changelog's section about it.
2. Look at the checkout: nothing uncommitted, the same version everywhere, no tag of that name.
3. Run what CI runs (with --tag, or if asked).
4. Build sdist and wheel from the commit alone, and check what is in them.
5. Write bills of materials, for the base and each extra.
6. Write SHA256SUMS.
7. With --tag: tag the commit, with the changelog's section as the message.

A dry run, the default, tells what would stop a release and goes on.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import click

from device_sdk.files.atomic import write_atomically
from release.bill_of_materials import extras_of, gather, written
from release.building import BuildError, address, build, check, described, export
from release.sources import SourcesError, changes, other_versions, version_of

ROOT = Path(__file__).parents[1]
CHECKS = (".ci/run",)
SUMS = "SHA256SUMS"


@dataclass
class _Stops:
    """Collects what would stop a release; raises at once unless the run is dry."""

    dry: bool
    count: int = 0

    def __call__(self, message: str) -> None:
        if not self.dry:
            raise click.ClickException(message)
        self.count += 1
        click.echo(f"would stop: {message}")


@click.command()
@click.option("--dry-run/--tag", "dry", default=True, help="Tell what would stop a release, or tag it [dry run].")
@click.option("--checks/--no-checks", "checks", default=None, help=f"Run {CHECKS[0]} first [only with --tag].")
@click.option("--url", help="Address of the sources, for links and metadata, such as https://example.org/pathweave.")
@click.option("--out", type=click.Path(path_type=Path), default=ROOT / "dist", help="Folder to write to; empty [dist].")
def release(dry: bool, checks: bool | None, url: str | None, out: Path) -> None:
    """Build a release of this checkout and write what belongs to it. Nothing is uploaded."""
    stop = _Stops(dry)
    version = version_of(ROOT)
    tag = f"v{version}"
    section = _section(version, stop)
    commit, timestamp = _checked_out(version, tag, stop)
    if checks if checks is not None else not dry:
        _run_checks(stop)
    if url is None:
        stop("no address of the sources: give --url")
    try:
        files = _built(commit, timestamp, url=url, tag=tag, version=version, out=out)
    except BuildError as error:
        raise click.ClickException(str(error)) from error
    write_atomically(out / SUMS, "".join(f"{_digest(file)}  {file.name}\n" for file in files).encode())
    for file in (*files, out / SUMS):
        click.echo(f"{file}  {file.stat().st_size / 1e3:,.0f} kB")
    if not dry:
        _git("tag", "--annotate", tag, commit, "--cleanup=verbatim", "--message", f"Pathweave {version}\n\n{section}")
        click.echo(f"tagged {tag}; docs/releasing.md says how to sign and upload")
    else:
        click.echo(f"dry run: {stop.count} reasons against a release; {tag} was not made")


def _section(version: str, stop: _Stops) -> str:
    try:
        return changes((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), version)
    except SourcesError as error:
        stop(str(error))
        return ""


def _checked_out(version: str, tag: str, stop: _Stops) -> tuple[str, int]:
    """The commit and its time, after a look at the checkout."""
    if _git("status", "--porcelain"):
        stop("there are uncommitted files")
    if _git("tag", "--list", tag):
        stop(f"{tag} is there already: raise __version__ in device_sdk/__init__.py")
    for place, other in other_versions(ROOT).items():
        if other != version:
            stop(f"{place} has version {other}, device_sdk {version}")
    return _git("rev-parse", "HEAD"), int(_git("log", "-1", "--format=%ct"))


def _run_checks(stop: _Stops) -> None:
    for command in CHECKS:
        if subprocess.run([command], cwd=ROOT).returncode:
            stop(f"{command} fails")


def _built(commit: str, timestamp: int, *, url: str | None, tag: str, version: str, out: Path) -> list[Path]:
    """Sdist, wheel and bills of materials, in ``out``."""
    if out.exists() and any(out.iterdir()):
        raise click.ClickException(f"{out} is not empty")
    with tempfile.TemporaryDirectory() as folder:
        sources = Path(folder) / "sources"
        export(ROOT, commit, sources)
        address(sources, url=url, tag=tag)
        sdist, wheel = build(sources, out.absolute(), timestamp=timestamp)
    check(sdist, wheel, version=version)
    return [sdist, wheel, *_bills(wheel, out, timestamp=timestamp)]


def _bills(wheel: Path, out: Path, *, timestamp: int) -> list[Path]:
    stated, files = described(wheel), []
    for extra in (None, *extras_of(stated)):
        materials = gather(stated, extra)
        file = out / f"pathweave-{stated['Version']}{f'-{extra}' if extra else ''}.cdx.json"
        write_atomically(file, written(stated, extra, materials, timestamp=timestamp).encode())
        if materials.missing:
            click.echo(f"note: {file.name} is incomplete, not installed here: {', '.join(sorted(materials.missing))}")
        files.append(file)
    return files


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise click.ClickException(f"git {arguments[0]}: {done.stderr.strip()}")
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(release())
