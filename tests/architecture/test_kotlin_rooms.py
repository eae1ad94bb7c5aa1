"""Kotlin's packages are the rooms of ``device_sdk``, and keep the order that pyproject.toml states for them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KOTLIN = ROOT / "android_demo" / "core" / "src" / "main" / "kotlin" / "pathweave" / "sdk"
BASE = ("Clock.kt", "Errors.kt", "Log.kt", "RandomSource.kt")  # of the top package what everything may use
FACE, FOUNDATION = "face", "base"  # of the top package what may use everything, and what everything may use
KOTLIN_ALONE = "numerics"  # numpy's part

_IMPORT = re.compile(r"^import pathweave\.sdk\.(?:([a-z_]+)\.)?([\w.]+)", re.M)
_TOP_LEVEL = re.compile(
    r"^(?:public |internal )?(?:(?:data|sealed|open|enum|fun|const|inline) )*"
    r"(?:class|interface|object|typealias|fun|val)\s+(?:<[^>]+>\s+)?(?:[\w.<>?]+\.)?(\w+)",
    re.M,
)


def layers() -> dict[str, int]:
    """Each room's place, 0 for the top. Those of equal place do not use each other."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    stated = next(one["layers"] for one in contracts if one["name"].startswith("the rooms of device_sdk,"))
    rooms = [re.findall(r"device_sdk\.(\w+)", layer) for layer in stated]
    rooms.insert(rooms.index(["session"]), [FACE])
    rooms[rooms.index(["errors"])] = [FOUNDATION]
    rooms.insert(rooms.index([FOUNDATION]), [KOTLIN_ALONE])
    return {room: place for place, layer in enumerate(rooms) for room in layer}


def upward(folder: Path) -> list[str]:
    """The imports in ``folder`` that point up, or to a neighbour."""
    place = layers()
    base = {name for file in BASE if (folder / file).is_file() for name in declared(folder / file)}
    found = []
    for file in sorted(folder.rglob("*.kt")):
        within = file.relative_to(folder)
        own = within.parts[0] if len(within.parts) > 1 else FOUNDATION if file.name in BASE else FACE
        for package, name in _IMPORT.findall(file.read_text()):
            used = package or (FOUNDATION if name in base else FACE)
            if used != own and place[used] <= place[own]:
                found.append(f"{within} uses {used}: {name}")
    return found


def declared(file: Path) -> set[str]:
    return set(_TOP_LEVEL.findall(file.read_text()))


def test_no_import_points_up() -> None:
    assert not upward(KOTLIN)


def test_every_package_is_a_room() -> None:
    folders = {file.relative_to(KOTLIN).parts[0] for file in KOTLIN.rglob("*.kt") if file.parent != KOTLIN}
    assert folders <= layers().keys()
    assert len(folders) > 10


@pytest.mark.parametrize(
    ("package", "name"),
    [("session", "Opening"), ("delivery", "Store"), ("search", "Race"), ("", "AdaptiveModel")],
)
def test_an_import_that_points_up_is_found(package: str, name: str, tmp_path: Path) -> None:
    (tmp_path / "offload").mkdir()
    imported = ".".join(filter(None, ["pathweave.sdk", package, name]))
    (tmp_path / "offload" / "Offender.kt").write_text(f"package pathweave.sdk.offload\n\nimport {imported}\n")
    assert upward(tmp_path) == [f"offload/Offender.kt uses {package or FACE}: {name}"]


def test_what_lies_below_may_be_used(tmp_path: Path) -> None:
    (tmp_path / "Errors.kt").write_text("package pathweave.sdk\n\npublic class InputError : Exception()\n")
    (tmp_path / "offload").mkdir()
    imports = "\n".join(
        f"import pathweave.sdk.{one}" for one in ("InputError", "files.writeAtomically", "numerics.dot")
    )
    (tmp_path / "offload" / "Fine.kt").write_text(f"package pathweave.sdk.offload\n\n{imports}\n")
    assert not upward(tmp_path)
