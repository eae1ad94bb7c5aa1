/**
 * When a plan is made again because the network has changed. Decides; the clock's reading is an argument. Mirrors
 * device_sdk/live/network_follower.py.
 */
package pathweave.sdk.live

import pathweave.sdk.supernet.Uplink

private const val LEAST_MS = 1e-9

/**
 * [factor]: by which a transfer is slower or quicker than planned; [patienceS]: for how long in a row; [cooldownS]: after
 * a plan was made, before the next one.
 */
public data class DriftSettings(
    val factor: Double = 1.5,
    val patienceS: Double = 0.8,
    val cooldownS: Double = 1.5,
)

/**
 * Watches the way to a server against the one that was planned with.
 *
 * [sizes]: of typical requests in bytes, whose transfer times count. A server that is out of reach, or back again, is a
 * change too. Not thread-safe.
 */
public class NetworkDrift(
    private var planned: Uplink?,
    private val sizes: List<Long>,
    private val settings: DriftSettings = DriftSettings(),
) {
    private var sinceS: Double? = null // when the drift began
    private var plannedS = Double.NEGATIVE_INFINITY

    /** Whether to plan again with [now], the uplink of this moment. A clock that jumps back begins anew. */
    public fun callsForAPlan(now: Uplink?, nowS: Double): Boolean {
        if (nowS < plannedS || sinceS.let { it != null && nowS < it }) {
            sinceS = null
            plannedS = Double.NEGATIVE_INFINITY
        }
        if (!hasDrifted(now)) {
            sinceS = null
            return false
        }
        val since = sinceS ?: nowS.also { sinceS = it }
        return nowS - since >= settings.patienceS && nowS - plannedS >= settings.cooldownS
    }

    /** A plan was made with this uplink. */
    public fun plannedWith(uplink: Uplink?, nowS: Double) {
        planned = uplink
        plannedS = nowS
        sinceS = null
    }

    private fun hasDrifted(now: Uplink?): Boolean {
        val before = planned
        if (now == null || before == null) return (now == null) != (before == null)
        return sizes.any { size ->
            val ratio = now.transferMs(size) / maxOf(before.transferMs(size), LEAST_MS)
            !(1 / settings.factor < ratio && ratio < settings.factor)
        }
    }
}
