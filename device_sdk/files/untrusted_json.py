"""Decoding JSON from untrusted bytes: damaged files, unverified bundles, network replies."""

from __future__ import annotations

from typing import TypeVar

import msgspec

Decoded = TypeVar("Decoded")


def decode_json(data: bytes, kind: type[Decoded]) -> Decoded:
    """``data`` as a ``kind``; unknown fields are ignored.

    Raises:
        ValueError: not JSON, not UTF-8, nested too deeply, or not a ``kind``; the message says which and where.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from error
