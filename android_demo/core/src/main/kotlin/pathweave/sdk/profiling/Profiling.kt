/**
 * Profiling: measures every block on this device, and fits the predictions to measured whole subnets.
 *
 * AdaptiveNet §5.1 sums block latencies. A composed subnet is faster than that sum, since the runtime optimises across
 * block boundaries, so the sums are corrected with a few dozen measured whole subnets (ProfileFitting.kt).
 */
package pathweave.sdk.profiling

import java.io.File
import java.io.IOException
import java.text.SimpleDateFormat
import java.util.Date
import java.util.Locale
import java.util.TimeZone
import pathweave.sdk.Clock
import pathweave.sdk.SplitMix64
import pathweave.sdk.bundles.Bundle
import pathweave.sdk.execution.LOADING_FACTOR
import pathweave.sdk.execution.SESSION_BYTES
import pathweave.sdk.execution.Workspace
import pathweave.sdk.execution.goldenInputs
import pathweave.sdk.runtimes.Runtime
import pathweave.sdk.supernet.CostModel
import pathweave.sdk.supernet.Edge
import pathweave.sdk.supernet.EdgeCost
import pathweave.sdk.supernet.ExitAtSize
import pathweave.sdk.supernet.ExitChoice
import pathweave.sdk.supernet.Plan
import pathweave.sdk.supernet.Subnet
import pathweave.sdk.supernet.kCheapest
import pathweave.sdk.supernet.nbytes
import pathweave.sdk.supernet.sampleUniformly

/** Of the stored profile; a profile of another format is measured again. */
public const val PROFILE_FORMAT: Int = 6

private const val MOST_ROUNDS = 120
private const val HIGHEST_CONFIDENCE = 1.0 // exits with a threshold above it would not be loaded
private const val FITTED_SUBNETS = 32
private val PATIENCE = Patience(rounds = 40, precision = 0.01, limitS = 4.5, least = 5)

/**
 * A measured whole subnet at batch 1: Σ of its block latencies, its latency, and its peak memory if known.
 *
 * One that ran [inPages], because it exceeds the memory cap, is not used for fitting.
 */
public data class MeasuredSubnet(
    val subnet: Subnet,
    val blocksMs: Double,
    val measuredMs: Double,
    val peakBytes: Long? = null,
    val inPages: Boolean = false,
)

/**
 * Measured costs of one bundle on one device under its [conditions], with one runtime, at batch 1.
 *
 * [edges]: each alone; `factor · scale` gives its share of a composed subnet, and [changesMs] what it costs more after
 * a block of another rendition at the same home. [fitted]: measured subnets, the full model first. Those that did not run in pages
 * determine [scale], [offsetMs] and factors; without any, latencies are plain sums of blocks. Under [memoryCapBytes] the
 * predicted peaks are those of the pager: a subnet above the cap runs in pages and slower than predicted.
 */
