/** Whether a bundle may be used here: its self-test runs once, and what fails it is not tried again and again. */
package pathweave.sdk.execution

import java.io.Closeable
import java.io.File
import java.io.IOException
import java.util.concurrent.ArrayBlockingQueue
import java.util.concurrent.CancellationException
import java.util.concurrent.TimeUnit
import kotlin.concurrent.thread
import kotlin.math.abs
import kotlinx.serialization.json.JsonArray
import kotlinx.serialization.json.JsonPrimitive
import kotlinx.serialization.json.buildJsonObject
import kotlinx.serialization.json.put
import pathweave.sdk.CompositionError
import pathweave.sdk.LOG
import pathweave.sdk.RuntimeFailedError
import pathweave.sdk.SelfTestError
import pathweave.sdk.SplitMix64
import pathweave.sdk.StorageError
import pathweave.sdk.bundles.Bundle
import pathweave.sdk.bundles.Stretch
import pathweave.sdk.files.JsonError
import pathweave.sdk.files.decodeJson
import pathweave.sdk.files.exclusive
import pathweave.sdk.files.ifPossible
import pathweave.sdk.files.sha256
import pathweave.sdk.files.writeAtomically
import pathweave.sdk.numerics.Tensor
import pathweave.sdk.numerics.elements
import pathweave.sdk.runtimes.Runtime
import pathweave.sdk.supernet.CutPoint
import pathweave.sdk.supernet.Edge
import pathweave.sdk.supernet.ExitChoice
import pathweave.sdk.supernet.Golden
import pathweave.sdk.supernet.TensorSpec
import pathweave.sdk.uniformFloats

internal const val STRIKES = 3 // failures that another attempt may not repeat: too slow, crashed, power lost
private const val UNFINISHED = "the process ended during the self-test"
private const val KEY_DIGITS = 16
private const val DIGEST_DIGITS = 16
private const val MS_PER_S = 1_000

/** Attempts at the self-test that did not pass, and the reason of the last one. */
internal data class SelfTestAttempts(val strikes: Int = 0, val failure: String = "")

/** What is kept below [stateFolder] of a bundle's self-test with one runtime; each thing is one atomic file. */
internal class SelfTestState(stateFolder: File, private val bundle: Bundle, runtime: Runtime) {
    val folder = File(stateFolder, "${bundle.manifest.name}-${bundle.digest.take(DIGEST_DIGITS)}")
    private val key = sha256("${deviceIdentity()}|${runtime.identity}".toByteArray()).take(KEY_DIGITS)
    private val passedFile = File(folder, "self-test-$key.json")
    private val attemptsFile = File(folder, "self-test-attempts-$key.json")

    fun passed(): Boolean = passedFile.exists() && untestedExits(passedFile, bundle).isEmpty()

    /** Held alone while the bundle is tested with this runtime on this device. */
    fun testing(): Closeable = exclusive(File(folder, "self-test-$key.lock"), SelfTestLimits().totalS)

    fun rememberPassed(): Unit = rememberTested(passedFile, bundle)

    /** What cannot be read counts as not there. */
    fun loadAttempts(): SelfTestAttempts = try {
        val root = decodeJson(attemptsFile.readBytes())
        SelfTestAttempts(root["strikes"].whole(0, STRIKES.toLong()).toInt(), root["failure"].text())
    } catch (_: IOException) {
        SelfTestAttempts()
    } catch (_: JsonError) {
        SelfTestAttempts()
    }

    fun saveAttempts(attempts: SelfTestAttempts) {
        val value = buildJsonObject {
            put("strikes", attempts.strikes)
            put("failure", attempts.failure)
        }
        writeAtomically(attemptsFile, "$value\n".toByteArray())
    }
}

/** The exits that [bundle] holds and that the record in [file] does not name; one that names none is of all exits. */
internal fun untestedExits(file: File, bundle: Bundle): List<String> = try {
    testedExits(file)?.let { bundle.exits - it.toSet() } ?: emptyList()
} catch (_: IOException) {
    bundle.exits
} catch (_: JsonError) {
    bundle.exits
}

private fun testedExits(file: File): List<String>? =
    decodeJson(file.readBytes()).optional("exits")?.items()?.map { it.text() }

/** Record in [file] that all that [bundle] holds passed its self-test, now or before. */
internal fun rememberTested(file: File, bundle: Bundle) {
    val everything = bundle.exits == bundle.offered.exits.map { it.id }
    val before = try {
        testedExits(file).orEmpty()
    } catch (_: IOException) {
        emptyList()
    } catch (_: JsonError) {
        emptyList()
    }
    val tested = if (everything) null else (before + bundle.exits).distinct()
    val record = buildJsonObject { if (tested != null) put("exits", JsonArray(tested.map(::JsonPrimitive))) }
    writeAtomically(file, "$record\n".toByteArray())
}

internal fun deviceIdentity(): String = listOf("os.name", "os.version", "os.arch")
    .joinToString(" ") { System.getProperty(it).orEmpty() }

