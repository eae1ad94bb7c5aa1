"""The renditions of one kind for a supernet: fragments or programs, golden vectors, errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from device_sdk.supernet.blocks import Golden, Quantization, Rendition
from packager.assembly.bundle_writer import BundleWriter


@dataclass(frozen=True)
class RenditionSet:
    """The renditions of one kind by block or exit id. Parts without such a rendition are missing.

    ``needs``: names in ``shared`` of further initializers of a fragment. ``errors``, ``loaded_bytes``: as of
    ``Rendition``. ``quantization``: by cut point. ``any_size``: parts that run at every input size of the bundle.
    ``notes``: parts left out, with the reason.
    """

    name: str
    runtime: str
    own: Mapping[str, bytes]
    golden: Mapping[str, Golden]
    shared: Mapping[str, bytes] = field(default_factory=dict)
    needs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    errors: Mapping[str, float] = field(default_factory=dict)
    loaded_bytes: Mapping[str, int] = field(default_factory=dict)
    opset: int | None = None
    entry_point: str | None = None
    providers: tuple[str, ...] = ()
    quantization: Mapping[int, Quantization] = field(default_factory=dict)
    any_size: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()

    def stored(self, writer: BundleWriter) -> dict[str, Rendition]:
        """Store all blobs. Returns the renditions by block or exit id."""
        shared = {name: writer.add_blob(data) for name, data in self.shared.items()}
        return {
            part: Rendition(
                name=self.name,
                runtime=self.runtime,
                blob=writer.add_blob(data),
                size_bytes=len(data),
                golden=self.golden[part],
                shared=tuple(shared[needed] for needed in self.needs.get(part, ())),
                opset=self.opset,
                entry_point=self.entry_point,
                providers=self.providers,
                error=self.errors.get(part),
                any_size=part in self.any_size,
                loaded_bytes=self.loaded_bytes.get(part),
            )
            for part, data in self.own.items()
        }