public data class Profile(
    val bundle: String,
    val conditions: Conditions,
    val runtime: String,
    val created: String,
    val edges: Map<Edge, EdgeCost>,
    val factors: Map<Edge, Double>,
    val changesMs: Map<Edge, Double>,
    val exits: Map<ExitAtSize, EdgeCost>,
    val scale: Double,
    val offsetMs: Double,
    val fitted: List<MeasuredSubnet>,
    val originalMs: Double,
    val memoryScale: Double = 1.0,
    val memoryOffsetBytes: Long = 0,
    /** What going on behind an exit costs beyond its branch: the decision, and a further session. */
    val exitOverheadMs: Double = 0.0,
    /** What a call takes beyond its models, and by kind of decider a decision: measured by Python, read and counted here. */
    val callOverheadMs: Double = 0.0,
    val decisionMs: Map<String, Double> = emptyMap(),
    /** That it was measured under; null for none. */
    val memoryCapBytes: Long? = null,
    /** Of one sample's tensors at the start of each edge. */
    val entryBytes: Map<Edge, Long> = emptyMap(),
    /** By home, in place of [offsetMs], of paths at a home other than the first. */
    val homeOffsetMs: Map<String, Double> = emptyMap(),
    /** Between homes. */
    val crossings: List<Crossing> = emptyList(),
) {
    /** The cost model of this profile, with edge costs as within a composed subnet. */
    public fun costModel(): CostModel = CostModel(
        edges.mapValues { (edge, alone) -> share(edge, alone) },
        scale,
        offsetMs,
        exits,
        changesMs,
        exitOverheadMs,
        callOverheadMs,
        decisionMs,
        homeOffsetMs,
        crossingMs(),
    )

    private fun crossingMs(): Map<Pair<String, Edge>, Double> {
        val into = crossings.groupBy { it.after }
        return edges.keys.flatMap { edge ->
            into[edge.home].orEmpty().map { (it.before to edge) to it.ms(entryBytes[edge] ?: 0) }
        }.toMap()
    }

    /** The memory offset is added to every working set; only the largest counts. */
    private fun share(edge: Edge, alone: EdgeCost): EdgeCost {
        val factor = factors[edge] ?: 1.0
        return EdgeCost(
            latencyMs = factor * alone.latencyMs,
            p95LatencyMs = factor * alone.p95LatencyMs,
            residentBytes = Math.rint(memoryScale * alone.residentBytes).toLong(),
            workingBytes = alone.workingBytes + memoryOffsetBytes,
        )
    }

    /** Whether it was measured for this bundle, with its exits, and runtime under these conditions and this cap. */
    public fun validFor(
        bundle: Bundle,
        runtime: Runtime,
        conditions: Conditions,
        memoryCapBytes: Long? = null,
    ): Boolean =
        this.bundle == bundle.digest && this.runtime == runtime.identity && this.conditions == conditions &&
            this.memoryCapBytes == memoryCapBytes && exits.keys.map { it.exit }.containsAll(bundle.exits)
}

/**
 * Measure every edge and every exit alone and a few dozen whole subnets, all at batch 1 on the runtime's threads.
 *
 * 1. time edges and exits, in turns, at every input size; 2. time whole subnets, in turns, and their memory: the
 * original at every input size, the cheapest and random ones, also in a single rendition; 3. fit edge costs and memory
 * to them; 4. time what an exit costs beyond its branch. [onProgress]: the share of the work that is done.
 *
 * Under [memoryCapBytes], parts are timed in turns as far as they fit together, and whole subnets only if they fit in
 * one piece; the full model is timed in pages if it does not. What an exit costs beyond its branch is then not measured.
 *
 * @throws BundleError a blob or a fragment is broken.
 * @throws RuntimeFailedError a block does not load or run.
 * @throws MeasurementError the clock stood still or was set back.
 * @throws BudgetError the memory cap is too small for a block or an exit; says the least that works.
 */
public fun profile(
    bundle: Bundle,
    runtime: Runtime,
    rounds: Int = MOST_ROUNDS,
    seed: Long = 0,
    clock: Clock = System::nanoTime,
    memoryCapBytes: Long? = null,
    onProgress: (Double) -> Unit = {},
): Profile = profile(Workspace(bundle, runtime, memoryCapBytes), rounds, seed, clock, onProgress)

