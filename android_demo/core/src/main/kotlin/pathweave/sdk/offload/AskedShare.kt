/** Keeps the share of samples that a server is asked about. Mirrors device_sdk/offload/remote_model.py. */
package pathweave.sdk.offload

import pathweave.sdk.execution.ease
import pathweave.sdk.execution.hardSamples
import pathweave.sdk.numerics.Tensor
import pathweave.sdk.numerics.percentile
import pathweave.sdk.supernet.Decider

private const val REMEMBERED = 4096 // eases
private const val FEWEST = 64 // below, they say less than the limit that was calibrated
private const val HORIZON = 128 // samples over which what was asked too much or too little is made up for

/**
 * Which samples are hard, so that [share] of all of them are. Thread-safe.
 *
 * A sample is hard if its ease lies below a quantile of the eases seen last, its own batch's among them. The quantile is
 * the share, plus what was asked too little so far over [HORIZON] samples. No labels are needed. Logits that are no
 * answer are hard.
 */
internal class AskedShare(private val share: Double) {
    private var decider: Decider? = null // guarded by this, as all that follows
    private var eases = DoubleArray(0)
    private var owed = 0.0 // samples

    /** Which samples are hard: logits [batch, classes] -> [batch]. Another decider begins anew. */
    fun hard(decider: Decider, logits: Tensor): List<Boolean> {
        val found = ease(decider, logits)
        return synchronized(this) {
            if (decider != this.decider) {
                this.decider = decider
                eases = DoubleArray(0)
                owed = 0.0
            }
            val known = found.filter { it.isFinite() }
            eases = (eases + known).let { it.copyOfRange(maxOf(0, it.size - REMEMBERED), it.size) }
            val limit = limit()
            val hard = if (eases.size < FEWEST) hardSamples(decider, logits) else found.map { !it.isFinite() || it < limit }
            owed += share * found.size - hard.count { it }
            hard
        }
    }

    private fun limit(): Double {
        val share = share + owed / HORIZON
        if (share <= 0 || eases.isEmpty()) return Double.NEGATIVE_INFINITY
        return if (share >= 1) Double.POSITIVE_INFINITY else percentile(eases.sorted(), share)
    }
}
