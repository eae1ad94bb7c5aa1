/**
 * Latency of calls: medians with spread, interleaved between competitors.
 *
 * A call's time excludes the time that its thread waited for a processor: long calls are interrupted more often than
 * short ones, so the ratio of a short call to a long one would be too small. Where the system does not report that time,
 * interrupted calls count for p95 only.
 */
package pathweave.sdk.profiling

import java.io.File
import java.io.IOException
import kotlin.math.exp
import kotlin.math.hypot
import kotlin.math.ln
import kotlin.math.sqrt
import pathweave.sdk.Clock
import pathweave.sdk.MeasurementError
import pathweave.sdk.NANOSECONDS_PER_MS
import pathweave.sdk.bundles.Bundle
import pathweave.sdk.execution.Footprint
import pathweave.sdk.execution.Workspace
import pathweave.sdk.execution.allStay
import pathweave.sdk.execution.goldenInputs
import pathweave.sdk.numerics.percentile
import pathweave.sdk.runtimes.LoadedStretch
import pathweave.sdk.supernet.CutPoint
import pathweave.sdk.supernet.Edge
import pathweave.sdk.supernet.ExitChoice
import pathweave.sdk.supernet.Home
import pathweave.sdk.supernet.MB
import pathweave.sdk.supernet.SampleSize
import pathweave.sdk.supernet.Supernet
import pathweave.sdk.supernet.nbytes

private const val LEAST_UNDISTURBED = 3 // calls; with fewer, the fastest of all are used
private const val FASTEST = 0.1 // share of all calls
private const val LEAST_VALID = 0.5 // share of timed calls that must take any time, so that the median is above zero
private const val CHECK_EVERY = 5 // rounds
private const val ERROR_PER_QUARTILES = 0.93 // standard error of a median = 0.93 · (p75 − p25) / √runs
private const val SETTLED_SHARE = 0.9 // share of the calls whose median must have the requested precision
private const val LEAST_PAIRS = 5 // rounds in which neither call was disturbed; with fewer, medians are compared
private const val SESSION_ERROR = 0.005 // relative; two sessions of one model differ by up to 1.3 %
private const val PERCENT = 100.0

/**
 * Early stopping of rounds.
 *
 * [precision]: stop after [rounds] once 90 % of the medians have a relative standard error below this; [limitS]: stop
 * after this time, but not before [least] rounds.
 */
public data class Patience(
    val rounds: Int,
    val precision: Double,
    val limitS: Double,
    val least: Int = rounds,
)

/**
 * Timing settings: at most [rounds], fewer with [patience], [pauseS] apart. [percentile]: another one besides the median.
 */
public data class Timing(
    val rounds: Int,
    val patience: Patience? = null,
    val pauseS: Double = 0.0,
    val percentile: Double? = null,
    val clock: Clock = SYSTEM_CLOCK,
)

private val SYSTEM_CLOCK: Clock = System::nanoTime

/** A latency relative to another one's. [relativeError]: standard error of its logarithm; infinite if unknown. */
public data class Ratio(val value: Double, val relativeError: Double)

/**
 * How long one call takes, over [runs] timed calls; half of them lie from [p25Ms] to [p75Ms].
 *
 * Median and quartiles are of undisturbed calls: without the time that they waited for a processor. [p95Ms] and
 * [elapsedMs], a median, are of all calls and include it. [ratio]: to the reference's, where the calls were timed in
 * turns with one. [otherMs]: at another percentile of undisturbed calls, where one was wanted.
 */
public data class Latency(
    val medianMs: Double,
    val p95Ms: Double,
    val p25Ms: Double,
    val p75Ms: Double,
    val runs: Int,
    val ratio: Ratio? = null,
    val otherMs: Double? = null,
    val elapsedMs: Double? = null,
) {
    /** The latency at the wanted percentile, the median by default. */
    val atPercentileMs: Double get() = otherMs ?: medianMs
}