/** The same for the bundle, the runtime and the memory cap of [workspace], at all its homes. */
internal fun profile(
    workspace: Workspace,
    rounds: Int = MOST_ROUNDS,
    seed: Long = 0,
    clock: Clock = System::nanoTime,
    onProgress: (Double) -> Unit = {},
): Profile {
    val (bundle, runtime) = workspace.bundle to workspace.runtime
    val memoryCapBytes = workspace.memoryCapBytes
    val (conditions, supernet) = currentConditions() to bundle.supernet
    val timing = Timing(rounds, PATIENCE, clock = clock)
    val parts = partsAlone(workspace)
    val firsts = parts.indices.filter { parts[it].edges.firstOrNull()?.home == "" }
    val largest = firsts.filter { parts[it].inputSize == null }
        .maxBy { supernet.block(parts[it].edges[0].block).macs }
    val alone = PartTimer(workspace, timing) { onProgress(it / 2) }.measure(parts, largest)
    val costs = parts.zip(alone) { part, measured ->
        val workingBytes =
            if (memoryCapBytes == null) part.bytesAtEnds(supernet)
            else workspace.footprint(part.edges, part.exit).workingBytes
        part to EdgeCost(measured.latency.medianMs, measured.latency.p95Ms, part.weightBytes, workingBytes)
    }
    val edges = costs.filter { (part, _) -> part.exit == null }.associate { (part, cost) -> part.edges[0] to cost }
    val subnets = subnetsToFit(workspace, CostModel(edges), seed)
    val deployed = PartTimer(workspace, timing) { onProgress((1 + it) / 2) }
        .measure(subnets.map { Part.of(bundle, it.edges) })
    val fitted = subnets.zip(deployed) { subnet, measured ->
        val blocksMs = subnet.edges.sumOf { edges.getValue(it).latencyMs }
        MeasuredSubnet(subnet, blocksMs, measured.latency.medianMs, measured.peakBytes, measured.inPages)
    }
    val exits = costs.filter { (part, _) -> part.exit != null }.associate { (part, cost) ->
        ExitAtSize(part.exit!!.exit, part.exit.rendition, part.inputSize) to cost
    }
    val whole = fitted.filter { !it.inPages }
    val (fitting, blocksMs) = whole.map { it.subnet } to edges.mapValues { it.value.latencyMs }
    val latency = fitHomes(supernet, blocksMs, fitting, whole.map { it.measuredMs })
    val memory = // under a cap the pager's constants, so that its prediction and the pager agree
        if (memoryCapBytes == null) fitMemory(edges, fitting, whole.map { it.peakBytes })
        else MemoryFit(LOADING_FACTOR, SESSION_BYTES)
    return Profile(
        bundle = bundle.digest,
        conditions = conditions,
        runtime = runtime.identity,
        created = now("yyyy-MM-dd'T'HH:mm:ss"),
        edges = edges,
        factors = latency.factors,
        changesMs = latency.changesMs,
        exits = exits,
        scale = latency.scale,
        offsetMs = latency.offsetMs,
        fitted = fitted,
        originalMs = fitted[0].measuredMs,
        memoryScale = memory.scale,
        memoryOffsetBytes = memory.offsetBytes,
        memoryCapBytes = memoryCapBytes,
        entryBytes = edges.keys.associateWith { supernet.ends(it).first.nbytes },
        homeOffsetMs = latency.homeOffsetMs,
        crossings = latency.crossings,
        exitOverheadMs = exitOverheadMs(workspace, rounds, clock) { choice ->
            exits.getValue(ExitAtSize(choice.exit, choice.rendition)).latencyMs
        },
    )
}

/**
 * What trying one exit costs beyond its branch alone ([branchMs]): a further session, and the decision on each sample.
 *
 * The mean over all exits of the original path at different cut points, none of which answers. At least 0; 0 without
 * exits, and unknown, hence 0, under a memory cap.
 */
