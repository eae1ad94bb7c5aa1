package pathweave.sdk

import java.math.BigInteger
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test

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
