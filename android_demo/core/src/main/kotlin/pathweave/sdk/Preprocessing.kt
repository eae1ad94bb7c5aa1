/**
 * From raw pixels to what a model takes: the same bits as in Python, one by one or in a batch.
 *
 * Shape legend: height h, width w, channels c, images n. Raw images are 8-bit, channels last, as decoders give them;
 * prepared tensors are float32, channels first. Nothing is resized here: the platform does that better (see the app),
 * and no two platforms do it alike.
 */
package pathweave.sdk

private const val MAX_SIDE = 16_384 // pixels; a manifest cannot ask for more

/** Pixels up and across. As text `160x160`, height first. */
public data class ImageSize(val height: Int, val width: Int) {
    override fun toString(): String = "${height}x$width"
}

/** One image: 8-bit [pixels] (as unsigned bytes), row by row, [h, w, c]. */
public class Image(public val pixels: ByteArray, public val size: ImageSize, public val channels: Int)

/**
 * How a model wants its pixels: `prepared = (pixel · scale − mean) / std` per channel, each step rounded to float32.
 *
 * [resize]: images of another size have to be resized to this first (bilinear); without it they are refused.
 *
 * @throws IllegalArgumentException values that prepare nothing.
 */
public data class Preprocessing(
    val scale: Double,
    val mean: List<Double>,
    val std: List<Double>,
    val resize: ImageSize? = null,
    val channels: Int = 3,
) {
    init {
        require(mean.size == std.size && std.size == channels && channels > 0) {
            "$channels channels need as many means and deviations, not ${mean.size} and ${std.size}"
        }
        require((mean + scale + std).all { it.isFinite() }) { "scale, mean and std must be finite" }
        require(std.all { it > 0 }) { "every std must be above zero" }
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
 * @throws InputError no image, or another size or channel count than expected; says which and what came.
 */
public fun prepare(images: List<Image>, preprocessing: Preprocessing, inputShape: List<Int>): Tensor {
    if (inputShape.size != 3) {
        throw InputError("the model takes tensors [batch, ${inputShape.joinToString(", ")}], not images", "use infer")
    }
    val (channels, height, width) = inputShape
    if (images.isEmpty()) throw InputError("there are no images")
    for (image in images) check(image, preprocessing, channels, ImageSize(height, width))
    val shape = listOf(images.size) + inputShape
    elements(shape, Float.SIZE_BYTES)
    val plane = height * width
    val prepared = FloatArray(images.size * channels * plane)
    val scale = preprocessing.scale.toFloat()
    for ((number, image) in images.withIndex()) {
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

private fun check(image: Image, preprocessing: Preprocessing, channels: Int, size: ImageSize) {
    if (image.channels != channels || channels != preprocessing.channels) {
        throw InputError("expected ${preprocessing.channels} channels, got ${image.channels}")
    }
    if (image.size != size) {
        throw InputError("expected images of $size, got ${image.size}", "resize them to the model's input")
    }
    if (image.pixels.size != size.height * size.width * channels) {
        throw InputError("an image of $size with $channels channels has not ${image.pixels.size} bytes")
    }
}