private fun exitOverheadMs(
    workspace: Workspace,
    rounds: Int,
    clock: Clock,
    branchMs: (ExitChoice) -> Double,
): Double {
    val supernet = workspace.bundle.supernet
    val tried = supernet.exitsAlong(supernet.original).associateBy { it.position }.toSortedMap().values
        .map { ExitChoice(it.id, HIGHEST_CONFIDENCE, it.renditions[0].name) }
    if (tried.isEmpty() || workspace.memoryCapBytes != null) return 0.0
    val inputs = goldenInputs(supernet.cutPoints[0], seed = 0, batch = 1)[0]
    val plans = listOf(emptyList(), tried).map { workspace.loadPlan(Plan(supernet.original, it)) }
    try {
        val leaves = plans[1].run(inputs).answeredBy.any { it < tried.size } // even noise can be certain
        val calls = listOf<() -> Unit>(
            { plans[0].run(inputs) },
            { if (leaves) plans[1].stepped().runThrough(inputs) else plans[1].run(inputs) },
        )
        val (without, with) = measureInterleaved(calls, Timing(rounds, PATIENCE, clock = clock), WARMUP)
        return maxOf(0.0, (with.medianMs - without.medianMs - tried.sumOf(branchMs)) / tried.size)
    } finally {
        plans.forEach { it.close() }
    }
}

/** The time now in UTC, in this pattern of SimpleDateFormat, with the offset that Python writes. */
internal fun now(pattern: String): String =
    SimpleDateFormat(pattern, Locale.ROOT).apply { timeZone = TimeZone.getTimeZone("UTC") }.format(Date()) + "+00:00"

/**
 * The latencies of whole subnets as deployed at batch 1, in turns as far as they fit under the cap together.
 *
 * Ratios are to the first subnet's; null for those that do not fit beside it.
 */
internal fun measureSubnets(workspace: Workspace, subnets: List<Subnet>, timing: Timing): List<Latency> =
    PartTimer(workspace, timing)
    .measure(subnets.map { Part.of(workspace.bundle, it.edges) }).map { it.latency }

/** Every edge at all its homes and every exit's branch, at every input size; the sizes of one block are adjacent. */
private fun partsAlone(workspace: Workspace): List<Part> {
    val bundle = workspace.bundle
    val supernet = bundle.supernet
    val edges = supernet.edges.flatMap { workspace.homes.of(supernet, it) }.sortedWith(
        compareBy<Edge>({ supernet.block(it.block).start }, { it.block }, { it.rendition }, { it.home })
            .thenBy { supernet.sizes.indexOf(it.inputSize) },
    )
    val exits = supernet.exits.flatMap { exit ->
        exit.renditions.flatMap { rendition ->
            supernet.sizes.filter { it == null || rendition.anySize }
                .map { Part.of(bundle, emptyList(), ExitChoice(exit.id, 1.0, rendition.name), it) }
        }
    }
    return edges.map { Part.of(bundle, listOf(it)) } + exits
}

/**
 * The subnets to measure: the original, the cheapest, the original in each rendition and input size, random ones.
 *
 * Of a family the originals of all members, of which each further input size has one, in turn. With several renditions,
 * some random subnets keep their mix of renditions; the others use one rendition wherever they can, as good subnets do.
 * Under a memory cap all but the original fit in one piece: the random ones that do, and the lightest. At several homes
 * they run at the first, and some further ones elsewhere ([subnetsAtHomes]). [alone]: of each edge at all its homes.
 */
private fun subnetsToFit(workspace: Workspace, alone: CostModel, seed: Long): List<Subnet> {
    val (supernet, homes) = workspace.bundle.supernet to workspace.homes
    val costs = alone.atBestHomes(homes.ofEach(supernet, supernet.edges))
    val cheapest = kCheapest(supernet, costs::edgeLatencyMs, k = 1)[0].subnet
    val names = supernet.edges.map { it.rendition }.distinct().sorted()
    val atSizes = supernet.sizes.drop(1).map(supernet::originalsAt)
    val whole = supernet.originals + atSizes.mapIndexed { number, members -> members[number % members.size] }
    val plain = whole.flatMap { path -> names.map { supernet.inRendition(path, it) } }
    val random = sampleUniformly(supernet, 3 * FITTED_SUBNETS, SplitMix64(seed)).mapIndexed { number, drawn ->
        val variants = if (names.size > 1) listOf(drawn) + names.map { supernet.inRendition(drawn, it) } else listOf(drawn)
        variants[number % variants.size]
    }
    var others = listOf(cheapest) + plain + random
    if (workspace.memoryCapBytes != null) {
        fun bytes(edge: Edge) = costs.edgeCosts.getValue(edge).residentBytes.toDouble()
        val lightest = kCheapest(supernet, ::bytes, k = FITTED_SUBNETS / 2).map { it.subnet }
        others = (others + lightest).filter { workspace.fits(it.edges) }
    }
    val chosen = (listOf(supernet.original) + others).map { homes.first(supernet, it) }.distinct().take(FITTED_SUBNETS)
    return chosen + subnetsAtHomes(homes, chosen, alone).filter { workspace.fits(it.edges) }
}

