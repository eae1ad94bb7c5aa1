/**
 * Confirming: candidates are measured in pairs with the full model until it is clear which one to take.
 *
 * Predictions are off by several percent, and by more where the profile was measured on a busy device. The ratio to
 * the full model, from calls in turns, bears load and drift; so a candidate's latency in quiet is its ratio times the
 * full model's latency in quiet. A candidate is taken, or ruled out, by the probability that it keeps the budget,
 * never because of one slow measurement.
 */
package pathweave.sdk.policies

import kotlin.math.exp
import kotlin.math.ln
import pathweave.sdk.BudgetError
import pathweave.sdk.InfeasibleBudgetError
import pathweave.sdk.execution.Workspace
import pathweave.sdk.profiling.Latency
import pathweave.sdk.profiling.LatencyBelief
import pathweave.sdk.profiling.PRECISE
import pathweave.sdk.profiling.Patience
import pathweave.sdk.profiling.Ratio
import pathweave.sdk.profiling.Timing
import pathweave.sdk.profiling.measureSubnets
import pathweave.sdk.search.BY_EXPECTED_ACCURACY
import pathweave.sdk.search.Candidate
import pathweave.sdk.search.digits
import pathweave.sdk.supernet.Budget
import pathweave.sdk.supernet.CostModel
import pathweave.sdk.supernet.Subnet

internal const val EQUAL_LATENCY = 1.02 // latencies within 2 % are equal: two sessions of one model differ by that
private const val LIMIT_S = 12.0 // of measuring candidates; on a quiet device two seconds suffice
private const val SURE = 0.9 // probability of keeping the budget: taken at once
private const val DOUBTFUL = 0.02 // ruled out
private const val LEAST_GAIN = 0.0005 // expected accuracy that makes a measurement worth its time
private const val ABOUT_AS_LIKELY = 0.1 // of the largest probability
private const val REPEATED = 2 // measurements of the full model, back to back and paced in turns
private const val AT_ONCE = 3 // candidates measured together, beside the full model
private const val MOST_TURNS = 8
private const val CLIFF = 0.02 // expected accuracy below the best candidate, at which a lower aim is worth its time
private const val MOST_SLOWDOWN = 4.0 // of a busy device; a profile that promises more than this is wrong
private const val LEAST_MS = 1e-6
internal const val NORMAL_95 = 1.96
private val PACED_PATIENCE = Patience(rounds = 16, precision = 0.006, limitS = 1.2, least = 10)
private val TOGETHER_PATIENCE = Patience(rounds = 60, precision = 0.006, limitS = 0.4, least = 10)
private const val TAIL_ROUNDS = 60 // of a percentile other than the median
private const val DEFAULT_PAUSE_S = 0.02 // between calls, without a known pace: caches and clocks settle as between frames
private const val LONGEST_PAUSE_S = 0.1 // rarer calls are hardly slower

/**
 * Times subnets in turns, the full model first, with ratios to it; paced as the application calls (true), or back to
 * back.
 */
internal typealias Measure = (List<Subnet>, Boolean) -> List<Latency>

/**
 * A candidate, and the latency that it has when nothing else runs on the device.
 *
 * [measuredMs]: at the budget's percentile, [medianMs] at the median; [intervalMs]: 95 % of [measuredMs]. [probability]:
 * that it keeps the budget; 1 without a latency budget. [fullMs]: the full model's latency in quiet, called at the same
 * pace. [slowdown]: of the device while it was measured, over quiet.
 */
internal class Confirmed(
    val candidate: Candidate,
    val measuredMs: Double,
    val medianMs: Double,
    val intervalMs: Pair<Double, Double>,
    val probability: Double,
    val fullMs: Double,
    val slowdown: Double,
)

/**
 * Measures as few candidates as it takes to know the most accurate one that keeps [wanted].
 *
 * [originalMs]: the full model's latency in the profile, back to back. [overheadMs]: of a call, beyond the models that it
 * runs. [clock]: seconds, monotonic; [best] begins no measurement after [limitS].
 */
