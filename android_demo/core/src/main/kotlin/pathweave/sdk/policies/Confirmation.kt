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
import kotlin.math.pow
import kotlin.math.sqrt
import pathweave.sdk.BudgetError
import pathweave.sdk.InfeasibleBudgetError
import pathweave.sdk.execution.Workspace
import pathweave.sdk.numerics.erfc
import pathweave.sdk.profiling.Latency
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
private const val PRECISE = 0.006 // relative error of a ratio: sessions of one model differ by as much
private const val ABOUT_AS_LIKELY = 0.1 // of the largest probability
private const val REPEATED = 2 // measurements of the full model, back to back and paced in turns
private const val AT_ONCE = 3 // candidates measured together, beside the full model
private const val MOST_TURNS = 8
private const val PREDICTION_ERROR = 0.06 // prior deviation of log(measured / predicted)
private const val PREDICTION_WORTH = 3.0 // its observations
private const val NO_BIAS_WORTH = 0.2 // observations that a prior mean of 0 counts as
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

/** A subnet's latency over the full model's, as a log-normal distribution; [error]: deviation of its logarithm. */
private class Estimate(val ratio: Double, val error: Double, val measured: Boolean) {
    fun probabilityBelow(limit: Double) =
        if (limit.isInfinite()) 1.0 else 0.5 * erfc((ln(ratio) - ln(limit)) / (error * sqrt(2.0)))
}

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
    private val ratios = LinkedHashMap<Subnet, Ratio>() // at the budget's percentile, to the full model's median
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
        ratios[original] = Ratio(spreads.getValue(original), PRECISE)
        budget = wanted.resolved(fullMs)
        val limitMs = budget.latencyMs ?: Double.POSITIVE_INFINITY
        limit = maxOf(EQUAL_LATENCY * limitMs - overheadMs, LEAST_MS) / (fullMs - overheadMs)
    }

    /**
     * The budget in terms of predictions: corrected by how some [rungs] near it measure against theirs.
     *
     * The search then proposes what really fits. Without a latency budget, the budget itself.
     */
    fun aim(rungs: List<Subnet>): Budget {
        if (budget.latencyMs == null || budget.latencyMs.isInfinite()) return budget
        takeTimes(rungs.take(AT_ONCE))
        val aimedMs = limit / EQUAL_LATENCY * costs.latencyMs(original) / exp(bias().first)
        return budget.copy(latencyMs = aimedMs)
    }

    /**
     * Measure [subnet].
     *
     * @throws InfeasibleBudgetError it has no chance to keep the budget.
     */
    fun requireChance(subnet: Subnet, peakBytes: Long) {
        takeTimes(listOf(subnet))
        if (estimate(subnet).probabilityBelow(limit) < DOUBTFUL) throw infeasible(subnet, peakBytes)
    }

    /**
     * The most accurate candidate of [pool] that keeps the budget, by expected accuracy.
     *
     * 1. estimate all; 2. measure the most accurate ones that may keep it; again, until one that surely does has no rival
     * left that is more accurate and may; 3. if that does not happen in time, take the most accurate of those that most
     * probably keep it.
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
            val unclear = unclear(ranked)
            if (unclear.isEmpty() || clock() >= deadlineS) break
            takeTimes(unclear.take(AT_ONCE).map { it.subnet })
        }
        return chosen(ranked)
    }

    /** Candidates to measure: those that may keep the budget, down to the first that does. */
    private fun unclear(ranked: List<Candidate>): List<Candidate> {
        val unclear = mutableListOf<Candidate>()
        for (one in ranked) {
            val estimate = estimate(one.subnet)
            val probability = estimate.probabilityBelow(limit)
            if (probability < DOUBTFUL) continue
            val clear = estimate.measured && (probability >= SURE || estimate.error <= 2 * PRECISE)
            if (!clear) unclear += one else if (probability >= SURE) break
        }
        return unclear
    }

    private fun chosen(ranked: List<Candidate>): Confirmed {
        val chances = ranked.map { estimate(it.subnet).probabilityBelow(limit) }
        if (chances.max() < DOUBTFUL) {
            val nearest = ranked.minBy { estimate(it.subnet).ratio }
            throw infeasible(nearest.subnet, nearest.cost.peakBytes)
        }
        val enough = minOf(SURE, chances.max() - ABOUT_AS_LIKELY)
        val place = chances.indexOfFirst { it >= enough }
        val chosen = ranked[place]
        val estimate = estimate(chosen.subnet)
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
            val new = Ratio(ratio.value * spread, ratio.relativeError.coerceIn(PRECISE, 1.0))
            ratios[subnet] = ratios[subnet]?.let { joined(it, new) } ?: new
        }
    }

    private fun estimate(subnet: Subnet): Estimate {
        val known = ratios[subnet]
        if (known != null) return Estimate(known.value, known.relativeError, measured = true)
        val (bias, error) = bias()
        return Estimate(predicted(subnet) * exp(bias), error, measured = false)
    }

    private fun predicted(subnet: Subnet) = costs.latencyMs(subnet) / costs.latencyMs(original)

    /** Mean and deviation of log(measured / predicted) of a subnet that was not measured. */
    private fun bias(): Pair<Double, Double> {
        val logs = ratios.filterKeys { it != original }.map { (subnet, ratio) -> ln(ratio.value / predicted(subnet)) }
        val bias = logs.sum() / (NO_BIAS_WORTH + logs.size)
        val squares = logs.sumOf { (it - bias) * (it - bias) }
        val variance = (PREDICTION_WORTH * PREDICTION_ERROR.pow(2) + squares) / (PREDICTION_WORTH + logs.size)
        return bias to sqrt(variance)
    }

    private fun infeasible(nearest: Subnet, peakBytes: Long): InfeasibleBudgetError {
        val tookMs = estimate(nearest).ratio * (fullMs - overheadMs) + overheadMs
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

/** Two measurements of one ratio, weighted by their precision. */
private fun joined(first: Ratio, second: Ratio): Ratio {
    val weights = listOf(first, second).map { it.relativeError.pow(-2) }
    val log = (weights[0] * ln(first.value) + weights[1] * ln(second.value)) / weights.sum()
    return Ratio(exp(log), maxOf(weights.sum().pow(-0.5), PRECISE))
}
