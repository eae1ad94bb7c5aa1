/** Logits corrected by the mix of classes on this device. Mirrors device_sdk/execution/loaded_segments.py. */
package pathweave.sdk.execution

import pathweave.sdk.numerics.Tensor
import pathweave.sdk.runtimes.LoadedStretch
import pathweave.sdk.runtimes.StopSignal
import pathweave.sdk.supernet.Prior

/** What is added to each class's logit, by class. */
public fun logitOffsets(prior: Prior): FloatArray =
    FloatArray(prior.logRatios.size) { (prior.temperature * prior.logRatios[it]).toFloat() }

/** [logits] [batch, classes] under [prior], in float32; the same tensor without one. */
public fun corrected(logits: Tensor, prior: Prior?): Tensor =
    if (prior == null) logits else withOffsets(logits, logitOffsets(prior))

/** The same by sample. */
internal fun corrected(logits: List<FloatArray>, prior: Prior?): List<FloatArray> {
    val offsets = logitOffsets(prior ?: return logits)
    return logits.map { row -> FloatArray(row.size) { row[it] + offsets[it] } }
}

private fun withOffsets(logits: Tensor, offsets: FloatArray): Tensor {
    val values = logits.floats()
    for (at in values.indices) values[at] += offsets[at % offsets.size]
    return Tensor.of(values, logits.shape)
}

/** A stretch whose last output is logits, under a prior. Implements the port. */
internal class CorrectedStretch(private val stretch: LoadedStretch, prior: Prior) : LoadedStretch {
    private val offsets = logitOffsets(prior)

    override fun run(inputs: List<Tensor>): List<Tensor> = underPrior(stretch.run(inputs))

    override fun runUntil(inputs: List<Tensor>, stop: StopSignal): List<Tensor>? =
        stretch.runUntil(inputs, stop)?.let(::underPrior)

    override fun close(): Unit = stretch.close()

    private fun underPrior(outputs: List<Tensor>) = outputs.dropLast(1) + withOffsets(outputs.last(), offsets)
}