/**
 * Time competitors in turns: each has one turn per round, in an order that is another one every round.
 *
 * The order rotates, so that each starts equally often, and every second rotation runs backwards, so that none
 * always follows the same neighbour. Where there are several, each is called twice in its turn and the second call
 * timed. With a pause each is called once per turn instead, that long after the one before, as an application that
 * calls now and then does. The first [warmup] rounds do not count. [reference]: the call that the others' ratios refer
 * to. [onRound] is called after each round, warm-up included; [interruptions] counts those of this thread. [waitedNs]:
 * time that this thread waited for a processor so far; by default the system's count, if the clock is the system's too.
 * [waiting]: calls that run on several threads. They wait for their own threads, so that all of their time counts.
 *
 * @throws MeasurementError the clock stood still, or was set back more often than not.
 */
public fun measureInterleaved(
    calls: List<() -> Unit>,
    timing: Timing,
    warmup: Int,
    reference: Int? = null,
    interruptions: () -> Long = ::interruptionsOfThisThread,
    waitedNs: () -> Long = if (timing.clock == SYSTEM_CLOCK) ::waitedForProcessorNs else { { 0 } },
    waiting: Set<Int> = emptySet(),
    sleep: (Double) -> Unit = ::pause,
    onRound: () -> Unit = {},
): List<Latency> {
    val (rounds, patience, pauseS, percentile, clock) = timing
    require(rounds >= 1 && warmup >= 0) { "needs at least 1 round and no negative warm-up, got $rounds and $warmup" }
    val samples = calls.map { Durations() }
    val startedNs = clock()
    var timedRounds = 0
    for (round in -warmup until rounds) {
        if (patience != null && isEnough(round, patience, samples, (clock() - startedNs) / 1e9)) break
        for (index in order(calls.size, round)) {
            if (pauseS > 0 && round >= 0) sleep(pauseS) else if (calls.size > 1 && round >= 0) calls[index]()
            val switches = interruptions()
            val waitedBeforeNs = waitedNs()
            val callNs = clock()
            calls[index]()
            val elapsedNs = clock() - callNs
            val waitedDuringNs = if (index in waiting) 0 else waitedNs() - waitedBeforeNs
            val interrupted = index !in waiting && interruptions() != switches
            if (round >= 0) samples[index].add(elapsedNs, waitedDuringNs, interrupted)
        }
        if (round >= 0) timedRounds++
        onRound()
    }
    return samples.map { it.latency(timedRounds, reference?.let(samples::get), percentile) }
}

private fun pause(seconds: Double) = Thread.sleep((seconds * 1e3).toLong(), (seconds * 1e9 % 1e6).toInt())

private fun isEnough(round: Int, patience: Patience, samples: List<Durations>, elapsedS: Double): Boolean {
    if (round >= maxOf(patience.least, 1) && elapsedS >= patience.limitS) return true
    if (round < maxOf(patience.rounds, 1) || round % CHECK_EVERY != 0 || samples.isEmpty()) return false
    val errors = samples.map { it.relativeError() }.sorted()
    return errors[(SETTLED_SHARE * (errors.size - 1)).toInt()] <= patience.precision
}

internal fun order(count: Int, round: Int): List<Int> {
    val rotated = List(count) { (it + Math.floorMod(round, count)) % count }
    return if (Math.floorMod(Math.floorDiv(round, maxOf(count, 1)), 2) == 1) rotated.reversed() else rotated
}

/** The durations of one call, and which of them were disturbed. */
private class Durations {
    private val undisturbedMs = mutableListOf<Double>()
    private val allMs = mutableListOf<Double>()
    private val byRound = mutableListOf<Double?>() // null: disturbed, or the clock was set back during the call

    /** [waitedNs]: part of [elapsedNs] without a processor; 0 if unknown. */
    fun add(elapsedNs: Long, waitedNs: Long, interrupted: Boolean) {
        val disturbed = if (waitedNs == 0L) interrupted else waitedNs >= elapsedNs
        val ownMs = (elapsedNs - waitedNs) / NANOSECONDS_PER_MS
        byRound += ownMs.takeUnless { disturbed || elapsedNs <= 0 }
        if (elapsedNs < 0) return
        allMs += elapsedNs / NANOSECONDS_PER_MS
        if (!disturbed) undisturbedMs += ownMs
    }

    /** The durations that medians are computed from, sorted. */
    private fun counting(): List<Double> =
        if (undisturbedMs.size >= minOf(LEAST_UNDISTURBED, allMs.size)) undisturbedMs.sorted()
        else allMs.sorted().take(maxOf(LEAST_UNDISTURBED, Math.rint(FASTEST * allMs.size).toInt()))

