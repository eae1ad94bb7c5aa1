package pathweave.sdk.search

import java.io.File
import java.nio.file.Path
import kotlinx.coroutines.runBlocking
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir
import pathweave.sdk.AdaptiveModel
import pathweave.sdk.Contract
import pathweave.sdk.adapt
import pathweave.sdk.bundles.TrustedKey
import pathweave.sdk.numerics.Tensor
import pathweave.sdk.policies.Adaptations
import pathweave.sdk.supernet.Goal
import pathweave.sdk.supernet.Kind
import pathweave.sdk.supernet.Optimised

/** docs/guide/embed_in_an_android_app.md is right about adapting: its lines are those below, and they run. */
class AdaptingGuideTest {
    private val folder = "android_demo/core/src/test/kotlin/pathweave/sdk/search"
    private val source = File(Contract.repository, "$folder/AdaptingGuideTest.kt").readText()
    private val guide = File(Contract.repository, "docs/guide/embed_in_an_android_app.md").readText()

    @Test
    fun `the lines on adapting run`(@TempDir state: Path): Unit = runBlocking {
        val (folder, key, labels) = Triple(Contract.referenceFolder, Contract.key, Adaptations.labels)
        val photographs = Adaptations.inputs().take(labels.indices.toList(), null)
        run(folder, key, state.toFile(), photographs, labels)
    }

    private suspend fun run(
        folder: File,
        key: TrustedKey,
        state: File,
        photographs: Tensor,
        labels: IntArray,
    ) {
        val printed = mutableListOf<String>()
        fun println(line: String) = printed.add(line)

        // the guide's lines
        AdaptiveModel.open(folder, key, stateFolder = state).use { model ->
            val samples = model.inputs(photographs)
            val found = model.adapt(samples, Goal(latencyMs = 80.0), labels = labels) { println("${it.stage} ${it.share}") }
            println("${found.plan} in ${found.measured?.latencyMs} ms, right on ${found.heldOut?.accuracy} of what it did not see")

            val quicker = Goal(optimise = Optimised.LATENCY_MS, maxDrop = 0.005)
            model.adapt(samples, quicker, consider = setOf(Kind.EXITS)) // the subnet in use, with exits
            println(model.plan.kind)
        }
        // end of the guide's lines

        assertTrue("JUDGE 1.0" in printed)
        assertTrue(printed.last() in listOf("subnet", "exits"))
    }

    @Test
    fun `they are those of the guide`() {
        val here = source.substringAfter("// the guide's lines\n").substringBefore("        // end")
        val there = guide.substringAfter("## Adapt to the device").substringAfter("```kotlin\n").substringBefore("```")
        assertEquals(there, here.trimIndent() + "\n")
    }
}
