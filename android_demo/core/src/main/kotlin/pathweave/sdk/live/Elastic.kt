/**
 * How much memory a model may take while the system's memory shrinks and grows: pure decisions on readings. Mirrors
 * device_sdk/live/elastic.py.
 *
 * Source: memory-elastic inference of MEEdge §3.4. Ours are the reserve that the system keeps and the hysteresis: the
 * cap sinks at once, and rises when there has been room for a while.
 */
package pathweave.sdk.live

import java.lang.Math.rint
import kotlin.math.floor
import pathweave.sdk.UsageError
import pathweave.sdk.memory_pressure.MemoryReading


/**
 * How the memory cap follows the system's memory.
 *
 * [reserveBytes]: left to everything else. [stalledShare]: of the last ten seconds, waiting for memory from which on
 * the cap sinks to [stalledFactor] of what is taken. [growMargin]: room beyond a new cap, as a share of it; the cap rises
 * when it can rise by as much again, for [growAfterS]. [intervalS]: between two readings.
 *
 * @throws UsageError a number is out of its range.
 */
public data class ElasticSettings(
    val reserveBytes: Long = 16_000_000,
    val stalledShare: Double = 0.2,
    val stalledFactor: Double = 0.75,
    val growMargin: Double = 0.1,
    val growAfterS: Double = 2.0,
    val intervalS: Double = 0.05,
) {
    init {
        if (reserveBytes < 0 || !(growMargin >= 0) || !(growAfterS >= 0)) {
            throw UsageError("the reserve, the margin and the wait of elastic memory cannot be negative")
        }
        val shares = stalledShare > 0 && stalledShare <= 1 && stalledFactor > 0 && stalledFactor < 1
        if (!shares || !(intervalS > 0)) {
            throw UsageError("shares of elastic memory lie between 0 and 1, and the interval is above 0")
        }
    }
}

/** The cap in use, null for none, and since when there has been room for a larger one, on a monotonic clock. */
internal data class CapState(val capBytes: Long?, val roomySinceS: Double = Double.POSITIVE_INFINITY)

/**
 * The cap after a reading.
 *
 * [takenBytes]: what the model takes now; it may keep this, and take what is available beyond the reserve. [mostBytes]:
 * what the whole model takes: with room for it, the cap is the ceiling. [ceilingBytes]: what the user allows; null for
 * no limit.
 */
internal fun nextCap(
    state: CapState,
    reading: MemoryReading,
    takenBytes: Long,
    mostBytes: Long,
    ceilingBytes: Long?,
    nowS: Double,
    settings: ElasticSettings,
): CapState {
    val stalled = reading.stalledShare != null && reading.stalledShare >= settings.stalledShare
    var roomBytes = maxOf(0L, takenBytes + reading.availableBytes - settings.reserveBytes)
    if (stalled) roomBytes = minOf(roomBytes, rint(settings.stalledFactor * takenBytes).toLong())
    val targetBytes = floor(roomBytes / (1 + settings.growMargin)).toLong() // small changes do not matter then
    val heldBytes = state.capBytes ?: takenBytes
    if (roomBytes < heldBytes) return CapState(targetBytes)
    if (state.capBytes == null || state.capBytes == ceilingBytes) return CapState(state.capBytes)
    val full = targetBytes >= if (ceilingBytes == null) mostBytes else minOf(mostBytes, ceilingBytes)
    if (stalled || !(full || targetBytes > heldBytes * (1 + settings.growMargin))) return CapState(state.capBytes)
    val sinceS = minOf(state.roomySinceS, nowS)
    if (nowS - sinceS < settings.growAfterS) return CapState(state.capBytes, sinceS)
    return CapState(if (full) ceilingBytes else targetBytes)
}
