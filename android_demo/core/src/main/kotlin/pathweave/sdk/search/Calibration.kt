/**
 * Calibrating a plan: which exits answer early and when, and which samples count as hard.
 *
 * Mirrors device_sdk/policies/calibration.py, answers.py and thresholds.py. There are no memory caps here yet.
 */
package pathweave.sdk.search

import kotlin.math.sqrt
import pathweave.sdk.Bundle
import pathweave.sdk.CostModel
import pathweave.sdk.Decider
import pathweave.sdk.Edge
import pathweave.sdk.Exit
import pathweave.sdk.ExitAtSize
import pathweave.sdk.ExitCandidate
import pathweave.sdk.ExitChoice
import pathweave.sdk.Hard
import pathweave.sdk.InputError
import pathweave.sdk.LoadedPlan
import pathweave.sdk.MB
import pathweave.sdk.Plan
import pathweave.sdk.Profile
import pathweave.sdk.RemoteRef
import pathweave.sdk.Subnet
import pathweave.sdk.Tensor
import pathweave.sdk.UNREACHABLE_CONFIDENCE
import pathweave.sdk.UsageError
import pathweave.sdk.confidence
import pathweave.sdk.measureInterleaved
import pathweave.sdk.percentile
import pathweave.sdk.placeExactly
import pathweave.sdk.runtimes.LoadedStretch
import pathweave.sdk.runtimes.Runtime

private const val MEASURED_SAMPLES = 200
private const val MEASURED_ROUNDS = 3
private const val PLACEMENT_NS = 1_000_000_000L
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

/**
 * What the exits along a subnet and its end answer to private samples.
 *
 * [logits]: of each exit, then of the end, by sample; [edges]: how many of the subnet's an exit needs.
 */
internal class AnswersEverywhere(
    val subnet: Subnet,
    val exits: List<Exit>,
    val edges: List<Int>,
    private val logits: List<List<FloatArray>>,
    labels: IntArray?,
) {
    val count: Int = logits.last().size
    private val labels = labels ?: IntArray(count) { argmax(logits.last()[it]) }
    val rightAtEnd: BooleanArray = right(exits.size)
    val confidenceAtEnd: DoubleArray get() = confidences(exits.size)

    private fun right(number: Int) = BooleanArray(count) { argmax(logits[number][it]) == labels[it] }

    private fun confidences(number: Int): DoubleArray {
        val rows = logits[number]
        val values = FloatArray(rows.size * rows[0].size) { rows[it / rows[0].size][it % rows[0].size] }
        return confidence(Tensor.of(values, listOf(rows.size, rows[0].size)))
    }

    fun atExit(number: Int, costs: CostModel): ExitSamples {
        val choice = choice(exits[number])
        return ExitSamples(
            choice,
            confidences(number),
            right(number),
            reachMs = costs.latencyMs(Subnet(subnet.edges.take(edges[number]))),
            branchMs = costs.exitLatencyMs(choice, subnet.inputSize),
        )
    }
}

private fun choice(exit: Exit) = ExitChoice(exit.id, UNREACHABLE_CONFIDENCE, exit.renditions[0].name)

/** An exit on the calibration samples. [reachMs]: from the input to its cut point; [branchMs]: what trying it costs. */
internal class ExitSamples(
    val choice: ExitChoice,
    val confidence: DoubleArray,
    val right: BooleanArray,
    val reachMs: Double,
    val branchMs: Double,
)

