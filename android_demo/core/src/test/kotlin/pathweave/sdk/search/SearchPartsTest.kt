package pathweave.sdk.search

import org.junit.jupiter.api.Assertions.assertArrayEquals
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertFalse
import org.junit.jupiter.api.Assertions.assertNull
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import pathweave.sdk.BudgetError
import pathweave.sdk.ClosedError
import pathweave.sdk.DataError
import pathweave.sdk.InfeasibleBudgetError
import pathweave.sdk.InputError
import pathweave.sdk.RuntimeFailedError
import pathweave.sdk.SplitMix64
import pathweave.sdk.UsageError
import pathweave.sdk.assertRefused
import pathweave.sdk.data.Inputs
import pathweave.sdk.data.SomeInputs
import pathweave.sdk.execution.PagedEdges
import pathweave.sdk.execution.eachEdge
import pathweave.sdk.execution.largestBatch
import pathweave.sdk.execution.oneModelFootprint
import pathweave.sdk.numerics.Tensor
import pathweave.sdk.numerics.erfc
import pathweave.sdk.numerics.normal
import pathweave.sdk.policies.Adaptations
import pathweave.sdk.runtimes.LoadedStretch
import pathweave.sdk.runtimes.OnnxRuntime
import pathweave.sdk.subnetOf
import pathweave.sdk.subnetsOf
import pathweave.sdk.supernet.Budget
import pathweave.sdk.supernet.CostModel
import pathweave.sdk.supernet.Edge
import pathweave.sdk.supernet.EdgeCost
import pathweave.sdk.supernet.Family
import pathweave.sdk.supernet.Subnet
import pathweave.sdk.supernet.Supernet
import pathweave.sdk.supernet.enumerateSubnets
import pathweave.sdk.tasks.ClassTargets

class SearchPartsTest {
    private val bundle = Adaptations.bundle
    private val supernet = bundle.supernet
    private val costs = Adaptations.profile.costModel()
    private val everything = enumerateSubnets(supernet, 1000).toList()

    @Test
    fun `the path of the highest value within a latency limit is that of all paths`() {
        val numbers = EdgeNumbers(supernet)
        val random = SplitMix64(4)
        repeat(50) {
            val values = DoubleArray(numbers.count) { normal(random) }
            val budget = Budget(latencyMs = 0.9 + 5 * random.uniform())
            val expected = everything.filter { budget.fits(costs.cost(it)) }.maxByOrNull { numbers.sum(values, it) }
            assertEquals(expected, BestPath(numbers, costs).find(budget, values))
        }
    }

    @Test
    fun `with a memory limit the fastest subnet is that of all, or the smallest is named`() {
        for (memoryMb in listOf(0.012, 0.014, 0.017, 0.02)) {
            val fitting = everything.filter { costs.peakBytes(it) <= memoryMb * 1e6 }
            assertEquals(fitting.minByOrNull { costs.latencyMs(it) }, fastestWithin(supernet, costs, memoryMb))
        }
        val error = assertRefused<InfeasibleBudgetError> { requireFeasible(supernet, costs, Budget(memoryMb = 0.001)) }
        assertEquals(everything.minOf { costs.peakBytes(it) }, error.nearestPeakBytes)
        assertTrue(error.hint!!.startsWith("set memoryMb to 0.01"))
    }

    private fun evaluator(cacheBytes: Long, batch: Int = 64, workers: Int = 1) = PrefixTreeEvaluator(
        supernet,
        load = { OnnxRuntime().load(bundle.stretch(listOf(it), anySize = true)) },
        Adaptations.inputs(),
        ClassTargets(Adaptations.labels),
        costs,
        batch,
        cacheBytes,
        workers,
    )

    @Test
    fun `batches in parallel change no result`() {
        val samples = 0 until 500
        val (alone, together) = listOf(1, 3).map { workers ->
            evaluator(30_000, workers = workers).use { evaluator ->
                evaluator.orderByMargin { false }
                val rows = everything.chunked(4).flatMap { evaluator.scores(it, samples) }
                rows.map { it.toList() } to evaluator.distances(everything, samples).toList()
            }
        }
        assertEquals(alone, together)
        val closed = evaluator(30_000, workers = 3).also { it.close() }
        assertRefused<ClosedError> { closed.scores(everything, 0..1) }
    }

