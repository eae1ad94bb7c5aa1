package pathweave.sdk.session

import java.io.File
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertNull
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.Timeout
import pathweave.sdk.AdaptiveModel
import pathweave.sdk.Contract
import pathweave.sdk.NoRuntime
import pathweave.sdk.Published
import pathweave.sdk.PublishedTest
import pathweave.sdk.SOON_S
import pathweave.sdk.SelfTestError
import pathweave.sdk.Signed
import pathweave.sdk.bundles.Bundle
import pathweave.sdk.delivery.ASSIGNMENT
import pathweave.sdk.delivery.DeliveryOptions
import pathweave.sdk.delivery.DeliverySource
import pathweave.sdk.delivery.Refusal
import pathweave.sdk.delivery.RefusalReason
import pathweave.sdk.delivery.VERSIONS
import pathweave.sdk.files.sha256
import pathweave.sdk.logs.readLog

/** An app whose server rolls releases out: what it asks, opens and reports. */
@Timeout(60)
class RolloutOpeningTest : PublishedTest() {
    private val good = DeviceConditions(unmetered = true, charging = true)
    private val tags = mapOf("region" to "eu")
    private val failing = { bundle: Bundle ->
        if (bundle.manifest.version == 2L) throw SelfTestError("block o1 does not reproduce its golden outputs")
    }

    private fun publish(version: Int) =
        Published.write(www, version, Published.blob(version), path = "${Published.PATH}/$VERSIONS/$version")

    private fun assign(version: Int, rollback: Boolean = false) = File(www, "${Published.PATH}/$ASSIGNMENT")
        .writeText("""{"version": $version, "rollout": 1, "stage": 0, "rollback": $rollback}""")

    private fun open(selfTest: (Bundle) -> Unit = {}): OpenedBundle = openAt(
        url, state, Contract.key, runtime = NoRuntime, options = DeliveryOptions(wallClockS = { SOON_S }, tags = tags),
        selfTest = selfTest,
    )

    private fun events(bundle: Bundle) = readLog(logPath(state, bundle)).map { it.event to it.fields }

    @Test
    fun `an app asks by the name under which it sends its log, and by its tags`() {
        publish(2)
        assign(2)
        open().use { assertEquals(2L, it.bundle.manifest.version) }
        val asked = server.headers[server.requests.indexOfFirst { ASSIGNMENT in it }]
        assertEquals(deviceId(state) to "region=eu", asked["pathweave-device"] to asked["pathweave-tags"])
    }

    @Test
    fun `a version that fails its self-test is reported in the log of the one that stays`() {
        publish(1)
        val second = publish(2)
        assign(1)
        open().close()
        assign(2)
        open(failing).use { opened ->
            val refusal = Refusal(2, sha256(File(second, "manifest.json").readBytes()), RefusalReason.SELF_TEST)
            assertEquals(refusal to 1L, opened.delivered.refused to opened.bundle.manifest.version)
            AdaptiveModel.open(opened, stateFolder = state).use { model ->
                val (came, kept, refused, begun) = events(model.bundle)
                assertEquals(listOf("delivered", "delivered", "refused", "opened"), listOf(came, kept, refused, begun).map { it.first })
                assertEquals("downloaded" to "kept", came.second["how"] to kept.second["how"])
                val failure = "block o1 does not reproduce its golden outputs"
                val expected = mapOf("version" to "2", "digest" to refusal.digest, "reason" to "self_test", "failure" to failure)
                assertEquals(expected, refused.second)
            }
        }
    }

    @Test
    fun `background work asks with the tags, and its refusals are in the log that is sent`() {
        publish(1)
        publish(2)
        assign(1)
        val open = { stopped: () -> Boolean ->
            openAt(
                url, state, Contract.key, runtime = NoRuntime, options = DeliveryOptions(stopped = stopped, tags = tags),
                selfTest = failing,
            )
        }
        val work = UpdateWork(url, state, Contract.key, open = open)
        assertEquals(WorkResult.Updated(1, changed = true), work.run({ good }))
        assign(2)
        assertTrue(work.run({ good }) is WorkResult.Failed)
        val bundle = openStored(url, state, Contract.key, NoRuntime, selfTest = {}).use { it.bundle }
        assertEquals(listOf("delivered", "delivered", "refused"), events(bundle).map { it.first })
        assertEquals("self_test", events(bundle).last().second["reason"])

        UpdateWork(url, state, Contract.key, tags = mapOf("region" to "us")).run({ good })
        assertEquals("region=us", server.headers.last { "pathweave-device" in it }["pathweave-tags"])
        val refused = UpdateWork(url, state, Contract.key, tags = mapOf("region" to "u s")).run({ good })
        assertTrue(refused is WorkResult.Failed && !refused.retry)
    }

    @Test
    fun `a signed rollback is taken, and opens offline`() {
        val first = publish(1)
        publish(2)
        assign(2)
        open().close()
        assign(1, rollback = true)
        File(first, "rollback.json").writeBytes(Signed.rollback(File(first, "manifest.json").readBytes(), 1, 2))
        open().use { assertEquals(1L to 2L, it.bundle.manifest.version to it.delivered.rollbackFrom) }
        stop()
        open().use {
            assertEquals(1L to DeliverySource.KEPT, it.bundle.manifest.version to it.delivered.source)
            assertNull(it.delivered.refused)
        }
        openStored(url, state, Contract.key, NoRuntime, selfTest = {}).use { assertEquals(1L, it.bundle.manifest.version) }
    }
}
