package pathweave.sdk.offload

import pathweave.sdk.UsageError
import pathweave.sdk.numerics.Tensor

/**
 * Logits of the device and of a server on the same samples, weighed and added: a product of powers of both
 * distributions. Mirrors device_sdk/offload/remote_model.py.
 *
 * Each weight holds its network's temperature and how much it counts. Source: logarithmic opinion pools (Genest and
 * Zidek 1986).
 *
 * @throws UsageError a weight is negative or not finite, or both are 0.
 */
public data class LogarithmicPool(public val device: Double, public val server: Double) {
    init {
        if (listOf(device, server).any { !(it.isFinite() && it >= 0) } || device + server == 0.0) {
            throw UsageError("a pool's weights are $device and $server: none may be below 0, and not both 0")
        }
    }

    /** Logits [batch, classes] of both -> theirs together, [batch, classes]. */
    internal fun pooled(device: Tensor, server: Tensor): Tensor {
        val (own, other) = device.floats() to server.floats()
        val found = FloatArray(own.size) { (this.device * own[it] + this.server * other[it]).toFloat() }
        return Tensor.of(found, device.shape)
    }
}
