/** Private samples of a search, prepared on demand at any input size. Mirrors device_sdk/data/inputs.py. */
package pathweave.sdk.data

import pathweave.sdk.SplitMix64
import pathweave.sdk.UsageError
import pathweave.sdk.numerics.Tensor
import pathweave.sdk.supernet.ImageSize

/** Samples that can be prepared at several input sizes. */
public interface Inputs {
    /** Number of samples. */
    public val count: Int

    /** Whether a model that runs at this size can be called with samples like these. */
    public fun has(inputSize: ImageSize?): Boolean = true

    /** The samples at [positions] as [count, *input], at an input size (null: the model's own). */
    public fun take(positions: List<Int>, inputSize: ImageSize?): Tensor
}

/** Only the samples at [kept], in that order. */
internal class SomeInputs(private val all: Inputs, private val kept: List<Int>) : Inputs {
    override val count: Int get() = kept.size
    override fun has(inputSize: ImageSize?): Boolean = all.has(inputSize)
    override fun take(positions: List<Int>, inputSize: ImageSize?): Tensor =
        all.take(positions.map(kept::get), inputSize)
}

/** Samples that are prepared tensors, [count, *input] at the model's own size; resized for other input sizes. */
internal class PreparedInputs(private val tensor: Tensor) : Inputs {
    override val count: Int get() = tensor.batch

    override fun take(positions: List<Int>, inputSize: ImageSize?): Tensor {
        val rows = tensor.rows(positions)
        if (inputSize == null) return rows
        val (channels, height, width) = tensor.shape.drop(1)
        val (from, values) = ImageSize(height, width) to rows.floats()
        val plane = height * width
        val resized = List(positions.size * channels) {
            resizedPlane(values.copyOfRange(it * plane, (it + 1) * plane), from, inputSize)
        }
        val joined = FloatArray(resized.sumOf { it.size })
        for ((number, one) in resized.withIndex()) one.copyInto(joined, number * one.size)
        return Tensor.of(joined, listOf(positions.size, channels, inputSize.height, inputSize.width))
    }
}

private const val KEPT_BYTES = 100_000_000L // of resized pixels

/**
 * Raw images of any sizes, which stay 8-bit pixels until their batch is taken; resized ones are kept up to 100 MB.
 *
 * Where the preprocessing does not resize, the model cannot be called at other sizes; a search resizes what is prepared.
 */
internal class RawInputs(
    val images: List<Image>,
    private val preprocessing: Preprocessing,
    private val shape: List<Int>,
) : Inputs {
    private val kept = HashMap<Pair<Int, ImageSize>, Image>()
    private var keptBytes = 0L

    override val count: Int get() = images.size

    override fun has(inputSize: ImageSize?): Boolean = inputSize == null || preprocessing.resize != null

    override fun take(positions: List<Int>, inputSize: ImageSize?): Tensor {
        if (!has(inputSize)) return PreparedInputs(take(positions, null)).take(positions.indices.toList(), inputSize)
        val (channels, height, width) = shape
        val size = inputSize ?: ImageSize(height, width)
        return prepare(positions.map { pixels(it, size) }, preprocessing, listOf(channels, size.height, size.width))
    }

    private fun pixels(position: Int, size: ImageSize): Image = synchronized(kept) {
        kept[position to size]?.let { return it }
        val found = if (preprocessing.resize == null) images[position] else fitted(images[position], preprocessing, size)
        if (found !== images[position] && keptBytes + found.pixels.size <= KEPT_BYTES) {
            kept[position to size] = found
            keptBytes += found.pixels.size
        }
        return found
    }
}

/**
 * Positions in [labels] to search on, in random order, and to hold back: [holdoutShare] of every class (rounded).
 *
 * A class of two samples or more is in both parts. Mirrors device_sdk/policies/adaptation.py, draw by draw.
 *
 * @throws UsageError the share does not lie between 0 and 1.
 */
public fun searchPositions(labels: IntArray, holdoutShare: Double, seed: Long): Pair<List<Int>, List<Int>> {
    if (!(holdoutShare > 0 && holdoutShare < 1)) {
        throw UsageError("the held-out share is $holdoutShare; it must lie between 0 and 1")
    }
    val random = SplitMix64(seed)
    val held = labels.indices.groupBy { labels[it] }.toSortedMap().values.flatMap { positions ->
        val wanted = Math.rint(holdoutShare * positions.size).toInt()
        val count = if (positions.size > 1) wanted.coerceIn(1, positions.size - 1) else wanted
        random.shuffled(positions).take(count)
    }.toSet()
    val (back, kept) = labels.indices.partition { it in held }
    return SplitMix64(seed).shuffled(kept) to back
}
