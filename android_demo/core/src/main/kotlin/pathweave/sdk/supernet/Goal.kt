/** The one statement of what is wanted of a plan: what to optimise, the limits, and the kinds to consider. */
package pathweave.sdk.supernet

import kotlin.math.abs
import pathweave.sdk.BudgetError
import pathweave.sdk.UsageError

/** What may be considered. As text `subnets`, `exits` … */
public enum class Kind {
    SUBNETS,

    EXITS,

    /** Hard samples answered by a second, more accurate subnet on this device. */
    CASCADE,

    /** Hard samples without an answer. */
    ABSTAIN,

    /** Hard samples, or all of them, sent to a server. */
    ASK,

    /** The rest of the path at a server. Python's alone. */
    SPLIT,

    /** A subnet here together with one at a server. Python's alone. */
    HYBRID,
    ;

    override fun toString(): String = name.lowercase()
}

/**
 * Optimise one quantity under limits on others. Expected values per sample, at batch 1.
 *
 * [latencyMs]: of the calls at [percentile] when nothing else runs, and of plans whose samples take several ways, the
 * mean; or [latencyRatio]: of the full model's in the same circumstances. [callsPerSecond]: the application's pace;
 * caches are colder between rare calls. [accuracy]: the least, of samples that are answered; [certainty]: kept for what
 * Python's planner promises. [maxDrop]: accuracy that exits may lose instead. [coverage]: least share of samples that
 * are answered; [shareAsked]: most that a server is asked about. [macs] and [storageMb]: of hybrids and splits, which
 * Python plans. [memoryMb]: most memory, weights and working set. [threads]: most of the homes that subnets are searched
 * for.
 *
 * @throws BudgetError a limit makes no sense, or two contradict each other.
 */
public data class Goal(
    val optimise: Optimised = Optimised.ACCURACY,
    val latencyMs: Double? = null,
    val latencyRatio: Double? = null,
    val percentile: Double = Budget.MEDIAN,
    val p95LatencyMs: Double? = null,
    val callsPerSecond: Double? = null,
    val accuracy: Double? = null,
    val certainty: Double? = null,
    val maxDrop: Double? = null,
    val coverage: Double = 1.0,
    val shareAsked: Double? = null,
    val energyMj: Double? = null,
    val bytesSent: Double? = null,
    val macs: Double? = null,
    val memoryMb: Double? = null,
    val storageMb: Double? = null,
    val threads: Int? = null,
) {
    init {
        val shares = listOf("maxDrop" to maxDrop, "coverage" to coverage, "shareAsked" to shareAsked)
        for ((name, share) in shares) {
            if (share != null && share !in 0.0..1.0) {
                throw BudgetError("the goal's $name is $share; it must lie between 0 and 1")
            }
        }
        for ((name, limit) in listOf("macs" to macs, "storageMb" to storageMb, "memoryMb" to memoryMb)) {
            if (limit != null && !(limit > 0)) throw BudgetError("the goal's $name is $limit; it must be above zero")
        }
        if (accuracy != null && maxDrop != null) {
            throw BudgetError("the goal has accuracy and maxDrop; one of them is enough")
        }
        if (threads != null && threads < 1) throw BudgetError("the goal has $threads threads; it must have at least 1")
        budget // these refuse the rest
        requirement()
    }

    /** Whether there is a latency limit of either kind. */
    public val limitsLatency: Boolean get() = latencyMs != null || latencyRatio != null

    /** Whether the most accurate plan within a latency and a memory is wanted, and nothing else is limited. */
    internal val isBudget: Boolean
        get() = optimise == Optimised.ACCURACY &&
            listOf(accuracy, maxDrop, p95LatencyMs, energyMj, bytesSent, shareAsked, macs).all { it == null } &&
            (limitsLatency || memoryMb != null)

    /** The limits that a single subnet has to keep; without any, an infinite latency. */
    internal val budget: Budget
        get() = Budget(
            latencyMs ?: Double.POSITIVE_INFINITY.takeIf { latencyRatio == null && memoryMb == null },
            memoryMb,
            latencyRatio,
            percentile,
            callsPerSecond,
            threads,
        )

    /** The limits on expected costs; [leastAccuracy]: what [maxDrop] comes to. */
    internal fun requirement(leastAccuracy: Double? = null) = Requirement(
        optimise,
        leastAccuracy?.takeIf { it > 0 } ?: accuracy,
        certainty.takeIf { listOf(accuracy, leastAccuracy, latencyMs).any { it != null } || latencyRatio == null && maxDrop == null },
        coverage.takeIf { it > 0 },
        latencyMs,
        p95LatencyMs,
        energyMj,
        bytesSent,
        memoryMb?.let { Math.round(it * MB) },
        shareAsked,
    )

    /** The same with its latency in milliseconds, where the full model takes [fullMs]. */
    internal fun resolved(fullMs: Double): Goal =
        if (latencyRatio == null) this else copy(latencyMs = latencyRatio * fullMs, latencyRatio = null)
}

/**
 * The kinds to consider: those [named], or by default subnets and what the [goal] and the connected [servers] allow.
 *
 * @throws UsageError none is named.
 */
internal fun considered(named: Set<Kind>?, goal: Goal, servers: Set<Kind>): Set<Kind> {
    if (named == null) return setOf(Kind.SUBNETS) + (if (goal.coverage < 1) setOf(Kind.ABSTAIN) else emptySet()) + servers
    if (named.isEmpty()) throw UsageError("no kind of plan may be considered", "known: ${Kind.entries.joinToString(", ")}")
    return named
}

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
        if (certainty != null && (accuracy == 1.0 || (accuracy == null && latencyMs == null))) {
            throw BudgetError(
                "only an accuracy below 1 or a latency can be promised with a certainty",
                "set accuracy, maxDrop or latencyMs",
            )
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
