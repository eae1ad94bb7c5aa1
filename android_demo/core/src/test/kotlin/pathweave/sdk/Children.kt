package pathweave.sdk

import java.io.File
import java.util.concurrent.TimeUnit
import kotlin.concurrent.thread
import pathweave.sdk.bundles.Bundle
import pathweave.sdk.bundles.Stretch
import pathweave.sdk.bundles.loadTrust
import pathweave.sdk.data.Image
import pathweave.sdk.data.prepare
import pathweave.sdk.delivery.DeliveryOptions
import pathweave.sdk.files.exclusive
import pathweave.sdk.runtimes.LoadedStretch
import pathweave.sdk.runtimes.Runtime
import pathweave.sdk.session.openAt
import pathweave.sdk.supernet.ExitChoice
import pathweave.sdk.supernet.Goal
import pathweave.sdk.supernet.Plan
import pathweave.sdk.supernet.SampleSize

private const val KILLED = 128 + 9 // exit value after SIGKILL
private const val ADAPTATIONS = 5 // by each profile

/** [main] of a class in a JVM of its own. */
fun child(main: String, vararg arguments: String, options: List<String> = listOf("-Xmx128m")): Process {
    val java = File(System.getProperty("java.home"), "bin/java").path
    val common = listOf("-XX:TieredStopAtLevel=1", "-cp", System.getProperty("java.class.path"))
    val repository = "-Dpathweave.repository=${Contract.repository}"
    return ProcessBuilder(listOf(java, repository) + options + common + main + arguments)
        .redirectError(ProcessBuilder.Redirect.DISCARD).start()
}

/**
 * Runs a child that prints a line when it begins, and kills it [afterMs] later (SIGKILL), or not at all; returns how long
 * it ran from then on, in ms.
 */
fun killed(child: Process, afterMs: Long?): Long {
    check(child.inputStream.bufferedReader().readLine() == "begun") { "the child did not begin" }
    val startedNs = System.nanoTime()
    if (afterMs != null) {
        Thread.sleep(afterMs)
        child.destroyForcibly()
    }
    check(child.waitFor(60, TimeUnit.SECONDS)) { "the child did not end" }
    check(child.exitValue() == 0 || afterMs != null && child.exitValue() == KILLED) { "the child failed" }
    return (System.nanoTime() - startedNs) / 1_000_000
}

/** A runtime in name: the self-test is none here. */
object NoRuntime : Runtime {
    override val identity = "none"

    override fun load(stretch: Stretch): LoadedStretch = throw RuntimeFailedError("it runs nothing")
}

/** Updates what its first argument names. */
object UpdateChild {
    @JvmStatic
    fun main(arguments: Array<String>) {
        val (url, state, key) = arguments
        println("begun")
        val options = DeliveryOptions(wallClockS = { SOON_S })
        openAt(url, File(state), loadTrust(File(key)), runtime = NoRuntime, options = options, selfTest = {}).close()
    }
}

/** Adapts again and again, and profiles in between, until it is killed. */
object AdaptChild {
    @JvmStatic
    fun main(arguments: Array<String>) {
        val (state, samples) = arguments
        AdaptiveModel.open(Contract.referenceFolder, stateFolder = File(state)).use { model ->
            val manifest = model.bundle.manifest
            val inputs = model.inputs(prepare(drawnImages(samples.toInt()), manifest.preprocessing.ofImages(), listOf(3, 2, 2)))
            println("begun")
            while (true) {
                repeat(ADAPTATIONS) { model.adaptBlocking(inputs, Goal(latencyMs = 1000.0)) }
                model.profileBlocking(again = true)
            }
        }
    }
}

/** Exchanges plans as fast as it can while another thread calls, until it is killed. */
object ExchangeChild {
    @JvmStatic
    fun main(arguments: Array<String>) {
        AdaptiveModel.open(Contract.referenceFolder, stateFolder = File(arguments[0])).use { model ->
            val plans = exchangedPlans(model.bundle)
            println("begun")
            val images = drawnImages(1)
            thread(isDaemon = true) { while (true) model(images[0]) }
            while (true) plans.forEach(model::use)
        }
    }
}

/** The original with and without its exits. */
fun exchangedPlans(bundle: Bundle): List<Plan> {
    val original = bundle.supernet.original
    val exits = bundle.supernet.exitsAlong(original).distinctBy { it.position }.map { ExitChoice(it.id, 0.5) }
    return listOf(Plan(original), Plan(original, exits))
}

/** Images of the reference bundle's own size. */
fun drawnImages(count: Int): List<Image> {
    val random = SplitMix64(7)
    return List(count) { Image(ByteArray(12) { random.next().toByte() }, SampleSize(2, 2), 3) }
}

/** Holds a lock until it is killed. */
object LockChild {
    @JvmStatic
    fun main(arguments: Array<String>) {
        exclusive(File(arguments[0])).use {
            println("begun")
            Thread.sleep(60_000)
        }
    }
}
