"""Bills of materials (CycloneDX 1.6, JSON): what the distribution brings, alone and with each of its extras.

Versions are those installed here, with which the release was tested. What is not installed is named without a version,
and the bill then says that it is incomplete.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.message import Message
from importlib import metadata

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import Property
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import License
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

_NAMESPACE = uuid.UUID("6f6c2a54-6f0f-5d2e-9b7e-0d2a3c1f9e10")  # of serial numbers, which depend on content alone
_MISSING = "pathweave:not-installed"
_LONGEST_LICENCE = 120  # characters; longer fields hold the licence's text


@dataclass
class Materials:
    """Distributions that were found, by canonical name, those that each needs, and names that are not installed."""

    found: dict[str, metadata.Distribution] = field(default_factory=dict)
    needs: dict[str, set[str]] = field(default_factory=dict)
    missing: set[str] = field(default_factory=set)


def extras_of(described: Message) -> list[str]:
    """The extras that a distribution's metadata offer."""
    return list(described.get_all("Provides-Extra") or [])


def gather(described: Message, extra: str | None) -> Materials:
    """All that the distribution needs on this platform, directly or not, with ``extra`` or alone."""
    own = str(canonicalize_name(described["Name"]))
    materials, seen = Materials(), set[tuple[str, str]]()
    waiting = [(own, extra or "")]
    while waiting:  # ends: each pair of a name and an extra once
        name, chosen = waiting.pop()
        if (name, chosen) in seen:
            continue
        seen.add((name, chosen))
        required = described.get_all("Requires-Dist") if name == own else _requires(name, materials)
        for requirement in _wanted(required or (), chosen):
            needed = str(canonicalize_name(requirement.name))
            materials.needs.setdefault(name, set()).add(needed)
            waiting += [(needed, one) for one in ("", *requirement.extras)]
    return materials


def _requires(name: str, materials: Materials) -> Sequence[str]:
    try:
        found = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        materials.missing.add(name)
        return ()
    materials.found[name] = found
    return found.requires or ()


def _wanted(required: Iterable[str], extra: str) -> Iterator[Requirement]:
    """Requirements whose markers hold here with ``extra``; without one, those of the base."""
    for text in required:
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            yield requirement


def written(described: Message, extra: str | None, materials: Materials, *, timestamp: int) -> str:
    """The bill as JSON text, the same for the same content; ``timestamp``: seconds since 1970, of the release."""
    licences = LicenseFactory()
    name = f"{described['Name']}[{extra}]" if extra else described["Name"]
    own = Component(
        name=name,
        version=described["Version"],
        type=ComponentType.LIBRARY,
        bom_ref=name,
        licenses=_licences(described, licences),
        purl=PackageURL("pypi", None, described["Name"], described["Version"]),
    )
    bom = Bom(metadata=BomMetaData(component=own, timestamp=datetime.fromtimestamp(timestamp, UTC)))
    components = {one: _component(one, materials, licences) for one in {*materials.found, *materials.missing}}
    components[str(canonicalize_name(described["Name"]))] = own
    for one, component in components.items():
        if component is not own:
            bom.components.add(component)
        needed = materials.needs.get(one, set())
        bom.register_dependency(
            component, [components[other] for other in sorted(needed) if components[other] is not own]
        )
    for missing in sorted(materials.missing):
        bom.properties.add(Property(name=_MISSING, value=missing))
    content = ",".join(sorted(str(component.purl) for component in components.values()))
    bom.serial_number = uuid.uuid5(_NAMESPACE, f"{name} {described['Version']} {content}")
    return JsonV1Dot6(bom).output_as_string(indent=2) + "\n"


def _component(name: str, materials: Materials, licences: LicenseFactory) -> Component:
    found = materials.found.get(name)
    return Component(
        name=name,
        version=found.version if found else None,
        type=ComponentType.LIBRARY,
        bom_ref=name,
        licenses=_licences(found.metadata, licences) if found else (),
        purl=PackageURL("pypi", None, name, found.version if found else None),
    )


def _licences(described: metadata.PackageMetadata | Message, licences: LicenseFactory) -> list[License]:
    """The licence that a distribution states: its expression, its field, or its classifiers."""
    fields = [text for name in ("License-Expression", "License") for text in described.get_all(name) or []]
    stated = next(iter(fields), "")
    if stated and "\n" not in stated and len(stated) <= _LONGEST_LICENCE:
        return [licences.make_from_string(stated)]
    classified = [text for text in described.get_all("Classifier") or [] if text.startswith("License ::")]
    return [licences.make_from_string(re.sub(r".*:: ", "", text)) for text in classified]