    fun relativeError(): Double {
        val counting = counting()
        if (counting.isEmpty()) return Double.POSITIVE_INFINITY
        val (low, median, high) = listOf(0.25, 0.5, 0.75).map { percentile(counting, it) }
        return if (median > 0) ERROR_PER_QUARTILES * (high - low) / sqrt(counting.size.toDouble()) / median
        else Double.POSITIVE_INFINITY
    }

    /** The ratio of this call's latency to the reference's, from pairs of one round: drift of the device cancels. */
    private fun ratioTo(reference: Durations): Ratio {
        val logs = byRound.zip(reference.byRound).mapNotNull { (own, other) ->
            if (own == null || other == null) null else ln(own / other)
        }.sorted()
        if (logs.size >= LEAST_PAIRS) {
            val error = ERROR_PER_QUARTILES * (percentile(logs, 0.75) - percentile(logs, 0.25)) / sqrt(logs.size.toDouble())
            return Ratio(exp(percentile(logs, 0.5)), hypot(error, SESSION_ERROR))
        }
        val (own, other) = listOf(this, reference).map { percentile(it.counting(), 0.5) }
        val error = hypot(hypot(relativeError(), reference.relativeError()), SESSION_ERROR)
        return if (minOf(own, other) > 0) Ratio(own / other, error) else Ratio(1.0, Double.POSITIVE_INFINITY)
    }

    fun latency(wanted: Int, reference: Durations?, percentile: Double?): Latency {
        val valid = allMs.count { it > 0 }
        if (valid <= LEAST_VALID * wanted) {
            throw MeasurementError(
                "only $valid of $wanted timed calls took any time: the clock stood still or was set back",
                hint = "measure again while nothing sets this device's clock",
            )
        }
        val counting = counting()
        val p75Ms = percentile(counting, 0.75)
        return Latency(
            medianMs = percentile(counting, 0.50),
            p95Ms = maxOf(p75Ms, percentile(allMs.sorted(), 0.95)),
            p25Ms = percentile(counting, 0.25),
            p75Ms = p75Ms,
            runs = allMs.size,
            ratio = reference?.let(::ratioTo),
            otherMs = percentile?.let { percentile(counting, it / PERCENT) },
            elapsedMs = percentile(allMs.sorted(), 0.5),
        )
    }
}

private val THREAD_STATUS = File("/proc/thread-self/status")
private const val INTERRUPTED = "nonvoluntary_ctxt_switches:"

/** Involuntary context switches of this thread so far; 0 where the system does not report them. */
internal fun interruptionsOfThisThread(): Long = try {
    THREAD_STATUS.readText().substringAfter(INTERRUPTED, "0").trim().toLong()
} catch (_: IOException) {
    0
} catch (_: NumberFormatException) {
    0
}

private val SCHEDULED = File("/proc/thread-self/schedstat") // time on a processor, time waiting for one, in ns; slices

/** Time that this thread was ready to run but had no processor; 0 where the system does not report it. */
internal fun waitedForProcessorNs(): Long = try {
    SCHEDULED.readText().trim().split(' ')[1].toLong()
} catch (_: IOException) {
    0
} catch (_: IndexOutOfBoundsException) {
    0
} catch (_: NumberFormatException) {
    0
}

internal const val WARMUP = 2 // rounds, behind the first runs of each part
private const val FIRST_RUNS = 2 // runs after which a runtime has allocated its working memory
private const val GROUP_BYTES = 128L * MB // loaded at once: weights, and arenas of whole subnets
private const val PAGED_ROUNDS = 10 // for subnets that reload their pages in every call, which takes 100 times as long
private const val PAGED_WARMUP = 1
private const val ARENA_TENSORS = 4 // size of a session's arena, in units of its largest block's inputs and outputs

/**
 * A unit of timing: consecutive edges, or an exit's branch alone on a path of [inputSize].
 *
 * [ownSize]: its session is for that size alone: several edges as deployed, or one whose provider compiles for fixed
 * shapes.
 */