/**
 * Run [test] unless the bundle of [state] has passed; remember how it ended.
 *
 * An attempt is written down before it begins, so one that takes the process or the device with it counts. After
 * [STRIKES] of them, or one result that differs from the golden outputs, the bundle is refused without a test. Of
 * several that open the bundle at once, one runs the test, and the others wait for its result.
 *
 * @throws SelfTestError the bundle failed, now or before. [PathweaveError] as [test].
 */
internal fun ensureSelfTested(state: SelfTestState, test: () -> Unit) {
    if (state.passed()) return
    ifPossible(state::testing).use {
        if (!state.passed()) selfTest(state, test)
    }
}

private fun selfTest(state: SelfTestState, test: () -> Unit) {
    val attempts = state.loadAttempts()
    if (attempts.strikes >= STRIKES) {
        throw SelfTestError(
            "the bundle failed its self-test here before: ${attempts.failure}",
            hint = "a new version, or another version of the runtime, is tested again",
        )
    }
    val begun = SelfTestAttempts(attempts.strikes + 1, UNFINISHED)
    keep { state.saveAttempts(begun) }
    try {
        test()
    } catch (error: Throwable) {
        keep { state.saveAttempts(afterFailure(attempts, begun, error)) }
        throw error
    }
    keep(state::rememberPassed)
    keep { state.saveAttempts(SelfTestAttempts()) } // a damaged memory of this means another test, no strike
}

/** What is not the bundle's fault, a damaged blob or an interrupt, does not count. */
private fun afterFailure(before: SelfTestAttempts, begun: SelfTestAttempts, error: Throwable): SelfTestAttempts {
    if (error !is SelfTestError && error !is CompositionError && error !is RuntimeFailedError) return before
    val final = error is SelfTestError && error !is SelfTestAbortedError
    return SelfTestAttempts(if (final) STRIKES else begun.strikes, error.message.orEmpty())
}

/** On a full disk the bundle is used all the same, and tested again next time. */
private fun keep(write: () -> Unit) {
    try {
        write()
    } catch (error: StorageError) {
        LOG.warning("the result of the self-test cannot be kept: ${error.message}")
    }
}

/** The self-test did not end by itself: too slow or too large. */
public class SelfTestAbortedError internal constructor(message: String) :
    SelfTestError(message, hint = "the bundle does not work on this device; package it again")

/** [stepS]: for one block or path; [totalS]: for all of them. */
public data class SelfTestLimits(public val stepS: Double = 20.0, public val totalS: Double = 300.0)

/**
 * [runSelfTest] in a thread of its own, so that waiting for it can end. The attempt counts, so it happens at most
 * [STRIKES] times.
 *
 * @throws SelfTestAbortedError it did not go on in time, or took more memory than there is.
 */
internal fun runGuardedSelfTest(
    bundle: Bundle,
    runtime: Runtime,
    limits: SelfTestLimits = SelfTestLimits(),
    test: (Bundle, Runtime, (Int, Int) -> Unit) -> Unit = ::runSelfTest,
): Unit = guarded("self-test", limits) { step -> test(bundle, runtime) { _, _ -> step() } }

/**
 * [work] in a thread of its own, which calls `step` after each step.
 *
 * A thread inside ONNX Runtime cannot be stopped: one that is given up runs on until the process ends. A crash of native
 * code ends the process.
 *
 * @throws SelfTestAbortedError it did not go on in time, or took more memory than there is.
 */
internal fun <T : Any> guarded(name: String, limits: SelfTestLimits, work: (step: () -> Unit) -> T): T {
    val steps = ArrayBlockingQueue<Result<T?>>(1) // null: one step is done
    thread(isDaemon = true, name = name) { steps.put(runCatching { work { steps.put(Result.success(null)) } }) }
    val endsAtNs = System.nanoTime() + (limits.totalS * 1e9).toLong()
    while (true) {
        val leftS = minOf(limits.stepS, (endsAtNs - System.nanoTime()) / 1e9)
        val step = try {
            steps.poll((leftS * MS_PER_S).toLong(), TimeUnit.MILLISECONDS)
        } catch (error: InterruptedException) {
            Thread.currentThread().interrupt()
            throw CancellationException("interrupted").initCause(error)
        } ?: throw aborted("it did not go on for ${limits.stepS.toLong()} s")
        step.exceptionOrNull()?.let { error ->
            throw if (error is OutOfMemoryError) aborted("it needs more memory than there is") else error
        }
        step.getOrThrow()?.let { return it }
    }
}

private fun aborted(why: String) = SelfTestAbortedError("the self-test was stopped: $why")

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
    val edges = blockCases(bundle)
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

/** Every rendition of every block. */
internal fun blockCases(bundle: Bundle): List<GoldenCase> {
    val supernet = bundle.supernet
    return supernet.edges.filter { it.inputSize == null }.map { edge ->
        val start = supernet.cutPoints[supernet.block(edge.block).start]
        GoldenCase("block $edge", { bundle.stretch(listOf(edge)) }, start, supernet.rendition(edge).golden)
    }
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
    runtime.load(case.stretch()).use { loaded -> loaded.run(inputsOf(bundle, case)) }

/** The golden input of [case]. */
internal fun inputsOf(bundle: Bundle, case: GoldenCase): List<Tensor> =
    goldenInputs(case.start, bundle.manifest.selfTest.seed, bundle.manifest.selfTest.batch)

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
