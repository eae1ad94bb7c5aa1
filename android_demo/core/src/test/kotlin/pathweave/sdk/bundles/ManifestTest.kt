package pathweave.sdk.bundles

import java.io.File
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonArray
import kotlinx.serialization.json.JsonElement
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.JsonPrimitive
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.DynamicTest
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.TestFactory
import pathweave.sdk.BundleError
import pathweave.sdk.Contract
import pathweave.sdk.ManifestError
import pathweave.sdk.PathweaveError
import pathweave.sdk.SplitMix64
import pathweave.sdk.assertRefused
import pathweave.sdk.bytes
import pathweave.sdk.get
import pathweave.sdk.int
import pathweave.sdk.items
import pathweave.sdk.supernet.Block
import pathweave.sdk.supernet.BlockKind
import pathweave.sdk.supernet.CutPoint
import pathweave.sdk.supernet.Edge
import pathweave.sdk.supernet.Member
import pathweave.sdk.supernet.Plan
import pathweave.sdk.supernet.SampleSize
import pathweave.sdk.supernet.Subnet
import pathweave.sdk.supernet.Supernet
import pathweave.sdk.supernet.TensorSpec
import pathweave.sdk.supernet.decodePlan
import pathweave.sdk.supernet.encodePlan
import pathweave.sdk.text

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
    fun `the plan of a hybrid's base is kept as text`() {
        fun withHybrid(role: String): ByteArray {
            val plan = JsonPrimitive(encodePlan(Plan(Subnet(listOf(Edge("o0"))))).decodeToString())
            val hybrid = """{"role": "$role", "path": ["o0"], "partner": "big", "partner_path": "00", "plan": $plan}"""
            return JsonObject((tree as JsonObject) + ("hybrid" to Json.parseToJsonElement(hybrid))).toString().toByteArray()
        }
        val found = decodeManifest(withHybrid("base")).hybridPlan!!
        assertEquals(Plan(Subnet(listOf(Edge("o0")))), decodePlan(found.toByteArray()))
        assertEquals(null, decodeManifest(good).hybridPlan)
        assertRefused<ManifestError> { decodeManifest(withHybrid("middle")) }
    }

    @Test
    fun `members are read, and make the graph`() {
        fun withMembers(members: String): ByteArray =
            JsonObject((tree as JsonObject) + ("members" to Json.parseToJsonElement(members))).toString().toByteArray()
        val ids = decodeManifest(good).supernet().original.edges.map { it.block }
        val blocks = ids.joinToString { "\"$it\"" }
        val manifest = decodeManifest(withMembers("""[{"name": "whole", "blocks": [$blocks], "accuracy": 0.75}]"""))
        assertEquals(listOf(Member("whole", ids, accuracy = 0.75)), manifest.members)
        assertEquals(manifest.members, manifest.supernet().members)
        assertEquals(emptyList<Member>(), decodeManifest(good).members)
        assertEquals(null, decodeManifest(withMembers("""[{"name": "a", "blocks": [$blocks]}]""")).members[0].accuracy)
        for ((members, message) in listOf(
            """[{"name": "a", "blocks": [$blocks, "o0"]}]""" to "the members do not list each original block once",
            """[{"name": "${"n".repeat(4_097)}", "blocks": [$blocks]}]""" to "has more than 4096 characters",
            """[{"blocks": [$blocks]}]""" to "`name` - at `$.members[0]`",
        )) {
            val error = assertRefused<ManifestError> { decodeManifest(withMembers(members)) }
            assertTrue(message in error.message!!, error.message)
        }
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

    @Test
    fun `a tensor that is larger than memory at another input size is refused`() {
        val path = listOf("input_sizes", "0", "shapes", "1", "0", "0")
        val changed = tree.changed(path, Json.parseToJsonElement("2000000000"))
        val error = assertRefused<ManifestError> { decodeManifest(changed.toString().toByteArray()) }
        assertTrue("4000000000 elements of a tensor in the self-test" in error.message!!, error.message)
    }

    @Test
    fun `what is wrong with an input size is said`() {
        val block = listOf("blocks", "1", "renditions", "0", "any_size")
        val sizes = listOf("input_sizes", "1", "size")
        for ((path, value, message) in listOf(
            Triple(block, "false", "block o1 runs at no other input size than the model's own"),
            Triple(sizes, "[1, 1]", "an input size is listed twice, or is the model's own"),
            Triple(sizes, "[2, 2]", "an input size is listed twice, or is the model's own"),
            Triple(sizes, "[5, 4]", "the input size 5x4 has other ends than the model"),
            Triple(sizes, "[4]", "the input size 4 has other ends than the model"),
            Triple(sizes, "[4, 4, 4]", "Expected a height and a width, or a length - at `$.input_sizes[1].size`"),
        )) {
            val changed = tree.changed(path, Json.parseToJsonElement(value)).toString().toByteArray()
            val error = assertRefused<ManifestError> { decodeManifest(changed) }
            assertTrue(message in error.message!!, error.message)
        }
    }

    @Test
    fun `input sizes stay only if every original block still runs at them`() {
        val manifest = decodeManifest(good)
        assertEquals(listOf(null, SampleSize(1, 1), SampleSize(4, 4)), manifest.runnablePart { true }.supernet().sizes)
        val entry = manifest.blocks[0].renditions[0]
        assertEquals(listOf(null), manifest.runnablePart { it != entry }.supernet().sizes)
    }

    @TestFactory
    fun `one more than the limit is refused because of it`() = Contract.vectors["manifest_limits"].items.map { case ->
        DynamicTest.dynamicTest("${case["refusal"].text} at ${case["path"]}") {
            val refusal = case["refusal"].text
            val error = assertRefused<ManifestError> { decodeManifest(repeated(case, case["most"].int + 1)) }
            assertTrue(refusal in error.message!!, error.message)
            try {
                decodeManifest(repeated(case, case["most"].int))
            } catch (within: ManifestError) {
                assertTrue(refusal !in within.message!!, within.message)
            }
        }
    }

    /** The manifest with an item at the path of [case], or a letter that UTF-16 writes as two, [count] times. */
    private fun repeated(case: JsonElement, count: Int): ByteArray {
        val path = case["path"].items.map { it.text }
        fun there() = path.fold(tree) { found, step -> if (found is JsonArray) found[step.toInt()] else found[step] }
        val item = (case as JsonObject)["item"] ?: (there() as? JsonArray)?.get(0)
        val value = if (item == null) JsonPrimitive("\uD834\uDD1E".repeat(count)) else JsonArray(List(count) { item })
        return tree.changed(path, value).toString().toByteArray()
    }

    @Test
    fun `more elements than a self-test may have are refused`() {
        val path = listOf("cut_points", "1", "tensors", "0", "shape")
        val changed = tree.changed(path, Json.parseToJsonElement("[134217729]")) // in a batch of two
        val error = assertRefused<ManifestError> { decodeManifest(changed.toString().toByteArray()) }
        assertTrue("268435458 elements of a tensor in the self-test; 268435456 are allowed" in error.message!!)
    }

    @Test
    fun `long blocks over many mandatory cut points are checked in a few times what reading takes`() {
        val cuts = List(4_096) { CutPoint(it, listOf(TensorSpec("cut_$it", listOf(3)))) }
        val rendition = decodeManifest(good).blocks[0].renditions[0]
        val originals = List(4_095) { Block("o$it", it, it + 1, BlockKind.ORIGINAL, 0, 0, listOf(rendition)) }
        val long = List(12_000) { Block("m$it", 0, 4_095, BlockKind.MERGED, 0, 0, listOf(rendition)) }
        val startedNs = System.nanoTime()
        Supernet(cuts, originals + long)
        assertTrue(System.nanoTime() - startedNs < 2e9)
        val mandatory = cuts.map { if (it.index == 4_094) it.copy(mandatory = true) else it }
        val error = assertRefused<ManifestError> { Supernet(mandatory, originals + long) }
        assertTrue("block m0 jumps over the mandatory cut point 4094" in error.message!!, error.message)
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
