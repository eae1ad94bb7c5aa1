/**
 * Costs of a plan at every threshold of its decider at once, in closed form. Pure.
 *
 * Samples are ordered by ease. The threshold that calls the k hardest ones hard changes only k, so all costs are
 * cumulative sums.
 */
package pathweave.sdk.policies.planning

import kotlin.math.floor
import pathweave.sdk.supernet.Decider
import pathweave.sdk.supernet.PlanCost
import pathweave.sdk.supernet.Power
import pathweave.sdk.supernet.UNREACHABLE_CONFIDENCE
import pathweave.sdk.supernet.ease

internal const val P95: Double = 0.95

/** The costs of several plans: a column per quantity, not a number where it is unknown. */
internal class Costs(
    val accuracy: DoubleArray,
    val latencyMs: DoubleArray,
    val p95LatencyMs: DoubleArray,
    val energyMj: DoubleArray,
    val bytesSent: DoubleArray,
    val peakBytes: DoubleArray,
    val coverage: DoubleArray,
    val shareAsked: DoubleArray,
) {
    val count: Int get() = accuracy.size

    fun column(name: String): DoubleArray = when (name) {
        "accuracy" -> accuracy
        "latency_ms" -> latencyMs
        "p95_latency_ms" -> p95LatencyMs
        "energy_mj" -> energyMj
        "bytes_sent" -> bytesSent
        "peak_bytes" -> peakBytes
        "share_asked" -> shareAsked
        else -> coverage
    }

    companion object {
        fun of(cost: PlanCost): Costs {
            fun column(value: Double?) = doubleArrayOf(value ?: Double.NaN)
            return Costs(
                column(cost.accuracy),
                column(cost.latencyMs),
                column(cost.p95LatencyMs),
                column(cost.energyMj),
                column(cost.bytesSent),
                column(cost.peakBytes.toDouble()),
                column(cost.coverage),
                column(cost.shareAsked),
            )
        }
    }
}

/**
 * The samples that reach the end of a route, by ease: what all thresholds of a decider have in common.
 *
 * [samples]: the hardest first; [eases]: of them; [hardest]: how many each threshold calls hard.
 */
internal class Ranking private constructor(
    val route: SampleRoute,
    val kind: Decider,
    val samples: IntArray,
    val eases: DoubleArray,
    val hardest: IntArray,
) {
    /** The eases in the order of the samples that reach the end. */
    fun bySample(): DoubleArray = samples.indices.sortedBy { samples[it] }.map { eases[it] }.toDoubleArray()

    fun decider(number: Int): Decider {
        val count = hardest[number]
        if (count == eases.size) return everythingIsHard(kind)
        val (below, above) = eases[count - 1] to eases[count]
        val middle = (below + above) / 2
        return withLimit(kind, if (below < middle) middle else above)
    }

    companion object {
        /** All thresholds of [decider] behind [route], which has reached its end; null if no sample gets there. */
        fun of(route: SampleRoute, decider: Decider): Ranking? {
            val found = ease(decider, route.logits)
            val order = route.open.indices.filter { route.open[it] }.sortedBy { found[it] + 0.0 } // −0 equals 0
            if (order.isEmpty()) return null
            val eases = DoubleArray(order.size) { found[order[it]] }
            val hardest = (1 until order.size).filter { eases[it - 1] < eases[it] } + order.size
            return Ranking(route, decider, order.toIntArray(), eases, hardest.toIntArray())
        }
    }
}

private val NO_CALL = RemoteCall(0, 0.0, 0.0)

/**
 * What hard samples are handed on to, a server or the second path of a cascade: what each answer then counts.
 *
 * [hereMs]: milliseconds of the second path; [apartMs]: that every sample takes longer at the end, hard or not, since the
 * path is run in two parts; [peakBytes]: of both paths, null where it stays that of the first.
 */
internal class Asking(
    val correct: DoubleArray,
    val call: RemoteCall = NO_CALL,
    val hereMs: Double = 0.0,
    val apartMs: Double = 0.0,
    val peakBytes: Long? = null,
) {
    /** Whether a server is asked. */
    val atServer: Boolean get() = peakBytes == null
}

/** All thresholds of several deciders behind one route, one after the other. */
internal class Sweep(private val rankings: List<Ranking>, private val route: SampleRoute = rankings[0].route) {
    private val sizes = rankings.map { it.hardest.size }

    fun decider(number: Int): Decider {
        var own = number
        for ((ranking, size) in rankings.zip(sizes)) {
            if (own < size) return ranking.decider(own)
            own -= size
        }
        throw IndexOutOfBoundsException("threshold $number of ${sizes.sum()}")
    }

