package pathweave.sdk.live

import java.io.File
import java.nio.file.Path
import org.junit.jupiter.api.AfterEach
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.Timeout
import org.junit.jupiter.api.assertThrows
import org.junit.jupiter.api.io.TempDir
import pathweave.sdk.AdaptiveModel
import pathweave.sdk.ClosedError
import pathweave.sdk.Contract
import pathweave.sdk.FaultServer
import pathweave.sdk.PostAnswer
import pathweave.sdk.UsageError
import pathweave.sdk.assertRefused
import pathweave.sdk.execution.PlanInUse
import pathweave.sdk.execution.Workspace
import pathweave.sdk.numerics.Tensor
import pathweave.sdk.offload.LinkEstimate
import pathweave.sdk.offload.Privacy
import pathweave.sdk.offload.RemoteModel
import pathweave.sdk.policies.planning.Offer
import pathweave.sdk.policies.planning.PlanFront
import pathweave.sdk.policies.planning.Way
import pathweave.sdk.runtimes.OnnxRuntime
import pathweave.sdk.session.DeviceState
import pathweave.sdk.session.Signal
import pathweave.sdk.session.logPath
import pathweave.sdk.supernet.Edge
import pathweave.sdk.supernet.Plan
import pathweave.sdk.supernet.RemoteRef
import pathweave.sdk.supernet.Requirement
import pathweave.sdk.supernet.Split
import pathweave.sdk.supernet.Subnet
import pathweave.sdk.supernet.Uplink

@Timeout(60)
class NetworkFollowerTest {
    @TempDir
    lateinit var folder: Path

    private val bundle = Contract.reference()
    private val here = Plan(bundle.supernet.original)
    private val there = here.copy(
        split = Split(0, emptyList(), emptyList(), RemoteRef("reference:images", bundle.digest)),
    )
    private val quick = Uplink(64.0, 1.0)
    private var nowS = 100.0
    private val inUse = PlanInUse(Workspace(bundle, OnnxRuntime())).also { it.begin(there) }

    @AfterEach
    fun close() = inUse.close()

    private inner class Plans(private val link: LinkEstimate) : NetworkPlans {
        var probes = 0
        var broken = false
        val exchanged = mutableListOf<Uplink?>()
        var seconds: Double? = 0.001

        override fun probe() {
            probes++
            seconds?.let { link.record(1, it) } ?: link.failed()
        }

        override fun best(uplink: Uplink?): Plan = when {
            broken -> Plan(Subnet(listOf(Edge("none"))))
            uplink == null || uplink.roundTripMs > 100 -> here
            else -> there
        }

        override fun exchanged(uplink: Uplink?) {
            exchanged += uplink
        }
    }

    private fun follower(work: (NetworkFollower, Plans) -> Unit) {
        val link = LinkEstimate(quick) { (nowS * 1e9).toLong() }
        val plans = Plans(link)
        val drift = NetworkDrift(quick, listOf(1L), DriftSettings(1.5, patienceS = 0.5, cooldownS = 1.0))
        NetworkFollower(inUse, link, drift, plans) { nowS }.use { work(it, plans) }
    }

    private fun looks(follower: NetworkFollower, count: Int) = repeat(count) {
        nowS += 0.25
        follower.look()
    }

    @Test
    fun `a server out of reach gives way to the device, and comes back`() = follower { follower, plans ->
        looks(follower, 8)
        assertEquals(there to true, inUse.running().plan to (plans.probes >= 2))
        plans.seconds = null
        looks(follower, 12)
        assertEquals(here, inUse.running().plan)
        assertEquals(listOf<Uplink?>(null), plans.exchanged)
        plans.seconds = 0.001
        looks(follower, 12)
        assertEquals(there, inUse.running().plan)
        assertEquals(2, plans.exchanged.size)
        val answered = inUse.call { it.loaded.run(Tensor.of(FloatArray(12), listOf(1, 3, 2, 2))) }
        assertEquals(1, answered.output.batch)
    }

    @Test
    fun `a plan that does not load leaves the one in use`() = follower { follower, plans ->
        plans.broken = true
        plans.seconds = null
        looks(follower, 20)
        assertEquals(there, inUse.running().plan)
        assertTrue(plans.exchanged.isEmpty())
    }

    @Test
    fun `nothing is exchanged after it was closed, or after the model was`() {
        follower { follower, plans ->
            follower.close()
            plans.seconds = null
            looks(follower, 12)
            assertEquals(there, inUse.running().plan)
        }
        follower { follower, plans ->
            plans.seconds = null
            inUse.close()
            assertThrows<ClosedError> { looks(follower, 12) }
        }
    }

    private fun front(plans: List<Plan>) = PlanFront(
        Requirement(latencyMs = 1000.0),
        power = null,
        uplink = Uplink(8.0, 0.5),
        inputBytes = 2000,
        answerMs = 0.0,
        samples = 10,
        offers = plans.map { plan ->
            val sent = if (plan.split == null) 0L else 500L
            Offer(plan, if (sent == 0L) 0.5 else 0.75, 1_000_000, 0.0, 0.0, 0.0, listOf(Way(10, 1.0, sent)))
        },
    )

    @Test
    fun `a model follows the network with the plans that were kept`() {
        val stateFolder = File(folder.toFile(), "state")
        val state = DeviceState(stateFolder, bundle, OnnxRuntime())
        FaultServer(folder.toFile()).use { server ->
            server.post = { PostAnswer(200, "{}") }
            AdaptiveModel.open(Contract.referenceFolder, selfTested = { true }, stateFolder = stateFolder).use { model ->
                val none = assertRefused<UsageError> { model.live.start(Signal.NETWORK) }
                assertTrue("no plans for other networks" in none.message!!)
                state.saveFront(front(listOf(here, there)))
                assertTrue("no server" in assertRefused<UsageError> { model.live.start(Signal.NETWORK) }.message!!)
                model.use(there)
                val remote = RemoteModel(server.url, "reference:images", privacy = Privacy.INPUTS)
                model.remote.connect(remote)
                model.live.start(Signal.NETWORK, drift = DriftSettings(factor = 1000.0, patienceS = 0.2, cooldownS = 0.2))
                assertEquals(setOf(Signal.NETWORK), model.live.running)
                waitUntil { server.requests.count { it == "/v1/probe" } >= 2 }
                assertEquals(there, model.plan)
                server.post = { null }
                waitUntil { model.plan == here }
                server.post = { PostAnswer(200, "{}") }
                waitUntil { model.plan == there }
                fun notes() = logPath(stateFolder, model.bundle).readLines().filter { "plan_chosen" in it }
                waitUntil { notes().size == 2 } // written after the exchange
                val notes = notes()
                assertTrue("the network changed: out of reach" in notes[0])
                assertTrue("Mbit/s" in notes[1])
                model.use(here)
                assertEquals(emptySet<Signal>(), model.live.running)
                model.live.start(Signal.NETWORK)
                model.remote.connect(remote)
                assertEquals(emptySet<Signal>(), model.live.running)
            }
        }
    }

    private fun waitUntil(happened: () -> Boolean) {
        val untilNs = System.nanoTime() + 20_000_000_000L
        while (!happened()) {
            assertTrue(System.nanoTime() < untilNs, "it did not happen in time")
            Thread.sleep(20)
        }
    }
}
