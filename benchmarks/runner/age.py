"""The age of bench results: commits since, to the code that each of them measures."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.runner.run import PACKAGE, BenchResult, git_output, package_folder
from device_sdk.errors import DataError

MEASURES = "measures.toml"
_DIRTY = "-dirty"


@dataclass(frozen=True)
class Age:
    """``changes``: commits to the measured code since a result; None where its commit is not in the history."""

    changes: int | None

    @property
    def is_old(self) -> bool:
        """The code may have changed since."""
        return self.changes != 0

    def __str__(self) -> str:
        if self.changes is None:
            return "measured at a commit that is not in the history"
        return f"older than the code it measures: {self.changes} commits since" if self.changes else "up to date"


def measured_paths(package: str = PACKAGE) -> dict[str, tuple[str, ...]]:
    """The paths that each benchmark declares in measures.toml, and its own, from the root of the checkout.

    Without such a file there are none.

    Raises:
        DataError: the file is no such table.
    """
    folder = package_folder(package)
    if not (folder / MEASURES).exists():
        return {}
    try:
        declared = tomllib.loads((folder / MEASURES).read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise DataError(f"{folder / MEASURES} does not say what is measured: {error}") from error
    return {name: (*paths, *_own(folder, name)) for name, paths in declared.items()}


def ages(results: Sequence[BenchResult], paths: Mapping[str, Sequence[str]], repository: Path) -> dict[str, Age]:
    """The age of each result, by the name of its bench. One without declared code counts as changed by any commit."""
    found = {}
    for result in results:
        commit = result.commit.removesuffix(_DIRTY)
        counted = git_output(
            repository, "rev-list", "--count", f"{commit}..HEAD", "--", *paths.get(result.bench, (".",))
        )
        found[result.bench] = Age(int(counted) if counted.isdigit() else None)
    return found


def _own(folder: Path, name: str) -> tuple[str, ...]:
    """The benchmark itself: a file, or a folder with helpers."""
    module = name.replace("-", "_")
    own = f"{module}.py" if (folder / f"{module}.py").exists() else module
    return (f"{folder.name}/{own}",)
