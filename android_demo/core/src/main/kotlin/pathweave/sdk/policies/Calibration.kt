/**
 * Calibrating a plan: which exits answer early and when, and which samples count as hard.
 *
 * Mirrors device_sdk/policies/calibration.py and deciding/thresholds.py.
 */
package pathweave.sdk.policies

import kotlin.math.sqrt
import pathweave.sdk.InputError
import pathweave.sdk.UsageError
import pathweave.sdk.data.Inputs
import pathweave.sdk.execution.Workspace
import pathweave.sdk.numerics.percentile
import pathweave.sdk.policies.costs.Answering
import pathweave.sdk.policies.costs.AnswersEverywhere
import pathweave.sdk.policies.costs.ExitSamples
import pathweave.sdk.policies.costs.Route
import pathweave.sdk.policies.exits.withTimedExits
import pathweave.sdk.profiling.Profile
import pathweave.sdk.supernet.Decider
import pathweave.sdk.supernet.ExitChoice
import pathweave.sdk.supernet.Hard
import pathweave.sdk.supernet.MB
import pathweave.sdk.supernet.Plan
import pathweave.sdk.supernet.RemoteRef
import pathweave.sdk.supernet.Subnet
import pathweave.sdk.supernet.UNREACHABLE_CONFIDENCE

private const val TRIED = 32 // thresholds per exit
private const val HIGHEST_TRIED = 0.99 // quantile
private const val ROUNDS = 20 // of improving thresholds one by one
private const val CAUTION = 2.0 // standard errors

/**
 * How to calibrate.
 *
 * [accuracyDrop]: the maximum accuracy loss by exits, 0 to 1; with few samples less is lost. [exitMemoryMb]: memory for
 * exits, null for no limit. [escalatedShare]: of all samples, to be sent to the server; [server]: the model there, any
 * by default. [confirm]: measure that exits save time; otherwise the prediction is trusted. [timedExits]: keep exits that
 * no confidence takes for deadlines and anytime answers; ordinary answers take as long as without them.
 *
 * @throws UsageError a share that is none, or memory below zero.
 */
public data class CalibrationSettings(
    val accuracyDrop: Double = 0.005,
    val exitMemoryMb: Double? = null,
    val escalatedShare: Double = 0.0,
    val server: RemoteRef = RemoteRef(),
    val useExits: Boolean = true,
    val confirm: Boolean = true,
    val timedExits: Boolean = true,
    val batch: Int = 64,
) {
    init {
        for ((name, share) in listOf("accuracyDrop" to accuracyDrop, "escalatedShare" to escalatedShare)) {
            if (!(share >= 0 && share <= 1)) throw UsageError("$name is $share; it must lie between 0 and 1")
        }
        if (exitMemoryMb != null && !(exitMemoryMb >= 0)) {
            throw UsageError("exitMemoryMb is $exitMemoryMb; it cannot be negative")
        }
        if (batch < 1) throw UsageError("batch is $batch; it must be at least 1")
    }
}

/**
 * What was calibrated, on [samples] calibration samples.
 *
 * [meanMs] is the mean latency at batch 1 with the chosen exits, [withoutExitsMs] without any, measured in turns on the
 * same samples; both null where no exit was worth it. [accuracy] is that on the device, before any escalation;
 * [shareEarly] of the samples take an exit, [shareEscalated] lie below the threshold.
 */
public data class Calibration(
    val plan: Plan,
    val samples: Int,
    val accuracy: Double,
    val accuracyWithoutExits: Double,
    val shareEarly: Double,
    val shareEscalated: Double,
    val meanMs: Double?,
    val withoutExitsMs: Double?,
)

