package pathweave.sdk.supernet

import java.math.BigInteger
import kotlinx.serialization.json.JsonElement
import kotlinx.serialization.json.jsonObject
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import pathweave.sdk.Contract
import pathweave.sdk.SplitMix64
import pathweave.sdk.UsageError
import pathweave.sdk.assertRefused
import pathweave.sdk.double
import pathweave.sdk.get
import pathweave.sdk.int
import pathweave.sdk.items
import pathweave.sdk.seed
import pathweave.sdk.size
import pathweave.sdk.subnetOf
import pathweave.sdk.subnetsOf
import pathweave.sdk.text
import pathweave.sdk.texts

private val GRAPH = Contract.vectors["graph"]

class PathsTest {
    private val supernet = elastic(
        GRAPH["cut_points"].int,
        GRAPH["blocks"].items.map { Spec(it["id"].text, it["start"].int, it["end"].int, it["renditions"].texts) },
    )
    private val weight: EdgeWeight = { GRAPH["weights"][it.toString()].double }

    @Test
    fun `paths are counted exactly`() {
        assertEquals(BigInteger(GRAPH["architecture_count"].text), architectureCount(supernet))
        assertEquals(BigInteger(GRAPH["subnet_count"].text), subnetCount(supernet))
    }

    @Test
    fun `counts are exact beyond 64 bits`() {
        val expected = GRAPH["counts_by_length"]
        for (length in listOf(1, 2, 3, 27, 60)) {
            assertEquals(BigInteger(expected[length.toString()].text), subnetCount(elastic(length)))
        }
        assertTrue(BigInteger(expected["60"].text).bitLength() > 53)
    }

    @Test
    fun `a seed draws the same paths everywhere`() {
        val uniform = GRAPH["samples"]
        val drawn = sampleUniformly(supernet, 5, SplitMix64(uniform["seed"].seed))
        assertEquals(uniform["subnets"].texts, subnetsOf(drawn))
    }

    @Test
    fun `a seed draws the same paths within a window everywhere`() {
        val window = GRAPH["window_samples"]
        val sampler = WindowSampler(supernet, weight, window["low"].double, window["high"].double)
        assertEquals(window["subnets"].texts, subnetsOf(sampler.sample(5, SplitMix64(window["seed"].seed))))
    }

    @Test
    fun `an empty window gives nothing`() {
        val sampler = WindowSampler(supernet, weight, low = 1000.0, high = 2000.0)
        assertEquals(emptyList<Subnet>(), sampler.sample(3, SplitMix64(1)))
    }

    @Test
    fun `the cheapest come in the same order everywhere`() {
        val expected = GRAPH["cheapest"].items
        val found = kCheapest(supernet, weight, expected.size)
        assertEquals(expected.map { it["subnet"].text }, subnetsOf(found.map { it.subnet }))
        assertEquals(expected.map { it["weight"].double }, found.map { it.weight })
    }

    @Test
    fun `fewer than k are all there are`() {
        val small = elastic(2)
        assertEquals(subnetCount(small).toInt(), kCheapest(small, { 1.0 }, k = 100).map { it.subnet }.distinct().size)
    }
}

private val AT_SIZES = Contract.vectors["graph_at_sizes"]

class PathsAtSizesTest {
    private val supernet = sized(AT_SIZES)
    private val weight: EdgeWeight = { AT_SIZES["weights"][it.toString()].double }

    @Test
    fun `input sizes make the same graph everywhere`() {
        assertEquals(AT_SIZES["node_count"].int, supernet.nodeCount)
        val expected = AT_SIZES["edges_from"].items.map { leaving ->
            leaving.items.map { it.items[0].text to it.items[1].int }
        }
        assertEquals(expected, supernet.edgesFrom.map { leaving -> leaving.map { (edge, end) -> "$edge" to end } })
        val axes = AT_SIZES["free_axes"].jsonObject.mapValues { (_, one) -> one.items.map { it.int }.toSet() }
        assertEquals(axes, supernet.freeAxes)
        assertEquals(AT_SIZES["original"].text, supernet.original.toString())
        assertEquals(AT_SIZES["any_size_original"].text, supernet.anySizeOriginal.toString())
    }