    /**
     * The costs at all thresholds. [asking]: null: hard samples stay without an answer.
     *
     * [certainty]: times and energies are those of the largest share of hard samples that it leaves possible among new
     * ones; null: of the share seen.
     */
    fun costs(asking: Asking?, power: Power?, certainty: Double? = null): Costs {
        val count = route.count
        val call = asking?.call ?: NO_CALL
        val (hereMs, apartMs) = (asking?.hereMs ?: 0.0) to (asking?.apartMs ?: 0.0)
        val addedMs = hereMs + call.totalMs
        val addedMj = power?.let { it.activeW * hereMs + it.radioW * call.transferMs + it.waitingW * call.serverMs }
            ?: Double.NaN
        val hardest = rankings.flatMap { it.hardest.asList() }.toIntArray()
        val (lost, won) = ofHardest(route.correct) to asking?.let { ofHardest(it.correct) }
        val right = route.correct.sum()
        val bounds = certainty?.let { mostShares(count, it) } ?: DoubleArray(count + 1) { it.toDouble() / count }
        val p95Ms = rankings.flatMap { one -> p95Ms(one, one.hardest.map { bounds[it] * count }, addedMs, apartMs) }
        val meanMs = ofEach(apartMs) { if (route.isTimed) route.latencyMs(it).average() else Double.NaN }
        val meanMj = ofEach(apartMs) { if (power != null && route.isTimed) route.energyMj(power, it).average() else Double.NaN }
        val sent = route.meanSentBytes

        fun column(of: (at: Int, share: Double) -> Double) = DoubleArray(hardest.size) { of(it, hardest[it].toDouble() / count) }
        return Costs(
            accuracy = column { at, _ ->
                val answered = if (won != null) count else count - hardest[at]
                if (answered == 0) Double.NaN else (right - lost[at] + (won?.get(at) ?: 0.0)) / answered
            },
            latencyMs = column { at, _ -> meanMs[at] + bounds[hardest[at]] * addedMs },
            p95LatencyMs = column { at, _ -> if (route.isTimed) p95Ms[at] else Double.NaN },
            energyMj = column { at, _ -> meanMj[at] + bounds[hardest[at]] * addedMj },
            bytesSent = column { _, share -> sent + share * call.sizeBytes },
            peakBytes = column { _, _ -> (asking?.peakBytes ?: route.peakBytes).toDouble() },
            coverage = column { _, share -> if (asking != null) 1.0 else 1.0 - share },
            shareAsked = column { _, share -> if (asking?.atServer == true) share else route.shareAsked },
        )
    }

    /** At each threshold of [one], by its number of [hard] samples; its decision is part of what samples at the end take. */
    private fun p95Ms(one: Ranking, hard: List<Double>, addedMs: Double, apartMs: Double): List<Double> {
        val percentiles = Percentiles(route.latencyMs(route.decidingMs(one.kind) + apartMs), addedMs)
        return hard.map(percentiles::of)
    }

    /** At each threshold what its decider takes; [of]: by its time for a sample, and [apartMs]. */
    private fun ofEach(apartMs: Double, of: (decidingMs: Double) -> Double): List<Double> = rankings.flatMap { one ->
        val value = of(route.decidingMs(one.kind) + apartMs)
        List(one.hardest.size) { value }
    }

    /** The sum of [counted] over the samples that each threshold calls hard. */
    private fun ofHardest(counted: DoubleArray): DoubleArray = rankings.flatMap { one ->
        var (at, sum) = 0 to 0.0
        one.hardest.map { hardest ->
            while (at < hardest) sum += counted[one.samples[at++]]
            sum
        }
    }.toDoubleArray()
}

/** The 95th percentile of latencies; all samples that reach the end take equally long, and longest. */
private class Percentiles(ownMs: DoubleArray, private val addedMs: Double) {
    private val ordered = ownMs.sortedArray()
    private val place = P95 * (ordered.size - 1)
    private val low = floor(place).toInt()

    fun of(hard: Double): Double {
        if (addedMs.isNaN()) return Double.NaN
        fun at(rank: Int): Double {
            val own = minOf(rank, ordered.lastIndex)
            return ordered[own] + if (own < ordered.size - hard) 0.0 else addedMs
        }
        val (below, above) = at(low) to at(low + 1)
        return below + (above - below) * (place - low)
    }
}

/** The decider that calls samples hard whose ease lies below [limit]. */
internal fun withLimit(decider: Decider, limit: Double): Decider = when (decider) {
    is Decider.MaxConfidence -> decider.copy(threshold = limit)
    is Decider.Entropy -> decider.copy(threshold = -limit)
    is Decider.Margin -> decider.copy(threshold = limit)
    is Decider.Logistic -> decider.copy(threshold = limit)
    is Decider.Router -> decider.copy(threshold = limit)
}

/** The decider with a threshold that no sample's ease reaches. */
private fun everythingIsHard(decider: Decider): Decider =
    withLimit(decider, if (decider is Decider.Entropy) Math.nextUp(0.0) else UNREACHABLE_CONFIDENCE)