    @Test
    fun `a failure in one of several threads is the one that is thrown`() {
        val failing = PrefixTreeEvaluator(
            supernet, { throw RuntimeFailedError("no room") }, Adaptations.inputs(), ClassTargets(Adaptations.labels), costs, 64, workers = 2,
        )
        assertRefused<RuntimeFailedError> { failing.scores(everything, 0 until 500) }
        failing.close()
    }

    @Test
    fun `reuse changes no result, and the cache keeps its limit`() {
        val samples = 0 until 500
        val (kept, alone) = listOf(30_000L, 0L).map { cacheBytes ->
            evaluator(cacheBytes).use { evaluator ->
                val rows = everything.chunked(4).flatMap { evaluator.scores(it, samples) }
                assertTrue(evaluator.peakCachedBytes <= cacheBytes)
                Triple(rows, evaluator.margins(everything, samples).map { it.toList() }, evaluator.edgeRuns)
            }
        }
        for ((one, other) in kept.first.zip(alone.first)) assertArrayEquals(one, other)
        assertEquals(alone.second, kept.second)
        assertTrue(kept.third < alone.third)
    }

    @Test
    fun `under a memory cap edges are loaded in turns, with the same results`() {
        fun scores(load: (Edge) -> LoadedStretch, batch: Int) = PrefixTreeEvaluator(
            supernet, load, Adaptations.inputs(), ClassTargets(Adaptations.labels), costs, batch,
        ).use { evaluator ->
            val first = evaluator.scores(everything.take(20), 0 until 64)
            evaluator.release() // what was loaded is loaded again
            (first + evaluator.scores(everything.drop(20).take(20), 0 until 64)).map { it.toList() }
        }
        val runtime = OnnxRuntime()
        val whole = scores({ edge -> runtime.load(bundle.stretch(listOf(edge), anySize = true)) }, batch = 64)
        val least = eachEdge(bundle).maxOf { oneModelFootprint(bundle, it).leastBytes }
        val fitting = largestBatch(bundle, eachEdge(bundle), least, wanted = 64)
        assertTrue(fitting in listOf(1, 2, 4, 8, 16, 32, 64))
        val edges = PagedEdges(bundle, runtime, least, batch = fitting)
        assertEquals(whole, scores(edges::load, batch = fitting))
        assertTrue(edges.cap.peakBytes in 1..least)
        assertEquals(0, edges.cap.usedBytes)
        assertRefused<BudgetError> { PagedEdges(bundle, runtime, least - 1, batch = 1) }
    }

    @Test
    fun `a stopped evaluation resumes after the last finished batch`() {
        evaluator(30_000, batch = 100).use { evaluator ->
            var asked = 0
            try {
                evaluator.scores(everything, 0 until 500) { ++asked > 2 }
            } catch (_: EvaluationStopped) {
                assertEquals(3, asked)
            }
            val runs = evaluator.edgeRuns
            evaluator.scores(everything, 0 until 200)
            assertEquals(runs, evaluator.edgeRuns)
            evaluator.scores(everything, 0 until 500)
            assertTrue(evaluator.edgeRuns > runs)
        }
    }

    @Test
    fun `what cannot be evaluated is refused`() {
        val evaluator = evaluator(30_000)
        assertRefused<UsageError> { evaluator.scores(listOf(Subnet(listOf(Edge("o1")))), 0..1) }
        evaluator.close()
        evaluator.close()
        assertRefused<ClosedError> { evaluator.scores(everything, 0..1) }
        val none = SomeInputs(Adaptations.inputs(), emptyList())
        fun made(inputs: Inputs, labels: IntArray, batch: Int = 4) =
            PrefixTreeEvaluator(supernet, { error("not loaded") }, inputs, ClassTargets(labels), costs, batch)
        assertRefused<DataError> { made(none, IntArray(0)) }
        assertRefused<InputError> { made(none, IntArray(1)) }
        assertRefused<UsageError> { made(Adaptations.inputs(), Adaptations.labels, batch = 0) }
    }

    @Test
    fun `the cache drops what is worth least first and never what is pinned`() {
        fun key(name: String) = FeatureKey(0, listOf(Edge(name)))
        fun features() = listOf(Tensor.of(FloatArray(25), listOf(25))) // 100 bytes
        val cache = FeatureCache(250)
        assertTrue(cache.keep(key("a"), features(), worth = 1.0))
        assertTrue(cache.keep(key("b"), features(), worth = 3.0))
        assertFalse(cache.keep(key("c"), features(), worth = 0.5))
        assertTrue(cache.keep(key("c"), features(), worth = 2.0))
        assertNull(cache[key("a")])
        assertTrue(cache.keep(key("d"), features(), worth = 0.0, pin = true))
        assertNull(cache[key("c")])
        assertTrue(cache.keep(key("e"), features(), worth = 0.0, pin = true))
        assertNull(cache[key("b")])
        assertFalse(cache.keep(key("f"), features(), worth = 9.0))
        assertEquals(200L to 200L, cache.keptBytes to cache.peakBytes)
        cache.unpin(key("d"))
        assertNull(cache[key("d")])
    }

