package pathweave.sdk.session

import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.Timeout
import pathweave.sdk.Contract
import pathweave.sdk.Fault
import pathweave.sdk.Published
import pathweave.sdk.PublishedTest
import pathweave.sdk.delivery.DeliveryOptions

@Timeout(60)
class UpdateWorkTest : PublishedTest() {
    private val good = DeviceConditions(unmetered = true, charging = true)

    private fun work(constraints: WorkConstraints = WorkConstraints()) =
        UpdateWork(url, state, Contract.key, constraints = constraints) { stopped ->
            openAt(url, state, Contract.key, options = DeliveryOptions(attempts = 1, stopped = stopped), selfTest = {})
        }

    @Test
    fun `it installs, says whether that changed anything, and the next open finds it`() {
        assertEquals(WorkResult.Updated(1, changed = true), UpdateWork(url, state, Contract.key).run({ good }))
        assertEquals(WorkResult.Updated(1, changed = false), work().run({ good }))
        Published.write(www, 2, Published.blob(2))
        assertEquals(WorkResult.Updated(2, changed = true), work().run({ good }))
        openStored(url, state, Contract.key, selfTest = {}).use { assertEquals(2L, it.delivered.version) }
    }

    @Test
    fun `nothing is asked for where the constraints do not hold`() {
        for ((conditions, constraints) in listOf(
            good.copy(unmetered = false) to WorkConstraints(),
            good.copy(charging = false) to WorkConstraints(),
            DeviceConditions(unmetered = false, charging = true) to WorkConstraints(charging = false),
            DeviceConditions(unmetered = true, charging = false) to WorkConstraints(unmetered = false),
        )) {
            assertEquals(WorkResult.Postponed, work(constraints).run({ conditions }))
        }
        assertEquals(emptyList<String>(), server.requests.toList())
        val anyTime = WorkConstraints(unmetered = false, charging = false)
        assertTrue(work(anyTime).run({ DeviceConditions(unmetered = false, charging = false) }) is WorkResult.Updated)
    }

    @Test
    fun `it ends when the cable is pulled, and goes on where it stopped`() {
        val blob = Published.blob(2, size = 400_000)
        Published.write(www, 2, blob)
        fun came() = storeIn(state).partial.listFiles().orEmpty().sumOf { it.length() }
        val result = work().run({ good.copy(charging = came() < 100_000) })
        assertEquals(WorkResult.Postponed, result)
        val left = came()
        assertTrue(left in 1 until blob.size, "$left")
        server.ranges.clear()
        assertEquals(WorkResult.Updated(2, changed = true), work().run({ good }))
        assertEquals(1, server.ranges.count { it != null })
    }

    @Test
    fun `what may pass is tried again soon, what cannot is not`() {
        work().run({ good })
        server.fault("manifest.json", Fault(Fault.Kind.CUT, 5))
        assertEquals(true, work().run({ good }).retry)
        server.fault("manifest.json", Fault(Fault.Kind.STATUS, 503))
        assertEquals(true, work().run({ good }).retry)
        server.fault("manifest.json", Fault(Fault.Kind.STATUS, 401))
        assertEquals(false, work().run({ good }).retry)
        Published.write(www, 3, name = "another")
        val refused = work().run({ good })
        assertTrue(refused is WorkResult.Failed && !refused.retry, refused.toString())
        stop()
        assertTrue(work().run({ good }).let { it is WorkResult.Failed && it.retry })
        assertEquals(false, UpdateWork("no address", state, null).run({ good }).retry)
    }
}
