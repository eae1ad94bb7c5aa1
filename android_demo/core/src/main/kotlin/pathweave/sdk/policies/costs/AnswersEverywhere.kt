/** What a subnet answers at every exit and at its end, and what that costs. */
package pathweave.sdk.policies.costs

import pathweave.sdk.data.Inputs
import pathweave.sdk.execution.LoadedPlan
import pathweave.sdk.execution.LoadedSegments
import pathweave.sdk.execution.PlanSegment
import pathweave.sdk.execution.Workspace
import pathweave.sdk.execution.allStay
import pathweave.sdk.execution.oneModelFootprint
import pathweave.sdk.execution.segments
import pathweave.sdk.numerics.Tensor
import pathweave.sdk.numerics.argmax
import pathweave.sdk.policies.exits.chooseExits
import pathweave.sdk.policies.placement.ExitCandidate
import pathweave.sdk.policies.placement.placeExactly
import pathweave.sdk.profiling.Timing
import pathweave.sdk.profiling.measureInterleaved
import pathweave.sdk.supernet.CostModel
import pathweave.sdk.supernet.Exit
import pathweave.sdk.supernet.ExitAtSize
import pathweave.sdk.supernet.ExitChoice
import pathweave.sdk.supernet.Plan
import pathweave.sdk.supernet.SampleSize
import pathweave.sdk.supernet.Subnet
import pathweave.sdk.supernet.UNREACHABLE_CONFIDENCE
import pathweave.sdk.supernet.confidence
import pathweave.sdk.tasks.flattened

private const val MEASURED_SAMPLES = 200
private const val MEASURED_IN_PAGES = 20 // of which each call loads pages again
private const val MEASURED_ROUNDS = 3
private const val PLACEMENT_NS = 1_000_000_000L

/** Accuracies that exits may cost: a set of exits for each. */
internal val DROPS = listOf(0.0025, 0.01, 0.03)

/** The drops that are tried for exits under a goal: all without its own [maxDrop], or else none beyond it (ADR 100). */
internal fun dropsWithin(maxDrop: Double?): List<Double> =
    if (maxDrop == null) DROPS else listOf(maxDrop) + DROPS.filter { it < maxDrop }

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
    val labels: IntArray = labels ?: IntArray(count) { argmax(logits.last()[it]) }
    val rightAtEnd: BooleanArray = right(exits.size)
    val accuracyAtEnd: Double get() = rightAtEnd.count { it }.toDouble() / count

    /** Logits at the end, [count, classes]. */
    val end: Tensor get() = tensor(exits.size)

    /** Logits of the exit of this number in [exits], [count, classes]. */
    fun ofExit(number: Int): Tensor = tensor(number)

    /** Those to the samples at [positions] alone. */
    fun part(positions: List<Int>): AnswersEverywhere = AnswersEverywhere(
        subnet,
        exits,
        edges,
        logits.map { rows -> positions.map(rows::get) },
        IntArray(positions.size) { labels[positions[it]] },
    )

    private fun right(number: Int) = BooleanArray(count) { argmax(logits[number][it]) == labels[it] }

    fun confidences(number: Int): DoubleArray = confidence(tensor(number))

    private fun tensor(number: Int): Tensor {
        val rows = logits[number]
        val values = FloatArray(rows.size * rows[0].size) { rows[it / rows[0].size][it % rows[0].size] }
        return Tensor.of(values, listOf(rows.size, rows[0].size))
    }

    fun atExit(number: Int, costs: CostModel): ExitSamples {
        val choice = choice(exits[number])
        return ExitSamples(
            choice,
            confidences(number),
            right(number),
            reachMs = costs.reachMs(Subnet(subnet.edges.take(edges[number]))),
            branchMs = costs.exitLatencyMs(choice, subnet.inputSize),
        )
    }
}

private fun choice(exit: Exit) = ExitChoice(exit.id, UNREACHABLE_CONFIDENCE, exit.renditions[0].name)

/**
 * An exit on the calibration samples.
 *
 * [reachMs]: the way to its cut point for those that leave there, beside the branches tried, its own included;
 * [branchMs]: what trying it costs.
 */
internal class ExitSamples(
    val choice: ExitChoice,
    val confidence: DoubleArray,
    val right: BooleanArray,
    val reachMs: Double,
    val branchMs: Double,
) {
    /** The same where each way to the exit takes [overheadMs] more. */
    fun later(overheadMs: Double) = ExitSamples(choice, confidence, right, reachMs + overheadMs, branchMs)
}

/** Runs subnets of a bundle with their exits on private samples. [costs]: of this device. */
internal class Answering(private val workspace: Workspace, private val costs: CostModel) {
    private val supernet = workspace.bundle.supernet