    @Test
    fun `every member and rendition has a column of all input sizes, and nothing stands twice`() {
        val expected = listOf(
            listOf("2x2: a0 a1@int8 a2", "a0 a1 a2"),
            listOf("2x2: a0@int8 a1@int8 a2@int8", "a0@int8 a1@int8 a2@int8"),
            listOf("2x2: b0 b1 b2", "b0 b1 b2"),
        )
        assertEquals(expected, ladder(Family.supernet()).map(::subnetsOf))
    }

    @Test
    fun `the first column is that of the rendition at the model's own size, also where it runs at no other`() {
        val renditions = listOf(Family.rendition("fp32", anySize = false), Family.rendition("int8"))
        val chain = List(5) { Family.block("o$it", it, it + 1, renditions = renditions) }
        val int8 = chain.joinToString(" ") { "${it.id}@int8" }
        val expected = listOf(listOf("2x2: $int8", "o0 o1 o2 o3 o4"), listOf(int8))
        assertEquals(expected, ladder(Family.supernet(chain, members = emptyList())).map(::subnetsOf))
    }

    @Test
    fun `an original of a smaller member costs what it loses against the largest`() {
        val (merged, shrunk) = Family.merged.copy(distillationError = 0.25) to Family.shrunk
        val small = Family.originals.map { if (it.id == "b1") it.copy(distillationError = 0.375) else it }
        val errors = blockErrors(Family.supernet(small + Family.stitch + merged + shrunk))
        assertEquals(listOf(0.0, 0.0, 0.0, 0.0, 0.375, 0.0), Family.originals.map { errors.getValue(it.id) })
        // what the merged block loses is for two originals; where nothing was measured, each counts half of it
        assertEquals(listOf(0.25, 0.125, 0.125), listOf("m", "h", "s").map { errors.getValue(it) })
        val model = AdditiveModel(EdgeNumbers(Family.supernet(small)))
        assertTrue(model.priorLoss(subnetOf("b0 b1 b2")) > model.priorLoss(subnetOf("a0 a1 a2")))
    }

    @Test
    fun `what comes near a path of a family is a path`() {
        val supernet = Family.supernet()
        val costs = CostModel(supernet.edges.associateWith { EdgeCost(msOf(supernet, it), 1.0, 1, 1) })
        val subnets = enumerateSubnets(supernet, 1000).toList()
        val random = SplitMix64(3)
        val found = mutableSetOf<Subnet>()
        for (lowMs in listOf(1.0, 2.0, 3.0)) {
            val nearby = Neighbourhood(supernet, costs, Budget(memoryMb = 1.0), lowMs, lowMs + 0.5)
            for (subnet in subnets) repeat(20) { nearbyMutate(nearby, subnet, random)?.let { found += it } }
        }
        found.forEach(supernet::check)
        assertEquals(subnets.toSet(), found)
    }

    /** One for an original, a half for each other block. */
    private fun msOf(supernet: Supernet, edge: Edge) = if (supernet.block(edge.block) in Family.originals) 1.0 else 0.5

    @Test
    fun `the complementary error function is that of Python`() {
        val known = mapOf(
            -1.0 to 1.842700792949715, 0.0 to 1.0, 0.5 to 0.4795001221869535, 1.0 to 0.15729920705028513,
            1.9999 to 0.004679802092970608, 2.0 to 0.004677734981047265,
            5.0 to 1.5374597944280351e-12, 21.0 to 8.032453871022456e-194,
        )
        for ((x, expected) in known) assertEquals(1.0, erfc(x) / expected, 2e-13)
    }

    @Test
    fun `settings that make no sense are refused`() {
        assertRefused<UsageError> { BayesianPathSearch(shares = listOf(1.5)) }
        assertRefused<UsageError> { BayesianPathSearch(optimism = Double.NaN) }
        val error = assertRefused<UsageError> { makeStrategy("luck") }
        assertEquals("known: pathweave", error.hint)
    }
}
