/**
 * Whether a bundle may be used here: its self-test runs once, and what fails it is not tried again and again. Mirrors
 * device_sdk/session/opening.py, and of device_state.py what it keeps.
 */
package pathweave.sdk.execution

import java.io.Closeable
import java.io.File
import java.io.IOException
import java.util.concurrent.ArrayBlockingQueue
import java.util.concurrent.CancellationException
import java.util.concurrent.TimeUnit
import kotlin.concurrent.thread
import kotlinx.serialization.json.JsonArray
import kotlinx.serialization.json.JsonPrimitive
import kotlinx.serialization.json.buildJsonObject
import kotlinx.serialization.json.put
import pathweave.sdk.CompositionError
import pathweave.sdk.LOG
import pathweave.sdk.RuntimeFailedError
import pathweave.sdk.SelfTestError
import pathweave.sdk.StorageError
import pathweave.sdk.bundles.Bundle
import pathweave.sdk.files.JsonError
import pathweave.sdk.files.decodeJson
import pathweave.sdk.files.exclusive
import pathweave.sdk.files.ifPossible
import pathweave.sdk.files.sha256
import pathweave.sdk.files.writeAtomically
import pathweave.sdk.runtimes.Runtime

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

    /** Whether all that the bundle holds passed. */
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

private fun deviceIdentity(): String = listOf("os.name", "os.version", "os.arch")
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
 * [runSelfTest] in a thread of its own, so that waiting for it can end.
 *
 * A thread inside ONNX Runtime cannot be stopped: one that is given up runs on until the process ends. The attempt
 * counts, so it happens at most [STRIKES] times.
 *
 * @throws SelfTestAbortedError it did not go on in time, or took more memory than there is.
 */
internal fun runGuardedSelfTest(
    bundle: Bundle,
    runtime: Runtime,
    limits: SelfTestLimits = SelfTestLimits(),
    test: (Bundle, Runtime, (Int, Int) -> Unit) -> Unit = ::runSelfTest,
) {
    val steps = ArrayBlockingQueue<Result<Boolean>>(1) // true: it ended; false: one step is done
    thread(isDaemon = true, name = "self-test") {
        val result = runCatching {
            test(bundle, runtime) { _, _ -> steps.put(Result.success(false)) }
            true
        }
        steps.put(result)
    }
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
        if (step.getOrThrow()) return
    }
}

private fun aborted(why: String) = SelfTestAbortedError("the self-test was stopped: $why")
