"""Ed25519 keys and signatures, of manifest.json over its exact bytes.

Keys are PEM files (PKCS #8 and SubjectPublicKeyInfo), as openssl writes and reads them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from device_sdk.errors import SignatureError

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
    return _load_public(_read(public_key), str(public_key)).public_bytes_raw().hex()


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
