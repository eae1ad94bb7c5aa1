"""The version, which stands in one place and is repeated by Kotlin's build, and the changelog's section about it."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from xml.etree import ElementTree

_POM = "{http://maven.apache.org/POM/4.0.0}"
_HEADING = re.compile(r"^## \[([^\]]+)\](?: - (\d{4}-\d{2}-\d{2}))?$", re.MULTILINE)


class SourcesError(Exception):
    """The checkout does not say what a release needs."""


def version_of(root: Path) -> str:
    """``__version__`` of device_sdk, from which all else takes it."""
    module = ast.parse((root / "device_sdk" / "__init__.py").read_text(encoding="utf-8"))
    for node in module.body:
        if isinstance(node, ast.Assign) and [getattr(one, "id", "") for one in node.targets] == ["__version__"]:
            return str(ast.literal_eval(node.value))
    raise SourcesError("device_sdk/__init__.py has no __version__")


def other_versions(root: Path) -> dict[str, str]:
    """The versions that Kotlin's build files state, by file."""
    folder = root / "android_demo"
    found = {}
    for pom in sorted([*folder.glob("pom.xml"), *folder.glob("*/pom.xml")]):  # none of what a build unpacked
        project = ElementTree.parse(pom).getroot()
        own, parent = project.find(f"{_POM}version"), project.find(f"{_POM}parent/{_POM}version")
        stated = parent if parent is not None else own
        if stated is not None and pom.parent.name != "sample":  # a program of others
            found[str(pom.relative_to(root))] = stated.text or ""
    gradle = folder / "app" / "build.gradle.kts"
    named = re.search(r'versionName = "([^"]+)"', gradle.read_text(encoding="utf-8"))
    return found | ({} if named is None else {str(gradle.relative_to(root)): named[1]})


def changes(changelog: str, version: str) -> str:
    """The section of ``version``, without its heading.

    Raises:
        SourcesError: there is none, it has no date, or it is empty.
    """
    headings = list(_HEADING.finditer(changelog))
    ends = [heading.start() for heading in headings[1:]] + [len(changelog)]
    for heading, end in zip(headings, ends, strict=False):  # without headings there is one end
        if heading[1] == version:
            section = changelog[heading.end() : end].strip()
            if not heading[2] or not section:
                raise SourcesError(
                    f"the section of {version} in CHANGELOG.md has no {'text' if heading[2] else 'date'}"
                )
            return section
    raise SourcesError(f"CHANGELOG.md has no section `## [{version}] - YEAR-MONTH-DAY`: rename [Unreleased]")
