package pathweave.sdk.bundles

import java.io.File
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonArray
import kotlinx.serialization.json.JsonElement
import kotlinx.serialization.json.JsonNull
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.boolean
import kotlinx.serialization.json.jsonObject
import kotlinx.serialization.json.jsonPrimitive
import kotlinx.serialization.json.long
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.DynamicTest
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.TestFactory
import pathweave.sdk.CompositionError
import pathweave.sdk.Contract
import pathweave.sdk.assertRefused
import pathweave.sdk.bytes
import pathweave.sdk.double
import pathweave.sdk.get
import pathweave.sdk.int
import pathweave.sdk.items
import pathweave.sdk.supernet.TensorSpec
import pathweave.sdk.text

class SizesTest {
    private val vectors = Json.parseToJsonElement(File(Contract.repository, "tests/contract/shapes.json").readText())
    private val ends = List(2) { TensorSpec("cut_$it", listOf(4, 8, 8)) }

    private fun stretch(vararg fragments: ByteArray, owners: List<String> = emptyList()) =
        Stretch(fragments.map(BlobBytes::of), ends.take(1), ends.drop(1), irVersion = 10, opset = 20, owners = owners)

    @TestFactory
    fun `models are refused for their sizes alike`() = vectors["models"].items.map { case ->
        DynamicTest.dynamicTest(case["name"].text) {
            val stretch = stretch(case["fragment"].bytes)
            if (case["refusal"] is JsonNull) {
                compose(stretch)
            } else {
                val error = assertRefused<CompositionError> { compose(stretch) }
                assertTrue(case["refusal"].text in error.message!!, error.message)
            }
        }
    }

    @Test
    fun `the error names the block`() {
        val large = vectors["models"].items[0]["fragment"].bytes
        val stretch = stretch(ByteArray(0), large, owners = listOf("block o0@fp32", "block o1@fp32"))
        val error = assertRefused<CompositionError> { compose(stretch) }
        assertTrue(error.message!!.startsWith("block o1@fp32 is refused: operator ConstantOfShape"), error.message)
    }

    @Test
    fun `what is inferred of nodes is the same everywhere`() {
        val different = vectors["nodes"].items.mapNotNull { case ->
            val actual = inferred(case)
            val expected = case["found"].let { found -> if (found is JsonArray) found.map(::written) else found.text }
            "${case["operator"].text} of ${case["given"]} with ${case["attributes"]}: $expected, not $actual"
                .takeIf { actual != expected }
        }
        assertEquals("", different.joinToString("\n"))
        assertTrue(vectors["nodes"].items.size > 1_000)
    }

    /** Text that is equal for what is equal. */
    private fun inferred(case: JsonElement): Any {
        val given = case["given"].items.map { if (it is JsonNull) null else tensor(it) }
        val attributes = case["attributes"].jsonObject.mapValues { (_, value) -> attribute(value) }
        return try {
            infer(case["operator"].text, given, Attributes(attributes), case["outputs"].int).map { one ->
                one.shape.toString() + (one.values?.let { values -> List(values.size) { values.double(it) } } ?: "")
            }
        } catch (_: UndeterminedError) {
            "undetermined"
        }
    }

    private fun written(found: JsonElement): String = shape(found).toString() +
        ((found as JsonObject)["values"]?.items?.map { it.double } ?: "")

    private fun shape(value: JsonElement): List<Long>? =
        value["shape"].takeIf { it !is JsonNull }?.items?.map { it.jsonPrimitive.long }

    private fun tensor(value: JsonElement): Inferred {
        val shape = shape(value)
        val values = (value as JsonObject)["values"]?.items ?: return Inferred(shape)
        val extents = shape!!.map { it.toInt() }
        return if (value.getValue("integers").jsonPrimitive.boolean) {
            Inferred(shape, Values(extents, LongArray(values.size) { values[it].jsonPrimitive.long }))
        } else {
            Inferred(shape, Values(extents, null, DoubleArray(values.size) { values[it].double }))
        }
    }

    private fun attribute(value: JsonElement): Any = when (value) {
        is JsonArray -> value.map { it.jsonPrimitive.long }
        is JsonObject -> value.getValue("text").text
        else -> value.jsonPrimitive.long
    }
}