    @Test
    fun `the cut points have the shapes of each size`() {
        for (one in AT_SIZES["input_sizes"].items) {
            val shapes = supernet.cutPointsAt(one["size"].size).map { cut -> cut.tensors.map { it.shape } }
            assertEquals(shapes(one["shapes"]), shapes)
        }
        assertEquals(supernet.cutPoints, supernet.cutPointsAt(null))
        assertRefused<UsageError> { supernet.cutPointsAt(SampleSize(2, 2)) }
        assertRefused<UsageError> { supernet.node(1, SampleSize(6, 4)) }
    }

    @Test
    fun `paths over input sizes are counted and enumerated as everywhere`() {
        assertEquals(AT_SIZES["architecture_count"].text, architectureCount(supernet).toString())
        assertEquals(AT_SIZES["subnet_count"].text, subnetCount(supernet).toString())
        val expected = AT_SIZES["subnets"].texts
        val found = enumerateSubnets(supernet, limit = expected.size.toLong()).toList()
        assertEquals(expected, subnetsOf(found))
        assertEquals(expected.map(::subnetOf), found)
        found.forEach(supernet::check)
        assertRefused<UsageError> { enumerateSubnets(supernet, limit = expected.size - 1L) }
    }

    @Test
    fun `the cheapest over input sizes come in the same order everywhere`() {
        val expected = AT_SIZES["cheapest"].items
        val found = kCheapest(supernet, weight, expected.size + 1)
        assertEquals(expected.map { it["subnet"].text }, subnetsOf(found.map { it.subnet }))
        assertEquals(expected.map { it["weight"].double }, found.map { it.weight })
    }

    @Test
    fun `a seed draws the same paths over input sizes everywhere, also within a window`() {
        val (uniform, window) = AT_SIZES["samples"] to AT_SIZES["window_samples"]
        val drawn = sampleUniformly(supernet, 20, SplitMix64(uniform["seed"].seed))
        assertEquals(uniform["subnets"].texts, subnetsOf(drawn))
        val sampler = WindowSampler(supernet, weight, window["low"].double, window["high"].double)
        assertEquals(window["subnets"].texts, subnetsOf(sampler.sample(20, SplitMix64(window["seed"].seed))))
    }
}

private fun shapes(value: JsonElement): List<List<List<Int>>> =
    value.items.map { cut -> cut.items.map { shape -> shape.items.map { it.int } } }

private fun sized(graph: JsonElement): Supernet {
    val golden = Golden(emptyList(), 0.0)
    val cuts = shapes(graph["shapes"]).mapIndexed { index, tensors ->
        CutPoint(index, tensors.mapIndexed { number, shape -> TensorSpec("cut_${index}_$number", shape) })
    }
    val blocks = graph["blocks"].items.map { one ->
        val kind = if (one["end"].int == one["start"].int + 1) BlockKind.ORIGINAL else BlockKind.MERGED
        val renditions = one["renditions"].texts.map { name ->
            Rendition(name, "none", "0".repeat(64), 1, golden, anySize = name in one["any_size"].texts)
        }
        Block(one["id"].text, one["start"].int, one["end"].int, kind, parameters = 0, macs = 0, renditions)
    }
    val sizes = graph["input_sizes"].items.map { InputSize(it["size"].size, shapes(it["shapes"]), golden) }
    return Supernet(cuts, blocks, inputSizes = sizes)
}

private class Spec(val id: String, val start: Int, val end: Int, val renditions: List<String>)

private fun elastic(cutPoints: Int, blocks: List<Spec>) = Supernet(
    List(cutPoints) { CutPoint(it, listOf(TensorSpec("cut_$it", listOf(1)))) },
    blocks.map { spec ->
        val kind = if (spec.end == spec.start + 1) BlockKind.ORIGINAL else BlockKind.MERGED
        val renditions = spec.renditions.map { Rendition(it, "none", "0".repeat(64), 1, Golden(emptyList(), 0.0)) }
        Block(spec.id, spec.start, spec.end, kind, parameters = 0, macs = 0, renditions = renditions)
    },
)

/** As write_vectors.py makes it: originals, an int8 rendition of every second one, merged blocks of spans 2 and 3. */
private fun elastic(length: Int): Supernet {
    val originals = List(length) { Spec("o$it", it, it + 1, listOf("fp32", "int8").take(2 - it % 2)) }
    val merged = (0 until length).flatMap { start ->
        listOf(start + 2, start + 3).filter { it <= length }.map { Spec("m$start-$it", start, it, listOf("fp32")) }
    }
    return elastic(length + 1, originals + merged)
}
