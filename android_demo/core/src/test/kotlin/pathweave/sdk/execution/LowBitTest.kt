package pathweave.sdk.execution

import java.io.File
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonElement
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.DynamicTest
import org.junit.jupiter.api.TestFactory
import pathweave.sdk.Contract
import pathweave.sdk.bundles.BlobBytes
import pathweave.sdk.bundles.Stretch
import pathweave.sdk.bytes
import pathweave.sdk.double
import pathweave.sdk.get
import pathweave.sdk.int
import pathweave.sdk.items
import pathweave.sdk.numerics.DType
import pathweave.sdk.numerics.Tensor
import pathweave.sdk.runtimes.OnnxRuntime
import pathweave.sdk.supernet.TensorSpec
import pathweave.sdk.text

class LowBitTest {
    private val file = File(Contract.repository, "tests/contract/low_bit.json")

    @TestFactory
    fun `what is stored in few bits answers as in Python`() = Json.parseToJsonElement(file.readText()).items.map {
        DynamicTest.dynamicTest("${it["kind"].text} in ${it["bits"].int} bits") { assertAnswers(it) }
    }

    private fun assertAnswers(case: JsonElement) {
        val (start, end) = case["ends"].items.map { spec(it) }
        val given = case["input"].items.map { it.double.toFloat() }.toFloatArray()
        val stretch = Stretch(
            listOf(BlobBytes.of(case["fragment"].bytes)),
            listOf(start),
            listOf(end),
            case["ir_version"].int.toLong(),
            case["opset"].int.toLong(),
        )
        val answer = OnnxRuntime().load(stretch).use { loaded ->
            loaded.run(listOf(Tensor.of(given, listOf(2) + start.shape))).map { out -> List(out.size) { out[it] } }
        }
        assertEquals(listOf(case["output"].items.map { it.double }), answer)
    }

    private fun spec(value: JsonElement) =
        TensorSpec(value["name"].text, value["shape"].items.map { it.int }, DType.named(value["dtype"].text)!!)
}
