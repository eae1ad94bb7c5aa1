package pathweave.sdk

import java.io.File
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.Timeout
import pathweave.sdk.bundles.Trust
import pathweave.sdk.data.Image
import pathweave.sdk.session.DeviceConditions
import pathweave.sdk.session.UpdateWork
import pathweave.sdk.session.WorkResult
import pathweave.sdk.session.openAt
import pathweave.sdk.session.openStored

private const val MOST_LINES = 20

// the guide's lines
/** The model at [url]: opens what is on the device, and gets the newest in the background. */
class Models(private val url: String, private val folder: File, private val trust: Trust) {
    /** Without the network, unless nothing was fetched yet. Not on the main thread. */
    fun open(): AdaptiveModel {
        val opened = try {
            openStored(url, folder, trust)
        } catch (_: UsageError) { // nothing here yet
            openAt(url, folder, trust)
        }
        return AdaptiveModel.open(opened, stateFolder = folder)
    }

    /** In a job, once a day: the next [open] has what it fetched. */
    fun update(conditions: () -> DeviceConditions): WorkResult = UpdateWork(url, folder, trust).run(conditions)
}

/** The label of [image]; null where the model abstains. */
fun classify(model: AdaptiveModel, image: Image): String? = model(image).labels[0]
// end of the guide's lines

/** docs/guide/from_firebase_ml.md is right: its lines are those above, and they run. */
@Timeout(60)
class FromFirebaseGuideTest : PublishedTest() {
    private val source =
        File(Contract.repository, "android_demo/core/src/test/kotlin/pathweave/sdk/FromFirebaseGuideTest.kt").readText()
    private val lines = source.substringAfter("// the guide's lines\n").substringBefore("// end of")

    @Test
    fun `the first open fetches, later ones need no network, an update is there at the next open`() {
        val models = Models(url, state, Contract.key)
        val size = AdaptiveModel.open(Contract.referenceFolder, Contract.key).use { it.imageSize!! }
        val image = Image(ByteArray(12), size, channels = 3)
        models.open().use { assertTrue(classify(it, image)!!.isNotEmpty()) }
        server.requests.clear()
        models.open().use { assertEquals(1L, it.bundle.manifest.version) }
        assertEquals(0, server.requests.size)
        Published.write(www, 2)
        val updated = models.update { DeviceConditions(unmetered = true, charging = true) }
        assertEquals(WorkResult.Updated(2, changed = true), updated)
        models.open().use { assertEquals(2L, it.bundle.manifest.version) }
    }

    @Test
    fun `they are those of the guide, and few`() {
        val guide = File(Contract.repository, "docs/guide/from_firebase_ml.md").readText()
        assertEquals(guide.substringAfter("```kotlin\n").substringBefore("```"), lines)
        assertTrue(lines.lines().count { it.isNotBlank() } <= MOST_LINES)
    }
}