    /** Run the subnet once over all samples, batch by batch, and every branch on the features at its cut point. */
    fun answer(subnet: Subnet, inputs: Inputs, labels: IntArray?, useExits: Boolean, batch: Int): AnswersEverywhere {
        val exits = if (useExits) supernet.exitsAlong(subnet) else emptyList()
        val ends = supernet.walk(subnet).map { (_, block) -> block.end }
        val needed = exits.map { ends.indexOf(it.position) + 1 }
        // of several exits at one cut point only the first has edges before it
        val parts = exits.flatMapIndexed { number, exit ->
            val edges = subnet.edges.subList(if (number == 0) 0 else needed[number - 1], needed[number])
            listOf(PlanSegment(edges, null), PlanSegment(emptyList(), choice(exit)))
        }
        val found = parts + PlanSegment(subnet.edges.drop(needed.lastOrNull() ?: 0), null)
        val logits = List(exits.size + 1) { mutableListOf<FloatArray>() }
        val fitting = workspace.largestBatch(found, wanted = batch)
        LoadedSegments(workspace, found, batch = fitting).use { loaded ->
            for (positions in (0 until inputs.count).chunked(fitting)) {
                var features = listOf(inputs.take(positions, subnet.inputSize))
                for ((number, stretch) in loaded.stretches.withIndex()) {
                    val isBranch = number % 2 == 1
                    val outputs = stretch?.run(features) ?: features
                    if (isBranch) logits[number / 2] += flattened(outputs.last()) else features = outputs
                }
                logits.last() += flattened(features.last())
            }
        }
        return AnswersEverywhere(subnet, exits, needed, logits, labels)
    }

    /** The exits of these numbers with thresholds: one set for each accuracy that they may cost. */
    fun exitSets(answers: AnswersEverywhere, placed: List<Int>, drops: List<Double>): List<List<ExitChoice>> {
        val exits = placed.map { answers.atExit(it, costs) }
        val fullMs = costs.latencyMs(answers.subnet)
        val sure = answers.confidences(answers.exits.size)
        return drops.map { chooseExits(exits, answers.rightAtEnd, sure, fullMs, it) }.filter { it.isNotEmpty() }.distinct()
    }

    /** Which exits are kept in memory, by their number: accuracies and times are this device's own. */
    fun placed(answers: AnswersEverywhere, memoryBytes: Long? = null): List<Int> {
        val candidates = answers.exits.mapIndexed { number, exit ->
            val found = answers.atExit(number, costs)
            val bytes = costs.exitCosts.getValue(ExitAtSize(exit.id, found.choice.rendition)).residentBytes
            val accuracy = found.right.count { it }.toDouble() / found.right.size
            ExitCandidate(exit.id, exit.position, accuracy, found.reachMs, found.branchMs, bytes)
        }
        if (candidates.isEmpty()) return emptyList()
        val startedNs = System.nanoTime()
        val kept = placeExactly(
            candidates,
            fullTime = costs.latencyMs(answers.subnet),
            memoryBytes = memoryBytes,
            late = { System.nanoTime() - startedNs > PLACEMENT_NS },
        ).exits
        return answers.exits.indices.filter { answers.exits[it].id in kept }
    }

    /** Mean latency at batch 1 of [plan] and of its subnet alone, sample by sample, in turns if both fit at once. */
    fun measured(plan: Plan, inputs: Inputs): List<Double> {
        val (plans, capBytes) = listOf(plan, Plan(plan.subnet).withPrior(plan.prior)) to workspace.memoryCapBytes
        val prints = plans.flatMap { segments(supernet, it) }.map { oneModelFootprint(workspace.bundle, it) }
        if (capBytes == null || allStay(prints, capBytes)) return timed(plans, inputs, MEASURED_SAMPLES)
        return plans.map { timed(listOf(it), inputs, MEASURED_IN_PAGES)[0] }
    }

    private fun timed(each: List<Plan>, inputs: Inputs, most: Int): List<Double> {
        val plans = mutableListOf<LoadedPlan>()
        try {
            each.mapTo(plans) { workspace.loadPlan(it) }
            val (plan, samples) = each[0] to (0 until minOf(inputs.count, most))
            val found = samples.map { at ->
                val sample = inputs.take(listOf(at), plan.inputSize)
                val atSize = { _: List<Int>, size: SampleSize? -> inputs.take(listOf(at), size) }
                val calls = plans.map { loaded -> { loaded.run(sample, null, asks = false, atSize = atSize); Unit } }
                measureInterleaved(calls, Timing(MEASURED_ROUNDS), warmup = 1).map { it.medianMs }
            }
            return plans.indices.map { number -> found.map { it[number] }.average() }
        } finally {
            plans.forEach { it.close() }
        }
    }
}
