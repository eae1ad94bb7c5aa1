"""Builds the wheel: its folders are installed under ``pathweave``, so that no other top-level name is taken (ADR 69).

The checkout keeps its folders and their import names; an editable installation uses them as they are. Everything else
about the distribution stands in pyproject.toml.
"""

from __future__ import annotations

import ast
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.egg_info import egg_info

FACE, FOLDERS = "pathweave", ("device_sdk", "packager", "server")
_DOTTED = re.compile(r"(device_sdk|packager|server)((?:\.\w+)+)(:\w+)?")


def renamed(source: str, modules: Path) -> str:
    """``source`` with all imports of the folders, and all strings that name one of their modules, below the face.

    ``modules``: the folder that has the folders, by which strings are told from file names such as server.log.
    """
    lines = source.splitlines(keepends=True)
    for row, column in sorted(_names(ast.parse(source), lines, modules), reverse=True):
        line = lines[row].encode()
        lines[row] = (line[:column] + f"{FACE}.".encode() + line[column:]).decode()
    return "".join(lines)


def _names(tree: ast.Module, lines: list[str], modules: Path) -> Iterator[tuple[int, int]]:
    """Line and byte at which each name of a module begins."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in FOLDERS:
            yield node.lineno - 1, node.col_offset + len("from ")
        elif isinstance(node, ast.Import) and any(one.name.split(".")[0] in FOLDERS for one in node.names):
            raise SyntaxError(
                f"line {node.lineno}: write `from … import …`; `import {node.names[0].name}` is not renamed"
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found = _DOTTED.fullmatch(node.value)
            if found and _is_module(modules / found[1] / found[2][1:].replace(".", "/")):
                yield node.lineno - 1, node.col_offset + 1


def _is_module(path: Path) -> bool:
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


class Build(build_py):
    """Moves the folders of the built library below the face."""

    def run(self) -> None:
        if self.editable_mode:
            super().run()
            return
        built = Path(self.build_lib)
        shutil.rmtree(built, ignore_errors=True)  # of an earlier build
        super().run()
        for path in [*built.rglob("*.py")]:
            path.write_text(renamed(path.read_text(encoding="utf-8"), built), encoding="utf-8")
        for folder in FOLDERS:
            shutil.move(built / folder, built / FACE / folder)


class Metadata(egg_info):
    """Names the face as the only top-level package."""

    def run(self) -> None:
        super().run()
        (Path(self.egg_info) / "top_level.txt").write_text(FACE + "\n", encoding="utf-8")


if __name__ == "__main__":
    setup(cmdclass={"build_py": Build, "egg_info": Metadata})
