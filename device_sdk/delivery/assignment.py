"""The version of a bundle that is this device's: the request to a server that rolls releases out, and its answer.

The answer is not signed: it only chooses among versions that are signed themselves.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated

import msgspec

from device_sdk.errors import ProtocolError, UsageError
from device_sdk.files.atomic import decode_json

ASSIGNMENT, VERSIONS = "assignment", "versions"  # addresses below the bundle's
ASSIGNMENT_MAX_BYTES = 4096
DEVICE_HEADER, TAGS_HEADER = "Pathweave-Device", "Pathweave-Tags"
TAGS_MAX = 16

_WORD = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_HINT = f"at most {TAGS_MAX} tags NAME=VALUE, of 1 to 64 letters, digits, dots, dashes and underscores each"
_Number = Annotated[int, msgspec.Meta(ge=0, le=2**53 - 1)]


class Assignment(msgspec.Struct, frozen=True):
    """The version that a device installs. ``rollout``, ``stage``: that decided so; ``rollback``: may be a lower one."""

    version: Annotated[int, msgspec.Meta(ge=1, le=2**53 - 1)]
    rollout: _Number | None = None
    stage: _Number | None = None
    rollback: bool = False


def encode_tags(tags: Mapping[str, str]) -> str:
    """The value of the header, in the order of names: ``board=orin,region=eu``.

    Raises:
        UsageError: too many tags, or one that is not plain.
    """
    if len(tags) > TAGS_MAX or not all(_WORD.fullmatch(part) for pair in tags.items() for part in pair):
        raise UsageError("these tags cannot be sent", hint=_HINT)
    return ",".join(f"{name}={tags[name]}" for name in sorted(tags))


def decode_tags(text: str) -> dict[str, str]:
    """The tags in a header's value, which is not trusted.

    Raises:
        UsageError: too many tags, one that is not plain, or a name twice.
    """
    pairs = [one.partition("=")[::2] for one in text.split(",")] if text else []
    tags = {name: value for name, value in pairs}
    if len(tags) != len(pairs):
        raise UsageError("a tag is given twice", hint=_HINT)
    encode_tags(tags)
    return tags


def asking_headers(device: str, tags: Mapping[str, str] | None) -> dict[str, str]:
    """Headers that say who asks; without tags the server goes by those of before (UsageError: see ``encode_tags``)."""
    return {DEVICE_HEADER: device, **({} if tags is None else {TAGS_HEADER: encode_tags(tags)})}


def decode_assignment(data: bytes) -> Assignment:
    """A server's answer (ProtocolError if it is none)."""
    try:
        return decode_json(data, Assignment)
    except ValueError as error:
        raise ProtocolError(f"the server's answer, which version is this device's, is invalid: {error}") from error
