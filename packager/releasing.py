"""The operator's side of key lists and releases: making, signing and renewing them.

The folder of key lists has ``1.json``, ``2.json``, …, and the next one as ``<number>.draft``. A draft becomes a list
with the last signature that it needs, so a server can serve the folder as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from device_sdk.bundles.bundle import MANIFEST, Bundle
from device_sdk.bundles.releasing import DAY_S, list_numbers, read_chain, read_list, require_usable, write_release
from device_sdk.errors import BundleError, UsageError
from device_sdk.files.atomic import storage_errors, write_atomically
from device_sdk.signing import signatures
from device_sdk.signing.release import (
    KEYS_CONTEXT,
    RELEASE,
    RELEASE_MAX_BYTES,
    KeyList,
    Release,
    missing_signatures,
    open_list,
    require_same_manifest,
)
from device_sdk.signing.signatures import LATEST_S, Envelope, encode_envelope
from device_sdk.signing.trust import TrustedKeys

_DIGITS = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Draft:
    """A list that may lack signatures: ``missing`` of its own root keys, ``missing_before`` of those before it.

    ``path``: of its file, which is the finished list's if nothing is missing.
    """

    path: Path
    keys: KeyList
    missing: int
    missing_before: int

    @property
    def complete(self) -> bool:
        """True if no signature is missing, so that devices accept the list."""
        return not (self.missing or self.missing_before)


def key_of(given: str) -> str:
    """The key in a public PEM file, or the 64 hexadecimal digits themselves, as ``key list show`` prints them."""
    return given if _DIGITS.fullmatch(given) else signatures.key_digits(Path(given))


def begin(
    folder: Path,
    *,
    number: int = 1,
    root_keys: Iterable[str],
    root_threshold: int,
    release_keys: Iterable[str],
    now_s: int,
    days: float,
) -> Draft:
    """Write the draft of a first list.

    Raises:
        UsageError: the folder has lists, or the keys make no list.
        StorageError: it cannot be written.
    """
    if list_numbers(folder, "json") or list_numbers(folder, "draft"):
        raise UsageError(
            f"{folder} has key lists already", hint="pathweave sign key list next makes the one after them"
        )
    return _write_draft(folder, None, number, tuple(root_keys), root_threshold, tuple(release_keys), now_s, days)


def follow(
    folder: Path,
    *,
    add_root: Sequence[str] = (),
    remove_root: Sequence[str] = (),
    root_threshold: int | None = None,
    add_release: Sequence[str] = (),
    remove_release: Sequence[str] = (),
    now_s: int,
    days: float,
) -> Draft:
    """Write the draft of the list after the newest one, with some keys added and some removed: those are revoked.

    Raises:
        UsageError: there is a draft, a key to remove is not there, or the keys make no list.
        StorageError: it cannot be written.
    """
    if drafts := list_numbers(folder, "draft"):
        raise UsageError(f"{folder / f'{drafts[0]}.draft'} is not signed yet", hint="sign it, or delete it")
    before = read_chain(folder).newest
    return _write_draft(
        folder,
        before,
        before.number + 1,
        _changed(before.root_keys, add_root, remove_root),
        before.root_threshold if root_threshold is None else root_threshold,
        _changed(before.release_keys, add_release, remove_release),
        now_s,
        days,
    )


def sign_draft(folder: Path, private_key: Path) -> Draft:
    """Add a signature to the draft, which becomes a list with the last one that it needs.

    Raises:
        UsageError: there is no draft, or the key is a root key of neither the draft nor the list before it.
        SignatureError: the key file cannot be used, or the draft is damaged.
        StorageError: it cannot be written.
    """
    draft, envelope, before = _read_draft(folder)
    key, keys = signatures.public_half(private_key), draft.keys
    if key not in {*keys.root_keys, *(() if before is None else before.root_keys)}:
        raise UsageError(f"{private_key} is a root key of neither list {keys.number} nor the one before it")
    envelope = envelope.with_signature(private_key, context=KEYS_CONTEXT)
    write_atomically(draft.path, encode_envelope(envelope))
    signed = _draft(draft.path, envelope, keys, before)
    if not signed.complete:
        return signed
    finished = draft.path.with_suffix(".json")
    write_atomically(finished, encode_envelope(envelope))
    with storage_errors(draft.path):
        draft.path.unlink()
    return _draft(finished, envelope, keys, before)


def find_draft(folder: Path) -> Draft | None:
    """The draft, if there is one."""
    return _read_draft(folder)[0] if list_numbers(folder, "draft") else None


def _read_draft(folder: Path) -> tuple[Draft, Envelope, KeyList | None]:
    drafts = list_numbers(folder, "draft")
    if not drafts:
        raise UsageError(f"{folder} has no draft", hint="pathweave sign key list new or next makes one")
    path = folder / f"{drafts[0]}.draft"
    keys, envelope = open_list(read_list(path), what=path.name)
    before = read_chain(folder).newest if list_numbers(folder, "json") else None
    if keys.number != drafts[0] or (before is not None and keys.number != before.number + 1):
        raise UsageError(f"{path} has number {keys.number}, which is not the next one", hint="delete it")
    return _draft(path, envelope, keys, before), envelope, before


def _draft(path: Path, envelope: Envelope, keys: KeyList, before: KeyList | None) -> Draft:
    missing_before = 0 if before is None else missing_signatures(envelope, before)
    return Draft(path, keys, missing_signatures(envelope, keys), missing_before)


def _write_draft(
    folder: Path,
    before: KeyList | None,
    number: int,
    root_keys: tuple[str, ...],
    root_threshold: int,
    release_keys: tuple[str, ...],
    now_s: int,
    days: float,
) -> Draft:
    if shared := set(root_keys) & set(release_keys):
        raise UsageError(
            f"key {min(shared)[:16]}… is a root key and a release key",
            hint="keep root keys offline: make other keys for releases",
        )
    keys = KeyList(
        number=number,
        signed_at_s=now_s,
        expires_at_s=min(LATEST_S, now_s + round(days * DAY_S)),
        root_keys=root_keys,
        root_threshold=root_threshold,
        release_keys=release_keys,
    )
    envelope = Envelope(msgspec.json.encode(keys).decode())
    path = folder / f"{number}.draft"
    try:
        open_list(encode_envelope(envelope), what="this list")
    except Exception as error:
        raise UsageError(str(error)) from error
    write_atomically(path, encode_envelope(envelope))
    return _draft(path, envelope, keys, before)


def _changed(keys: tuple[str, ...], add: Sequence[str], remove: Sequence[str]) -> tuple[str, ...]:
    if absent := [key for key in remove if key not in keys]:
        raise UsageError(f"key {absent[0][:16]}… is not in the newest list")
    return tuple(dict.fromkeys((*(key for key in keys if key not in remove), *add)))


@dataclass(frozen=True)
class Renewal:
    """Outcome of renewing the release of one bundle. ``reason``: cause if it is neither renewed nor fresh."""

    folder: Path
    release: Release | None
    renewed: bool
    reason: str | None = None


def renew_releases(
    folder: Path, chain: TrustedKeys, private_key: Path, *, now_s: int, within_days: float, days: float
) -> list[Renewal]:
    """Renew the releases of the bundles in ``folder`` that expire ``within_days``.

    Only bundles that a key of the newest list has released before, unchanged: this can run unattended.

    Raises:
        UsageError, SignatureError, StorageError: as ``sign_release``.
    """
    require_usable(chain, private_key, now_s)

    def renewal(place: Path) -> Renewal:
        try:
            bundle, release = _released(place, chain)
        except BundleError as error:
            return Renewal(place, None, False, str(error))
        if release.expires_at_s - now_s > within_days * DAY_S:
            return Renewal(place, release, False)
        return Renewal(place, write_release(bundle, chain, private_key, now_s, days), True)

    return [renewal(place) for place in _bundles(folder)]


def _released(folder: Path, chain: TrustedKeys) -> tuple[Bundle, Release]:
    """The bundle and the release that names it (SignatureError: there is none)."""
    bundle = Bundle.open(folder, trust=TrustedKeys(chain.lists[-1:], chain.digest))
    with (folder / RELEASE).open("rb") as file:
        release = chain.release(file.read(RELEASE_MAX_BYTES + 1))
    require_same_manifest(release, (folder / MANIFEST).read_bytes())
    return bundle, release


def _bundles(folder: Path) -> Iterator[Path]:
    """As the server finds them: ``folder`` itself, or its subfolders."""
    if (folder / MANIFEST).exists():
        yield folder
        return
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}")
    yield from (one for one in sorted(folder.iterdir()) if not one.name.startswith(".") and (one / MANIFEST).exists())
