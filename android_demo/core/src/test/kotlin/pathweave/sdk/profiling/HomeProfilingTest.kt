package pathweave.sdk.profiling

import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import pathweave.sdk.Contract
import pathweave.sdk.bundles.Stretch
import pathweave.sdk.bundles.readFragment
import pathweave.sdk.execution.OpenHomes
import pathweave.sdk.execution.Workspace
import pathweave.sdk.numerics.Tensor
import pathweave.sdk.numerics.elements
import pathweave.sdk.policies.atBestHomes
import pathweave.sdk.policies.atEachHome
import pathweave.sdk.policies.atNamedHomes
import pathweave.sdk.runtimes.HomesRuntime
import pathweave.sdk.runtimes.LoadedStretch
import pathweave.sdk.runtimes.Runtime
import pathweave.sdk.search.Candidate
import pathweave.sdk.session.decodeProfile
import pathweave.sdk.session.encodeProfile
import pathweave.sdk.supernet.Cost
import pathweave.sdk.supernet.Home
import pathweave.sdk.supernet.Plan
import pathweave.sdk.supernet.Subnet

private class SharedClock(var nowNs: Long = 0)

/** A home on a clock of its own device: a run takes [perRunNs], and each block [perBlockNs]. */
private class TimedHome(private val clock: SharedClock, private val perBlockNs: Long, private val perRunNs: Long) : Runtime {
    override val identity get() = "timed"

    override fun load(stretch: Stretch): LoadedStretch {
        val blocks = stretch.fragments.count { fragment ->
            readFragment(fragment).definedNames().none { it.startsWith("shared/") }
        }
        return object : LoadedStretch {
            override fun run(inputs: List<Tensor>): List<Tensor> {
                clock.nowNs += perRunNs + blocks * perBlockNs
                return stretch.outputs.map { spec ->
                    val shape = listOf(inputs[0].batch) + spec.shape
                    Tensor.converted(spec.dtype, shape, FloatArray(elements(shape, Float.SIZE_BYTES)))
                }
            }

            override fun close() = Unit
        }
    }
}

class HomeProfilingTest {
    private val clock = SharedClock()
    private val homes = listOf(Home(), Home(threads = 2))
    private val runtime = HomesRuntime(
        mapOf(homes[0] to TimedHome(clock, 400_000, 50_000), homes[1] to TimedHome(clock, 200_000, 50_000)),
        "timed",
    )
    private val bundle = Contract.reference()
    private val workspace = Workspace(bundle, runtime, homes = OpenHomes(homes))
    private val profile = profile(workspace, rounds = 3, clock = { clock.nowNs })
    private val named = profile.costModel()
    private val original = bundle.supernet.original

    private fun Subnet.on(home: String) = Subnet(edges.map { it.on(home) })

    @Test
    fun `every edge is measured at each home and every crossing is fitted`() {
        val edges = bundle.supernet.edges.flatMap { listOf(it, it.on("cpu-2t")) }.toSet()
        assertEquals(edges, profile.edges.keys)
        assertEquals(setOf("" to "cpu-2t", "cpu-2t" to ""), profile.crossings.map { it.before to it.after }.toSet())
        for (measured in profile.fitted) {
            assertEquals(measured.measuredMs, named.latencyMs(measured.subnet), 0.1 * measured.measuredMs)
        }
        assertEquals(original, profile.fitted[0].subnet)
    }

    @Test
    fun `a profile of several homes is kept as it is`() {
        assertEquals(profile, decodeProfile(encodeProfile(profile)))
    }

    @Test
    fun `a search sees the faster home and what it found names it`() {
        val free = atBestHomes(workspace, named)
        assertEquals(original.on("cpu-2t"), free.housed(original))
        val candidate = Candidate(Plan(original), Cost(1.0, 1), accuracy = 0.5)
        val found = atNamedHomes(listOf(candidate), free, named).map { it.subnet }
        assertEquals(listOf(original.on("cpu-2t"), original), found)
        assertTrue(free.latencyMs(original) < named.latencyMs(original))
    }

    @Test
    fun `a limit of threads leaves the faster home out`() {
        val one = atBestHomes(workspace, named, threads = 1)
        assertEquals(original, one.housed(original))
        val candidate = Candidate(Plan(original), Cost(1.0, 1), accuracy = 0.5)
        assertEquals(emptyList<Candidate>(), atEachHome(workspace, named, candidate, threads = 1))
        assertEquals(listOf(original.on("cpu-2t")), atEachHome(workspace, named, candidate, null).map { it.subnet })
    }
}
