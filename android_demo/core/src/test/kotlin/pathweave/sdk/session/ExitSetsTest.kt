package pathweave.sdk.session

import java.util.concurrent.Callable
import java.util.concurrent.Executors
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.Timeout
import pathweave.sdk.AdaptiveModel
import pathweave.sdk.BlobError
import pathweave.sdk.Contract
import pathweave.sdk.Fault
import pathweave.sdk.PublishedTest
import pathweave.sdk.TransferError
import pathweave.sdk.UsageError
import pathweave.sdk.assertRefused
import pathweave.sdk.delivery.DeliveryOptions
import pathweave.sdk.execution.goldenInputs
import pathweave.sdk.policies.placement.candidatesByMacs
import pathweave.sdk.policies.placement.placeExactly
import pathweave.sdk.supernet.ExitChoice
import pathweave.sdk.supernet.Plan
import pathweave.sdk.supernet.UNREACHABLE_CONFIDENCE

private val ALL_EXITS = listOf("x1-pooled", "x2-flat", "x3-pooled")

@Timeout(60)
class ExitSetsTest : PublishedTest() {
    private val bundle = Contract.reference()
    private val input = goldenInputs(bundle.supernet.cutPoints[0], seed = 7L, batch = 3)[0]

    private fun fetched(vararg exits: String): AdaptiveModel {
        val options = DeliveryOptions(exits = { _, _ -> exits.toList() }, attempts = 1)
        return AdaptiveModel.open(openAt(url, state, Contract.key, options = options), stateFolder = state)
    }

    private fun inFolder() = AdaptiveModel.open(Contract.referenceFolder, Contract.key, stateFolder = state)

    private fun timed(vararg exits: String) =
        Plan(bundle.supernet.original, exits.map { ExitChoice(it, UNREACHABLE_CONFIDENCE) })

    private val log: List<String>
        get() = state.walk().first { it.name == "adaptation.jsonl" }.readLines().filter { "exits_exchanged" in it }

    @Test
    fun `a bundle opens without exits, and those that are wanted are fetched and kept`() {
        fetched().use { model ->
            assertEquals(emptyList<String>(), model.exits.held)
            val answer = model.infer(input).output.floats().toList()
            assertRefused<UsageError> { model.use(timed("x2-flat")) }
            server.requests.clear()
            model.exits.holdBlocking(listOf("x3-pooled", "x1-pooled"))
            assertEquals(2, server.requests.size)
            assertEquals(listOf("x1-pooled", "x3-pooled"), model.exits.held)
            model.use(timed("x1-pooled", "x3-pooled"))
            assertEquals(answer, model.infer(input).output.floats().toList())
            assertEquals(3, model.answerTimesMs(input).size)
            assertTrue("\"added\":[\"x1-pooled\",\"x3-pooled\"],\"dropped\":[]" in log[0], log[0])
        }
        fetched().use { assertEquals(listOf("x1-pooled", "x3-pooled"), it.exits.held, "what was decided holds") }
        server.requests.clear()
        val opened = openStored(url, state, Contract.key)
        AdaptiveModel.open(opened, stateFolder = state).use { model ->
            assertEquals(listOf("x1-pooled", "x3-pooled"), model.exits.held)
            assertEquals(timed("x1-pooled", "x3-pooled"), model.plan)
        }
        assertEquals(0, server.requests.size)
    }

    @Test
    fun `plans lose the exits that go`() {
        inFolder().use { model ->
            assertEquals(ALL_EXITS, model.exits.held)
            model.use(timed("x1-pooled", "x2-flat"))
            model.exits.holdBlocking(listOf("x2-flat"))
            assertEquals(timed("x2-flat"), model.plan)
            assertRefused<UsageError> { model.use(timed("x1-pooled")) }
        }
        inFolder().use { model ->
            assertEquals(listOf("x2-flat") to timed("x2-flat"), model.exits.held to model.plan)
            model.exits.holdBlocking(ALL_EXITS)
        }
        inFolder().use { assertEquals(ALL_EXITS, it.exits.held) }
    }

    @Test
    fun `the old set stays when an exit is unknown, altered, or the server is away`() {
        fetched("x1-pooled").use { model ->
            model.use(timed("x1-pooled"))
            assertRefused<UsageError> { model.exits.holdBlocking(listOf("x1-pooled", "x9")) }
            val blob = model.bundle.offered.exits[1].renditions[0].blob
            val flip = Fault(Fault.Kind.FLIP, 100)
            server.fault(blob, flip, flip)
            assertRefused<BlobError> { model.exits.holdBlocking(listOf("x2-flat")) }
            server.close()
            assertTrue(runCatching { model.exits.holdBlocking(listOf("x2-flat")) }.exceptionOrNull() is TransferError)
            assertEquals(listOf("x1-pooled") to timed("x1-pooled"), model.exits.held to model.plan)
            assertEquals(3, model.infer(input).labels.size)
        }
        openStored(url, state, Contract.key, exits = { _, _ -> listOf("x1-pooled") }).use {
            assertEquals(listOf("x1-pooled"), it.bundle.exits)
        }
    }

    @Test
    fun `the exits worth their memory are chosen here, of those that are here or can be fetched`() {
        fetched("x1-pooled").use { model ->
            val (candidates, fullMacs) = candidatesByMacs(bundle.supernet)
            val placed = model.exits.placeBlocking()
            assertEquals(placeExactly(candidates, fullMacs, null).exits, placed.exits)
            assertEquals(placed.exits, model.exits.held)
            assertEquals(0L to emptyList<String>(), model.exits.placeBlocking(memoryMb = 0.0).run { memoryBytes to exits })
            for (nonsense in listOf(-1.0, Double.NaN)) assertRefused<UsageError> { model.exits.placeBlocking(nonsense) }
        }
        inFolder().use { assertEquals(bundle.exits, it.exits.offered) }
    }

    @Test
    fun `calls go on while sets are exchanged`() {
        val threads = Executors.newFixedThreadPool(4)
        inFolder().use { model ->
            val expected = model.infer(input).labels
            val calls = List(4) { threads.submit(Callable { List(100) { model.infer(input).labels } }) }
            repeat(8) { round -> model.exits.holdBlocking(ALL_EXITS.filterIndexed { at, _ -> (round shr at) and 1 == 1 }) }
            assertEquals(setOf(expected), calls.flatMap { it.get() }.toSet())
            assertEquals(ALL_EXITS, model.exits.held)
        }
        threads.shutdown()
    }
}
