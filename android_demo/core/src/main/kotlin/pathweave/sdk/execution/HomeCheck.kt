/** The check of a home that is not the first: what runs there, with the right answers, and what does not, and why. */
package pathweave.sdk.execution

import kotlin.math.abs
import pathweave.sdk.CompositionError
import pathweave.sdk.RuntimeFailedError
import pathweave.sdk.SelfTestError
import pathweave.sdk.bundles.Bundle
import pathweave.sdk.numerics.Tensor
import pathweave.sdk.runtimes.Kernels
import pathweave.sdk.runtimes.LoadedStretch
import pathweave.sdk.runtimes.Placed
import pathweave.sdk.runtimes.Runtime
import pathweave.sdk.runtimes.relativeToleranceOf
import pathweave.sdk.supernet.Golden
import pathweave.sdk.supernet.Home
import pathweave.sdk.supernet.PROVIDERS

private const val MOST_REASON = 300
private val HOME_LIMITS = SelfTestLimits(stepS = 300.0, totalS = 3600.0) // an NPU's compiler takes its time

/**
 * One block in one rendition at a home.
 *
 * [nodes]: kernels that ran, [assigned] of them by the home's provider, a part that it compiled counting as one; 0 where
 * the runtime does not tell. [refused]: number of the others by operator, which the processor runs in the same session.
 * [failure]: why it does not run here at all; empty where it does.
 */
public data class BlockAtHome(
    val block: String,
    val nodes: Int = 0,
    val assigned: Int = 0,
    val refused: Map<String, Int> = emptyMap(),
    val failure: String = "",
)

/**
 * Result of the check of one [home], by its name.
 *
 * [runtime]: its identity with all versions. [failure]: why the home as a whole cannot be used; then it is left out until
 * a version changes.
 */
public data class HomeReport(
    val home: String,
    val runtime: String,
    val blocks: List<BlockAtHome> = emptyList(),
    val failure: String = "",
) {
    /** The blocks that do not run here. */
    public val refusedBlocks: Set<String> get() = blocks.filter { it.failure.isNotEmpty() }.map { it.block }.toSet()

    /** True if at least one block runs here. */
    public val works: Boolean get() = failure.isEmpty() && blocks.any { it.failure.isEmpty() }

    /** Why nothing runs here. */
    public fun whyNot(): String = failure.ifEmpty {
        blocks.find { it.failure.isNotEmpty() }?.let { "it runs no block: ${it.failure}" } ?: "no block is for it"
    }

    /** Operators that the processor runs instead, each with the number of kernels. */
    public fun refusals(): Map<String, Int> =
        blocks.flatMap { it.refused.entries }.groupingBy { it.key }.fold(0) { sum, (_, count) -> sum + count }.toSortedMap()
}

/**
 * Run every block of [bundle] alone at [home] on the golden inputs, with deadlines ([guarded]).
 *
 * Answers may differ from the golden ones by the provider's tolerance. A block whose session is refused, that the
 * provider runs nothing of, or that answers otherwise does not run here.
 */
internal fun checkHome(bundle: Bundle, home: Home, runtime: Runtime, limits: SelfTestLimits = HOME_LIMITS): HomeReport {
    val tolerance = relativeToleranceOf(home.provider)
    return try {
        val blocks = guarded("check of $home", limits) { step ->
            edgesFor(bundle, home).map { (name, case) -> checked(bundle, runtime, name, case, tolerance).also { step() } }
        }
        HomeReport("$home", runtime.identity, blocks)
    } catch (error: SelfTestError) {
        HomeReport("$home", runtime.identity, failure = error.message.orEmpty())
    }
}

/** The cases of blocks that are for the provider of [home], by name. */
private fun edgesFor(bundle: Bundle, home: Home): List<Pair<String, GoldenCase>> {
    val supernet = bundle.supernet
    val edges = supernet.edges.filter { it.inputSize == null }.zip(blockCases(bundle))
    val able = edges.filter { (edge, _) ->
        supernet.rendition(edge).providers.let { it.isEmpty() || PROVIDERS.getValue(home.provider) in it }
    }
    return able.map { (edge, case) -> "$edge" to case }
}

private fun checked(bundle: Bundle, runtime: Runtime, name: String, case: GoldenCase, tolerance: Double): BlockAtHome =
    try {
        runtime.load(case.stretch()).use { loaded -> ran(loaded, name, case, inputsOf(bundle, case), tolerance) }
    } catch (error: RuntimeFailedError) {
        BlockAtHome(name, failure = error.message.orEmpty().take(MOST_REASON))
    } catch (error: CompositionError) {
        BlockAtHome(name, failure = error.message.orEmpty().take(MOST_REASON))
    }

private fun ran(
    loaded: LoadedStretch,
    name: String,
    case: GoldenCase,
    inputs: List<Tensor>,
    tolerance: Double,
): BlockAtHome {
    val outputs = runCatching { loaded.run(inputs) }
    val kernels = (loaded as? Placed)?.kernels ?: Kernels.UNKNOWN
    val block = BlockAtHome(name, kernels.count, kernels.assigned, kernels.refused)
    if (kernels.count > 0 && kernels.assigned == 0) {
        val operators = kernels.refused.toSortedMap().entries.joinToString(", ") { (operator, count) -> "$operator ×$count" }
        return block.copy(failure = "the provider refuses all of it: $operators")
    }
    val near = isNear(case.golden, outputs.getOrThrow(), tolerance)
    return if (near) block else block.copy(failure = "its answers differ from the golden ones")
}

private fun isNear(golden: Golden, outputs: List<Tensor>, relativeTolerance: Double): Boolean {
    val actual = sampleOutputs(outputs)
    if (actual.map { it.size } != golden.samples.map { it.size }) return false
    return golden.samples.zip(actual).all { (expected, found) ->
        val allowed = golden.tolerance + relativeTolerance * (expected.maxOfOrNull(::abs) ?: 0.0)
        expected.zip(found).all { (one, other) -> abs(one - other) <= allowed }
    }
}
