package pathweave.sdk.search

import java.io.File
import java.util.zip.CRC32
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonElement
import kotlinx.serialization.json.JsonNull
import kotlinx.serialization.json.double
import kotlinx.serialization.json.jsonPrimitive
import kotlinx.serialization.json.long
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.DynamicTest
import org.junit.jupiter.api.TestFactory
import pathweave.sdk.Contract
import pathweave.sdk.SplitMix64
import pathweave.sdk.double
import pathweave.sdk.get
import pathweave.sdk.int
import pathweave.sdk.items
import pathweave.sdk.seed
import pathweave.sdk.size
import pathweave.sdk.supernet.Block
import pathweave.sdk.supernet.BlockKind
import pathweave.sdk.supernet.Budget
import pathweave.sdk.supernet.CostModel
import pathweave.sdk.supernet.CutPoint
import pathweave.sdk.supernet.Edge
import pathweave.sdk.supernet.EdgeCost
import pathweave.sdk.supernet.Golden
import pathweave.sdk.supernet.InputSize
import pathweave.sdk.supernet.Rendition
import pathweave.sdk.supernet.SampleSize
import pathweave.sdk.supernet.Subnet
import pathweave.sdk.supernet.Supernet
import pathweave.sdk.supernet.TensorSpec
import pathweave.sdk.text
import pathweave.sdk.texts
import pathweave.sdk.uniformFloats

private val VECTORS: JsonElement =
    Json.parseToJsonElement(File(Contract.repository, "tests/contract/searches.json").readText())
private const val TOLERANCE = 1e-8 // of accuracies, whose sums are taken in another order

class SearchContractTest {
    @TestFactory
    fun `the same evidence and seed lead to the same proposals and the same choice as in Python`(): List<DynamicTest> =
        VECTORS["cases"].items.filter { it["strategy"].text == "pathweave" }.map { case ->
            val name = "${case["strategy"].text} on ${case["graph"].text} from ${case["seed"].text}"
            DynamicTest.dynamicTest(name) { check(case) }
        }

    private fun check(case: JsonElement) {
        val graph = VECTORS["graphs"][case["graph"].text]
        val supernet = supernetOf(graph)
        val evidence = MadeUpEvidence(graph, supernet.original)
        val problem = SearchProblem(
            supernet,
            costsOf(graph),
            Budget(case["budget"]["latency_ms"].number, case["budget"]["memory_mb"].number),
            evidence,
            SplitMix64(case["seed"].seed),
            clock = { 0.0 },
        )
        val result = findSubnets(strategyOf(case), problem)
        assertEquals(case["first_group"].texts, evidence.groups.first())
        assertEquals(case["groups"].items.map { it.jsonPrimitive.long }, evidence.groups.map(::crc32Of))
        assertEquals(case["last_group"].texts, evidence.groups.last())
        assertEquals(case["subnets_evaluated"].int, result.subnetsEvaluated)
        assertEquals(case["generations"].int, result.generations)
        assertEquals(case["pool"].int, result.pool.size)
        assertEquals(case["best"].text, result.best?.subnet.toString())
        assertEquals(case["accuracy"].double, result.best?.accuracy)
        assertEquals(case["expected"].double, result.best?.expected ?: 0.0, TOLERANCE)
    }
}

private fun crc32Of(lines: List<String>): Long = CRC32().apply { update(lines.joinToString("\n").toByteArray()) }.value

private val JsonElement.number: Double? get() = if (this is JsonNull) null else jsonPrimitive.double

private fun strategyOf(case: JsonElement): SearchStrategy {
    fun setting(name: String) = case["settings"][name].int
    return BayesianPathSearch(
        setting("generations"), setting("group"), setting("draws"), setting("mutations"), setting("parents"),
    )
}

