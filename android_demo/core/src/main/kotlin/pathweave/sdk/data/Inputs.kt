/** Private samples of a search, prepared on demand at any input size. */
package pathweave.sdk.data

import kotlin.math.abs
import pathweave.sdk.InputError
import pathweave.sdk.SplitMix64
import pathweave.sdk.UsageError
import pathweave.sdk.numerics.DType
import pathweave.sdk.numerics.Tensor
import pathweave.sdk.numerics.elements
import pathweave.sdk.supernet.SampleSize

/** Samples that can be prepared at several input sizes. */
public interface Inputs {
    /** Number of samples. */
    public val count: Int

    /** Whether a model that runs at this size can be called with samples like these. */
    public fun has(inputSize: SampleSize?): Boolean = true

    /** The samples at [positions] as [count, *input], at an input size (null: the model's own). */
    public fun take(positions: List<Int>, inputSize: SampleSize?): Tensor
}

/** Only the samples at [kept], in that order. */
internal class SomeInputs(private val all: Inputs, private val kept: List<Int>) : Inputs {
    override val count: Int get() = kept.size
    override fun has(inputSize: SampleSize?): Boolean = all.has(inputSize)
    override fun take(positions: List<Int>, inputSize: SampleSize?): Tensor =
        all.take(positions.map(kept::get), inputSize)
}

/** Samples that are prepared tensors, [count, *input] at the model's own size; resized for other input sizes. */
internal class PreparedInputs(private val tensor: Tensor) : Inputs {
    override val count: Int get() = tensor.batch

    override fun take(positions: List<Int>, inputSize: SampleSize?): Tensor {
        val rows = tensor.rows(positions)
        if (inputSize == null) return rows
        if (inputSize.extents.size == 1) return seriesAt(rows, inputSize.width)
        val (channels, height, width) = tensor.shape.drop(1)
        val (from, values) = SampleSize(height, width) to rows.floats()
        val plane = height * width
        val resized = List(positions.size * channels) {
            resizedPlane(values.copyOfRange(it * plane, (it + 1) * plane), from, inputSize)
        }
        val joined = FloatArray(resized.sumOf { it.size })
        for ((number, one) in resized.withIndex()) one.copyInto(joined, number * one.size)
        return Tensor.of(joined, listOf(positions.size, channels, inputSize.height, inputSize.width))
    }
}

/** Series [count, channels, values] at another length: rows of tokens are cut, others keep their middle. */
internal fun seriesAt(series: Tensor, length: Int): Tensor {
    val (count, channels, have) = series.shape
    if (have == length) return series
    if (series.dtype == DType.INT64) return cutTokens(series, length)
    val (values, found) = series.floats() to FloatArray(count * channels * length)
    val (first, before) = maxOf(have - length, 0) / 2 to maxOf(length - have, 0) / 2
    for (row in 0 until count * channels) {
        values.copyInto(found, row * length + before, row * have + first, row * have + first + minOf(have, length))
    }
    return Tensor.of(found, listOf(count, channels, length))
}

