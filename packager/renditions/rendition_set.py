"""What a kind of rendition makes of the supernet: fragments or programs, what they must answer, how well they do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from device_sdk.supernet.blocks import Golden, Quantization, Rendition
from packager.assembly.bundle_writer import BundleWriter


@dataclass(frozen=True)
class RenditionSet:
    """One kind of rendition of blocks and exits, all mappings by their ids; those that it leaves out are missing.

    ``needs``: names in ``shared`` of the initializers that a fragment needs besides its own. ``errors``: see
    ``Rendition.error``. ``quantization``: by cut point. ``any_size``: those that run at every input size of the bundle.
    ``notes`` say what was left out and why.
    """

    name: str
    runtime: str
    own: Mapping[str, bytes]
    golden: Mapping[str, Golden]
    shared: Mapping[str, bytes] = field(default_factory=dict)
    needs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    errors: Mapping[str, float] = field(default_factory=dict)
    opset: int | None = None
    entry_point: str | None = None
    providers: tuple[str, ...] = ()
    quantization: Mapping[int, Quantization] = field(default_factory=dict)
    any_size: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()

    def stored(self, writer: BundleWriter) -> dict[str, Rendition]:
        """Store all blobs; returns the rendition of each block and exit that has one, by its id."""
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
            )
            for part, data in self.own.items()
        }
