/**
 * Whether a server's model can replace the device's, and samples as its input. No I/O. Mirrors
 * device_sdk/offload/agreement.py.
 */
package pathweave.sdk.offload

import pathweave.sdk.InputError
import pathweave.sdk.UsageError
import pathweave.sdk.data.Image
import pathweave.sdk.data.Preprocessing
import pathweave.sdk.data.fitted
import pathweave.sdk.data.resized
import pathweave.sdk.data.unprepare
import pathweave.sdk.numerics.DType
import pathweave.sdk.numerics.Tensor
import pathweave.sdk.supernet.ImageSize

private const val JPEG = "image/jpeg"
private const val MAX_SENT_SIDE = 1024 // pixels; limit of the size to which a server can make a device resize images
private const val NEEDS_ENCODER = "give the RemoteModel a jpegEncoder, or name another model of the server"
private val RESIZABLE = setOf(1, 3) // channels
private val FRACTIONS = setOf("FP16", "FP32", "FP64")

/** What the device's model takes and gives, without the batch: [inputShape] [c, h, w] for images. */
internal class DeviceModel(
    val classNames: List<String>,
    val inputShape: List<Int>,
    val outputShape: List<Int>,
    val preprocessing: Preprocessing,
    val task: String = "classification",
)

/** What samples are sent as. */
internal enum class SentAs {
    IMAGES, // raw pixels
    TENSORS, // prepared
    JPEG,
    ;

    override fun toString(): String = name.lowercase()
}

/** A model with one input and one output, and what it is sent. */
internal class Agreement(val sends: SentAs, val metadata: ModelMetadata) {
    /** The model's only input. */
    val input: TensorMetadata get() = metadata.inputs[0]
}

/**
 * What to send to the model of [metadata]: JPEGs or images if it takes them, else tensors.
 *
 * @throws UsageError classes, task, input or output are not those of the [device]; the message says which.
 */
internal fun agree(metadata: ModelMetadata, device: DeviceModel): Agreement {
    val (wanted, output) = onlyOnes(metadata)
    if (metadata.task != null && metadata.task != device.task) {
        throw misfit("it is for ${metadata.task.take(40)}, the device's model for ${device.task}")
    }
    if (metadata.classNames != null && metadata.classNames != device.classNames) {
        throw misfit("its classes are not the device's")
    }
    if (output.datatype !in FRACTIONS || !isBatchOf(device.outputShape, output.shape)) {
        throw misfit("its output is ${output.datatype} ${output.shape}, the device's is ${device.outputShape}")
    }
    val channels = device.inputShape.first().takeIf { device.inputShape.size == 3 }
    if (wanted.datatype == "UINT8" && channels != null && takesImages(wanted.shape, channels)) {
        return Agreement(SentAs.IMAGES, metadata)
    }
    if (wanted.datatype == "FP32" && isBatchOf(device.inputShape, wanted.shape)) return Agreement(SentAs.TENSORS, metadata)
    if (takesJpegs(metadata) && channels in RESIZABLE) return Agreement(SentAs.JPEG, metadata)
    throw misfit("its input is ${wanted.datatype} ${wanted.shape}, the device's ${device.inputShape}")
}

private fun onlyOnes(metadata: ModelMetadata): Pair<TensorMetadata, TensorMetadata> {
    val (inputs, outputs) = metadata.inputs.size to metadata.outputs.size
    if (inputs != 1 || outputs != 1) throw misfit("it has $inputs inputs and $outputs outputs, not one and one")
    return metadata.inputs[0] to metadata.outputs[0]
}

/**
 * The samples as the model's input tensor; JPEGs have the height and width of [tensors] and are made by [jpeg].
 *
 * [tensors]: prepared, [n, ...]; [images]: the same samples as pixels, all of one size, or null to recover them.
 *
 * @throws InputError the pixels cannot be recovered or resized.
 * @throws UsageError JPEGs are sent, and there is no encoder.
 */
internal fun filled(
    agreement: Agreement,
    tensors: Tensor,
    images: List<Image>?,
    preprocessing: Preprocessing,
    jpeg: ((Image) -> ByteArray)? = null,
): NamedTensor {
    val input = agreement.input
    if (agreement.sends == SentAs.TENSORS) {
        val exact = if (tensors.dtype == DType.FLOAT32) tensors else Tensor.of(tensors.floats(), tensors.shape)
        return NamedTensor.of(input.name, exact)
    }
    val given = images ?: unprepare(tensors, preprocessing)
    if (agreement.sends == SentAs.JPEG) {
        val encode = jpeg ?: throw UsageError("the server's model takes JPEGs, and there is no encoder", NEEDS_ENCODER)
        val size = ImageSize(tensors.shape[2], tensors.shape[3])
        return NamedTensor.of(input.name, given.map { encode(fitted(it, preprocessing, size)) })
    }
    val pixels = given.map { fitted(it, input.shape) }
    val (size, channels) = pixels[0].size to pixels[0].channels
    val data = ByteArray(pixels.sumOf { it.pixels.size })
    pixels.forEachIndexed { number, image -> image.pixels.copyInto(data, number * image.pixels.size) }
    return NamedTensor(input.name, Datatype.UINT8, listOf(pixels.size, size.height, size.width, channels), data)
}

/** [image] at the height and width of [shape] [-1, h, w, c], in which -1 is any. */
private fun fitted(image: Image, shape: List<Int>): Image {
    val (height, width) = image.size
    val size = ImageSize(if (shape[1] == -1) height else shape[1], if (shape[2] == -1) width else shape[2])
    if (image.size == size) return image
    if (image.channels !in RESIZABLE) {
        throw InputError("the server needs images ${shape.drop(1)}; these cannot be resized: ${image.size}")
    }
    return resized(image, size)
}

/** Whether the input is a batch of byte strings that are stated to be JPEGs, and the server reads bytes. */
private fun takesJpegs(metadata: ModelMetadata): Boolean {
    val wanted = metadata.inputs[0]
    return wanted.datatype == "BYTES" && wanted.shape == listOf(-1) && metadata.content == JPEG && metadata.binary
}

/** Whether [shape] is [-1, h, w, c] with sides of at most [MAX_SENT_SIDE]. */
private fun takesImages(shape: List<Int>, channels: Int): Boolean =
    shape.size == 4 && shape[0] == -1 && (shape[3] == -1 || shape[3] == channels) &&
        shape.subList(1, 3).all { it == -1 || it in 1..MAX_SENT_SIDE }

private fun isBatchOf(shape: List<Int>, wanted: List<Int>): Boolean =
    wanted.firstOrNull() == -1 && sidesFit(shape, wanted.drop(1))

private fun misfit(why: String) =
    UsageError("the server's model does not fit: $why", "name another model of the server")
