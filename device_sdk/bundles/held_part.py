"""The part of a bundle that a device holds: exits, blocks and their blobs."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import overload

from device_sdk.bundles.manifest import Manifest
from device_sdk.errors import BlobError
from device_sdk.supernet.blocks import Rendition
from device_sdk.supernet.plan import Edge, Plan
from device_sdk.supernet.supernet import Supernet


@dataclass(frozen=True)
class HeldPart:
    """``exits`` and ``edges`` (renditions of blocks, at any input size) that are held. None: all of them."""

    exits: tuple[str, ...] | None = None
    edges: frozenset[Edge] | None = None

    @classmethod
    def of_plan(cls, supernet: Supernet, plan: Plan, exits: Iterable[str] = ()) -> HeldPart:
        """The blocks and exits that ``plan`` runs on a device, and ``exits``."""
        names = dict.fromkeys((*(choice.exit for choice in plan.exits), *exits))
        edges = (*supernet.edges_here(plan), *supernet.second_edges(plan))
        return cls(tuple(names), frozenset(Edge(edge.block, edge.rendition) for edge in edges))

    @property
    def is_whole(self) -> bool:
        """True if all blocks are held."""
        return self.edges is None

    def has(self, edge: Edge) -> bool:
        """True if the blobs of ``edge`` are held."""
        return self.edges is None or Edge(edge.block, edge.rendition) in self.edges

    def blobs(self, manifest: Manifest) -> dict[str, int | None]:
        """The blobs of this part, with their sizes where they are stated; ``manifest`` has the exits that are held."""
        renditions = [
            one for block in manifest.blocks for one in block.renditions if self.has(Edge(block.id, one.name))
        ]
        renditions += [one for exit_ in manifest.exits for one in exit_.renditions]
        names = dict.fromkeys(name for one in renditions for name in blob_names(one))
        names |= dict.fromkeys(manifest.preprocessing.blobs())
        sizes = manifest.blobs()
        return {name: sizes[name] for name in names}


EVERYTHING = HeldPart()
ChoosePart = Callable[[Manifest, str], HeldPart]
"""The part that a device wants of the bundle with this manifest and digest."""


def everything(manifest: Manifest, digest: str) -> HeldPart:
    """All of a bundle."""
    return EVERYTHING


def blob_names(rendition: Rendition) -> tuple[str, ...]:
    """The blobs that one rendition reads, shared ones first."""
    return (*rendition.shared, rendition.blob)


FETCH_AGAIN = "fetch or package the bundle again"
_CHUNK_BYTES = 1 << 20


class HeldBlobs:
    """Open, verified files of the blobs ``names`` in ``folder``; their contents are not in memory. Thread-safe.

    Raises:
        BlobError: one is missing, unreadable or altered.
    """

    def __init__(self, folder: Path, names: Iterable[str]) -> None:
        self._files: dict[str, int] = {}  # descriptors
        self._sizes: dict[str, int] = {}  # when they were verified; a file that grows is not read into memory
        self._reading = threading.Lock()  # close waits for reads, since the system reuses closed descriptors
        try:
            for name in dict.fromkeys(names):
                file = self._files[name] = _open(folder / name)
                self._sizes[name] = os.fstat(file).st_size
                _check(name, _digest(name, file))
        except BaseException:
            self.close()
            raise

    def size(self, name: str) -> int:
        """Bytes of a blob."""
        return os.fstat(self._files[name]).st_size

    def read(self, name: str) -> bytes:
        """The bytes of a blob, their digest verified.

        Raises:
            BlobError: altered or unreadable since it was opened, or closed.
        """
        with self._reading:
            if name not in self._files:
                raise BlobError(f"blob {name[:12]}… is not held open")
            file = self._files[name]
            try:
                size = os.fstat(file).st_size
                data = os.pread(file, size, 0) if size == self._sizes[name] else b""
            except OSError as error:
                raise _unreadable(name, error) from error
        _check(name, hashlib.sha256(data).hexdigest())
        return data

    def fragments(self, names: Sequence[str]) -> Sequence[bytes]:
        """A sequence of these blobs; each access reads the blob from disk (``read``)."""
        return _OnDisk(self, tuple(names))

    def close(self) -> None:
        """Close the files. Idempotent."""
        with self._reading:
            files, self._files = self._files, {}
            for file in files.values():
                os.close(file)

    def __del__(self) -> None:
        self.close()


class _OnDisk(Sequence[bytes]):
    def __init__(self, held: HeldBlobs, names: tuple[str, ...]) -> None:
        self._held, self._names = held, names

    @overload
    def __getitem__(self, index: int) -> bytes: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[bytes]: ...

    def __getitem__(self, index: int | slice) -> bytes | Sequence[bytes]:
        if isinstance(index, slice):
            return _OnDisk(self._held, self._names[index])
        return self._held.read(self._names[index])

    def __len__(self) -> int:
        return len(self._names)


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise _unreadable(path.name, error) from error


def _digest(name: str, file: int) -> str:
    """The sha256 of a file, read in chunks."""
    digest = hashlib.sha256()
    try:
        for offset in range(0, os.fstat(file).st_size, _CHUNK_BYTES):
            digest.update(os.pread(file, _CHUNK_BYTES, offset))
    except OSError as error:
        raise _unreadable(name, error) from error
    return digest.hexdigest()


def _unreadable(name: str, error: OSError) -> BlobError:
    return BlobError(f"blob {name[:12]}… cannot be read: {error.strerror}", hint=FETCH_AGAIN)


def _check(name: str, digest: str) -> None:
    if digest != name:
        raise BlobError(f"blob {name[:12]}… does not match its digest", hint=FETCH_AGAIN)
