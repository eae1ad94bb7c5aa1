/**
 * Limits on the counts and lengths in a manifest, checked before anything is built from it; the same as
 * device_sdk/bundles/manifest_reading.py.
 *
 * They keep all later work proportional to the manifest's bytes. EfficientNet-Lite0's bundle has 33 cut points, 57
 * blocks and 114 renditions.
 */
package pathweave.sdk.bundles

import java.math.BigInteger
import pathweave.sdk.ManifestError
import pathweave.sdk.supernet.Rendition

private const val MAX_CUT_POINTS = 4_096L
private const val MAX_TENSORS = 64L // per cut point
private const val MAX_AXES = 8L
private const val MAX_GOLDEN_ELEMENTS = 1L shl 28 // of one tensor in the self-test: 1 GB of float32
private const val MAX_BLOCKS = 16_384L
private const val MAX_EXITS = 4_096L
private const val MAX_RENDITIONS = 64L // per block or exit
private const val MAX_SHARED = 4_096L // per rendition
private const val MAX_INPUT_SIZES = 256L
private const val MAX_EDGES = 1L shl 18
private const val MAX_MEMBERS = 64L
private const val MAX_CLASSES = 1L shl 20
private const val MAX_TEXT = 4_096 // characters of a name; notes and the recipe are not limited
private const val SHOWN_NAME = 80
private const val SHOWN_TEXT = 40

/** Throws [ManifestError] if the manifest has more of something than a bundle may have. */
internal fun checkLimits(manifest: Manifest) {
    checkCount("cut points", manifest.cutPoints.size, MAX_CUT_POINTS)
    checkCount("blocks", manifest.blocks.size, MAX_BLOCKS)
    checkCount("exits", manifest.exits.size, MAX_EXITS)
    checkCount("input sizes", manifest.inputSizes.size, MAX_INPUT_SIZES)
    checkCount("members", manifest.members.size, MAX_MEMBERS)
    checkCount("class names", manifest.task.classNames.size, MAX_CLASSES)
    for (cut in manifest.cutPoints) checkCount("tensors at cut point ${cut.index}", cut.tensors.size, MAX_TENSORS)
    for (block in manifest.blocks) checkOwner(block.id, block.renditions)
    for (exit in manifest.exits) checkOwner(exit.id, exit.renditions)
    val edges = manifest.blocks.sumOf { it.renditions.size } + manifest.exits.sumOf { it.renditions.size }
    checkCount("edges", edges.toLong() * (1 + manifest.inputSizes.size), MAX_EDGES)
    for (cut in manifest.cutPoints) for (spec in cut.tensors) checkShape(spec.shape, manifest.selfTest.batch)
    for (size in manifest.inputSizes) {
        for (shapes in size.shapes) for (shape in shapes) checkShape(shape, manifest.selfTest.batch)
    }
    checkTexts(manifest)
}

private fun checkOwner(id: String, renditions: List<Rendition>) {
    checkCount("renditions of ${id.take(SHOWN_NAME)}", renditions.size, MAX_RENDITIONS)
    for (one in renditions) checkCount("shared blobs of ${id.take(SHOWN_NAME)}", one.shared.size, MAX_SHARED)
}

private fun checkShape(shape: List<Int>, batch: Int) {
    checkCount("axes of a tensor", shape.size, MAX_AXES)
    val elements = shape.fold(batch.toBigInteger()) { product, extent -> product * extent.toBigInteger() }
    checkCount("elements of a tensor in the self-test", elements, MAX_GOLDEN_ELEMENTS)
}

private fun checkTexts(manifest: Manifest) {
    manifest.task.classNames.forEach(::checkText)
    for (one in manifest.members) checkText(one.name)
    for (cut in manifest.cutPoints) for (spec in cut.tensors) checkText(spec.name)
    for (one in manifest.blocks.flatMap { it.renditions } + manifest.exits.flatMap { it.renditions }) {
        checkText(one.name)
        checkText(one.runtime)
        one.providers.forEach(::checkText)
    }
}

/** Throws [ManifestError] if a name is longer than names may be. */
internal fun checkText(text: String) {
    if (text.codePointCount(0, text.length) > MAX_TEXT) {
        throw ManifestError("the name '${text.take(SHOWN_TEXT)}'… has more than $MAX_TEXT characters")
    }
}

private fun checkCount(what: String, count: Int, most: Long) = checkCount(what, count.toLong(), most)

private fun checkCount(what: String, count: Long, most: Long) = checkCount(what, count.toBigInteger(), most)

private fun checkCount(what: String, count: BigInteger, most: Long) {
    if (count > most.toBigInteger()) throw ManifestError("the manifest has $count $what; $most are allowed")
}
