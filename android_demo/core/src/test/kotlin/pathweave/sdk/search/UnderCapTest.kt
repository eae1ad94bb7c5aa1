package pathweave.sdk.search

import java.lang.Math.rint
import java.nio.file.Path
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertFalse
import org.junit.jupiter.api.Assertions.assertNull
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.Timeout
import org.junit.jupiter.api.io.TempDir
import pathweave.sdk.AdaptiveModel
import pathweave.sdk.BudgetError
import pathweave.sdk.Contract
import pathweave.sdk.assertRefused
import pathweave.sdk.bundles.Stretch
import pathweave.sdk.execution.Footprint
import pathweave.sdk.execution.LOADING_FACTOR
import pathweave.sdk.execution.PlanSegment
import pathweave.sdk.execution.SESSION_BYTES
import pathweave.sdk.execution.Workspace
import pathweave.sdk.execution.allStay
import pathweave.sdk.execution.eachEdge
import pathweave.sdk.execution.oneModelFootprint
import pathweave.sdk.numerics.Tensor
import pathweave.sdk.policies.Adaptations
import pathweave.sdk.profiling.Timing
import pathweave.sdk.profiling.currentConditions
import pathweave.sdk.profiling.groupsThatStay
import pathweave.sdk.profiling.measureSubnets
import pathweave.sdk.profiling.profile
import pathweave.sdk.runtimes.LoadedStretch
import pathweave.sdk.runtimes.OnnxRuntime
import pathweave.sdk.runtimes.Runtime
import pathweave.sdk.session.DeviceState
import pathweave.sdk.session.decodeProfile
import pathweave.sdk.session.encodeProfile
import pathweave.sdk.subnetOf
import pathweave.sdk.supernet.Goal
import pathweave.sdk.supernet.Kind
import pathweave.sdk.supernet.Optimised
import pathweave.sdk.supernet.Plan

private const val RESIDENT_FACTOR = 1.1
private const val MB = 1_000_000L

/** Room for one session of the reference bundle and what it takes, not for two: subnets of three blocks fit, four do not. */
private const val ONE_SESSION = 2_900L + SESSION_BYTES
private const val FEW_SESSIONS = 3 * ONE_SESSION

/** Everything that an adaptation loads under a memory cap, counted to the byte. */
@Timeout(120)
class UnderCapTest {
    @TempDir
    lateinit var folder: Path

    private val bundle = Contract.reference()
    private val supernet = bundle.supernet
    private val runtime = CountingRuntime()

    private fun open(capBytes: Long?) = AdaptiveModel.open(
        Contract.referenceFolder,
        Contract.key,
        runtime,
        selfTested = { true },
        stateFolder = folder.toFile(),
        memoryCapBytes = capBytes,
    )

    @Test
    fun `profiling, adapting and calibrating stay under the cap to the byte`() {
        for ((capBytes, mostOpen) in listOf(ONE_SESSION to 1, FEW_SESSIONS to 3)) {
            runtime.reset()
            open(capBytes).use { model ->
                val (inputs, goal) = Adaptations.inputs() to Goal(latencyMs = 1e6)
                model.adaptBlocking(inputs, goal, labels = Adaptations.labels)
                model.adaptBlocking(inputs, goal, setOf(Kind.SUBNETS, Kind.EXITS))
                model.use(Plan(supernet.original))
                model.adaptBlocking(inputs, Goal(Optimised.LATENCY_MS, maxDrop = 1.0), setOf(Kind.EXITS))
                assertEquals(capBytes, model.profileBlocking().memoryCapBytes)
            }
            assertTrue(runtime.peakBytes in 1..capBytes, "${runtime.peakBytes} of $capBytes")
            assertEquals(mostOpen, runtime.mostOpen, "sessions at once")
            assertEquals(0L to 0, runtime.takenBytes to runtime.open)
        }
    }

    @Test
    fun `only what runs in one piece is fitted, and the full model runs in pages`() {
        val found = profile(bundle, runtime, memoryCapBytes = ONE_SESSION)
        val (first, others) = found.fitted[0] to found.fitted.drop(1)
        assertEquals(supernet.original to true, first.subnet to first.inPages)
        assertTrue(others.isNotEmpty() && others.none { it.inPages })
        val costs = found.costModel()
        for (one in others) {
            val leastBytes = oneModelFootprint(bundle, PlanSegment(one.subnet.edges, null)).leastBytes
            assertTrue(leastBytes <= ONE_SESSION, "${one.subnet}")
            assertTrue(costs.peakBytes(one.subnet) >= leastBytes, "what is predicted to fit does not run in pages")
        }
        assertTrue(costs.peakBytes(supernet.original) > ONE_SESSION)
        assertEquals(found.originalMs, first.measuredMs)
        assertTrue(found.originalMs > 3 * costs.latencyMs(supernet.original), "pages are loaded in every call")
        assertEquals(LOADING_FACTOR to SESSION_BYTES, found.memoryScale to found.memoryOffsetBytes)
        assertEquals(0.0, found.exitOverheadMs)
        assertEquals(found, decodeProfile(encodeProfile(found)))
        assertTrue(runtime.peakBytes <= ONE_SESSION)
    }

