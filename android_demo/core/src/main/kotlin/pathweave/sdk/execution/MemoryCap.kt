/** The memory cap of one model: what all its plans may take together. Mirrors device_sdk/execution/plan_in_use.py. */
package pathweave.sdk.execution

import java.util.concurrent.locks.Condition
import java.util.concurrent.locks.ReentrantLock
import kotlin.concurrent.withLock

/** The plan gave way to another one, or the cap sank below what it needs: the call begins again, with that. */
internal class PlanRetired : Exception("the plan was retired")

/** Something that holds memory which no call uses. */
internal fun interface Evictable {
    /** Free what no call uses. The caller holds [MemoryCap.guard]. */
    fun evictIdle()
}

/**
 * Counts the bytes that are taken, as footprints state them, and makes room. Thread-safe.
 *
 * [guard] guards everything here; [changed] is signalled whenever there may be more room. [turn] serialises those that
 * take pages: who waits for room holds the turn and no page, so deadlock is impossible.
 */
internal class MemoryCap(capBytes: Long? = null) {
    val guard = ReentrantLock()
    val changed: Condition = guard.newCondition()
    val turn = ReentrantLock()
    private val holders = mutableSetOf<Evictable>()

    @Volatile
    var usedBytes = 0L
        private set

    /** The most that was taken so far. */
    @Volatile
    var peakBytes = 0L
        private set

    /** The cap; null for none. */
    @Volatile
    var capBytes: Long? = capBytes
        private set

    /** Change the cap. Above a lower one idle pages leave at once, those that calls use when these end. */
    fun set(capBytes: Long?): Unit = guard.withLock {
        this.capBytes = capBytes
        makeRoom(0)
        changed.signalAll()
    }

    /** [holder] gives up what is idle when others need room. */
    fun register(holder: Evictable): Unit = guard.withLock { holders += holder }

    fun unregister(holder: Evictable): Unit = guard.withLock { holders -= holder }

    /** Whether [sizeBytes] more fit. The caller holds [guard]. */
    fun hasRoom(sizeBytes: Long): Boolean = capBytes.let { it == null || usedBytes + sizeBytes <= it }

    /** Evict what is idle, but for [keeping], until [sizeBytes] fit; whether they do. The caller holds [guard]. */
    fun makeRoom(sizeBytes: Long, keeping: Evictable? = null): Boolean {
        for (holder in holders.toList()) {
            if (hasRoom(sizeBytes)) break
            if (holder !== keeping) holder.evictIdle()
        }
        return hasRoom(sizeBytes)
    }

    /** Whether [sizeBytes] are more than the whole cap. */
    fun neverFits(sizeBytes: Long): Boolean = capBytes.let { it != null && sizeBytes > it }

    /** Count [sizeBytes] as taken, room or not; negative ones as returned. */
    fun take(sizeBytes: Long): Unit = guard.withLock {
        usedBytes += sizeBytes
        peakBytes = maxOf(peakBytes, usedBytes)
        changed.signalAll()
    }
}
