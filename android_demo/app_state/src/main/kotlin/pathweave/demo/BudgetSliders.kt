/** What the sliders of a budget mean: from positions to limits. */
package pathweave.demo

import kotlin.math.abs
import kotlin.math.exp
import kotlin.math.ln
import kotlin.math.roundToInt
import pathweave.sdk.profiling.Profile
import pathweave.sdk.search.fastestWithin
import pathweave.sdk.search.smallestSubnet
import pathweave.sdk.supernet.Goal
import pathweave.sdk.supernet.MB
import pathweave.sdk.supernet.Supernet

/** The highest position of a slider, which sets no limit. */
const val SLIDER_STEPS: Int = 100

private const val LEAST = 1e-6 // ms or MB
private const val LATENCY_MARGIN = 2.0 // a device may measure slower than is predicted

/** The values that a slider runs over, on a logarithmic scale: [least] at position 0, [most] at the last but one. */
data class SliderRange(val least: Double, val most: Double) {
    init {
        require(least > 0 && most >= least) { "a slider cannot run from $least to $most" }
    }

    /** The limit at [position]; null for none. */
    fun at(position: Int): Double? {
        if (position >= SLIDER_STEPS) return null
        val share = position.coerceAtLeast(0) / (SLIDER_STEPS - 1.0)
        return exp(ln(least) + share * (ln(most) - ln(least)))
    }

    /** The position nearest to [limit]; null: none. */
    fun positionOf(limit: Double?): Int {
        if (limit == null) return SLIDER_STEPS
        val share = if (most > least) (ln(limit) - ln(least)) / (ln(most) - ln(least)) else 0.0
        return (share * (SLIDER_STEPS - 1)).roundToInt().coerceIn(0, SLIDER_STEPS - 1)
    }
}

/** The deadlines that a slider runs over, in milliseconds. */
val DEADLINES_MS: SliderRange = SliderRange(1.0, 1000.0)

/** Where the three sliders stand. */
data class BudgetPositions(
    val latency: Int = SLIDER_STEPS,
    val memory: Int = SLIDER_STEPS,
    val energy: Int = SLIDER_STEPS,
)

/**
 * What the sliders run over on this device: from the least that any subnet needs to twice the latency of the full model
 * and its memory.
 *
 * [watts]: mean power while the model runs; null where there is no meter, and then there is no energy slider.
 */
data class BudgetRanges(val latencyMs: SliderRange, val memoryMb: SliderRange, val watts: Double? = null) {
    /** The latency of the full model, in milliseconds. */
    val fullMs: Double get() = latencyMs.most / LATENCY_MARGIN

    /** Millijoules per answer. */
    val energyMj: SliderRange? = watts?.let { SliderRange(it * latencyMs.least, it * latencyMs.most) }

    /**
     * The goal; null where no slider sets a limit. Its latency is a share of the full model's, which is measured as the app
     * will see it.
     *
     * A limit on energy becomes one on latency: the power is taken to be the same for all subnets, as the SDK's power
     * model takes it.
     */
    fun goal(positions: BudgetPositions): Goal? {
        val byEnergyMs = energyMj?.at(positions.energy)?.let { it / checkNotNull(watts) }
        val limitMs = listOfNotNull(latencyMs.at(positions.latency), byEnergyMs).minOrNull()
        val limitMb = memoryMb.at(positions.memory)
        if (limitMs == null && limitMb == null) return null
        return Goal(latencyRatio = limitMs?.let { LATENCY_MARGIN * it / latencyMs.most }, memoryMb = limitMb)
    }
}

/** What the sliders run over by a [profile] of [supernet]. */
fun rangesOf(supernet: Supernet, profile: Profile, watts: Double?): BudgetRanges {
    val costs = profile.costModel()
    val fastest = checkNotNull(fastestWithin(supernet, costs, memoryMb = null))
    val smallest = smallestSubnet(supernet, costs)
    val full = costs.cost(supernet.original)
    return BudgetRanges(
        rangeOf(costs.latencyMs(fastest), LATENCY_MARGIN * full.latencyMs),
        rangeOf(costs.peakBytes(smallest).toDouble() / MB, full.peakBytes.toDouble() / MB),
        watts?.takeIf { it > 0 && it.isFinite() },
    )
}

/** Predictions may be off by a little, also below zero where a model takes no time at all. */
private fun rangeOf(least: Double, most: Double): SliderRange {
    val from = maxOf(least, LEAST)
    return SliderRange(from, maxOf(from, most))
}

/** How much power the device draws now. */
fun interface PowerMeter {
    /** Watts; null where the device does not say, or is charged meanwhile. */
    fun watts(): Double?
}

private const val PLAUSIBLE_MIN_W = 0.05
private const val PLAUSIBLE_MAX_W = 50.0

/**
 * Watts by what a battery says: current in microamperes, of either sign, and voltage in millivolts.
 *
 * Null where that is no power of a phone: some devices state zero, or another unit than Android asks for.
 */
fun wattsOf(microamperes: Long, millivolts: Int): Double? {
    val watts = abs(microamperes.toDouble()) * 1e-6 * millivolts * 1e-3
    return watts.takeIf { it in PLAUSIBLE_MIN_W..PLAUSIBLE_MAX_W }
}

/** The mean of what [meter] reads whenever it is asked to. */
class MeanPower(private val meter: PowerMeter?) {
    private var sum = 0.0
    private var count = 0

    /** Read it once more. */
    fun read() {
        val watts = meter?.watts()?.takeIf { it > 0 && it.isFinite() } ?: return
        sum += watts
        count++
    }

    /** Watts; null without any reading. */
    val watts: Double? get() = if (count == 0) null else sum / count
}
