"""``pathweave export``: a bundle's models for other servers."""

from __future__ import annotations

from pathlib import Path

import click

from device_sdk.commands.command_line import emit, json_option
from device_sdk.errors import UsageError

_existing_file = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.argument("bundle")
@click.option(
    "--triton",
    "repository",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Model repository to write into; versions that it has stay.",
)
@click.option("--path", "paths", multiple=True, help="A path instead of the full model, as NAME@PATH; repeatable.")
@click.option("--max-batch", default=32, show_default=True, help="Most rows of a batch.")
@click.option("--queue-delay-ms", default=2.0, show_default=True, help="Time that a request waits for others.")
@click.option("--replace-config", is_flag=True, help="Replace a configuration that differs.")
@click.option("--trust", type=_existing_file, help="Public key or key list that must have signed the bundle.")
@json_option
def export(
    bundle: str,
    repository: Path,
    paths: tuple[str, ...],
    max_batch: int,
    queue_delay_ms: float,
    replace_config: bool,
    trust: Path | None,
    as_json: bool,
) -> None:
    """Write the full model of BUNDLE as a model repository, which Triton and KServe serve to devices.

    Devices ask it as they ask this server for prepared samples: RemoteModel(server=URL, model=NAME). BUNDLE is a
    folder, or the URL of a bundle that this machine fetched.
    """
    from device_sdk.session.device_state import default_state_folder
    from device_sdk.session.opening import bundle_at
    from server.inference.triton import Batching, write_repository

    opened = bundle_at(bundle, trust=trust, state_folder=default_state_folder(), accepts=None)
    if repository.is_dir() and (repository / "manifest.json").exists():
        raise UsageError(f"{repository} is a bundle", hint="name a folder of its own for the model repository")
    found = write_repository(
        opened, repository, paths=paths, batching=Batching(max_batch, queue_delay_ms), replace_config=replace_config
    )
    told = [
        {
            "model": one.name,
            "version": one.version,
            "folder": str(one.folder),
            "bytes": one.model_bytes,
            "new": one.new,
            "config_kept": one.config_kept,
        }
        for one in found
    ]
    lines = []
    for one in found:
        lines.append(f"{one.folder}: {one.model_bytes:,} bytes" + ("" if one.new else ", there already"))
        if one.config_kept:
            lines.append(f"{one.folder.parent / 'config.pbtxt'} differs and is kept; --replace-config replaces it")
    emit({"repository": str(repository), "models": told}, as_json=as_json, text="\n".join(lines))