/** Finds exits, their thresholds and the threshold of hard samples, blocking. */
internal class Calibrator(
    private val bundle: Bundle,
    private val runtime: Runtime,
    profile: Profile,
    private val settings: CalibrationSettings,
) {
    private val supernet = bundle.supernet
    private val costs = profile.costModel()

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
        val answers = answerEverywhere(subnet, inputs, labels)
        val found = placed(answers).map { answers.atExit(it, costs) }
        val choices = chooseExits(found, answers.rightAtEnd, costs.latencyMs(subnet), settings.accuracyDrop)
        var plan = Plan(subnet, choices)
        var times: List<Double>? = if (choices.isNotEmpty() && settings.confirm) measured(plan, inputs) else null
        if (times != null && times[0] >= times[1]) {
            plan = Plan(subnet)
            times = null
        }
        if (settings.timedExits) plan = withTimedExits(plan, found.map { it.choice })
        return judged(answers, plan, found.filter { one -> plan.exits.any { it.exit == one.choice.exit } }, times)
    }

    /** Run the subnet once over all samples, batch by batch, and every branch on the features at its cut point. */
    private fun answerEverywhere(subnet: Subnet, inputs: Inputs, labels: IntArray?): AnswersEverywhere {
        val exits = if (settings.useExits) supernet.exitsAlong(subnet) else emptyList()
        val ends = supernet.walk(subnet).map { (_, block) -> block.end }
        val needed = exits.map { ends.indexOf(it.position) + 1 }
        val open = mutableListOf<LoadedStretch>()
        try {
            fun load(edges: List<Edge>, exit: ExitChoice? = null) =
                runtime.load(bundle.stretch(edges, exit)).also { open += it }
            // of several exits at one cut point only the first has edges before it
            val parts = exits.mapIndexed { number, exit ->
                val edges = subnet.edges.subList(if (number == 0) 0 else needed[number - 1], needed[number])
                val before = if (edges.isEmpty()) null else load(edges)
                before to load(emptyList(), choice(exit))
            }
            val end = load(subnet.edges.drop(needed.lastOrNull() ?: 0))
            val logits = List(exits.size + 1) { mutableListOf<FloatArray>() }
            for (batch in (0 until inputs.count).chunked(settings.batch)) {
                var features = listOf(inputs.take(batch, subnet.inputSize))
                for ((number, part) in parts.withIndex()) {
                    features = part.first?.run(features) ?: features
                    logits[number] += rows(part.second.run(features).last())
                }
                logits.last() += rows(end.run(features).last())
            }
            return AnswersEverywhere(subnet, exits, needed, logits, labels)
        } finally {
            open.forEach { it.close() }
        }
    }

    /** Which exits are kept in memory, by their number: accuracies and times are this device's own. */
    private fun placed(answers: AnswersEverywhere): List<Int> {
        val candidates = answers.exits.mapIndexed { number, exit ->
            val found = answers.atExit(number, costs)
            val bytes = costs.exitCosts.getValue(ExitAtSize(exit.id, found.choice.rendition)).residentBytes
            val accuracy = found.right.count { it }.toDouble() / found.right.size
            ExitCandidate(exit.id, exit.position, accuracy, found.reachMs, found.branchMs, bytes)
        }
        if (candidates.isEmpty()) return emptyList()
        val memoryBytes = settings.exitMemoryMb?.let { (it * MB).toLong() }
        val startedNs = System.nanoTime()
        val kept = placeExactly(
            candidates,
            fullTime = costs.latencyMs(answers.subnet),
            memoryBytes = memoryBytes,
            late = { System.nanoTime() - startedNs > PLACEMENT_NS },
        ).exits
        return answers.exits.indices.filter { answers.exits[it].id in kept }
    }

    /** Mean latency at batch 1 of [plan] and of its subnet alone, sample by sample in turns. */
    private fun measured(plan: Plan, inputs: Inputs): List<Double> {
        val plans = listOf(plan, Plan(plan.subnet)).map { LoadedPlan(bundle, runtime, it) }
        try {
            val samples = 0 until minOf(inputs.count, MEASURED_SAMPLES)
            val totals = DoubleArray(plans.size)
            for (at in samples) {
                val sample = inputs.take(listOf(at), plan.inputSize)
                val calls = plans.map { loaded -> { loaded.run(sample); Unit } }
                val timed = measureInterleaved(calls, MEASURED_ROUNDS, warmup = 1)
                for ((number, latency) in timed.withIndex()) totals[number] += latency.medianMs
            }
            return totals.map { it / samples.count() }
        } finally {
            plans.forEach { it.close() }
        }
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

/** The way of all samples through exits that answer from their thresholds on: which reach the end, which are right. */
private class Route(private val exits: List<ExitSamples>, thresholds: List<Double>, rightAtEnd: BooleanArray) {
    val open = BooleanArray(rightAtEnd.size) { true }
    val right = rightAtEnd.copyOf()
    private var answeredMs = 0.0
    private var triedMs = 0.0

    init {
        for ((exit, threshold) in exits.zip(thresholds)) {
            if (threshold >= UNREACHABLE_CONFIDENCE) continue
            triedMs += exit.branchMs
            var answered = 0
            for (sample in open.indices) {
                if (!open[sample] || exit.confidence[sample] < threshold) continue
                open[sample] = false
                right[sample] = exit.right[sample]
                answered++
            }
            answeredMs += answered * (exit.reachMs + triedMs)
        }
    }

    fun meanMs(fullMs: Double): Double = (answeredMs + open.count { it } * (fullMs + triedMs)) / open.size
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
