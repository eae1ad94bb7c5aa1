/**
 * Latency of calls: medians with spread, competitors interleaved.
 *
 * A device's speed drifts; competitors that take turns meet the same drift, so their ratio holds. Every turn begins
 * with a call that does not count: a deployed model finds the caches as it left them itself.
 */
package pathweave.sdk

private const val NANOSECONDS_PER_MS = 1e6

/** Nanoseconds from any start; monotonic. */
public typealias Clock = () -> Long

/** How long one call takes, over [runs] timed calls; half of them lie from [p25Ms] to [p75Ms]. */
public data class Latency(
    val medianMs: Double,
    val p95Ms: Double,
    val p25Ms: Double,
    val p75Ms: Double,
    val runs: Int,
)

/**
 * Time competitors in turns: each has one turn per round, in an order that is another one every round.
 *
 * The order rotates, so that everyone starts equally often, and every second rotation runs backwards, so that nobody
 * always follows the same neighbour. Where there are several, each is called twice in its turn and the second call
 * timed. The first [warmup] rounds do not count.
 */
public fun measureInterleaved(
    calls: List<() -> Unit>,
    rounds: Int,
    warmup: Int,
    clock: Clock = System::nanoTime,
): List<Latency> {
    require(rounds >= 1 && warmup >= 0) { "needs at least 1 round and no negative warm-up, got $rounds and $warmup" }
    val samplesNs = calls.map { LongArray(rounds) }
    for (round in -warmup until rounds) {
        for (index in order(calls.size, round)) {
            if (calls.size > 1 && round >= 0) calls[index]()
            val startedNs = clock()
            calls[index]()
            val elapsedNs = clock() - startedNs
            if (round >= 0) samplesNs[index][round] = elapsedNs
        }
    }
    return samplesNs.map(::summary)
}

internal fun order(count: Int, round: Int): List<Int> {
    val rotated = List(count) { (it + Math.floorMod(round, count)) % count }
    return if (Math.floorMod(Math.floorDiv(round, maxOf(count, 1)), 2) == 1) rotated.reversed() else rotated
}

private fun summary(samplesNs: LongArray): Latency {
    val sorted = samplesNs.map { it / NANOSECONDS_PER_MS }.sorted()
    return Latency(
        medianMs = percentile(sorted, 0.50),
        p95Ms = percentile(sorted, 0.95),
        p25Ms = percentile(sorted, 0.25),
        p75Ms = percentile(sorted, 0.75),
        runs = sorted.size,
    )
}

/** Between the two nearest of [sorted], in proportion. */
internal fun percentile(sorted: List<Double>, share: Double): Double {
    val place = share * (sorted.size - 1)
    val below = place.toInt()
    val above = minOf(below + 1, sorted.lastIndex)
    return sorted[below] + (sorted[above] - sorted[below]) * (place - below)
}
