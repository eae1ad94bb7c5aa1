"""Ed25519 signatures over the exact bytes of manifest.json.

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
    """Raise SignatureError unless ``signature`` is valid for ``data`` and ``public_key``."""
    from cryptography.exceptions import InvalidSignature

    try:
        _load_public(public_key).verify(signature, data)
    except InvalidSignature as error:
        raise SignatureError(
            f"the bundle's signature is not by {public_key.name}",
            hint="the bundle was altered or signed with another key; do not use it",
        ) from error


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


def _load_public(path: Path) -> Ed25519PublicKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(_read(path))
    except (ValueError, TypeError) as error:
        raise SignatureError(f"{path} is not a public key in PEM form", hint=_NEW_KEY) from error
    if not isinstance(key, Ed25519PublicKey):
        raise SignatureError(f"{path} is not an Ed25519 key", hint=_NEW_KEY)
    return key


_NEW_KEY = "make a pair with: pathweave key new NAME"


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise SignatureError(f"cannot read the key {path}: {error.strerror}", hint=_NEW_KEY) from error