/** Finds exits, their thresholds and the threshold of hard samples, blocking. */
internal class Calibrator(
    private val workspace: Workspace,
    profile: Profile,
    private val settings: CalibrationSettings,
) {
    private val costs = profile.costModel()
    private val answering = Answering(workspace, costs)

    /**
     * Calibrate [subnet] on [inputs] that were neither trained nor searched on; without [labels] its own answers stand
     * in.
     *
     * 1. answer all samples at every exit and at the end; 2. keep the exits that fit the memory; 3. choose thresholds;
     * 4. confirm by measuring that exits save time, else drop them; 5. keep the others for deadlines and anytime
     * answers; 6. set the threshold of hard samples among those that reach the end.
     *
     * @throws InputError there are no inputs, or labels and inputs do not match.
     */
    fun calibrate(subnet: Subnet, inputs: Inputs, labels: IntArray?): Calibration {
        if (inputs.count == 0) throw InputError("there are no samples to calibrate on")
        if (labels != null && labels.size != inputs.count) {
            throw InputError("there are ${inputs.count} samples and ${labels.size} labels")
        }
        val answers = answering.answer(subnet, inputs, labels, settings.useExits, settings.batch)
        val memoryBytes = settings.exitMemoryMb?.let { (it * MB).toLong() }
        val found = answering.placed(answers, memoryBytes).map { answers.atExit(it, costs) }
        val choices = chooseExits(found, answers.rightAtEnd, costs.latencyMs(subnet), settings.accuracyDrop)
        var plan = Plan(subnet, choices).withPrior(workspace.prior)
        var times = if (choices.isNotEmpty() && settings.confirm) answering.measured(plan, inputs) else null
        if (times != null && times[0] >= times[1]) {
            plan = Plan(subnet).withPrior(workspace.prior)
            times = null
        }
        if (settings.timedExits) plan = withTimedExits(plan, found.map { it.choice })
        return judged(answers, plan, found.filter { one -> plan.exits.any { it.exit == one.choice.exit } }, times)
    }

    /** The finished plan, and what it does to the calibration samples. */
    private fun judged(
        answers: AnswersEverywhere,
        plan: Plan,
        exits: List<ExitSamples>,
        times: List<Double>?,
    ): Calibration {
        val route = Route(exits, plan.exits.map { it.threshold }, answers.rightAtEnd)
        var (finished, shareHard) = plan to 0.0
        if (settings.escalatedShare > 0) {
            val confidence = answers.confidenceAtEnd
            val atEnd = confidence.filterIndexed { sample, _ -> route.open[sample] }
            val threshold = hardThreshold(atEnd, settings.escalatedShare, answers.count)
            finished = plan.copy(hard = Hard.Ask(Decider.MaxConfidence(threshold), settings.server))
            shareHard = atEnd.count { it < threshold }.toDouble() / answers.count
        }
        return Calibration(
            plan = finished,
            samples = answers.count,
            accuracy = route.right.count { it }.toDouble() / answers.count,
            accuracyWithoutExits = answers.rightAtEnd.count { it }.toDouble() / answers.count,
            shareEarly = route.open.count { !it }.toDouble() / answers.count,
            shareEscalated = shareHard,
            meanMs = times?.get(0),
            withoutExitsMs = times?.get(1),
        )
    }
}

/**
 * The exits and thresholds of least mean latency whose drop plus two standard errors is within [accuracyDrop].
 *
 * The drop is that of the accuracy below the end's; its standard error is paired, over the samples that only one of the
 * two gets right. Many thresholds are tried on few samples, so the observed drop of the best is biased downwards.
 *
 * [exits] follow each other. Starts from the best common threshold, then improves one exit's threshold at a time; an
 * exit that does not pay is left out.
 */
internal fun chooseExits(
    exits: List<ExitSamples>,
    rightAtEnd: BooleanArray,
    fullMs: Double,
    accuracyDrop: Double,
): List<ExitChoice> {
    if (exits.isEmpty()) return emptyList()
    val grids = exits.map { grid(it.confidence) }

    fun meanMs(thresholds: List<Double>): Double {
        val route = Route(exits, thresholds, rightAtEnd)
        val lost = rightAtEnd.indices.count { rightAtEnd[it] && !route.right[it] }
        val won = rightAtEnd.indices.count { route.right[it] && !rightAtEnd[it] }
        val drop = (lost - won + CAUTION * sqrt((lost + won).toDouble())) / rightAtEnd.size
        return if (drop <= accuracyDrop) route.meanMs(fullMs) else Double.POSITIVE_INFINITY
    }

    fun best(tried: List<List<Double>>) = tried.map { meanMs(it) to it }.minBy { it.first }

    var (bestMs, best) = best(grids.flatten().distinct().sorted().map { value -> exits.map { value } })
    for (round in 1..ROUNDS) {
        val changed = grids.flatMapIndexed { at, grid ->
            grid.map { value -> best.mapIndexed { number, own -> if (number == at) value else own } }
        }
        val (meanMs, thresholds) = best(changed)
        if (!(meanMs < bestMs)) break
        bestMs = meanMs
        best = thresholds
    }
    return exits.zip(best) { exit, threshold -> exit.choice.copy(threshold = threshold) }
        .filter { it.threshold < UNREACHABLE_CONFIDENCE }
}

/** Thresholds to try: evenly spaced quantiles from the least confidence on, and one that no sample reaches. */
private fun grid(confidence: DoubleArray): List<Double> {
    val sorted = confidence.sorted()
    val quantiles = List(TRIED) { percentile(sorted, HIGHEST_TRIED * it / (TRIED - 1)) }
    return quantiles.distinct().sorted() + UNREACHABLE_CONFIDENCE
}

/**
 * The threshold below which the least confident samples lie that make up [share] of all [samples].
 *
 * [confidenceAtEnd]: of those that no exit answered. It lies in the middle of a gap between two confidences; share 0
 * gives 0, and a share that takes all of them gives a threshold that no confidence reaches.
 */
internal fun hardThreshold(confidenceAtEnd: List<Double>, share: Double, samples: Int): Double {
    val wanted = Math.rint(share * samples).toInt()
    if (wanted <= 0) return 0.0
    if (wanted >= confidenceAtEnd.size) return UNREACHABLE_CONFIDENCE
    val ordered = confidenceAtEnd.sorted()
    return (ordered[wanted - 1] + ordered[wanted]) / 2
}
