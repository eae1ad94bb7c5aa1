"""Bills of materials: what is needed here, with licences, in the form of CycloneDX."""

from __future__ import annotations

import email
import json
from email.message import Message
from importlib import metadata

import pytest

pytest.importorskip("cyclonedx", reason="needs the extra: pip install 'pathweave[dev]'")

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from release.bill_of_materials import extras_of, gather, written

RELEASED = 1_790_000_000  # seconds since 1970


def distribution(*required: str) -> Message:
    lines = "".join(f"Requires-Dist: {one}\n" for one in required)
    return email.message_from_string(
        f"Metadata-Version: 2.4\nName: pathweave\nVersion: 1.0.0\nLicense-Expression: Apache-2.0\n"
        f"Provides-Extra: colour\nProvides-Extra: all\n{lines}\n"
    )


@pytest.fixture
def described() -> Message:
    return distribution(
        "click>=8",
        'rich>=14; extra == "colour"',
        'pathweave[colour]; extra == "all"',
        'no-such-package>=1; sys_platform == "no-such-system"',
    )


def test_an_extra_brings_what_it_needs_and_what_the_base_needs(described: Message) -> None:
    assert extras_of(described) == ["colour", "all"]
    assert set(gather(described, None).found) == {"click"}
    coloured = gather(described, "colour")
    assert {"click", "rich", "pygments"} <= set(coloured.found)
    assert "pygments" in coloured.needs["rich"]
    assert set(gather(described, "all").found) == set(coloured.found)


def test_a_bill_is_valid_names_versions_and_licences_and_is_reproducible(described: Message) -> None:
    materials = gather(described, "colour")
    text = written(described, "colour", materials, timestamp=RELEASED)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    assert text == written(described, "colour", gather(described, "colour"), timestamp=RELEASED)
    bill = json.loads(text)
    assert bill["metadata"]["component"]["name"] == "pathweave[colour]"
    [click] = [one for one in bill["components"] if one["name"] == "click"]
    assert click["purl"] == f"pkg:pypi/click@{metadata.version('click')}"
    assert click["licenses"]
    [rich] = [one for one in bill["dependencies"] if one["ref"] == "rich"]
    assert "pygments" in rich["dependsOn"]


def test_what_is_not_installed_is_named_and_has_no_version() -> None:
    described = distribution("no-such-package>=1")
    bill = json.loads(written(described, None, gather(described, None), timestamp=RELEASED))
    [component] = bill["components"]
    assert (component["name"], component.get("version")) == ("no-such-package", None)
    assert bill["properties"] == [{"name": "pathweave:not-installed", "value": "no-such-package"}]
