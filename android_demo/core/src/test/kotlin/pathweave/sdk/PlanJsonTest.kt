package pathweave.sdk

import kotlinx.serialization.json.jsonObject
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.DynamicTest
import org.junit.jupiter.api.TestFactory

class PlanJsonTest {
    private val supernet = Contract.reference().supernet
    private val taken = Contract.vectors["subnets"].items.filter { "text" in it.jsonObject }
    private val refused = Contract.vectors["subnets"].items - taken.toSet()

    @TestFactory
    fun `subnets as JSON are the same everywhere`() = taken.map { case ->
        DynamicTest.dynamicTest(case["text"].text) {
            val subnet = decodeSubnet(case["json"].text.toByteArray())
            supernet.check(subnet)
            assertEquals(case["text"].text, subnet.toString())
            assertEquals(subnetOf(case["text"].text), subnet)
            assertEquals(case["input_size"].takeIf { it.items.isNotEmpty() }?.size, subnet.inputSize)
            assertEquals(case["json"].text, encodeSubnet(subnet).decodeToString())
        }
    }

    @TestFactory
    fun `what is no subnet of the bundle is refused`() = refused.map { case ->
        DynamicTest.dynamicTest(case["json"].text) {
            assertRefused<UsageError> { supernet.check(decodeSubnet(case["json"].text.toByteArray())) }
        }
    }
}
