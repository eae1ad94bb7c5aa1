/**
 * What a manifest describes: cut points with their tensors, blocks, exits and the renditions they run in.
 *
 * A pretrained model is cut where few tensors are live. Cut points are numbered 0 (input) to N (output); a block maps
 * the tensors at its start to those at its end. These types are the ones that the manifest stores.
 */
package pathweave.sdk.supernet

import pathweave.sdk.numerics.DType

/** The rendition that goes without saying. */
public const val FP32: String = "fp32"

/** A block's kind, as the manifest writes it. Blocks of others than those below run too. */
@JvmInline
public value class BlockKind(public val text: String) {
    override fun toString(): String = text

    public companion object {
        public val ORIGINAL: BlockKind = BlockKind("original")
        public val MERGED: BlockKind = BlockKind("merged")
        public val SHRUNK: BlockKind = BlockKind("shrunk")

        /** Of the blocks that lead from one member of a family to another. */
        public val STITCH: BlockKind = BlockKind("stitch")

        /** Of the block to a bottleneck, a narrow cut point. */
        public val ENCODER: BlockKind = BlockKind("encoder")

        /** Of the block from a bottleneck. */
        public val DECODER: BlockKind = BlockKind("decoder")
    }
}

/**
 * One tensor at a cut point. [shape] leaves the batch axis out.
 *
 * [low] and [high] bound most of its values on real data; seeded golden inputs are drawn between them.
 */
public data class TensorSpec(
    val name: String,
    val shape: List<Int>,
    val dtype: DType = DType.FLOAT32,
    val low: Double = 0.0,
    val high: Double = 1.0,
) {
    /** Number of elements of one sample. */
    val size: Long get() = shape.fold(1L) { product, extent -> product * extent }

    val nbytes: Long get() = size * dtype.bytes
}

/** A position where the model can be cut. No block may jump over a [mandatory] one. */
public data class CutPoint(val index: Int, val tensors: List<TensorSpec>, val mandatory: Boolean = false)

/**
 * An input of another size than the model's own, at which the same fragments run.
 *
 * `shapes[k][n]`: of tensor n at cut point k; [golden]: what the original path answers to the golden input of this
 * size; [error]: relative squared error of its features, null where it was not measured.
 */
public data class InputSize(
    val size: SampleSize,
    val shapes: List<List<List<Int>>>,
    val golden: Golden,
    val error: Double? = null,
)

/**
 * What a rendition must answer to the seeded golden input of its start (docs/bundle_format.md).
 *
 * `samples[t]` are drawn elements of output tensor t, flattened; [tolerance] is absolute.
 */
public data class Golden(val samples: List<List<Double>>, val tolerance: Double)

/**
 * One executable form of a block. [shared] lists initializer-only blobs that it needs besides its own; [providers] of
 * the runtime that it is for, where not for all of them. [anySize]: it runs at every input size of the bundle, not only
 * at the model's own.
 */
public data class Rendition(
    val name: String,
    val runtime: String,
    val blob: String,
    val sizeBytes: Long,
    val golden: Golden,
    val shared: List<String> = emptyList(),
    val providers: List<String> = emptyList(),
    val anySize: Boolean = false,
    /** Relative squared error of its features against the block's first rendition; null where it was not measured. */
    val error: Double? = null,
    /** Bytes of its weights in memory, where they are stored in fewer. */
    val loadedBytes: Long? = null,
    /** That its operators need, where it is not that of the bundle. */
    val opset: Long? = null,
) {
    /** True if ONNX Runtime runs it on the processor. */
    val runsHere: Boolean get() = runsOn(listOf(PROVIDERS.getValue(CPU)))

    /** True if ONNX Runtime runs it on one of the [available] providers. */
    internal fun runsOn(available: Collection<String>): Boolean =
        runtime == "onnxruntime" && (providers.isEmpty() || providers.any { it in available })
}

/** An edge of the supernet from cut point [start] to cut point [end]. */
public data class Block(
    val id: String,
    val start: Int,
    val end: Int,
    val kind: BlockKind,
    val parameters: Long,
    val macs: Long,
    val renditions: List<Rendition>,
    /** Relative squared error of its features against the original blocks; null where it was not measured. */
    val distillationError: Double? = null,
) {
    /** Whether its kind may replace so many originals of one member; null: its ends are not of one member. */
    internal fun fitsKind(replaced: Int?): Boolean = when (kind) {
        BlockKind.SHRUNK -> replaced != null && replaced <= 1
        BlockKind.MERGED -> replaced != null && replaced > 1
        else -> true
    }
}

/**
 * One pretrained network of a family.
 *
 * [blocks]: ids of its original blocks, from the input to the output. [accuracy]: on the data of the packager's
 * validation; null where it was not measured.
 */
public data class Member(val name: String, val blocks: List<String>, val accuracy: Double? = null)

/** A branch that answers early from cut point [position]. */
public data class Exit(
    val id: String,
    val position: Int,
    val branch: String,
    val parameters: Long,
    val macs: Long,
    val renditions: List<Rendition>,
    val accuracy: Double? = null,
)

/** Of one sample. */
internal val CutPoint.nbytes: Long get() = tensors.sumOf { it.nbytes }
