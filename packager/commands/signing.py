"""``pathweave sign key …``, ``pathweave sign release …`` and ``pathweave sign rollback``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from device_sdk.commands.command_line import emit, json_option
from device_sdk.errors import StorageError

if TYPE_CHECKING:
    from device_sdk.signing.release import Release
    from packager.releasing import Draft, Renewal

_folder = click.Path(file_okay=False, path_type=Path)
_existing_folder = click.Path(exists=True, file_okay=False, path_type=Path)
_key_file = click.Path(exists=True, dir_okay=False, path_type=Path)
_days = click.FloatRange(min=0, min_open=True)
_keys_option = click.option("--keys", required=True, type=_existing_folder, help="Folder of the key lists.")
_release_key = click.option("--key", "private_key", required=True, type=_key_file, help="Private release key.")
_list_days = click.option(
    "--expires-days", type=_days, default=365.0, show_default=True, help="Days in which devices install by it."
)
_release_days = click.option(
    "--expires-days", type=_days, default=30.0, show_default=True, help="Days in which devices install it."
)


@click.group()
def sign() -> None:
    """Sign bundles: keys and lists of them, and releases."""


@sign.group()
def key() -> None:
    """Keys that sign bundles, and lists of them."""


@key.command("new")
@click.argument("name", type=click.Path(path_type=Path))
@json_option
def new_key(name: Path, as_json: bool) -> None:
    """Make an Ed25519 pair: NAME.key (keep it secret) and NAME.pub (give it to devices)."""
    from device_sdk.files.atomic import write_atomically
    from device_sdk.signing.signatures import new_key_pair

    private_path, public_path = name.with_name(f"{name.name}.key"), name.with_name(f"{name.name}.pub")
    for path in (private_path, public_path):
        if path.exists():
            raise StorageError(f"{path} already exists", hint="choose another name; keys are never overwritten")
    private, public = new_key_pair()
    write_atomically(private_path, private, mode=0o600)
    write_atomically(public_path, public)
    emit(
        {"private_key": str(private_path), "public_key": str(public_path)},
        as_json=as_json,
        text=f"{private_path} (keep it secret), {public_path} (give it to devices)",
    )


@key.group("list")
def key_list() -> None:
    """Lists of keys that may release bundles, signed by root keys."""


@key_list.command("new")
@click.argument("folder", type=_folder)
@click.option("--root", "root", multiple=True, required=True, help="Public root key (FILE.pub). Repeatable.")
@click.option("--threshold", type=click.IntRange(min=1), required=True, help="Root keys that must sign a list.")
@click.option("--release", "release", multiple=True, required=True, help="Public release key (FILE.pub). Repeatable.")
@click.option("--number", type=click.IntRange(min=1), default=1, show_default=True, help="Number of the list.")
@_list_days
@json_option
def new_list(
    folder: Path,
    root: tuple[str, ...],
    threshold: int,
    release: tuple[str, ...],
    number: int,
    expires_days: float,
    as_json: bool,
) -> None:
    """Draft a first key list in FOLDER; its root keys sign it next."""
    from packager.releasing import begin, key_of

    draft = begin(
        folder,
        number=number,
        root_keys=map(key_of, root),
        root_threshold=threshold,
        release_keys=map(key_of, release),
        now_s=_now_s(),
        days=expires_days,
    )
    _emit_draft(draft, as_json=as_json)


@key_list.command("next")
@click.argument("folder", type=_existing_folder)
@click.option("--add-root", multiple=True, help="A root key (FILE.pub) that is new. Repeatable.")
@click.option("--remove-root", multiple=True, help="A root key that is revoked (FILE.pub or digits). Repeatable.")
@click.option("--threshold", type=click.IntRange(min=1), help="Root keys that must sign a list [default: as before].")
@click.option("--add-release", multiple=True, help="A release key (FILE.pub) that is new. Repeatable.")
@click.option("--remove-release", multiple=True, help="A release key that is revoked (FILE.pub or digits). Repeatable.")
@_list_days
@json_option
def next_list(
    folder: Path,
    add_root: tuple[str, ...],
    remove_root: tuple[str, ...],
    threshold: int | None,
    add_release: tuple[str, ...],
    remove_release: tuple[str, ...],
    expires_days: float,
    as_json: bool,
) -> None:
    """Draft the list after the newest one in FOLDER, to rotate or revoke keys, or to renew it."""
    from packager.releasing import follow, key_of

    draft = follow(
        folder,
        add_root=[key_of(one) for one in add_root],
        remove_root=[key_of(one) for one in remove_root],
        root_threshold=threshold,
        add_release=[key_of(one) for one in add_release],
        remove_release=[key_of(one) for one in remove_release],
        now_s=_now_s(),
        days=expires_days,
    )
    _emit_draft(draft, as_json=as_json)


@key_list.command("sign")
@click.argument("folder", type=_existing_folder)
@click.option("--key", "private_key", required=True, type=_key_file, help="Private root key.")
@json_option
def sign_list(folder: Path, private_key: Path, as_json: bool) -> None:
    """Sign the draft in FOLDER; the last signature that it needs makes it a list."""
    from packager.releasing import sign_draft

    _emit_draft(sign_draft(folder, private_key), as_json=as_json)


@key_list.command("show")
@click.argument("folder", type=_existing_folder)
@json_option
def show_lists(folder: Path, as_json: bool) -> None:
    """Verify the lists in FOLDER from the first one on, and show the newest and the draft."""
    from device_sdk.bundles.releasing import read_chain
    from packager.releasing import find_draft

    chain, draft = read_chain(folder), find_draft(folder)
    newest = msgspec.to_builtins(chain.newest)
    shown = {
        "numbers": [one.number for one in chain.lists],
        "newest": newest,
        "draft": None if draft is None else _described(draft),
    }
    lines = [f"list {chain.newest.number} is valid until {_date(chain.newest.expires_at_s)}"]
    lines += [f"root key    {key}" for key in chain.newest.root_keys]
    lines += [f"release key {key}" for key in chain.newest.release_keys]
    if draft is not None:
        lines.append(_sentence(draft))
    emit(shown, as_json=as_json, text="\n".join(lines))


@sign.group()
def release() -> None:
    """Releases: which bundle devices may install, and until when."""


@release.command("sign")
@click.argument("bundle", type=_existing_folder)
@_keys_option
@_release_key
@_release_days
@json_option
def sign_release(bundle: Path, keys: Path, private_key: Path, expires_days: float, as_json: bool) -> None:
    """Verify BUNDLE and write its release.json, signed by a release key of the newest list."""
    from device_sdk.bundles import releasing

    made = releasing.sign_release(bundle, releasing.read_chain(keys), private_key, now_s=_now_s(), days=expires_days)
    emit(msgspec.to_builtins(made), as_json=as_json, text=_released(made))


@release.command("renew")
@click.argument("folder", type=_existing_folder)
@_keys_option
@_release_key
@click.option("--within-days", type=_days, default=10.0, show_default=True, help="Renew what expires in this time.")
@_release_days
@json_option
def renew(folder: Path, keys: Path, private_key: Path, within_days: float, expires_days: float, as_json: bool) -> None:
    """Renew the releases of the bundles in FOLDER that expire soon, if nothing of them has changed."""
    from device_sdk.bundles.releasing import read_chain
    from packager.releasing import renew_releases

    done = renew_releases(
        folder, read_chain(keys), private_key, now_s=_now_s(), within_days=within_days, days=expires_days
    )
    shown = [
        {
            "folder": str(one.folder),
            "renewed": one.renewed,
            "expires_at_s": None if one.release is None else one.release.expires_at_s,
            "reason": one.reason,
        }
        for one in done
    ]
    emit({"releases": shown}, as_json=as_json, text="\n".join(map(_renewal, done)) or f"{folder} has no bundle")


@sign.command("rollback")
@click.argument("bundle", type=_existing_folder)
@click.option("--from-version", type=click.IntRange(min=2), required=True, help="Highest version to go back from.")
@click.option("--key", "private_key", required=True, type=_key_file, help="Private release key, or the devices' key.")
@click.option("--keys", type=_existing_folder, help="Folder of the key lists, if devices trust them.")
@_release_days
@json_option
def rollback(
    bundle: Path, from_version: int, private_key: Path, keys: Path | None, expires_days: float, as_json: bool
) -> None:
    """Write rollback.json beside BUNDLE: devices may go back to it from newer versions, if the server says so."""
    from device_sdk.bundles import releasing

    chain = None if keys is None else releasing.read_chain(keys)
    made = releasing.sign_rollback(
        bundle, chain, private_key, from_version=from_version, now_s=_now_s(), days=expires_days
    )
    text = f"devices with {made.name} {from_version} or lower may go back to {made.to_version}"
    emit(msgspec.to_builtins(made), as_json=as_json, text=f"{text} until {_date(made.expires_at_s)}")


def _now_s() -> int:
    return int(time.time())


def _date(time_s: int) -> str:
    from device_sdk.signing.release import utc

    return utc(time_s)


def _released(made: Release) -> str:
    return f"{made.name} {made.version} may be installed until {_date(made.expires_at_s)}"


def _renewal(one: Renewal) -> str:
    if one.release is None:
        return f"{one.folder}: not renewed: {one.reason}"
    return f"{one.folder}: {_released(one.release)}{', renewed' if one.renewed else ''}"


def _described(draft: Draft) -> dict[str, Any]:
    return {
        "path": str(draft.path),
        "number": draft.keys.number,
        "complete": draft.complete,
        "missing": draft.missing,
        "missing_before": draft.missing_before,
        "expires_at_s": draft.keys.expires_at_s,
    }


def _sentence(draft: Draft) -> str:
    if draft.complete:
        return f"{draft.path} is complete, and valid until {_date(draft.keys.expires_at_s)}"
    before = f" and of {draft.missing_before} of the list before it" if draft.missing_before else ""
    return f"{draft.path} needs signatures of {draft.missing} of its root keys{before}: pathweave sign key list sign"


def _emit_draft(draft: Draft, *, as_json: bool) -> None:
    emit(_described(draft), as_json=as_json, text=_sentence(draft))
