/** What callers hand in, checked against what a model takes. */
package pathweave.sdk.session

import pathweave.sdk.InputError
import pathweave.sdk.bundles.Bundle
import pathweave.sdk.data.Image
import pathweave.sdk.data.Inputs
import pathweave.sdk.data.PreparedInputs
import pathweave.sdk.data.RawInputs
import pathweave.sdk.data.prepare
import pathweave.sdk.numerics.Tensor
import pathweave.sdk.supernet.ImageSize
import pathweave.sdk.supernet.TensorSpec

/**
 * Turns raw images into what a plan of [bundle] takes, and refuses everything else ([InputError]).
 *
 * Every function is told the input size of the plan, null for the model's own.
 */
internal class SampleChecker(private val bundle: Bundle) {
    private val preprocessing = bundle.manifest.preprocessing

    /** What images have to measure; null if the model takes no images. */
    fun imageSize(inputSize: ImageSize?): ImageSize? =
        input(inputSize).shape.takeIf { it.size == 3 }?.let { (_, height, width) -> ImageSize(height, width) }

    /** Raw images as [batch, *input] float32. */
    fun prepare(images: List<Image>, inputSize: ImageSize?): Tensor =
        prepare(images, preprocessing, input(inputSize).shape)

    /** A prepared tensor [batch, *input], or one sample [*input] as a batch of one. */
    fun tensor(tensor: Tensor, inputSize: ImageSize?): Tensor {
        val input = input(inputSize)
        if (tensor.shape == input.shape) {
            return tensor(Tensor(tensor.dtype, listOf(1) + tensor.shape, tensor.view()), inputSize)
        }
        if (tensor.shape.drop(1) != input.shape) {
            val expected = input.shape.joinToString(", ")
            throw InputError(
                "expected a tensor of shape [batch, $expected], got ${tensor.shape}",
                imageSize(inputSize)?.let { "the plan in use takes images of $it; nothing is resized here" },
            )
        }
        if (tensor.dtype != input.dtype) {
            throw InputError("expected ${input.dtype}, got ${tensor.dtype}", "raw images go to classify")
        }
        return tensor
    }

    /** Samples to adapt on, each checked. */
    fun inputs(images: List<Image>): Inputs {
        val shape = input(null).shape
        for (image in images) prepare(listOf(image), preprocessing, shape)
        return RawInputs(images, preprocessing, shape)
    }

    /** The same, prepared before. */
    fun inputs(tensor: Tensor): Inputs {
        val checked = tensor(tensor, null)
        val sample = checked.size / checked.batch
        val broken = (0 until checked.batch).filter { at ->
            (at * sample until (at + 1) * sample).any { !checked[it].isFinite() }
        }
        if (broken.isNotEmpty()) {
            throw InputError(
                "${broken.size} of ${checked.batch} samples have values that are no numbers, number ${broken[0]} first",
                "leave them out",
            )
        }
        return PreparedInputs(checked)
    }

    /** Throws InputError unless each image is one that the model takes, and has a label of one of its classes, if any. */
    fun requireLabelled(images: List<Image>, labels: IntArray?) {
        if (images.isEmpty()) throw InputError("there are no images")
        inputs(images)
        val classes = bundle.manifest.task.classNames.size
        if (labels == null) return
        if (labels.size != images.size) throw InputError("${images.size} images have ${labels.size} labels")
        labels.find { it !in 0 until classes }?.let { throw InputError("there is no class $it; there are $classes") }
    }

    private fun input(inputSize: ImageSize?): TensorSpec = bundle.supernet.cutPointsAt(inputSize)[0].tensors[0]
}
