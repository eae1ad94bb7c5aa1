/**
 * From raw pixels to what a model takes: the same bits as in Python, one by one or in a batch.
 *
 * Shape legend: height h, width w, channels c, images n. Raw images are 8-bit, channels last, as decoders give them;
 * prepared tensors are float32, channels first. Images of another size are cropped and resized as the manifest states.
 */
package pathweave.sdk.data

import pathweave.sdk.InputError
import pathweave.sdk.numerics.Tensor
import pathweave.sdk.numerics.elements
import pathweave.sdk.supernet.ImageSize

private const val MAX_SIDE = 16_384 // pixels; a manifest cannot ask for more
private const val BRIGHTEST = 255.0

/** One image: 8-bit [pixels] (as unsigned bytes), row by row, [h, w, c]. */
public class Image(public val pixels: ByteArray, public val size: ImageSize, public val channels: Int)

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
    val resize: ImageSize? = null,
    val channels: Int = 3,
    val interpolation: Interpolation = Interpolation.BILINEAR,
    val crop: Double? = null,
) {
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
    for (image in images) check(image, preprocessing, channels, ImageSize(height, width))
    val size = ImageSize(height, width).takeIf { preprocessing.resize != null }
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
    val size = ImageSize(tensor.shape[2], tensor.shape[3])
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

private fun check(image: Image, preprocessing: Preprocessing, channels: Int, size: ImageSize) {
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
