"""Reading a bundle: verified manifest, verified blobs, composed stretches.

A bundle is a folder: ``manifest.json``, ``manifest.sig``, ``blobs/<sha256>``. Everything is verified before use: the
signature over the exact bytes before they are parsed, the digest of a blob before its bytes leave this module.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from device_sdk.bundles.held_part import (
    EVERYTHING,
    FETCH_AGAIN,
    ChoosePart,
    HeldBlobs,
    HeldPart,
    blob_names,
    everything,
)
from device_sdk.bundles.manifest import Manifest
from device_sdk.bundles.manifest_reading import decode_manifest
from device_sdk.bundles.runnable import RenditionFilter, part_with_exits, runnable_part
from device_sdk.errors import BlobError, BundleError, CompositionError, ManifestError, SignatureError, UsageError
from device_sdk.fragments.composition import COMPOSED, Stretch
from device_sdk.signing import signatures
from device_sdk.signing.release import RELEASE, RELEASE_MAX_BYTES, require_same_name
from device_sdk.signing.trust import SignedParts, Trustable, load_trust
from device_sdk.supernet.blocks import Rendition, TensorSpec
from device_sdk.supernet.plan import Edge, ExitChoice, Plan
from device_sdk.supernet.supernet import Supernet

MANIFEST, SIGNATURE, BLOBS = "manifest.json", "manifest.sig", "blobs"
MANIFEST_MAX_BYTES = 64_000_000
BLOB_MAX_BYTES = 2**31  # the limit of protobuf; the manifest does not state the size of shared blobs
FetchBlob = Callable[[str], object]
"""Brings a blob into the folder of blobs (StorageError if it cannot)."""


class Bundle:
    """A verified bundle in a local folder. Create one with ``Bundle.open``.

    ``has_signature``: ``manifest.sig`` exists. Only ``open`` with a trusted public key verifies it. ``manifest``: with
    the exits that are held here; ``offered``: with all exits that there are. ``part``: the blocks and exits that are
    held; the graph also has the others, but their blobs are never read.
    """

    def __init__(
        self,
        folder: Path,
        blobs: Path,
        manifest: Manifest,
        digest: str,
        *,
        has_signature: bool,
        offered: Manifest | None = None,
        part: HeldPart = EVERYTHING,
        fetch: FetchBlob | None = None,
    ) -> None:
        self.folder = folder
        self.blobs = blobs
        self._fetch = fetch
        self.part = part
        self.manifest = manifest
        self.offered = offered or manifest
        self.digest = digest  # sha256 of manifest.json: identifies the bundle
        self.has_signature = has_signature
        self.supernet: Supernet = manifest.supernet()
        self._sizes = part.blobs(manifest)
        self._loaded = manifest.loaded_bytes()

    @classmethod
    def open(
        cls,
        folder: Path | str,
        *,
        trust: Trustable = None,
        blobs: Path | None = None,
        accepts: RenditionFilter | None = None,
        part: ChoosePart = everything,
        fetch: FetchBlob | None = None,
    ) -> Bundle:
        """Open the bundle in ``folder``; with ``trust`` (see ``load_trust``), its signature must verify.

        A public key verifies manifest.sig. A key list verifies release.json, whether it has expired or not; where there
        is none, manifest.sig.
        ``blobs``: the folder of the blobs, if not the bundle's own: a store shares them between bundles.
        ``accepts``: leaves out the renditions that it refuses, with their edges and blobs. ``part``: chooses the blocks
        and exits that are held; the other blobs need not be here. ``fetch``: brings blobs when they are first read.

        1. read the manifest's bytes; 2. verify the signature over them; 3. parse and check the schema and the
        graph; 4. check that every blob exists with the stated size (digests are verified on every read).

        Raises:
            BundleError: one of its kinds (ManifestError, UnsupportedFormatError, SignatureError, BlobError).
            RuntimeFailedError: ``accepts`` refuses all renditions of an original block.
            UsageError: there is no such exit, or as ``part``.
        """
        folder = Path(folder)
        data = _read_manifest(folder)
        signature = _read_signature(folder)
        release, trusted = None, load_trust(trust)
        if trusted is not None:
            release = trusted.verify(SignedParts(str(folder), data, signature, _read_release(folder)))
        digest = hashlib.sha256(data).hexdigest()
        manifest = decode_manifest(data)
        if release is not None:
            require_same_name(release, manifest.name, manifest.version)
        if accepts is not None:
            manifest = runnable_part(manifest, accepts)
        held = part(manifest, digest)
        bundle = cls(
            folder,
            blobs or folder / BLOBS,
            manifest if held.exits is None else part_with_exits(manifest, held.exits),
            digest,
            has_signature=signature is not None,
            offered=manifest,
            part=held,
            fetch=fetch,
        )
        if fetch is None:
            bundle._check_blobs_present()
        return bundle

    def manifest_with(self, exits: Collection[str]) -> Manifest:
        """The manifest with these exits of those that are offered.

        Raises:
            UsageError: there is no such exit, or it lies behind the blocks that are held.
        """
        found = part_with_exits(self.offered, exits)
        beyond = None if self.part.is_whole else next((e for e in found.exits if e.position > self.last_position), None)
        if beyond is not None:
            raise self._not_here(f"exit {beyond.id} at cut point {beyond.position}")
        return found

    def with_exits(self, exits: Collection[str]) -> Bundle:
        """The same bundle with these exits of those that are offered.

        Raises:
            UsageError: there is no such exit, or it lies behind the blocks that are held.
            BlobError: a blob of one is not here.
        """
        held = self.manifest_with(exits)
        bundle = Bundle(
            self.folder,
            self.blobs,
            held,
            self.digest,
            has_signature=self.has_signature,
            offered=self.offered,
            part=HeldPart(tuple(one.id for one in held.exits), self.part.edges),
            fetch=self._fetch,
        )
        if self._fetch is None:
            bundle._check_blobs_present()
        return bundle

    def read_blob(self, name: str) -> bytes:
        """The bytes of a blob, their digest verified.

        Raises:
            BlobError: missing, unreadable, truncated, altered, or larger than a blob may be. The size is checked first.
        """
        expected = self._sizes.get(name)
        try:
            with self._path(name).open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                _check_size(name, size, expected)
                data = file.read(size)
        except OSError as error:
            raise BlobError(f"blob {name[:12]}… cannot be read: {error.strerror}", hint=FETCH_AGAIN) from error
        if hashlib.sha256(data).hexdigest() != name:
            raise BlobError(f"blob {name[:12]}… does not match its digest", hint=FETCH_AGAIN)
        return data

    def runnable(self, accepts: RenditionFilter) -> Bundle:
        """The same bundle without the renditions that ``accepts`` refuses.

        Raises:
            RuntimeFailedError: ``accepts`` refuses all renditions of an original block.
        """
        return Bundle(
            self.folder,
            self.blobs,
            runnable_part(self.manifest, accepts),
            self.digest,
            has_signature=self.has_signature,
            offered=runnable_part(self.offered, accepts),
            part=self.part,
            fetch=self._fetch,
        )

    @property
    def last_position(self) -> int:
        """The last cut point that blocks held here lead to."""
        supernet = self.supernet
        held = [
            block.end
            for block in supernet.blocks
            for one in block.renditions
            if self.part.has(Edge(block.id, one.name))
        ]
        return max(held, default=0)

    def has_all_of(self, plan: Plan) -> bool:
        """True if all blocks and exits that ``plan`` runs on a device are held here."""
        needed = HeldPart.of_plan(self.supernet, plan)
        return all(map(self.part.has, needed.edges or ())) and set(needed.exits or ()) <= set(self.exits)

    def require_whole(self, what: str) -> None:
        """Raise UsageError unless all blocks are held; ``what`` needs them."""
        if not self.part.is_whole:
            raise self._not_here(what)

    def _not_here(self, what: str) -> UsageError:
        return UsageError(
            f"{what} needs blocks that are not here: this device holds only what its plan needs, up to cut point "
            f"{self.last_position}",
            hint="fetch the whole bundle: pathweave fetch --whole",
        )

    def blob_size(self, name: str) -> int:
        """Bytes of a blob, or BlobError."""
        try:
            return self._path(name).stat().st_size
        except OSError as error:
            raise BlobError(f"blob {name[:12]}… is missing from {self.blobs}", hint=FETCH_AGAIN) from error

    def loaded_size(self, name: str) -> int:
        """Bytes that a blob takes once loaded: more than it has where weights are stored in few bits (or BlobError)."""
        return max(self.blob_size(name), self._loaded.get(name, 0))

    def blob_sizes(self) -> dict[str, int]:
        """Bytes of each blob."""
        return {name: self._path(name).stat().st_size for name in self._sizes}

    def absent_blobs(self) -> dict[str, int | None]:
        """The blobs that the bundle has and that are not held, with their sizes where they are stated."""
        return {name: size for name, size in self.offered.blobs().items() if name not in self._sizes}

    @property
    def manifest_bytes(self) -> int:
        """Bytes of manifest.json."""
        return (self.folder / MANIFEST).stat().st_size

    @property
    def exits(self) -> tuple[str, ...]:
        """The exits that are held here."""
        return tuple(one.id for one in self.manifest.exits)

    def verify(self, *, exits: Collection[str] | None = None) -> None:
        """Read every blob once and check its digest (BlobError); with ``exits`` only those of these exits."""
        if exits is None:
            names: Iterable[str] = self._sizes
        else:
            held = [rendition for one in self.manifest.exits if one.id in exits for rendition in one.renditions]
            names = [name for rendition in held for name in blob_names(rendition)]
        for name in dict.fromkeys(names):
            self.read_blob(name)

    def hold(self, names: Iterable[str]) -> HeldBlobs:
        """Open and verify these blobs; they stay readable after the files are deleted.

        Raises:
            BlobError: a size or a digest does not match.
        """
        names = tuple(names)
        for name in names:
            _check_size(name, self.blob_size(name), self._sizes.get(name))
        return HeldBlobs(self.blobs, names)

    def blob_names(self, edges: Sequence[Edge], exit_: ExitChoice | None = None) -> tuple[str, ...]:
        """The blobs that ``stretch`` reads for the same arguments, in order.

        Composed fragments are listed once; programs are listed once per block, even if blocks share a file.

        Raises:
            CompositionError: the blocks run on different runtimes.
            UsageError: a block is not held here.
        """
        renditions = self._renditions(edges, exit_)
        if renditions[0].runtime != COMPOSED:
            return tuple(rendition.blob for rendition in renditions)
        return tuple(dict.fromkeys(name for one in renditions for name in blob_names(one)))

    def stretch(
        self,
        edges: Sequence[Edge],
        exit_: ExitChoice | None = None,
        *,
        held: HeldBlobs | None = None,
        any_size: bool = False,
    ) -> Stretch:
        """The consecutive blocks of ``edges`` as one model for their input size.

        ``exit_``: the branch at their end is part of the model; its output follows those of the cut point. Without
        edges the model is the branch alone, for all input sizes. ``held``: blobs are read from it when the stretch is
        loaded, instead of now. ``any_size``: the blocks too are one model for all input sizes.

        Blocks at several homes become one stretch with a part for each run of equal home; the branch belongs to the
        last.

        Raises:
            BlobError: a digest does not match.
            CompositionError: the blocks of one home run on different runtimes.
        """
        runs = [tuple(run) for _, run in groupby(edges, key=lambda edge: edge.home)]
        if len(runs) < 2:
            return self._of_one_home(edges, exit_, held=held, any_size=any_size)
        parts = [self._of_one_home(run, None, held=held, any_size=any_size) for run in runs[:-1]]
        parts.append(self._of_one_home(runs[-1], exit_, held=held, any_size=any_size))
        return replace(parts[-1], fragments=(), owners=(), inputs=parts[0].inputs, home="", parts=tuple(parts))

    def _of_one_home(
        self, edges: Sequence[Edge], exit_: ExitChoice | None, *, held: HeldBlobs | None, any_size: bool
    ) -> Stretch:
        supernet, renditions = self.supernet, self._renditions(edges, exit_)
        outputs: tuple[TensorSpec, ...] = ()
        if edges:
            start, end = supernet.ends(edges[0])[0], supernet.ends(edges[-1])[1]
            outputs = end.tensors
        if exit_ is not None:
            branch = supernet.exit(exit_.exit)
            outputs += (supernet.exit_tensor(branch),)
            if not edges:
                start = supernet.cut_points[branch.position]
        names, runtime = self.blob_names(edges, exit_), renditions[0].runtime
        return Stretch(
            fragments=tuple(map(self.read_blob, names)) if held is None else held.fragments(names),
            inputs=start.tensors,
            outputs=outputs,
            ir_version=self.manifest.onnx.ir_version,
            opset=max([self.manifest.onnx.opset, *(one.opset or 0 for one in renditions)]),
            runtime=runtime,
            entry_points=() if runtime == COMPOSED else tuple(one.entry_point or "forward" for one in renditions),
            branch=bool(edges) and exit_ is not None,
            free_axes=supernet.free_axes if any_size or not edges else {},
            owners=self._owners(names, edges, exit_),
            home=edges[0].home if edges else "",
            providers=_common_providers(renditions),
        )

    def _owners(self, names: Iterable[str], edges: Sequence[Edge], exit_: ExitChoice | None) -> tuple[str, ...]:
        """For each blob, the block or exit that reads it first."""
        parts = [f"block {edge.block}@{edge.rendition}" for edge in edges]
        parts += [] if exit_ is None else [f"exit {exit_.exit}@{exit_.rendition}"]
        readers: dict[str, str] = {}
        for part, one in zip(parts, self._renditions(edges, exit_), strict=True):
            for name in blob_names(one):
                readers.setdefault(name, part)
        return tuple(readers[name] for name in names)

    def _renditions(self, edges: Sequence[Edge], exit_: ExitChoice | None) -> list[Rendition]:
        absent = next((edge for edge in edges if not self.part.has(edge)), None)
        if absent is not None:
            raise self._not_here(f"block {absent}")
        renditions = [self.supernet.rendition(edge) for edge in edges]
        if exit_ is not None:
            renditions.append(self.supernet.exit_rendition(exit_))
        runtimes = sorted({rendition.runtime for rendition in renditions})
        if len(runtimes) > 1:
            raise CompositionError(
                f"blocks for {' and '.join(runtimes)} do not run as one", hint="choose renditions of one runtime"
            )
        return renditions

    def _path(self, name: str) -> Path:
        """The file of a blob, fetched if it is not here yet."""
        path = self.blobs / name
        if self._fetch is not None and not path.exists():
            self._fetch(name)
        return path

    def _check_blobs_present(self) -> None:
        for name, size in self._sizes.items():
            _check_size(name, self.blob_size(name), size)


def _common_providers(renditions: Iterable[Rendition]) -> tuple[str, ...]:
    """The providers that all ``renditions`` are for; empty for any. CompositionError where there is none."""
    sets = [one.providers for one in renditions if one.providers]
    common = tuple(name for name in (sets[0] if sets else ()) if all(name in others for others in sets))
    if sets and not common:
        names = " and ".join(dict.fromkeys(name for one in sets for name in one))
        raise CompositionError(f"blocks for {names} do not run as one", hint="name a home for each of them")
    return common


def _check_size(name: str, actual: int, stated: int | None) -> None:
    if stated is not None and actual != stated:
        raise BlobError(f"blob {name[:12]}… has {actual} bytes instead of {stated}", hint=FETCH_AGAIN)
    if actual > BLOB_MAX_BYTES:
        raise BlobError(f"blob {name[:12]}… has {actual} bytes; {BLOB_MAX_BYTES} are allowed", hint=FETCH_AGAIN)


def _read_manifest(folder: Path) -> bytes:
    path = folder / MANIFEST
    try:
        if path.stat().st_size > MANIFEST_MAX_BYTES:
            raise ManifestError(f"{path} has more than {MANIFEST_MAX_BYTES} bytes")
        return path.read_bytes()
    except OSError as error:
        raise BundleError(
            f"{folder} is not a bundle: cannot read {MANIFEST}: {error.strerror}",
            hint="a bundle is the folder that pathweave package wrote",
        ) from error


def _read_signature(folder: Path) -> bytes | None:
    try:
        data = (folder / SIGNATURE).read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SignatureError(f"cannot read {SIGNATURE}: {error.strerror}") from error
    if len(data) != signatures.SIGNATURE_BYTES:
        raise SignatureError(f"{SIGNATURE} has {len(data)} bytes instead of {signatures.SIGNATURE_BYTES}")
    return data


def _read_release(folder: Path) -> bytes | None:
    """At most one byte more than a release may have."""
    try:
        with (folder / RELEASE).open("rb") as file:
            return file.read(RELEASE_MAX_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SignatureError(f"cannot read {RELEASE}: {error.strerror}") from error
