package pathweave.sdk.execution

import java.io.File
import java.nio.file.Path
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonPrimitive
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir
import pathweave.sdk.AdaptiveModel
import pathweave.sdk.Contract
import pathweave.sdk.SelfTestError
import pathweave.sdk.SplitMix64
import pathweave.sdk.assertRefused
import pathweave.sdk.bundles.changed
import pathweave.sdk.get
import pathweave.sdk.int
import pathweave.sdk.items
import pathweave.sdk.numerics.argmax
import pathweave.sdk.runtimes.OnnxRuntime
import pathweave.sdk.seed
import pathweave.sdk.subnetsOf
import pathweave.sdk.supernet.architectureCount
import pathweave.sdk.supernet.kCheapest
import pathweave.sdk.supernet.sampleUniformly
import pathweave.sdk.supernet.subnetCount
import pathweave.sdk.text
import pathweave.sdk.texts

class SelfTestTest {
    private val vectors = Contract.vectors["bundle"]

    @Test
    fun `the reference bundle reproduces what was computed without a runtime`() {
        val bundle = Contract.reference()
        val seen = mutableListOf<Pair<Int, Int>>()
        runSelfTest(bundle, OnnxRuntime()) { done, of -> seen += done to of }
        val cases = goldenCases(bundle).size
        assertEquals((1..cases).map { it to cases }, seen)
    }

    @Test
    fun `every block, exit and the original path give the same classes everywhere`() {
        val bundle = Contract.reference()
        val answers = goldenCases(bundle).associate { case ->
            case.name to argmax(runGolden(bundle, OnnxRuntime(), case).last()).toList()
        }
        val expected = (vectors["argmax"] as Map<*, *>).keys.associate { name ->
            name as String to vectors["argmax"][name].items.map { it.int }
        }
        assertEquals(expected, answers)
    }

    @Test
    fun `the graph of the reference bundle is the same everywhere`() {
        val supernet = Contract.reference().supernet
        assertEquals(vectors["architecture_count"].text, architectureCount(supernet).toString())
        assertEquals(vectors["subnet_count"].text, subnetCount(supernet).toString())
        val samples = vectors["samples"]
        val drawn = sampleUniformly(supernet, samples["subnets"].items.size, SplitMix64(samples["seed"].seed))
        assertEquals(samples["subnets"].texts, subnetsOf(drawn))
        val expected = vectors["cheapest_by_macs"].texts
        val cheapest = kCheapest(supernet, { supernet.block(it.block).macs.toDouble() }, expected.size)
        assertEquals(expected, subnetsOf(cheapest.map { it.subnet }))
    }

    @Test
    fun `another golden output is noticed and named`(@TempDir folder: Path) {
        for ((path, name) in listOf(
            listOf("blocks", "5", "renditions", "0", "golden", "samples", "0", "3") to "block m1-3",
            listOf("exits", "1", "renditions", "0", "golden", "samples", "0", "0") to "exit x2-flat",
            listOf("self_test", "original", "samples", "0", "5") to "the original path does",
            listOf("input_sizes", "1", "golden", "samples", "0", "5") to "the original path at 4x4",
        )) {
            val copy = Contract.copy(folder)
            val manifest = File(copy, "manifest.json")
            val changed = Json.parseToJsonElement(manifest.readText()).changed(path, JsonPrimitive(77.5))
            manifest.writeText(changed.toString())
            val error = assertRefused<SelfTestError> { AdaptiveModel.open(copy).close() }
            assertTrue(error.message!!.startsWith(name), error.message)
            copy.deleteRecursively()
        }
    }
}
