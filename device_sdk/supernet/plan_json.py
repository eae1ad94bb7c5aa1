"""Plans as JSON: the bytes that Python and Kotlin both write, and that no older kind is mistaken for."""

from __future__ import annotations

import msgspec

from device_sdk.errors import UsageError
from device_sdk.files.untrusted_json import decode_json
from device_sdk.supernet.plan import PLAN_FORMAT, Plan

_NEWER = "it was written by another version of Pathweave: adapt again, or take the SDK that wrote it"


def encode_plan(plan: Plan) -> bytes:
    """``plan`` as JSON in UTF-8, every field written out."""
    return msgspec.json.encode(plan)


def decode_plan(data: bytes) -> Plan:
    """The plan that ``data`` holds. Whether a bundle has such a plan, ``Supernet.check_plan`` says.

    Raises:
        UsageError: not JSON, not a plan, of another format, or of an unknown kind.
    """
    try:
        found = decode_json(data, dict[str, object])
        if found.get("format") != PLAN_FORMAT:
            said = f"format {found['format']}" if "format" in found else "the first format"
            raise UsageError(f"this is a plan of {said}, not of format {PLAN_FORMAT}", hint=_NEWER)
        return decode_json(data, Plan)
    except ValueError as error:
        raise UsageError(f"this is no plan: {error}", hint=_NEWER) from error
