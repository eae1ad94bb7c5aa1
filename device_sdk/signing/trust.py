"""Trust in signatures: in one public key, or in a pinned key list from which releases are verified."""

from __future__ import annotations

import enum
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from device_sdk.errors import SignatureError
from device_sdk.signing import signatures
from device_sdk.signing.release import (
    KEYS_MAX_BYTES,
    RELEASE,
    KeyList,
    Release,
    list_digest,
    next_list,
    pinned_list,
    require_same_manifest,
    verify_release,
)

_log = logging.getLogger(__name__)


class Unstated(enum.Enum):
    """The default of ``trust`` where leaving it out and ``None`` differ."""

    UNSTATED = enum.auto()


UNSTATED = Unstated.UNSTATED


@dataclass(frozen=True)
class SignedParts:
    """Manifest, signature and release of a bundle, as exact bytes. ``source``: their place, for messages."""

    source: str
    manifest: bytes
    signature: bytes | None  # manifest.sig
    release: bytes | None  # release.json


class Trust(Protocol):
    """Decides whether a bundle is signed by a key that the caller trusts."""

    def verify(self, parts: SignedParts) -> Release | None:
        """Before the manifest is parsed. Returns the release that it was verified by, if by one.

        Raises:
            SignatureError, UnsupportedFormatError: it cannot be verified.
        """

    def signers(self) -> frozenset[str]:
        """The keys that may sign releases and rollbacks now, as 64 hexadecimal digits each."""


@dataclass(frozen=True)
class TrustedKey:
    """One public key, which must have signed manifest.json. Releases are not looked at, so nothing expires."""

    pem: bytes
    name: str

    def verify(self, parts: SignedParts) -> Release | None:
        """Verify manifest.sig."""
        if parts.signature is None:
            raise SignatureError(f"{parts.source} is not signed, but a trusted key was given")
        signatures.verify_pem(parts.manifest, parts.signature, pem=self.pem, name=self.name)
        return None

    def signers(self) -> frozenset[str]:
        """This key."""
        return frozenset((signatures.pem_digits(self.pem, name=self.name),))


@dataclass(frozen=True)
class TrustedKeys:
    """Key lists from the pinned one on, each verified by the one before. ``digest``: of the newest one."""

    lists: tuple[KeyList, ...]
    digest: str

    @property
    def newest(self) -> KeyList:
        """The last list."""
        return self.lists[-1]

    def followed_by(self, data: bytes) -> TrustedKeys:
        """With one more list. Raises SignatureError, UnsupportedFormatError: see ``next_list``."""
        return TrustedKeys((*self.lists, next_list(self.newest, data)), list_digest(data))

    def release(self, data: bytes) -> Release:
        """A release that is signed by a key of the newest list, as an installation requires.

        Raises:
            SignatureError, UnsupportedFormatError: see ``verify_release``.
        """
        return verify_release(data, self.lists[-1:])

    def verify(self, parts: SignedParts) -> Release | None:
        """Verify a bundle's folder: its release may have expired, and its key may have been revoked since.

        Without a release a release key may have signed manifest.json itself, as it was while it was a single key.
        """
        if parts.release is None:
            if self._has_signed(parts):
                return None
            raise SignatureError(
                f"{parts.source} has no {RELEASE}, but a key list was given",
                hint="who publishes the bundle makes it: pathweave sign release sign",
            )
        release = self._release(parts.release)
        require_same_manifest(release, parts.manifest)
        return release

    def signers(self) -> frozenset[str]:
        """The release keys of the newest list."""
        return frozenset(self.newest.release_keys)

    def _has_signed(self, parts: SignedParts) -> bool:
        signature = parts.signature
        return signature is not None and any(
            signatures.is_signature(signature, parts.manifest, public_key=key) for key in self.newest.release_keys
        )

    def _release(self, data: bytes) -> Release:
        try:
            return self.release(data)
        except SignatureError:
            release = verify_release(data, self.lists)
            _log.warning("the key that released %s %d was revoked since", release.name, release.version)
            return release


Trustable = str | Path | bytes | Trust | None


def load_trust(given: Trustable) -> Trust | None:
    """Trust in a public key (PEM) or a key list (JSON), each given as a file or its bytes; None for None.

    A ``Trust`` is returned as it is.

    Raises:
        SignatureError: neither, or it cannot be read. UnsupportedFormatError: a key list of another format.
    """
    if given is None or not isinstance(given, (str, Path, bytes)):
        return given
    name = "the trusted key" if isinstance(given, bytes) else Path(given).name
    data = given if isinstance(given, bytes) else _read(Path(given))
    if data.lstrip()[:1] == b"{":
        return TrustedKeys((pinned_list(data, what=name),), list_digest(data))
    signatures.check_public(data, name=str(given) if not isinstance(given, bytes) else name)
    return TrustedKey(data, name)


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(KEYS_MAX_BYTES + 1)
    except OSError as error:
        raise SignatureError(
            f"cannot read the key {path}: {error.strerror}", hint="make a pair with: pathweave sign key new NAME"
        ) from error