private fun costsOf(graph: JsonElement): CostModel {
    val edges = graph["edges"].items.associate {
        val latencyMs = it["latency_ms"].double
        val bytes = it["resident_bytes"].int.toLong() to it["working_bytes"].int.toLong()
        edgeOf(it["edge"].text) to EdgeCost(latencyMs, latencyMs, bytes.first, bytes.second)
    }
    return CostModel(edges, offsetMs = 0.25)
}

/** As `supernet_of` in write_searches.py makes it. */
private fun supernetOf(graph: JsonElement): Supernet {
    val golden = Golden(emptyList(), 0.0)
    val last = graph["cut_points"].int
    fun shapes(height: Int, width: Int) =
        listOf(listOf(listOf(1, height, width))) + List(last - 1) { listOf(listOf(4)) }
    val cuts = shapes(10, 10).mapIndexed { at, (shape) -> CutPoint(at, listOf(TensorSpec("cut_$at", shape))) }
    val blocks = graph["blocks"].items.map { one ->
        val renditions = one["renditions"].items.map {
            val (name, error) = it.items
            Rendition(name.text, "none", "0".repeat(64), 1, golden, anySize = true, error = error.number)
        }
        val kind = BlockKind(one["kind"].text)
        Block(one["id"].text, one["start"].int, one["end"].int, kind, 0, 0, renditions, one["error"].number)
    }
    val sizes = graph["sizes"].items.map {
        InputSize(it["size"].size, shapes(it["size"].size.height, it["size"].size.width), golden, it["error"].number)
    }
    return Supernet(cuts, blocks, inputSizes = sizes)
}

/** The edge that `toString` writes as [text]. */
internal fun edgeOf(text: String): Edge {
    val (name, size) = text.substringBefore(':') to text.substringAfter(':', "")
    val edge = Edge(name.substringBefore('@'), name.substringAfter('@', "fp32"))
    if (size.isEmpty()) return edge
    val (height, width) = size.split("x").map { it.toInt() }
    return edge.at(SampleSize(height, width))
}

/** As search_evidence.py defines it. Records the groups of subnets in the order in which they are first looked at. */
private class MadeUpEvidence(graph: JsonElement, private val original: Subnet) : Evaluator {
    private val losses = graph["edges"].items.associate { it["edge"].text to it["loss"].double }
    override val sampleCount = VECTORS["samples"].int
    override val batch = VECTORS["batch"].int
    private val difficulty = uniformFloats(7, sampleCount)
    private val done = HashMap<Subnet, Int>()
    val groups = mutableListOf<List<String>>()

    override fun orderByMargin(shouldStop: () -> Boolean) = Unit

    override fun scores(subnets: List<Subnet>, samples: IntRange, shouldStop: () -> Boolean): List<FloatArray> {
        val new = subnets.distinct().filter { (done[it] ?: 0) < samples.last + 1 }
        if (new.isNotEmpty() && shouldStop()) throw EvaluationStopped()
        val first = new.filter { it !in done }.map { it.toString() }
        if (first.isNotEmpty()) groups += first
        for (subnet in new) done[subnet] = samples.last + 1
        return margins(subnets, samples).map { row -> FloatArray(row.size) { if (row[it] > 0) 1f else 0f } }
    }

    override fun margins(subnets: List<Subnet>, samples: IntRange): List<DoubleArray> =
        subnets.map { row(it).sliceArray(samples) }

    override fun distances(subnets: List<Subnet>, samples: IntRange): DoubleArray =
        DoubleArray(subnets.size) { loss(subnets[it]) + own(subnets[it])[0].toDouble() / 64 }

    override fun fullModelMargins(): DoubleArray = row(original)

    private fun row(subnet: Subnet): DoubleArray {
        val (own, least) = own(subnet) to 0.125 + loss(subnet)
        return DoubleArray(sampleCount) { difficulty[it].toDouble() + own[it].toDouble() / 4 - least }
    }

    private fun loss(subnet: Subnet): Double = subnet.edges.sumOf { losses.getValue(it.toString()) }

    private fun own(subnet: Subnet): FloatArray = uniformFloats(crc32Of(listOf(subnet.toString())), sampleCount)
}