internal class Part(
    val edges: List<Edge>,
    val exit: ExitChoice?,
    val inputSize: SampleSize?,
    val weightBytes: Long,
) {
    val ownSize: Boolean =
        edges.size > 1 || edges.any { it.home.isNotEmpty() && !Home.parse(it.home).onProcessor }

    /** Equal for parts that share a session: the same single block or branch at any input size. */
    val model: Any get() = (if (ownSize) edges else edges.map { it.at(null) }) to exit

    fun start(supernet: Supernet): CutPoint = supernet.cutPointsAt(inputSize)[
        exit?.let { supernet.exit(it.exit).position } ?: supernet.block(edges[0].block).start,
    ]

    /** Bytes of the tensors that go in and come out. */
    fun bytesAtEnds(supernet: Supernet): Long = start(supernet).nbytes +
        if (exit == null) supernet.ends(edges[0]).second.nbytes
        else supernet.exitTensor(supernet.exit(exit.exit)).nbytes

    companion object {
        fun of(bundle: Bundle, edges: List<Edge>, exit: ExitChoice? = null, inputSize: SampleSize? = null): Part {
            val supernet = bundle.supernet
            val bytes = bundle.blobNames(edges, exit).sumOf(bundle::loadedSize)
            return Part(edges, exit, if (exit == null) edges[0].inputSize else inputSize, bytes)
        }
    }
}

/**
 * A part's latency, and the peak growth of the process while it was loaded and first run (null: unknown).
 *
 * [inPages]: it exceeds the memory cap, so every call reloaded its pages.
 */
internal class MeasuredPart(val latency: Latency, val peakBytes: Long?, val inPages: Boolean)

/** Times parts in turns, in groups that fit in memory. [onProgress]: the share that is done. */
internal class PartTimer(
    private val workspace: Workspace,
    private val timing: Timing,
    private val onProgress: (Double) -> Unit = {},
) {
    private val bundle = workspace.bundle
    private val supernet = bundle.supernet

    /**
     * Load each part, record its memory, and time all of them, in turns, on golden inputs.
     *
     * Parts that do not fit in memory at once are timed in groups, each with that at [reference]. Latencies are
     * normalised by the reference's latency in the group over that in the first group, to cancel speed drift. Under a
     * memory cap, a group without room for the reference is not normalised, and has no ratios to it; a part that does
     * not fit in one piece runs in pages, as deployed.
     */
    fun measure(parts: List<Part>, reference: Int = 0): List<MeasuredPart> {
        val results = HashMap<Int, MeasuredPart>()
        var firstMs: Double? = null
        val groups = grouped(parts, reference)
        for ((number, group) in groups.withIndex()) {
            val timed = timing.copy(patience = timing.patience?.let { it.copy(limitS = it.limitS / groups.size) })
            val place = group.indexOf(reference).takeIf { it >= 0 }
            val measured = measureGroup(group.map(parts::get), timed, place) { onProgress((number + it) / groups.size) }
            val referenceMs = place?.let(measured::get)?.latency?.medianMs
            if (firstMs == null) firstMs = referenceMs
            val speed = if (referenceMs == null) 1.0 else referenceMs / (firstMs ?: referenceMs)
            for ((index, one) in group.zip(measured)) {
                results.getOrPut(index) { MeasuredPart(one.latency.at(speed), one.peakBytes, one.inPages) }
            }
        }
        return parts.indices.map(results::getValue)
    }

    private fun grouped(parts: List<Part>, reference: Int): List<List<Int>> {
        val capBytes = workspace.memoryCapBytes ?: return groups(sizes(parts), reference)
        return groupsThatStay(parts.map { workspace.footprint(it.edges, it.exit) }, capBytes, reference)
    }

    private fun sizes(parts: List<Part>): List<Long> = parts.mapIndexed { index, part ->
        if (index > 0 && part.model == parts[index - 1].model) 0L else part.weightBytes + arenaBytes(part)
    }

    /** Of its session, about; 0 for a single block, whose arena is small beside those of whole subnets. */
    private fun arenaBytes(part: Part): Long {
        if (part.edges.size < 2) return 0L
        return ARENA_TENSORS * part.edges.map(supernet::ends).maxOf { (start, end) -> start.nbytes + end.nbytes }
    }

    private fun measureGroup(
        parts: List<Part>,
        timing: Timing,
        reference: Int?,
        onShare: (Double) -> Unit,
    ): List<MeasuredPart> {
        val open = mutableListOf<LoadedStretch>()
        try {
            val models = HashMap<Any, LoadedStretch>()
            val inPages = parts.any { !fits(it) } // then it is the only one
            val warmup = if (inPages) PAGED_WARMUP else WARMUP
            val rounds = if (inPages) minOf(timing.rounds, PAGED_ROUNDS) else timing.rounds
            val steps = parts.size + warmup + rounds
            var done = 0
            val loaded = parts.map { part ->
                val inputs = goldenInputs(part.start(supernet), seed = 0, batch = 1)
                val (stretch, peakBytes) = peakDuring {
                    val stretch = models[part.model] ?: load(part).also { open += it }
                    stretch.also { repeat(FIRST_RUNS) { _ -> it.run(inputs) } }
                }
                models[part.model] = stretch
                onShare((++done).toDouble() / steps)
                val call: () -> Unit = { stretch.run(inputs) }
                call to peakBytes
            }
            val timed = measureInterleaved(
                loaded.map { it.first },
                timing.copy(rounds = rounds),
                warmup,
                reference,
                waiting = parts.indices.filter { waitsForThreads(parts[it]) }.toSet(),
            ) { onShare((++done).toDouble() / steps) }
            return loaded.zip(timed) { (_, peakBytes), latency -> MeasuredPart(latency, peakBytes, inPages) }
        } finally {
            open.forEach { it.close() }
        }
    }

    private fun waitsForThreads(part: Part): Boolean {
        val homes = part.edges.mapNotNull { edge -> edge.home.takeIf { it.isNotEmpty() }?.let(Home::parse) }
        val atFirst = homes.size < part.edges.size || part.exit != null
        return homes.any { it.threads > 1 || !it.onProcessor } || (atFirst && workspace.runtime.waitsForThreads)
    }

    private fun fits(part: Part): Boolean = workspace.fits(part.edges, part.exit)

    /** A single block runs at all input sizes, a whole subnet at its own, as deployed: in pages if it has to. */
    private fun load(part: Part): LoadedStretch {
        if (!fits(part)) return workspace.loadStretch(part.edges, part.exit)
        val edges = if (part.ownSize) part.edges else part.edges.map { it.at(null) }
        return workspace.runtime.load(bundle.stretch(edges, part.exit, anySize = !part.ownSize))
    }
}

