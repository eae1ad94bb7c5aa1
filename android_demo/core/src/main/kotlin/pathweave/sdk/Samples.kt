/** What callers hand in, checked against what a model takes. */
package pathweave.sdk

/** Turns raw images into what the model of [manifest] takes, and refuses everything else ([InputError]). */
internal class SampleChecker(manifest: Manifest) {
    private val preprocessing = manifest.preprocessing
    private val input = manifest.cutPoints.first().tensors.first()

    /** Raw images as [batch, *input] float32. */
    fun prepare(images: List<Image>): Tensor = prepare(images, preprocessing, input.shape)

    /** A prepared tensor [batch, *input], or one sample [*input] as a batch of one. */
    fun tensor(tensor: Tensor): Tensor {
        if (tensor.shape == input.shape) {
            return tensor(Tensor(tensor.dtype, listOf(1) + tensor.shape, tensor.view()))
        }
        if (tensor.shape.drop(1) != input.shape) {
            val expected = input.shape.joinToString(", ")
            throw InputError("expected a tensor of shape [batch, $expected], got ${tensor.shape}")
        }
        if (tensor.dtype != input.dtype) {
            throw InputError("expected ${input.dtype}, got ${tensor.dtype}", "raw images go to classify")
        }
        return tensor
    }
}
