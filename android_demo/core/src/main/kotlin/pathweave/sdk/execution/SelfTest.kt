/**
 * Golden vectors: seeded inputs, sampled outputs, and the check that a bundle computes here what it must.
 *
 * Inputs are never stored: they are drawn by SplitMix64 between the bounds that each tensor of a cut point states, the
 * same bits in Python and Kotlin (docs/bundle_format.md). Outputs are stored as samples with a tolerance.
 */
package pathweave.sdk.execution

import kotlin.math.abs
import pathweave.sdk.SelfTestError
import pathweave.sdk.SplitMix64
import pathweave.sdk.bundles.Bundle
import pathweave.sdk.bundles.Stretch
import pathweave.sdk.numerics.Tensor
import pathweave.sdk.numerics.elements
import pathweave.sdk.runtimes.Runtime
import pathweave.sdk.supernet.CutPoint
import pathweave.sdk.supernet.Edge
import pathweave.sdk.supernet.ExitChoice
import pathweave.sdk.supernet.Golden
import pathweave.sdk.supernet.TensorSpec
import pathweave.sdk.uniformFloats

private const val SAMPLES_PER_TENSOR = 32
private const val STREAMS_PER_CUT_POINT = 1024L

/**
 * The golden inputs at a cut point: one tensor [[batch], *shape] per tensor.
 *
 * Tensor n of cut point k uses the stream `seed + 1024 k + n`; value = low + (high − low) · u in float32, rounded down
 * for integer tensors.
 */
public fun goldenInputs(cutPoint: CutPoint, seed: Long, batch: Int): List<Tensor> =
    cutPoint.tensors.mapIndexed { number, spec ->
        draw(spec, seed = seed + STREAMS_PER_CUT_POINT * cutPoint.index + number, batch = batch)
    }

private fun draw(spec: TensorSpec, seed: Long, batch: Int): Tensor {
    val shape = listOf(batch) + spec.shape
    val values = uniformFloats(seed, elements(shape, Float.SIZE_BYTES))
    val low = spec.low.toFloat()
    val range = spec.high.toFloat() - low
    for (index in values.indices) values[index] = low + range * values[index]
    return Tensor.converted(spec.dtype, shape, values)
}

/** Some elements of each output, flattened; which ones depends on its size alone ([samplePositions]). */
public fun sampleOutputs(outputs: List<Tensor>): List<List<Double>> =
    outputs.map { output -> samplePositions(output.size).map { output[it] } }

/** Which of [size] elements are looked at: all of up to 32, else 32 draws of `SplitMix64(size)`. */
internal fun samplePositions(size: Int): List<Int> {
    if (size <= SAMPLES_PER_TENSOR) return (0 until size).toList()
    val random = SplitMix64(size.toLong())
    return List(SAMPLES_PER_TENSOR) { random.below(size) }
}

/** Whether [outputs] reproduce the samples of [golden] within its tolerance. */
internal fun matches(golden: Golden, outputs: List<Tensor>): Boolean {
    val actual = sampleOutputs(outputs)
    return actual.map { it.size } == golden.samples.map { it.size } &&
        actual.flatten().zip(golden.samples.flatten()).all { (one, other) -> abs(one - other) <= golden.tolerance }
}

/** One thing that the self-test runs: an edge, an exit's branch, or the original path whole. */
internal class GoldenCase(val name: String, val stretch: () -> Stretch, val start: CutPoint, val golden: Golden)

/** Everything that has golden outputs: every rendition of every block and exit, and the original path at each size. */
internal fun goldenCases(bundle: Bundle): List<GoldenCase> {
    val supernet = bundle.supernet
    val edges = supernet.edges.filter { it.inputSize == null }.map { edge ->
        val start = supernet.cutPoints[supernet.block(edge.block).start]
        GoldenCase("block $edge", { bundle.stretch(listOf(edge)) }, start, supernet.rendition(edge).golden)
    }
    val original = GoldenCase(
        "the original path",
        { bundle.stretch(supernet.original.edges) },
        supernet.cutPoints[0],
        bundle.manifest.selfTest.original,
    )
    val originals = supernet.inputSizes.map { one ->
        val path = supernet.anySizeOriginal.at(one.size).edges
        val start = supernet.cutPointsAt(one.size)[0]
        GoldenCase("the original path at ${one.size}", { bundle.stretch(path) }, start, one.golden)
    }
    return edges + exitCases(bundle, bundle.exits) + original + originals
}

private fun exitCases(bundle: Bundle, exits: Collection<String>): List<GoldenCase> {
    val supernet = bundle.supernet
    return supernet.exits.filter { it.id in exits }.flatMap { exit ->
        exit.renditions.map { rendition ->
            val choice = ExitChoice(exit.id, threshold = 1.0, rendition = rendition.name)
            val name = "exit ${Edge(exit.id, rendition.name)}"
            val start = supernet.cutPoints[exit.position]
            GoldenCase(name, { bundle.stretch(emptyList(), choice) }, start, rendition.golden)
        }
    }
}

/** What [case] answers to its golden input. */
internal fun runGolden(bundle: Bundle, runtime: Runtime, case: GoldenCase): List<Tensor> =
    runtime.load(case.stretch()).use { loaded ->
        loaded.run(goldenInputs(case.start, bundle.manifest.selfTest.seed, bundle.manifest.selfTest.batch))
    }

/**
 * Run every block and every exit alone, and the original path whole at each input size, on the golden inputs.
 *
 * [progress] is told how many of how many are done.
 *
 * @throws SelfTestError a rendition does not reproduce its golden outputs here.
 * @throws BundleError a blob or a fragment is broken.
 * @throws RuntimeFailedError a rendition does not even load.
 */
public fun runSelfTest(bundle: Bundle, runtime: Runtime, progress: (done: Int, of: Int) -> Unit = { _, _ -> }): Unit =
    run(bundle, runtime, goldenCases(bundle), progress)

/** The same for the branches of [exits] alone. */
internal fun testExits(bundle: Bundle, runtime: Runtime, exits: Collection<String>): Unit =
    run(bundle, runtime, exitCases(bundle, exits)) { _, _ -> }

private fun run(bundle: Bundle, runtime: Runtime, cases: List<GoldenCase>, progress: (done: Int, of: Int) -> Unit) {
    for ((number, case) in cases.withIndex()) {
        if (!matches(case.golden, runGolden(bundle, runtime, case))) {
            throw SelfTestError(
                "${case.name} does not reproduce its golden outputs with ${runtime.identity}",
                hint = "the bundle or this machine's runtime is broken; do not use the bundle here",
            )
        }
        progress(number + 1, cases.size)
    }
}
