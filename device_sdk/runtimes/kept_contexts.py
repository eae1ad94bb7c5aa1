"""Compiled models of a provider, kept on the device: compiling for an NPU takes far longer than loading."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

CreateSession = Callable[[bytes | str, Mapping[str, str]], Any]
"""Creates a session of a model, or of the model in a file, with these further entries of its configuration."""


def session_by_context(
    create: CreateSession, model: bytes, *, folder: Path | None, identity: str, options: Mapping[str, str]
) -> Any:
    """The session of ``model``, from what its provider compiled before if that still loads.

    Kept by the digest of the model, the runtime's identity with its versions, and the provider's options. A kept file
    that does not load, for example after an update of the driver, is compiled again. Raises what ``create`` raises.
    """
    if folder is None:
        return create(model, {})
    path = folder / f"{_key(model, identity, options)}.context.onnx"
    if path.exists():
        try:
            return create(str(path), {})
        except Exception:  # the binding raises many unrelated types; compiling says what is wrong
            path.unlink(missing_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    begun = folder / f"{path.name}.{os.getpid()}.onnx"
    entries = {"ep.context_enable": "1", "ep.context_file_path": str(begun), "ep.context_embed_mode": "1"}
    try:
        session = create(model, entries)
        with contextlib.suppress(OSError):  # a provider that compiled nothing writes nothing
            os.replace(begun, path)
        return session
    finally:
        begun.unlink(missing_ok=True)


def _key(model: bytes, identity: str, options: Mapping[str, str]) -> str:
    digest = hashlib.sha256(model)
    for part in (identity, *(f"{name}={value}" for name, value in sorted(options.items()))):
        digest.update(b"\0" + part.encode())
    return digest.hexdigest()