internal class Confirmation(
    private val original: Subnet,
    private val costs: CostModel,
    wanted: Budget,
    private val measure: Measure,
    originalMs: Double,
    private val overheadMs: Double = 0.0,
    private val clock: () -> Double = { System.nanoTime() / 1e9 },
    private val limitS: Double = LIMIT_S,
    private val onTurn: (Int) -> Unit = {},
) {
    private val belief = LatencyBelief(original, costs) // at the budget's percentile, to the full model's median
    private val spreads = HashMap<Subnet, Double>() // the latency at that percentile over the median
    private val limit: Double

    val slowdown: Double
    val fullMs: Double

    val budget: Budget

    init {
        val pairs = List(REPEATED) { listOf(false, true).map { measure(listOf(original), it).single() } }
        val tightMs = mean(pairs.map { it[0].medianMs })
        val quietMs = minOf(originalMs, tightMs)
        val contention = minOf(tightMs / quietMs, MOST_SLOWDOWN) // of caches and clocks; waiting is not in the medians
        slowdown = maxOf(mean(pairs.map { it[0].elapsedMs ?: it[0].medianMs }) / quietMs, contention)
        fullMs = mean(pairs.map { it[1].medianMs }) / contention + overheadMs
        spreads[original] = mean(pairs.map { it[1].atPercentileMs / it[1].medianMs })
        belief.observe(original, Ratio(spreads.getValue(original), PRECISE))
        budget = wanted.resolved(fullMs)
        val limitMs = budget.latencyMs ?: Double.POSITIVE_INFINITY
        limit = maxOf(EQUAL_LATENCY * limitMs - overheadMs, LEAST_MS) / (fullMs - overheadMs)
    }

    /**
     * The budget in terms of predictions: corrected by how some [rungs] near it measure against theirs.
     *
     * The search then proposes what really fits. The error of a prediction depends on the rendition; the first of
     * [largestFirst] that fits stands for what the search will propose, as the rung of the largest input is the most
     * accurate. Without a latency budget, the budget itself.
     */
    fun aim(rungs: List<Subnet>, largestFirst: List<Subnet>): Budget {
        if (budget.latencyMs == null || budget.latencyMs.isInfinite()) return budget
        takeTimes(rungs.take(AT_ONCE))
        val fitting = largestFirst.firstOrNull { belief.estimate(it).ratio <= limit }
        return aimedBy(fitting ?: (listOf(original) + largestFirst).last())
    }

    /**
     * A lower aim than [aimed], by which [pool] was found; null if that was near enough.
     *
     * Too high: what is confirmed is worse by more than CLIFF than the most accurate candidate that was predicted to fit.
     * Predictions are too low then for what the search proposes, and it should propose something smaller.
     */
    fun aimLower(pool: List<Candidate>, aimed: Budget): Budget? {
        if (aimed.latencyMs == null || limit.isInfinite()) return null
        val best = pool.filter { aimed.fits(it.cost) }.minWithOrNull(BY_EXPECTED_ACCURACY) ?: return null
        if (confirmedAccuracy(pool) >= best.expectedAccuracy - CLIFF) return null
        if (!belief.estimate(best.subnet).measured) takeTimes(listOf(best.subnet))
        return aimedBy(best.subnet).takeIf { it.latencyMs != null && it.latencyMs < aimed.latencyMs }
    }

    private fun confirmedAccuracy(pool: List<Candidate>): Double = try {
        best(pool).candidate.expectedAccuracy
    } catch (_: InfeasibleBudgetError) {
        0.0
    }

    /** The budget in terms of predictions, if all are off as far as that of [reference]. */
    private fun aimedBy(reference: Subnet): Budget {
        val aimedMs = limit / EQUAL_LATENCY * costs.latencyMs(reference) / belief.estimate(reference).ratio
        return budget.copy(latencyMs = aimedMs)
    }

    /**
     * Measure [subnet].
     *
     * @throws InfeasibleBudgetError it has no chance to keep the budget.
     */
    fun requireChance(subnet: Subnet, peakBytes: Long) {
        takeTimes(listOf(subnet))
        if (belief.estimate(subnet).probabilityBelow(limit) < DOUBTFUL) throw infeasible(subnet, peakBytes)
    }

    /**
     * The most accurate candidate of [pool] that keeps the budget, by expected accuracy.
     *
     * 1. estimate all; 2. measure the most accurate one that surely keeps it, and those whose measurement may gain most;
     * again, until one that surely does has no rival left that is worth measuring; 3. if that does not happen in time,
     * take the most accurate of those that most probably keep it.
     *
     * @throws InfeasibleBudgetError nothing has a chance; names the nearest.
     * @throws BudgetError there are no candidates.
     */
    fun best(pool: List<Candidate>): Confirmed {
        val ranked = pool.filter { budget.fitsMemory(it.cost.peakBytes) }.sortedWith(BY_EXPECTED_ACCURACY)
        if (ranked.isEmpty()) {
            throw BudgetError("the search was stopped before it had looked at a subnet within the budget")
        }
        val deadlineS = clock() + limitS
        for (turn in 0 until MOST_TURNS) {
            onTurn(turn)
            val unclear = worthMeasuring(ranked)
            if (unclear.isEmpty() || clock() >= deadlineS) break
            takeTimes(unclear.take(AT_ONCE).map { it.subnet })
        }
        return chosen(ranked)
    }

    /** [confirmed], or one of [others] with the same answers where it measures faster, in turns with it. */
    fun fastest(confirmed: Confirmed, others: List<Candidate>): Confirmed {
        if (others.isEmpty()) return confirmed
        val both = listOf(confirmed.candidate) + others
        takeTimes(both.map { it.subnet })
        val quickest = both.minBy { belief.estimate(it.subnet).ratio }
        return if (quickest === confirmed.candidate) confirmed else chosen(listOf(quickest))
    }

    /**
     * Candidates to measure, first the most accurate one that surely keeps the budget, unless it was measured.
     *
     * Then those more accurate than it whose measurement may gain accuracy, the largest expected gain first: the
     * probability of keeping the budget times the difference in expected accuracy.
     */
    private fun worthMeasuring(ranked: List<Candidate>): List<Candidate> {
        val estimates = ranked.map { belief.estimate(it.subnet) }
        val chances = estimates.map { it.probabilityBelow(limit) }
        val sure = chances.indexOfFirst { it >= SURE }.takeIf { it >= 0 }
        val least = sure?.let { ranked[it].expectedAccuracy } ?: 0.0
        val rivals = (0 until (sure ?: ranked.size)).mapNotNull { place ->
            val gain = chances[place] * (ranked[place].expectedAccuracy - least)
            val clear = estimates[place].measured && estimates[place].error <= 2 * PRECISE
            if (chances[place] >= DOUBTFUL && gain >= LEAST_GAIN && !clear) gain to ranked[place] else null
        }.sortedBy { (gain, _) -> -gain }.map { (_, one) -> one }
        return if (sure == null || estimates[sure].measured) rivals else listOf(ranked[sure]) + rivals
    }

    private fun chosen(ranked: List<Candidate>): Confirmed {
        val chances = ranked.map { belief.estimate(it.subnet).probabilityBelow(limit) }
        if (chances.max() < DOUBTFUL) {
            val nearest = ranked.minBy { belief.estimate(it.subnet).ratio }
            throw infeasible(nearest.subnet, nearest.cost.peakBytes)
        }
        val enough = minOf(SURE, chances.max() - ABOUT_AS_LIKELY)
        val place = chances.indexOfFirst { it >= enough }
        val chosen = ranked[place]
        val estimate = belief.estimate(chosen.subnet)
        val scaleMs = fullMs - overheadMs
        fun ms(ratio: Double) = scaleMs * ratio + overheadMs
        val factor = exp(NORMAL_95 * estimate.error)
        return Confirmed(
            chosen,
            measuredMs = ms(estimate.ratio),
            medianMs = ms(estimate.ratio / (spreads[chosen.subnet] ?: 1.0)),
            intervalMs = ms(estimate.ratio / factor) to ms(estimate.ratio * factor),
            probability = chances[place],
            fullMs = fullMs,
            slowdown = slowdown,
        )
    }

    /** Measure [subnets] in turns with the full model; a second measurement of one is joined with the first. */
    private fun takeTimes(subnets: List<Subnet>) {
        val wanted = subnets.distinct().filter { it != original }
        if (wanted.isEmpty()) return
        val latencies = measure(listOf(original) + wanted, true)
        for ((subnet, latency) in wanted.zip(latencies.drop(1))) {
            val ratio = latency.ratio ?: Ratio(latency.medianMs / latencies[0].medianMs, 2 * PRECISE)
            val spread = latency.atPercentileMs / latency.medianMs
            spreads[subnet] = spread
            belief.observe(subnet, Ratio(ratio.value * spread, ratio.relativeError.coerceIn(PRECISE, 1.0)))
        }
    }

    private fun infeasible(nearest: Subnet, peakBytes: Long): InfeasibleBudgetError {
        val tookMs = belief.estimate(nearest).ratio * (fullMs - overheadMs) + overheadMs
        val limitMs = digits(budget.latencyMs ?: Double.POSITIVE_INFINITY)
        return InfeasibleBudgetError(
            "no subnet ran in $limitMs ms; the fastest candidate took ${digits(tookMs)} ms",
            nearest = nearest.edges.map { it.block },
            nearestLatencyMs = tookMs,
            nearestPeakBytes = peakBytes,
            hint = "allow at least ${digits(tookMs * 1.05)} ms",
        )
    }
}

/** Measurement on this device, at the pace and the percentile of [budget]. */
internal fun pacedMeasure(workspace: Workspace, budget: Budget): Measure {
    val tail = budget.percentile != Budget.MEDIAN
    val paced = Timing(
        rounds = if (tail) TAIL_ROUNDS else PACED_PATIENCE.rounds,
        patience = PACED_PATIENCE.takeUnless { tail },
        pauseS = pauseS(budget),
        percentile = budget.percentile.takeIf { tail },
    )
    val together = Timing(TOGETHER_PATIENCE.rounds, TOGETHER_PATIENCE)
    return { subnets, asServed -> measureSubnets(workspace, subnets, if (asServed) paced else together) }
}

/** How long an application that keeps [budget] waits between two calls. */
private fun pauseS(budget: Budget): Double {
    val callsPerSecond = budget.callsPerSecond ?: return DEFAULT_PAUSE_S
    return (1 / callsPerSecond - (budget.latencyMs ?: 0.0) / 1e3).coerceIn(0.0, LONGEST_PAUSE_S)
}

private fun mean(values: List<Double>) = exp(values.sumOf(::ln) / values.size)
