/** What a user requires of a plan: one quantity to optimise, limits on the others. Mirrors supernet/requirement.py. */
package pathweave.sdk.supernet

import kotlin.math.abs
import pathweave.sdk.BudgetError

private val FROM_ZERO = setOf("bytes_sent", "share_asked") // may be forbidden altogether

/** What a [Requirement] optimises. As text `accuracy`, `latency_ms`, `energy_mj`, `bytes_sent`. */
public enum class Optimised {
    ACCURACY,
    LATENCY_MS,
    ENERGY_MJ,
    BYTES_SENT,
    ;

    override fun toString(): String = name.lowercase()
}

/** A limited quantity by its [name] in logs and files; [isLeast]: its limit is the least allowed. */
internal class Limited(val name: String, val limit: Double, val isLeast: Boolean, val of: (PlanCost) -> Double?)

/**
 * Optimise one quantity under limits on others: [accuracy] and [coverage] from below, the rest from above.
 *
 * [certainty]: the probability with which the accuracy holds on new samples; kept for what Python's planner promised.
 *
 * @throws BudgetError nothing is limited, or a limit makes no sense.
 */
public data class Requirement(
    val optimise: Optimised = Optimised.ACCURACY,
    val accuracy: Double? = null,
    val certainty: Double? = null,
    val coverage: Double? = null,
    val latencyMs: Double? = null,
    val p95LatencyMs: Double? = null,
    val energyMj: Double? = null,
    val bytesSent: Double? = null,
    val peakBytes: Long? = null,
    val shareAsked: Double? = null,
) {
    internal val limits: List<Limited> = listOfNotNull(
        accuracy?.let { limit -> Limited("accuracy", limit, true) { it.accuracy } },
        coverage?.let { limit -> Limited("coverage", limit, true) { it.coverage } },
        latencyMs?.let { limit -> Limited("latency_ms", limit, false) { it.latencyMs } },
        p95LatencyMs?.let { limit -> Limited("p95_latency_ms", limit, false) { it.p95LatencyMs } },
        energyMj?.let { limit -> Limited("energy_mj", limit, false) { it.energyMj } },
        bytesSent?.let { limit -> Limited("bytes_sent", limit, false) { it.bytesSent } },
        peakBytes?.let { limit -> Limited("peak_bytes", limit.toDouble(), false) { it.peakBytes.toDouble() } },
        shareAsked?.let { limit -> Limited("share_asked", limit, false) { it.shareAsked } },
    )

    init {
        if (limits.isEmpty()) throw BudgetError("the requirement limits nothing", "set a limit such as latencyMs")
        for (one in limits) {
            if (one.isLeast && !(one.limit > 0 && one.limit <= 1)) {
                throw BudgetError("the required ${one.name} is ${one.limit}; it must lie above 0 and be at most 1")
            }
            if (!one.isLeast && !(one.limit > 0 || one.name in FROM_ZERO && one.limit == 0.0)) {
                throw BudgetError("the limit of ${one.name} is ${one.limit}; it must be above zero")
            }
        }
        if (certainty != null && !(certainty > 0 && certainty < 1)) {
            throw BudgetError("the certainty is $certainty; it must lie between 0 and 1")
        }
        if (certainty != null && (accuracy == null || accuracy == 1.0)) {
            throw BudgetError("only an accuracy below 1 can be promised with a certainty", "set accuracy")
        }
    }

    /** The limits that [cost] breaks, each with what it has; what is unknown breaks its limit (infinity, or 0). */
    public fun misses(cost: PlanCost): Map<String, Double> = limits.mapNotNull { one ->
        val value = one.of(cost)
        when {
            value == null -> one.name to if (one.isLeast) 0.0 else Double.POSITIVE_INFINITY
            if (one.isLeast) value < one.limit else value > one.limit -> one.name to value
            else -> null
        }
    }.toMap()

    /** What is optimised: the larger, the better; minus infinity where it is unknown. */
    public fun value(cost: PlanCost): Double = when (optimise) {
        Optimised.ACCURACY -> cost.accuracy
        Optimised.LATENCY_MS -> cost.latencyMs?.unaryMinus()
        Optimised.ENERGY_MJ -> cost.energyMj?.unaryMinus()
        Optimised.BYTES_SENT -> -cost.bytesSent
    } ?: Double.NEGATIVE_INFINITY

    /** By how much [cost] misses the limits, as the sum of relative distances; 0 where it keeps them. */
    public fun excess(cost: PlanCost): Double {
        val missed = misses(cost)
        return limits.filter { it.name in missed }.sumOf { one ->
            val value = missed.getValue(one.name)
            if (one.limit != 0.0) abs(value - one.limit) / one.limit else value
        }
    }
}
