"""JSON that several keys may sign, in an envelope that both implementations verify without writing JSON again.

```
{"payload": "<JSON as text>", "signatures": [{"key": "<64 hexadecimal digits>", "signature": "<128>"}, …]}
```

A signature is Ed25519 over ``context`` and the UTF-8 bytes of the payload's text. ``context`` says what kind of payload
it is, so that a signature of one kind never counts for another, nor for a manifest.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from device_sdk.errors import SignatureError, UnsupportedFormatError
from device_sdk.files.untrusted_json import decode_json
from device_sdk.signing import signatures

SIGNATURES_MAX = 64  # of one envelope
LATEST_S = 253_402_300_799  # the last second of the year 9999

Key = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]  # the 32 bytes of an Ed25519 public key
TimeS = Annotated[int, msgspec.Meta(ge=0, le=LATEST_S)]  # seconds since 1970, UTC


FORMAT = 1  # of all payloads

Payload = TypeVar("Payload", bound=msgspec.Struct)


class _Format(msgspec.Struct):
    format: int


class Signature(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The signature of one key."""

    key: Key
    signature: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{128}\Z")]


class Envelope(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A payload and its signatures. Nothing of it is verified yet."""

    payload: str
    signatures: Annotated[tuple[Signature, ...], msgspec.Meta(max_length=SIGNATURES_MAX)] = ()

    @property
    def payload_bytes(self) -> bytes:
        """The signed bytes, without the context."""
        return self.payload.encode()

    def signed_by(self, keys: Collection[str], *, context: bytes) -> frozenset[str]:
        """The ``keys`` whose signature verifies; each counts once, however often it signed."""
        signed = context + self.payload_bytes
        return frozenset(
            one.key
            for one in self.signatures
            if one.key in keys and signatures.is_signature(bytes.fromhex(one.signature), signed, public_key=one.key)
        )

    def with_signature(self, private_key: Path, *, context: bytes) -> Envelope:
        """The same, signed by one more key; an earlier signature of that key is replaced.

        Raises:
            SignatureError: the key file cannot be used, or there are too many signatures.
        """
        key = signatures.public_half(private_key)
        signature = signatures.sign(context + self.payload_bytes, private_key=private_key)
        others = tuple(one for one in self.signatures if one.key != key)
        if len(others) >= SIGNATURES_MAX:
            raise SignatureError(f"there are {SIGNATURES_MAX} signatures already")
        return Envelope(self.payload, (*others, Signature(key, signature.hex())))


def decode_envelope(data: bytes, *, what: str, max_bytes: int) -> Envelope:
    """The envelope in untrusted bytes. ``what``: for the message.

    Raises:
        SignatureError: longer than ``max_bytes``, or not an envelope.
    """
    if len(data) > max_bytes:
        raise SignatureError(f"{what} has more than {max_bytes} bytes")
    try:
        return decode_json(data, Envelope)
    except ValueError as error:
        raise SignatureError(f"{what} is not a signed file: {error}") from error


def decode_payload(envelope: Envelope, kind: type[Payload], *, what: str) -> Payload:
    """The payload as a ``kind``. What it says is not verified by this.

    Raises:
        UnsupportedFormatError: of another ``format``.
        SignatureError: not a ``kind``.
    """
    data = envelope.payload_bytes
    try:
        found = decode_json(data, _Format).format
        if found != FORMAT:
            raise UnsupportedFormatError(f"{what} has format {found}; this Pathweave reads {FORMAT}", hint="update it")
        return decode_json(data, kind)
    except ValueError as error:
        raise SignatureError(f"{what} is not valid: {error}") from error


def encode_envelope(envelope: Envelope) -> bytes:
    """The bytes of its file."""
    return msgspec.json.format(msgspec.json.encode(envelope), indent=1) + b"\n"
