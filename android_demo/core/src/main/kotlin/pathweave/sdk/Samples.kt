/** What callers hand in, checked against what a model takes. */
package pathweave.sdk

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

    private fun input(inputSize: ImageSize?): TensorSpec = bundle.supernet.cutPointsAt(inputSize)[0].tensors[0]
}
