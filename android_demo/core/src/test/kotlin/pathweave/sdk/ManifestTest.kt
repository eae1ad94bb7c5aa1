package pathweave.sdk

import java.io.File
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonArray
import kotlinx.serialization.json.JsonElement
import kotlinx.serialization.json.JsonObject
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.DynamicTest
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.TestFactory

class ManifestTest {
    private val good = File(Contract.referenceFolder, "manifest.json").readBytes()
    private val tree = Json.parseToJsonElement(good.decodeToString())

    @TestFactory
    fun `the same manifests are taken everywhere`() = Contract.vectors["manifests"].items.map { case ->
        DynamicTest.dynamicTest(case["name"].text) {
            val path = case["path"].items.map { it.text }
            val changed = if (path.isEmpty()) tree else tree.changed(path, (case as JsonObject)["value"])
            assertOutcome(case["outcome"].text, changed.toString().toByteArray())
        }
    }

    @TestFactory
    fun `what is no manifest is refused everywhere`() = Contract.vectors["raw_manifests"].items.map { case ->
        DynamicTest.dynamicTest(case["name"].text) { assertOutcome(case["outcome"].text, case["data"].bytes) }
    }

    @Test
    fun `what is nested too deeply is refused, even where it would be ignored`() {
        for ((open, close) in listOf("[" to "]", "{\"a\":" to "}")) {
            val deep = open.repeat(100_000) + "1" + close.repeat(100_000)
            assertRefused<ManifestError> { decodeManifest("""{"format_version": "1.0", "x": $deep}""".toByteArray()) }
        }
    }

    @Test
    fun `a number of any length ends in an answer`() {
        val long = "9".repeat(1_000_000)
        assertRefused<ManifestError> { decodeManifest("""{"format_version": "1.0", "version": $long}""".toByteArray()) }
    }

    @Test
    fun `a missing field is named with its place`() {
        val changed = tree.changed(listOf("blocks", "3", "kind"), null)
        val error = assertRefused<ManifestError> { decodeManifest(changed.toString().toByteArray()) }
        assertTrue("`kind` - at `$.blocks[3]`" in error.message!!, error.message)
    }

    @Test
    fun `a damaged manifest is read or refused, but never anything else`() {
        val random = SplitMix64(1)
        repeat(500) {
            val damaged = good.copyOf()
            repeat(1 + random.below(3)) { damaged[random.below(damaged.size)] = random.below(256).toByte() }
            try {
                decodeManifest(damaged)
            } catch (_: BundleError) {
                // one of ours
            }
        }
    }

    @Test
    fun `a tensor larger than memory is refused`() {
        val huge = Json.parseToJsonElement("[2000000000, 2000000000, 2000000000]")
        val changed = tree.changed(listOf("cut_points", "1", "tensors", "0", "shape"), huge)
        assertRefused<ManifestError> { decodeManifest(changed.toString().toByteArray()) }
    }

    private fun assertOutcome(outcome: String, data: ByteArray) {
        val actual = try {
            decodeManifest(data)
            "accepted"
        } catch (error: PathweaveError) {
            error::class.simpleName
        }
        assertEquals(outcome, actual)
    }
}

/** This value with [value] at [path], or with nothing there if [value] is null. */
fun JsonElement.changed(path: List<String>, value: JsonElement?): JsonElement {
    val (step, rest) = path.first() to path.drop(1)
    if (this is JsonArray) {
        val index = step.toInt()
        val item = if (rest.isEmpty()) value else this[index].changed(rest, value)
        return JsonArray(subList(0, index) + listOfNotNull(item) + subList(index + 1, size))
    }
    val fields = this as JsonObject
    val field = if (rest.isEmpty()) value else fields.getValue(step).changed(rest, value)
    return JsonObject(if (field == null) fields - step else fields + (step to field))
}
