"""The tiny bundle as a segmenter or a detector: it answers with a map of logits, or of logits and boxes."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from device_sdk.bundles.manifest import Task, encode_manifest
from device_sdk.bundles.manifest_reading import decode_manifest
from device_sdk.bundles.runnable import golden_inputs, sample_outputs
from device_sdk.signing import signatures
from device_sdk.supernet.blocks import CutPoint, Golden, TensorSpec
from tests.device_sdk.tiny_bundle import (
    CHANNELS,
    CLASSES,
    GOLDEN_BATCH,
    GOLDEN_SEED,
    SIDE,
    _described,
    _Fragments,
    write_tiny_bundle,
)


def write_tiny_segmenter(folder: Path, private_key: Path, *, boxes: bool = False, added: bool = False) -> None:
    """The originals of the tiny bundle; its head is a convolution of one pixel instead of a mean and a linear layer.

    ``boxes``: a detector, with four channels more. ``added``: with the other blocks before the head as well.
    """
    write_tiny_bundle(folder, private_key)
    manifest = decode_manifest((folder / "manifest.json").read_bytes())
    channels = len(CLASSES) + (4 if boxes else 0)
    cuts = (*manifest.cut_points[:-1], CutPoint(5, (TensorSpec("cut_5", (channels, SIDE, SIDE)),)))
    fragments, random = _Fragments(folder), np.random.default_rng(5)
    weight = random.standard_normal((channels, CHANNELS, 1, 1)).astype(np.float32)
    fragments.add("o4", 4, 5, [("Conv", ("weight",), {})], {"weight": weight})
    head = _described(fragments, cuts, "o4", "")
    kept = tuple(block for block in manifest.blocks if block.end < 5 and (added or block.is_original))
    segmenter = msgspec.structs.replace(
        manifest,
        name="detector" if boxes else "segmenter",
        task=Task("detection", CLASSES, "cells") if boxes else Task("segmentation", CLASSES),
        cut_points=cuts,
        blocks=(*kept, head),
        exits=(),
        self_test=msgspec.structs.replace(manifest.self_test, original=_golden(folder, manifest, fragments, cuts)),
    )
    data = encode_manifest(segmenter)
    (folder / "manifest.json").write_bytes(data)
    (folder / "manifest.sig").write_bytes(signatures.sign(data, private_key=private_key))


def _golden(folder, manifest, fragments, cuts) -> Golden:
    from device_sdk.bundles.bundle import Bundle
    from device_sdk.runtimes import OnnxRuntime

    bundle = Bundle.open(folder)
    head = tuple(edge for edge, block in bundle.supernet.walk(bundle.supernet.original) if block.end <= 4)
    inputs = golden_inputs(cuts[0], seed=GOLDEN_SEED, batch=GOLDEN_BATCH)
    features = OnnxRuntime(threads=1).load(bundle.stretch(head)).run(inputs)[0]
    return Golden(sample_outputs([fragments.run("o4", "fp32", cuts[4], cuts[5], features)]), tolerance=1e-4)