/** Indices in groups of at most 128 MB in total; each has [reference] and at least one other index. */
private fun groups(sizes: List<Long>, reference: Int): List<List<Int>> {
    val grouped = mutableListOf<MutableList<Int>>()
    var room = 0L
    for ((index, size) in sizes.withIndex()) {
        if (index == reference) continue
        if (grouped.isEmpty() || size > room) {
            grouped += mutableListOf(reference)
            room = GROUP_BYTES - sizes[reference]
        }
        grouped.last() += index
        room -= size
    }
    return if (grouped.isEmpty()) listOf(listOf(reference)) else grouped.map { it.sorted() }
}

/**
 * Indices in groups that can be loaded at once under [capBytes], each with [reference] if it fits.
 *
 * A part that exceeds the cap by itself is a group of its own.
 */
internal fun groupsThatStay(prints: List<Footprint>, capBytes: Long, reference: Int): List<List<Int>> {
    fun stays(group: List<Int>) = allStay(group.sorted().map(prints::get), capBytes)

    val grouped = mutableListOf<List<Int>>()
    for (index in prints.indices) {
        if (index == reference) continue
        val together = grouped.lastOrNull()?.plus(index)
        if (together != null && stays(together)) grouped[grouped.lastIndex] = together
        else grouped += listOf(reference, index).takeIf(::stays) ?: listOf(index)
    }
    if (grouped.none { reference in it }) grouped.add(0, listOf(reference))
    return grouped.map { it.sorted() }
}

private fun Latency.at(speed: Double) = copy(
    medianMs = medianMs / speed,
    p95Ms = p95Ms / speed,
    p25Ms = p25Ms / speed,
    p75Ms = p75Ms / speed,
    otherMs = otherMs?.let { it / speed },
)