    @Test
    fun `where all subnets run in pages blocks are summed and the candidates are measured in pages`() {
        val capBytes = eachEdge(bundle).maxOf { oneModelFootprint(bundle, it).leastBytes }
        val small = bundle.supernet.edges.filter { it.inputSize != null }
            .maxOf { oneModelFootprint(bundle, PlanSegment(listOf(it), null)).leastBytes }
        val cap = maxOf(capBytes, small)
        val subnets = listOf("o0 o1 o2 o3", "o0 o1 s2 o3").map(::subnetOf)
        val times = measureSubnets(Workspace(bundle, runtime, cap), subnets, Timing(20))
        assertEquals(listOf(10, 10), times.map { it.runs })
        val alone = measureSubnets(Workspace(bundle, runtime), subnets, Timing(20))
        assertTrue(times.zip(alone).all { (paged, whole) -> paged.medianMs > 3 * whole.medianMs }, "$times $alone")
        assertEquals(0L, runtime.takenBytes)
    }

    @Test
    fun `a cap below the largest block is refused and says the least that works`() {
        val error = assertRefused<BudgetError> { profile(bundle, runtime, memoryCapBytes = SESSION_BYTES) }
        assertTrue(error.hint!!.startsWith("allow at least"), error.hint)
        assertEquals(0L, runtime.takenBytes)
    }

    @Test
    fun `a profile holds for its cap alone, and each is kept`() {
        val state = DeviceState(folder.toFile(), bundle, runtime)
        val own = Adaptations.profile.copy(conditions = currentConditions(), runtime = runtime.identity)
        val capped = own.copy(memoryCapBytes = 10 * MB)
        state.saveProfile(own)
        state.saveProfile(capped)
        assertEquals(listOf(own, capped), listOf(null, 10 * MB).map { state.loadProfile(own.conditions, it) })
        assertNull(state.loadProfile(own.conditions, 10 * MB + 1))
        assertFalse(capped.validFor(bundle, runtime, own.conditions))
        open(10 * MB).use { model ->
            assertEquals(capped, model.profileBlocking())
            model.memoryCapBytes = null
            assertEquals(own, model.profileBlocking())
        }
    }

    @Test
    fun `parts are in groups that can be there at once, with the reference where it has room`() {
        fun prints(vararg sizes: Long) = sizes.map { Footprint(5 * it * MB, it * MB, MB) }
        assertEquals(listOf(listOf(0, 1, 2), listOf(3)), groupsThatStay(prints(1, 1, 2, 8), 12 * MB, reference = 0))
        assertEquals(listOf(listOf(0), listOf(1, 2)), groupsThatStay(prints(3, 1, 1), 8 * MB, reference = 0))
        for (capBytes in 0L..120 * MB step 3 * MB) {
            val some = prints(3, 0, 9, 2, 2, 7, 1, 4)
            val found = groupsThatStay(some, capBytes, reference = 3)
            assertEquals(some.indices.toSet(), found.flatten().toSet())
            assertTrue(found.all { group -> group.size == 1 || allStay(group.map(some::get), capBytes) })
        }
    }
}

/** ONNX Runtime, and what its sessions take at once as paging reckons: weights by factors, tensors as they are. */
private class CountingRuntime : Runtime {
    private val engine = OnnxRuntime()
    override val identity get() = engine.identity

    var takenBytes = 0L
        private set
    var peakBytes = 0L
        private set
    var open = 0
        private set
    var mostOpen = 0
        private set

    fun reset() {
        peakBytes = 0
        mostOpen = 0
    }

    private fun take(bytes: Long): Unit = synchronized(this) {
        takenBytes += bytes
        peakBytes = maxOf(peakBytes, takenBytes)
    }

    override fun load(stretch: Stretch): LoadedStretch {
        val weights = stretch.fragments.sumOf { it.size.toLong() }
        val loadingBytes = rint(LOADING_FACTOR * weights).toLong() + SESSION_BYTES
        val residentBytes = rint(RESIDENT_FACTOR * weights).toLong() + SESSION_BYTES
        take(loadingBytes)
        val loaded = engine.load(stretch)
        take(residentBytes - loadingBytes)
        synchronized(this) { mostOpen = maxOf(mostOpen, ++open) }
        return object : LoadedStretch {
            private var closed = false

            override fun run(inputs: List<Tensor>): List<Tensor> {
                val outputs = loaded.run(inputs)
                val bytes = (inputs + outputs).sumOf { it.size.toLong() * it.dtype.bytes }
                take(bytes)
                take(-bytes)
                return outputs
            }

            override fun close() {
                loaded.close()
                synchronized(this@CountingRuntime) {
                    if (!closed) open--
                    take(if (closed) 0 else -residentBytes)
                    closed = true
                }
            }
        }
    }
}
