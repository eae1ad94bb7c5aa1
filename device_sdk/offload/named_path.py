"""Names that clients use for paths of a served bundle: ``BUNDLE@PATH``, with ``:images`` for raw images. Pure.

``PATH`` lists the path's edges, joined by commas: ``r56@o0,m1-4,o4:images``. ``BUNDLE@hybrid`` is the path of the
bundle's part in a hybrid. A path at another input size than the model's own has no name.
"""

from __future__ import annotations

from device_sdk.bundles.hybrid import HYBRID_PATH
from device_sdk.bundles.manifest import Manifest
from device_sdk.errors import UsageError
from device_sdk.supernet.plan import Edge, Subnet

IMAGES = ":images"  # suffix of the name of a model that takes raw images
JPEG = ":jpeg"  # the same, images as JPEGs
MAX_NAME = 2_048  # characters: addresses are longer than this nowhere


def path_model(bundle: str, path: Subnet, *, images: bool = False) -> str:
    """The name of the model that runs ``path`` of ``bundle``.

    Raises:
        UsageError: the path runs at another input size, or has too many edges for a name.
    """
    if path.input_size:
        raise UsageError("a server names paths at the model's own input size only")
    name = f"{bundle}@{','.join(map(str, path.edges))}{IMAGES if images else ''}"
    if len(name) > MAX_NAME:
        raise UsageError(f"the path's name at a server has {len(name)} characters, above {MAX_NAME}")
    return name


def takes_jpegs(manifest: Manifest) -> bool:
    """True if a server offers a model that takes JPEGs for a bundle: its only input is an image of 1 or 3 channels."""
    first = manifest.cut_points[0].tensors
    return len(first) == 1 and len(first[0].shape) == 3 and manifest.preprocessing.channels in (1, 3)


def bundle_of(model: str) -> str:
    """The bundle that a model of this name comes from."""
    return model.partition("@")[0].partition(":")[0]


def named_path(manifest: Manifest, model: str) -> Subnet | None:
    """The path that a model's name states; None for a name without one.

    Raises:
        UsageError: the bundle has no such path.
    """
    _, marked, rest = model.partition("@")
    if not marked:
        return None
    if len(model) > MAX_NAME:
        raise UsageError(f"the name of a model has more than {MAX_NAME} characters")
    text = rest.removesuffix(IMAGES)
    if text == HYBRID_PATH and manifest.hybrid is not None:
        return manifest.hybrid.subnet
    path = Subnet(tuple(Edge(block, rendition or "fp32") for block, _, rendition in _edges(text)))
    manifest.supernet().check(path)
    return path


def _edges(text: str) -> list[tuple[str, str, str]]:
    return [edge.partition("@") for edge in text.split(",")]
