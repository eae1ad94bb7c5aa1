/** Interleaved timing of stretches of a bundle, in groups that fit in memory. Mirrors device_sdk/profiling/stretches.py. */
package pathweave.sdk.profiling

import pathweave.sdk.Clock
import pathweave.sdk.bundles.Bundle
import pathweave.sdk.execution.Footprint
import pathweave.sdk.execution.Workspace
import pathweave.sdk.execution.allStay
import pathweave.sdk.execution.goldenInputs
import pathweave.sdk.runtimes.LoadedStretch
import pathweave.sdk.supernet.CutPoint
import pathweave.sdk.supernet.Edge
import pathweave.sdk.supernet.ExitChoice
import pathweave.sdk.supernet.ImageSize
import pathweave.sdk.supernet.MB
import pathweave.sdk.supernet.Supernet
import pathweave.sdk.supernet.nbytes

internal const val WARMUP = 5
private const val FIRST_RUNS = 2 // runs after which a runtime has allocated its working memory
private const val GROUP_BYTES = 128L * MB // loaded at once: weights, and arenas of whole subnets
private const val PAGED_ROUNDS = 10 // for subnets that reload their pages in every call, which takes 100 times as long
private const val PAGED_WARMUP = 1
private const val ARENA_TENSORS = 4 // size of a session's arena, in units of its largest block's inputs and outputs

/** A unit of timing: consecutive edges, or an exit's branch alone on a path of [inputSize]. */
internal class Part(
    val edges: List<Edge>,
    val exit: ExitChoice?,
    val inputSize: ImageSize?,
    val weightBytes: Long,
) {
    /** Equal for parts that share a session: the same single block or branch at any input size. */
    val model: Any get() = (if (edges.size > 1) edges else edges.map { it.at(null) }) to exit

    fun start(supernet: Supernet): CutPoint = supernet.cutPointsAt(inputSize)[
        exit?.let { supernet.exit(it.exit).position } ?: supernet.block(edges[0].block).start,
    ]

    /** Bytes of the tensors that go in and come out. */
    fun bytesAtEnds(supernet: Supernet): Long = start(supernet).nbytes +
        if (exit == null) supernet.ends(edges[0]).second.nbytes
        else supernet.exitTensor(supernet.exit(exit.exit)).nbytes

    companion object {
        fun of(bundle: Bundle, edges: List<Edge>, exit: ExitChoice? = null, inputSize: ImageSize? = null): Part {
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
            val timed = measureInterleaved(loaded.map { it.first }, timing.copy(rounds = rounds), warmup, reference) {
                onShare((++done).toDouble() / steps)
            }
            return loaded.zip(timed) { (_, peakBytes), latency -> MeasuredPart(latency, peakBytes, inPages) }
        } finally {
            open.forEach { it.close() }
        }
    }

    private fun fits(part: Part): Boolean = workspace.fits(part.edges, part.exit)

    /** A single block runs at all input sizes, a whole subnet at its own, as deployed: in pages if it has to. */
    private fun load(part: Part): LoadedStretch {
        if (!fits(part)) return workspace.loadStretch(part.edges, part.exit)
        val alone = part.edges.size < 2
        val edges = if (alone) part.edges.map { it.at(null) } else part.edges
        return workspace.runtime.load(bundle.stretch(edges, part.exit, anySize = alone))
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
