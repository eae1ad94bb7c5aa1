"""Reads a ``.pt2`` file as untrusted input.

torch.export.load unpickles arbitrary objects, evaluates sizes given as text, looks operators up as attributes of torch
and loads compiled code that lies in the archive. So the archive is checked first, and torch gets a copy in memory with
the checked parts alone. What is kept of the nodes' metadata is the path of the layer that they belong to.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from torch._export.serde.schema import SCHEMA_VERSION

from packager.errors import ModelLoadError
from packager.torch_noise import torch_silenced

MOST_FILE_BYTES = 4_000_000_000
MOST_GRAPH_BYTES = 400_000_000  # of the program as text
_MODEL = "models/model.json"
_CONFIGS = "data/weights/model_weights_config.json", "data/constants/model_constants_config.json"
_SAMPLES = "data/sample_inputs/model.pt"
_PLAIN = re.compile(r"data/(weights/weight|constants/tensor)_\d+|archive_format|archive_version|byteorder|\.data/\w+")
_EXTRA = "extra/"
_COMPILED = "data/aotinductor/"
_OLD = "serialized_exported_program.json"

_ARITHMETIC = "add|sub|mul|floordiv|truediv|mod|neg|pow|getitem|eq|ne|lt|le|gt|ge|and_|or_"
_REGIONS = "wrap_with_set_grad_enabled|wrap_with_autocast"
_OPERATOR = re.compile(
    rf"torch\.ops\.aten\.(?!from_file)\w+\.\w+|torch\.ops\.higher_order\.({_REGIONS})|_operator\.({_ARITHMETIC})"
    r"|math\.(ceil|floor|trunc)|torch\.sym_\w+"
)
_SIZE = re.compile(r"[\w\s(),'=+*/<>-]*")  # no attribute access, no subscripts
_SIZE_WORDS = re.compile(
    r"\d+|[a-z]+\d+|Symbol|positive|integer|nonnegative|True|False|Integer|Rational|Add|Mul|Pow|Max|Min|Mod|PythonMod"
    r"|ModularIndexing|FloorDiv|CleanDiv|CeilDiv|IntTrueDiv|Eq|Ne|Lt|Le|Gt|Ge|And|Or|Not|oo|int_oo"
)
_HINT = "save it again with torch.export.save(torch.export.export(model.eval(), (example,)), path)"


@dataclass(frozen=True)
class SavedProgram:
    """A program of one model, its additional files by name, and the torch that saved it ("" if unknown)."""

    program: torch.export.ExportedProgram
    extra_files: dict[str, str]
    torch_version: str


def read_program(path: Path) -> SavedProgram:
    """The exported program in the file ``path``.

    Raises:
        ModelLoadError: not such a file, one of another torch version, or one that holds compiled code, custom
            operators, or objects other than tensors.
    """
    parts = _parts(path)
    graph = _checked_graph(_json(parts[_MODEL], path), path)
    for name in _CONFIGS:
        _require_no_objects(parts, name, path)
    if _SAMPLES in parts:
        _require_tensors(parts[_SAMPLES], _SAMPLES, path)
    parts[_MODEL] = json.dumps(graph).encode()
    version = str(graph.get("torch_version", ""))
    extra = {name.removeprefix(_EXTRA): text for name, text in parts.items() if name.startswith(_EXTRA)}
    try:
        with torch_silenced():
            program = torch.export.load(_archive(parts))
    except Exception as error:  # the deserialiser raises many unrelated types
        raise ModelLoadError(
            f"{path.name}, saved by torch {version or 'of an unknown version'}, cannot be read by torch"
            f" {torch.__version__}: {_first_line(error)}",
            hint=f"with this torch, {_HINT}",
        ) from error
    return SavedProgram(program, {name: text.decode(errors="replace") for name, text in extra.items()}, version)


def _parts(path: Path) -> dict[str, bytes]:
    """The known parts of the archive by their names inside its folder; all are stored, none is compressed."""
    try:
        if path.stat().st_size > MOST_FILE_BYTES:
            raise ModelLoadError(f"{path.name} is larger than {MOST_FILE_BYTES / 1e9:g} GB")
        with zipfile.ZipFile(path) as archive:
            entries = {PurePosixPath(entry.filename): entry for entry in archive.infolist()}
            overlapping = sum(entry.file_size for entry in entries.values()) > path.stat().st_size
            compressed = any(entry.compress_type for entry in entries.values())
            if len(entries) != len(archive.infolist()) or compressed or overlapping:
                raise ModelLoadError(f"{path.name} is an archive that torch does not write", hint=_HINT)
            inside = {str(PurePosixPath(*name.parts[1:])): entry for name, entry in entries.items()}
            _require_program(path, {*inside, *map(str, entries)})
            return {name: archive.read(entry) for name, entry in inside.items() if _is_known(name)}
    except OSError as error:
        raise ModelLoadError(f"cannot read {path.name}: {error.strerror or error}") from error
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        raise ModelLoadError(f"{path.name} is not a file of torch.export.save: {error}", hint=_HINT) from error


def _require_program(path: Path, names: set[str]) -> None:
    if any(name.startswith(_COMPILED) for name in names):
        raise ModelLoadError(f"{path.name} holds compiled code (AOTInductor), which is never loaded", hint=_HINT)
    if _OLD in names:
        raise ModelLoadError(
            f"{path.name} is in the format of torch 2.7 and older; this is torch {torch.__version__}",
            hint=f"load it with the torch that saved it, and with a newer one {_HINT}",
        )
    if "data.pkl" in names:
        raise ModelLoadError(
            f"{path.name} is a checkpoint of torch.save or a TorchScript file, not an exported program", hint=_HINT
        )
    if missing := sorted({_MODEL, *_CONFIGS} - names):
        raise ModelLoadError(f"{path.name} is not a file of torch.export.save: it has no {missing[0]}", hint=_HINT)


def _is_known(name: str) -> bool:
    return name in (_MODEL, *_CONFIGS, _SAMPLES) or bool(_PLAIN.fullmatch(name)) or name.startswith(_EXTRA)


def _json(text: bytes, path: Path) -> dict[str, Any]:
    if len(text) > MOST_GRAPH_BYTES:
        raise ModelLoadError(f"the graph in {path.name} takes {len(text) / 1e6:.0f} MB as text")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelLoadError(f"the graph in {path.name} cannot be read: {_first_line(error)}", hint=_HINT) from error
    if not isinstance(found, dict):
        raise ModelLoadError(f"the graph in {path.name} cannot be read", hint=_HINT)
    return found


def _checked_graph(graph: dict[str, Any], path: Path) -> dict[str, Any]:
    """``graph`` without metadata that torch would look up; ModelLoadError if it names what torch must not call."""
    schema, version = graph.get("schema_version"), graph.get("torch_version", "an unknown version")
    if not isinstance(schema, dict) or schema.get("major") != SCHEMA_VERSION[0]:
        raise ModelLoadError(
            f"{path.name} was saved by torch {version} in another version of the format than torch"
            f" {torch.__version__} reads",
            hint=f"with this torch, {_HINT}",
        )
    for part in _objects(graph):
        target, size = part.get("target"), part.get("expr_str")
        if isinstance(target, str) and "inputs" in part:
            _require_known_operator(target, path)
            part["metadata"] = _layer_alone(part.get("metadata"))
        if size is not None and not _is_size(size):
            raise ModelLoadError(f"{path.name} has a size that is no arithmetic: {str(size)[:60]!r}", hint=_HINT)
    return graph | {"guards_code": []}


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    """Every object inside a JSON value."""
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            yield one
            left += one.values()
        elif isinstance(one, list):
            left += one


def _require_known_operator(target: str, path: Path) -> None:
    if _OPERATOR.fullmatch(target):
        return
    name = target.removeprefix("torch.ops.")[:80]
    if name.startswith(("quantized_decomposed", "torchao", "quantized")):
        raise ModelLoadError(
            f"{path.name} is quantised ({name})", hint="export the float model: packaging makes int8 renditions itself"
        )
    raise ModelLoadError(
        f"{path.name} uses the operator {name}, which is not one of torch's own tensor operators",
        hint="export the model with plain torch operators, without custom or control-flow operators",
    )


def _layer_alone(metadata: Any) -> dict[str, str]:
    stack = metadata.get("nn_module_stack") if isinstance(metadata, dict) else None
    return {"nn_module_stack": stack} if isinstance(stack, str) and stack else {}


def _is_size(size: Any) -> bool:
    """True if ``size``, which sympy evaluates as Python, is arithmetic of symbols and numbers."""
    if not isinstance(size, str) or len(size) > 2000 or not _SIZE.fullmatch(size):
        return False
    return all(_SIZE_WORDS.fullmatch(word) for word in re.findall(r"\w+", size))


def _require_no_objects(parts: dict[str, bytes], name: str, path: Path) -> None:
    """Refuse weights or constants that are pickled and more than tensors."""
    config = _json(parts[name], path).get("config")
    for entry in config.values() if isinstance(config, dict) else ():
        part = f"{PurePosixPath(name).parent}/{entry.get('path_name')}"
        if part not in parts:
            raise ModelLoadError(f"{path.name} holds an object that is no tensor, or lacks {part}", hint=_HINT)
        if entry.get("use_pickle"):
            _require_tensors(parts[part], part, path)


def _require_tensors(pickled: bytes, part: str, path: Path) -> None:
    try:
        torch.load(io.BytesIO(pickled), weights_only=True)
    except Exception as error:  # the restricted unpickler raises many types
        raise ModelLoadError(
            f"{path.name} holds Python objects in {part}, which would have to be unpickled", hint=_HINT
        ) from error


def _archive(parts: dict[str, bytes]) -> io.BytesIO:
    copied = io.BytesIO()
    with zipfile.ZipFile(copied, "w", zipfile.ZIP_STORED) as archive:
        for name, data in parts.items():
            archive.writestr(f"model/{name}", data)
    copied.seek(0)
    return copied


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:200]
