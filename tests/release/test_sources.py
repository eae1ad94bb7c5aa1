"""The version in one place, and the changelog's section about it."""

from __future__ import annotations

from pathlib import Path

import pytest

import device_sdk
from release.sources import SourcesError, changes, other_versions, version_of

ROOT = Path(__file__).parents[2]
CHANGELOG = "# Changelog\n\n## [Unreleased]\n\n- new\n\n## [1.1.0] - 2026-01-31\n\n- a door\n\n## [1.0.0]\n\n- first\n"


def test_the_version_is_read_without_importing() -> None:
    assert version_of(ROOT) == device_sdk.__version__


def test_kotlins_builds_have_the_same_version() -> None:
    found = other_versions(ROOT)
    assert {"android_demo/pom.xml", "android_demo/core/pom.xml", "android_demo/app/build.gradle.kts"} <= set(found)
    assert set(found.values()) == {device_sdk.__version__}


def test_the_section_of_a_version_ends_at_the_next() -> None:
    assert changes(CHANGELOG, "1.1.0") == "- a door"


@pytest.mark.parametrize(("version", "said"), [("2.0.0", "has no section"), ("1.0.0", "has no date")])
def test_a_version_without_a_dated_section_is_not_released(version: str, said: str) -> None:
    with pytest.raises(SourcesError, match=said):
        changes(CHANGELOG, version)


def test_a_changelog_without_sections_releases_nothing() -> None:
    with pytest.raises(SourcesError, match="has no section"):
        changes("# Changelog\n", "1.0.0")