private const val UNKNOWN = "unknown"
private val MODEL_NAME = Regex("model name\\s*:\\s*(.+)")
private val POWER_MODE = Regex("pmode:0*(\\d+)")

// JetPack stores the current mode in one of these, as `pmode:0002 fmode:quiet`
private val NVPMODEL_STATUS = listOf("var/lib/nvpmodel/status", "etc/nvpmodel/nvpmodel.status")
private const val NVPMODEL_NAMES = "etc/nvpmodel.conf"
private const val CPUS = "sys/devices/system/cpu"
private val PROCESSOR = Regex("cpu\\d+")

/** What latencies depend on besides bundle, runtime and batch. A profile is valid for one set of conditions. */
public data class Conditions(val device: String, val powerMode: String, val driver: String)

/** The conditions now, read below [root]. */
public fun currentConditions(root: File = File("/")): Conditions =
    Conditions(deviceIdentity(root), powerMode(root), driver(root))

/** Processor or board, number of cores and system. Contains no host or user name. */
private fun deviceIdentity(root: File): String {
    val board = text(File(root, "proc/device-tree/model")).trim { it == '\u0000' || it.isWhitespace() }
    val model = MODEL_NAME.find(text(File(root, "proc/cpuinfo")))?.groupValues?.get(1)?.trim()
        ?: board.ifEmpty { "unknown processor" }
    val machine = System.getProperty("os.arch").let { if (it == "amd64") "x86_64" else it } // as uname has it
    return "$model, ${java.lang.Runtime.getRuntime().availableProcessors()} cores, ${System.getProperty("os.name")} $machine"
}

/** A Jetson's nvpmodel and the governors of the processors, such as `nvpmodel 15W, governor schedutil`. */
private fun powerMode(root: File): String =
    listOf(nvpmodel(root), governors(root)).filter { it.isNotEmpty() }.joinToString(", ").ifEmpty { UNKNOWN }

/** The version of the graphics driver, for example `nvidia 550.54.14`, or `none`. */
private fun driver(root: File): String {
    val version = text(File(root, "sys/module/nvidia/version")).trim()
    return if (version.isEmpty()) "none" else "nvidia $version"
}

private fun nvpmodel(root: File): String {
    val status = NVPMODEL_STATUS.map { text(File(root, it)) }.firstOrNull { it.isNotEmpty() }.orEmpty()
    val mode = POWER_MODE.find(status)?.groupValues?.get(1) ?: return ""
    val named = Regex("POWER_MODEL\\s+ID=$mode\\s+NAME=(\\S+)").find(text(File(root, NVPMODEL_NAMES)))
    return "nvpmodel ${named?.groupValues?.get(1) ?: mode}"
}

private fun governors(root: File): String {
    val processors = File(root, CPUS).listFiles { file -> PROCESSOR.matches(file.name) }.orEmpty()
    val found = processors.map { text(File(it, "cpufreq/scaling_governor")).trim() }.filter { it.isNotEmpty() }
    return if (found.isEmpty()) "" else "governor " + found.distinct().sorted().joinToString("+")
}

private fun text(file: File): String = try {
    file.readText()
} catch (_: IOException) {
    ""
}
