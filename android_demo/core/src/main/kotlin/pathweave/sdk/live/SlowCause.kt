/**
 * The cause of a slower device: heat, the load of others, or a power mode. Pure.
 *
 * Throttling and power modes last, the load of others passes: live update treats them differently.
 */
package pathweave.sdk.live

private const val MODERATE = 2 // Android's thermal status from which on it slows apps down
private const val LOWER_LIMIT = 0.95 // of the allowed frequency before
private const val LOWER_FREQUENCY = 0.85 // of the frequency before: turbo frequencies vary by some percent
private const val WAITED_SHARE = 0.1 // of the time that threads wanted a core
private const val OTHERS_CORES = 0.5

/** Why a device became slower; [lasts]: not for seconds only. [HOME]: one provider is slow, the processor is not. */
internal enum class Cause(val text: String, val lasts: Boolean) {
    THROTTLED("throttled", true),
    LOAD("load", false),
    POWER_MODE("power_mode", true),
    HOME("home", true),
    UNKNOWN("unknown", false),
}

/** [Cause.POWER_MODE] or [Cause.THROTTLED] where the system itself says so, against [before]; else unknown. */
internal fun lastingCause(before: SpeedReading, now: SpeedReading): Cause {
    val status = now.thermalStatus ?: 0
    return when {
        (now.saving && !before.saving) || now.powerMode != before.powerMode -> Cause.POWER_MODE
        status >= MODERATE && status > (before.thermalStatus ?: 0) -> Cause.THROTTLED
        (now.heldBack - before.heldBack).isNotEmpty() -> Cause.THROTTLED
        fell(now.limitShare, before.limitShare, LOWER_LIMIT) -> Cause.THROTTLED
        else -> Cause.UNKNOWN
    }
}

/**
 * The cause by three readings: [before] it was slow, and two while it is.
 *
 * A lower frequency alone counts as throttling only where others do not take the processor: turbo frequencies fall when
 * more cores are busy.
 */
internal fun slowCause(before: SpeedReading, recent: SpeedReading, now: SpeedReading): Cause {
    val stated = lastingCause(before, now)
    return when {
        stated != Cause.UNKNOWN -> stated
        recent.throttles != null && (now.throttles ?: 0) > recent.throttles -> Cause.THROTTLED
        (waitedShare(recent, now) ?: 0.0) >= WAITED_SHARE -> Cause.LOAD
        (othersCores(recent, now) ?: 0.0) >= OTHERS_CORES -> Cause.LOAD
        fell(now.frequencyMhz, before.frequencyMhz, LOWER_FREQUENCY) -> Cause.THROTTLED
        else -> Cause.UNKNOWN
    }
}

/** Of the time that threads of this process wanted a core, the share that they waited for one; null if unknown. */
internal fun waitedShare(recent: SpeedReading, now: SpeedReading): Double? {
    val runNs = grew(recent.runNs, now.runNs) ?: return null
    val waitedNs = grew(recent.waitedNs, now.waitedNs) ?: return null
    return if (runNs + waitedNs == 0L) null else waitedNs.toDouble() / (runNs + waitedNs)
}

/** Cores that other processes kept busy between two readings; null if unknown. */
internal fun othersCores(recent: SpeedReading, now: SpeedReading): Double? {
    val busy = grew(recent.busyTicks, now.busyTicks) ?: return null
    val own = grew(recent.ownTicks, now.ownTicks) ?: return null
    val total = grew(recent.totalTicks, now.totalTicks)?.takeIf { it > 0 } ?: return null
    return maxOf(0L, busy - own) * now.cores / total.toDouble()
}

/** The growth of a count; null where it is unknown or was set back, as when threads have ended. */
private fun grew(earlier: Long?, later: Long?): Long? =
    if (earlier == null || later == null || later < earlier) null else later - earlier

private fun fell(now: Double?, before: Double?, share: Double) = now != null && before != null && now < share * before