/** Texts [count, rows, tokens]; row 1 is the attention mask. A longer text keeps its first tokens, and its last one. */
private fun cutTokens(texts: Tensor, length: Int): Tensor {
    val (count, rows, have) = texts.shape
    val found = LongArray(count * rows * length)
    for (text in 0 until count) {
        val tokens = (0 until have).count { texts[(text * rows + 1) * have + it] != 0.0 }
        for (row in 0 until rows) {
            val start = (text * rows + row) * have
            for (at in 0 until length) {
                val from = if (at == length - 1 && tokens > length) tokens - 1 else at
                found[(text * rows + row) * length + at] = if (from < have) texts[start + from].toLong() else 0L
            }
        }
    }
    return Tensor.of(found, listOf(count, rows, length))
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
    private val kept = HashMap<Pair<Int, SampleSize>, Image>()
    private var keptBytes = 0L

    override val count: Int get() = images.size

    override fun has(inputSize: SampleSize?): Boolean = inputSize == null || preprocessing.resize != null

    override fun take(positions: List<Int>, inputSize: SampleSize?): Tensor {
        if (!has(inputSize)) return PreparedInputs(take(positions, null)).take(positions.indices.toList(), inputSize)
        val (channels, height, width) = shape
        val size = inputSize ?: SampleSize(height, width)
        return prepare(positions.map { pixels(it, size) }, preprocessing, listOf(channels, size.height, size.width))
    }

    private fun pixels(position: Int, size: SampleSize): Image = synchronized(kept) {
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

private const val MAX_SIDE = 16_384 // pixels; a manifest cannot ask for more
private const val BRIGHTEST = 255.0

/** One image: 8-bit [pixels] (as unsigned bytes), row by row, [h, w, c]. */
public class Image(public val pixels: ByteArray, public val size: SampleSize, public val channels: Int)

/** The preprocessing of samples of any kind, as a manifest states it; `data.kinds` has those that are no images. */
public interface AnyPreprocessing {
    /** The kind's samples, in words. */
    public val samples: String

    /** Blobs that preparing needs, with their bytes. */
    public val blobs: Map<String, Long> get() = emptyMap()

    /** Whether a model whose input has this [shape], without the batch axis, and type takes what it prepares. */
    public fun accepts(shape: List<Int>, dtype: DType): Boolean

    /**
     * The preprocessing of images.
     *
     * @throws UsageError it is of other samples.
     */
    public fun ofImages(): Preprocessing = throw UsageError("this needs a model of images; the model takes $samples")
}

/**
 * How a model wants its pixels: `prepared = (pixel · scale − mean) / std` per channel, each step rounded to float32.
 *
 * [resize]: the model's input size; images of another size are resized with antialiasing, or refused without it.
 * [crop]: null resizes the whole image, whatever its aspect ratio; a share above 0 and up to 1 resizes the central region
 * of the target's aspect ratio, that share of the largest such region in height and width. An image of exactly [resize]
 * is not cropped.
 *
 * @throws IllegalArgumentException values that prepare nothing.
 */
public data class Preprocessing(
    val scale: Double,
    val mean: List<Double>,
    val std: List<Double>,
    val resize: SampleSize? = null,
    val channels: Int = 3,
    val interpolation: Interpolation = Interpolation.BILINEAR,
    val crop: Double? = null,
) : AnyPreprocessing {
    override val samples: String get() = "images"

    override fun accepts(shape: List<Int>, dtype: DType): Boolean = true // others are given prepared

    override fun ofImages(): Preprocessing = this

    init {
        require(mean.size == std.size && std.size == channels && channels > 0) {
            "$channels channels need as many means and deviations, not ${mean.size} and ${std.size}"
        }
        require((mean + scale + std).all { it.isFinite() }) { "scale, mean and std must be finite" }
        require(std.all { it > 0 }) { "every std must be above zero" }
        require(crop == null || (crop > 0 && crop <= 1)) { "crop is a share above 0 and up to 1" }
        if (resize != null) {
            require(resize.height in 1..MAX_SIDE && resize.width in 1..MAX_SIDE) {
                "resize must lie between 1 and $MAX_SIDE pixels"
            }
            require(channels == 1 || channels == 3) { "resize works with 1 or 3 channels" }
        }
    }
}

/**
 * Prepare [images] for a model that takes [inputShape] [c, h, w]: float32 [n, c, h, w].
 *
 * If the preprocessing resizes, images of any size have the height and width of [inputShape] in the result, which may
 * differ from [Preprocessing.resize].
 *
 * @throws InputError no image, or another size or channel count than expected; says which and what came.
 */
public fun prepare(images: List<Image>, preprocessing: Preprocessing, inputShape: List<Int>): Tensor {
    if (inputShape.size != 3) {
        throw InputError("the model takes tensors [batch, ${inputShape.joinToString(", ")}], not images", "use infer")
    }
    val (channels, height, width) = inputShape
    if (images.isEmpty()) throw InputError("there are no images")
    for (image in images) check(image, preprocessing, channels, SampleSize(height, width))
    val size = SampleSize(height, width).takeIf { preprocessing.resize != null }
    val shape = listOf(images.size) + inputShape
    elements(shape, Float.SIZE_BYTES)
    val plane = height * width
    val prepared = FloatArray(images.size * channels * plane)
    val scale = preprocessing.scale.toFloat()
    for ((number, given) in images.withIndex()) {
        val image = fitted(given, preprocessing, size)
        for (channel in 0 until channels) {
            val mean = preprocessing.mean[channel].toFloat()
            val std = preprocessing.std[channel].toFloat()
            val start = (number * channels + channel) * plane
            for (at in 0 until plane) {
                val pixel = (image.pixels[at * channels + channel].toInt() and 0xff).toFloat()
                prepared[start + at] = (pixel * scale - mean) / std
            }
        }
    }
    return Tensor.of(prepared, shape)
}

/**
 * The pixels that [prepare] made [tensor] [n, c, h, w] from: n images.
 *
 * Exact for 8-bit pixels of the same size that stay distinct in float32 (not with a scale far below the mean); else the
 * nearest 8-bit pixels.
 *
 * @throws InputError not a batch with these channels, not finite, or prepared with a scale of zero.
 */
public fun unprepare(tensor: Tensor, preprocessing: Preprocessing): List<Image> {
    val channels = preprocessing.channels
    if (tensor.shape.size != 4 || tensor.shape[1] != channels) {
        throw InputError("expected tensors [n, $channels, h, w], got shape ${tensor.shape}")
    }
    if (preprocessing.scale == 0.0) throw InputError("a scale of zero leaves nothing to recover pixels from")
    val values = tensor.floats()
    if (!values.all { it.isFinite() }) throw InputError("tensors that hold NaN or infinity have no pixels")
    val size = SampleSize(tensor.shape[2], tensor.shape[3])
    val plane = size.height * size.width
    return List(tensor.batch) { number ->
        val pixels = ByteArray(plane * channels)
        for (channel in 0 until channels) {
            val start = (number * channels + channel) * plane
            for (at in 0 until plane) {
                val scaled = values[start + at] * preprocessing.std[channel] + preprocessing.mean[channel]
                val pixel = Math.rint(scaled / preprocessing.scale).coerceIn(0.0, BRIGHTEST)
                pixels[at * channels + channel] = pixel.toInt().toByte()
            }
        }
        Image(pixels, size, channels)
    }
}

private fun check(image: Image, preprocessing: Preprocessing, channels: Int, size: SampleSize) {
    if (image.channels != channels || channels != preprocessing.channels) {
        throw InputError("expected ${preprocessing.channels} channels, got ${image.channels}")
    }
    if (image.size != size && preprocessing.resize == null) {
        throw InputError("expected images of $size, got ${image.size}", "resize them to the model's input")
    }
    val (height, width) = image.size
    if (height < 1 || width < 1 || image.pixels.size.toLong() != height.toLong() * width * channels) {
        throw InputError("an image of ${image.size} with $channels channels has not ${image.pixels.size} bytes")
    }
}

private const val FRACTION_BITS = 22
private const val HALF = 1 shl (FRACTION_BITS - 1)
private const val CUBIC = -0.5 // the free coefficient of bicubic convolution

/** How pixels between pixels are found; [support] in pixels to either side. As text `bilinear`, `bicubic`. */
public enum class Interpolation(internal val support: Double) {
    BILINEAR(1.0) {
        override fun weight(x: Double): Double = maxOf(1.0 - abs(x), 0.0)
    },
    BICUBIC(2.0) {
        override fun weight(x: Double): Double {
            val at = abs(x)
            return when {
                at < 1.0 -> ((CUBIC + 2.0) * at - (CUBIC + 3.0)) * at * at + 1
                at < 2.0 -> (((at - 5) * at + 8) * at - 4) * CUBIC
                else -> 0.0
            }
        }
    },
    ;

    internal abstract fun weight(x: Double): Double

    override fun toString(): String = name.lowercase()
}

/** A region of an image, in pixels from its upper left corner. */
public data class Box(val left: Float, val top: Float, val right: Float, val bottom: Float)

/** What one output pixel is made of: weights of the input pixels from [first] on. */
private class Kernel(val first: Int, val weights: DoubleArray) {
    val fixed = IntArray(weights.size) {
        val scaled = weights[it] * (1 shl FRACTION_BITS)
        (if (weights[it] < 0) scaled - 0.5 else scaled + 0.5).toInt()
    }
}

/** One direction: [length] pixels, of which those from [start] to [end] become [to]. */
private class Direction(val length: Int, val start: Float, val end: Float, val to: Int) {
    val needed get() = to != length || start != 0f || end != to.toFloat()

    fun kernels(interpolation: Interpolation): List<Kernel> {
        val scale = (end - start).toDouble() / to
        val stretch = maxOf(scale, 1.0)
        val support = interpolation.support * stretch
        return List(to) { at ->
            val center = start + (at + 0.5) * scale
            val first = maxOf((center - support + 0.5).toInt(), 0)
            val after = minOf((center + support + 0.5).toInt(), length)
            val raw = DoubleArray(after - first) { interpolation.weight((it + first - center + 0.5) * (1.0 / stretch)) }
            val sum = raw.sum()
            Kernel(first, if (sum == 0.0) raw else DoubleArray(raw.size) { raw[it] / sum })
        }
    }
}

/** Whether the rows are done before the columns: Pillow takes the other order where that leaves much less to do. */
private fun acrossFirst(across: Direction, down: Direction): Boolean {
    val fewer = down.length - down.to
    return !(fewer > 0 && fewer > 2 * (across.length - across.to))
}

/**
 * [image] as a model takes it that wants [size] ([Preprocessing.resize] unless given): cropped and resized.
 *
 * An image of [size] stays as it is; one of [Preprocessing.resize] is resized without cropping.
 */
public fun fitted(image: Image, preprocessing: Preprocessing, size: SampleSize? = preprocessing.resize): Image {
    if (size == null || image.size == size) return image
    val crop = if (image.size == preprocessing.resize) null else preprocessing.crop
    val box = crop?.let { centralBox(image.size, size, it) }
    return resized(image, size, preprocessing.interpolation, box)
}

/** The central region of an [image] with the aspect ratio of [size]; see [Preprocessing.crop]. */
private fun centralBox(image: SampleSize, size: SampleSize, share: Double): Box {
    val scale = minOf(image.height.toDouble() / size.height, image.width.toDouble() / size.width) * share
    val (halfHeight, halfWidth) = size.height * scale / 2 to size.width * scale / 2
    val (middle, center) = image.height / 2.0 to image.width / 2.0
    return Box(
        left = maxOf(center - halfWidth, 0.0).toFloat(),
        top = maxOf(middle - halfHeight, 0.0).toFloat(),
        right = minOf(center + halfWidth, image.width.toDouble()).toFloat(),
        bottom = minOf(middle + halfHeight, image.height.toDouble()).toFloat(),
    )
}

/** [image], or the region [box] of it, at another [size]. */
public fun resized(
    image: Image,
    size: SampleSize,
    interpolation: Interpolation = Interpolation.BILINEAR,
    box: Box? = null,
): Image {
    val (height, width) = image.size
    val across = Direction(width, box?.left ?: 0f, box?.right ?: width.toFloat(), size.width)
    val down = Direction(height, box?.top ?: 0f, box?.bottom ?: height.toFloat(), size.height)
    val passes = listOf<(Image) -> Image>(
        { if (across.needed) rowsResampled(it, across.kernels(interpolation)) else it },
        { if (down.needed) columnsResampled(it, down.kernels(interpolation)) else it },
    )
    return (if (acrossFirst(across, down)) passes else passes.reversed()).fold(image) { found, pass -> pass(found) }
}

private fun rowsResampled(image: Image, kernels: List<Kernel>): Image {
    val (height, width) = image.size
    val channels = image.channels
    val found = ByteArray(height * kernels.size * channels)
    var next = 0
    for (row in 0 until height) {
        for (kernel in kernels) {
            val start = (row * width + kernel.first) * channels
            for (channel in 0 until channels) {
                found[next++] = weighted(image.pixels, start + channel, channels, kernel.fixed)
            }
        }
    }
    return Image(found, SampleSize(height, kernels.size), channels)
}

private fun columnsResampled(image: Image, kernels: List<Kernel>): Image {
    val line = image.size.width * image.channels
    val found = ByteArray(kernels.size * line)
    var next = 0
    for (kernel in kernels) {
        val start = kernel.first * line
        for (at in 0 until line) found[next++] = weighted(image.pixels, start + at, line, kernel.fixed)
    }
    return Image(found, SampleSize(kernels.size, image.size.width), image.channels)
}

/** The sum of the values of [pixels] from [start] on, [step] apart, by [weights], rounded to 8 bits. */
private fun weighted(pixels: ByteArray, start: Int, step: Int, weights: IntArray): Byte {
    var sum = HALF
    var at = start
    for (weight in weights) {
        sum += (pixels[at].toInt() and 0xff) * weight
        at += step
    }
    return (sum shr FRACTION_BITS).coerceIn(0, 255).toByte()
}

/** One plane [height, width] of a prepared tensor at another [size], bilinear; each direction is rounded to float. */
internal fun resizedPlane(plane: FloatArray, from: SampleSize, size: SampleSize): FloatArray {
    val across = Direction(from.width, 0f, from.width.toFloat(), size.width)
    val down = Direction(from.height, 0f, from.height.toFloat(), size.height)

    fun rows(values: FloatArray): FloatArray {
        if (!across.needed) return values
        val kernels = across.kernels(Interpolation.BILINEAR)
        return FloatArray(values.size / from.width * size.width) { at ->
            val kernel = kernels[at % size.width]
            val start = at / size.width * from.width + kernel.first
            kernel.weights.indices.fold(0.0) { sum, number -> sum + values[start + number] * kernel.weights[number] }
                .toFloat()
        }
    }

    fun columns(values: FloatArray): FloatArray {
        if (!down.needed) return values
        val kernels = down.kernels(Interpolation.BILINEAR)
        val width = values.size / from.height
        return FloatArray(size.height * width) { at ->
            val kernel = kernels[at / width]
            val start = kernel.first * width + at % width
            kernel.weights.indices.fold(0.0) { sum, number ->
                sum + values[start + number * width] * kernel.weights[number]
            }.toFloat()
        }
    }
    return if (acrossFirst(across, down)) columns(rows(plane)) else rows(columns(plane))
}
