"""Ed25519 signatures over exact bytes, and JSON that carries them."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import msgspec

from device_sdk.errors import SignatureError, UnsupportedFormatError
from device_sdk.files.atomic import decode_json
from device_sdk.signing import signatures

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

SIGNATURE_BYTES = 64


def new_key_pair() -> tuple[bytes, bytes]:
    """Generate a key pair: (private PEM, public PEM)."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return private, public


def sign(data: bytes, *, private_key: Path) -> bytes:
    """The 64-byte signature of ``data``.

    Raises:
        SignatureError: the key file is missing or is not an Ed25519 private key.
    """
    return _load_private(private_key).sign(data)


def verify(data: bytes, signature: bytes, *, public_key: Path) -> None:
    """Raise SignatureError unless ``signature`` is valid for ``data`` and the key in the file ``public_key``."""
    verify_pem(data, signature, pem=_read(public_key), name=public_key.name)


def verify_pem(data: bytes, signature: bytes, *, pem: bytes, name: str) -> None:
    """Raise SignatureError unless ``signature`` is valid for ``data`` and the key ``pem``. ``name``: for messages."""
    from cryptography.exceptions import InvalidSignature

    try:
        _load_public(pem, name).verify(signature, data)
    except InvalidSignature as error:
        raise SignatureError(
            f"the bundle's signature is not by {name}",
            hint="the bundle was altered or signed with another key; do not use it",
        ) from error


def check_public(pem: bytes, *, name: str) -> None:
    """Raise SignatureError unless ``pem`` is a public Ed25519 key."""
    _load_public(pem, name)


def is_signature(signature: bytes, data: bytes, *, public_key: str) -> bool:
    """True if ``signature`` is valid for ``data`` and the key with these 64 hexadecimal digits."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(public_key)).verify(signature, data)
    except (InvalidSignature, ValueError):
        return False
    return True


def key_digits(public_key: Path) -> str:
    """The 32 bytes of the key in a public PEM file, as hexadecimal digits. Raises SignatureError: it is none."""
    return pem_digits(_read(public_key), name=str(public_key))


def pem_digits(pem: bytes, *, name: str) -> str:
    """The same of the bytes of that file. Raises SignatureError: it is none."""
    return _load_public(pem, name).public_bytes_raw().hex()


def public_half(private_key: Path) -> str:
    """The same for the public half of a private PEM file."""
    return _load_private(private_key).public_key().public_bytes_raw().hex()


def _load_private(path: Path) -> Ed25519PrivateKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(_read(path), password=None)
    except (ValueError, TypeError) as error:
        raise SignatureError(f"{path} is not a private key in PEM form", hint=_NEW_KEY) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise SignatureError(f"{path} is not an Ed25519 key", hint=_NEW_KEY)
    return key


def _load_public(pem: bytes, name: str) -> Ed25519PublicKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(pem)
    except (ValueError, TypeError) as error:
        raise SignatureError(f"{name} is not a public key in PEM form", hint=_NEW_KEY) from error
    if not isinstance(key, Ed25519PublicKey):
        raise SignatureError(f"{name} is not an Ed25519 key", hint=_NEW_KEY)
    return key


_NEW_KEY = "make a pair with: pathweave sign key new NAME"


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise SignatureError(f"cannot read the key {path}: {error.strerror}", hint=_NEW_KEY) from error


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
