package pathweave.sdk.supernet

import kotlinx.serialization.json.jsonObject
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.DynamicTest
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.TestFactory
import pathweave.sdk.Contract
import pathweave.sdk.UsageError
import pathweave.sdk.assertRefused
import pathweave.sdk.files.shortestDecimal
import pathweave.sdk.get
import pathweave.sdk.items
import pathweave.sdk.size
import pathweave.sdk.subnetOf
import pathweave.sdk.text

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

    @Test
    fun `a field that this SDK does not know is refused, not dropped`() {
        val refused = assertRefused<UsageError> {
            decodeSubnet("""{"edges":[{"block":"o0"},{"block":"o1","precision":4}]}""".toByteArray())
        }
        assertEquals("this is no subnet: Object contains unknown field `precision` - at `$.edges[1]`", refused.message)
        assertRefused<UsageError> { decodeSubnet("""{"edges":[],"name":"small"}""".toByteArray()) }
    }
}

class PlansAsJsonTest {
    private val supernet = Contract.reference().supernet
    private val taken = Contract.vectors["plans"].items.filter { "kind" in it.jsonObject }
    private val refused = Contract.vectors["plans"].items - taken.toSet()

    @TestFactory
    fun `plans as JSON are the same everywhere`() = taken.mapIndexed { number, case ->
        DynamicTest.dynamicTest("$number: ${case["kind"].text}") {
            val plan = decodePlan(case["json"].text.toByteArray())
            supernet.checkPlan(plan)
            assertEquals(case["kind"].text, plan.kind)
            assertEquals(case["json"].text, encodePlan(plan).decodeToString())
        }
    }

    @TestFactory
    fun `what is no plan of the bundle is refused`() = refused.mapIndexed { number, case ->
        DynamicTest.dynamicTest("$number: ${case["json"].text.takeLast(60)}") {
            assertRefused<UsageError> { supernet.checkPlan(decodePlan(case["json"].text.toByteArray())) }
        }
    }

    @TestFactory
    fun `a refusal says what and where`() = mapOf(
        """"format":1""" to "this is a plan of format 1, not of format 2",
        """"format":2.0""" to "this is no plan: Expected an integer - at `$.format`",
        """"first":1""" to "this is a plan of the first format, not of format 2",
        """"format":2,"escalation":{}""" to "this is no plan: Object contains unknown field `escalation` - at `$`",
        """"format":2,"hard":{"kind":"pray"}""" to "this is no plan: Invalid value 'pray' - at `$.hard.kind`",
        """"format":2,"hard":{"kind":"answer","loudly":true}""" to
            "this is no plan: Object contains unknown field `loudly` - at `$.hard`",
        """"format":2,"hard":{"kind":"abstain","decider":{"kind":"oracle","threshold":1}}""" to
            "this is no plan: Invalid value 'oracle' - at `$.hard.decider.kind`",
        """"format":2,"hard":{"kind":"abstain","decider":{"kind":"margin","threshold":null}}""" to
            "this is no plan: Expected a number - at `$.hard.decider.threshold`",
        """"format":2,"hard":{"kind":"ask","decider":{"kind":"margin","threshold":1},"server":{},"sends":0}""" to
            "this is no plan: Expected an integer from 1 to 2147483647 - at `$.hard.sends`",
        """"format":2,"hard":{"kind":"ask","decider":{"kind":"margin","threshold":1},"server":{},"sends":"all"}""" to
            "this is no plan: Invalid value 'all' - at `$.hard.sends`",
        """"format":2,"split":{"position":2,"bits":[8],"tail":[],"server":{"port":1}}""" to
            "this is no plan: Object contains unknown field `port` - at `$.split.server`",
        """"format":2,"exits":[{"exit":"x","threshold":"1"}]""" to
            "this is no plan: Expected a number - at `$.exits[0].threshold`",
        """"format":2,"exits":[{"exit":"x","threshold":1,"ask_below":"0"}]""" to
            "this is no plan: Expected a number - at `$.exits[0].ask_below`",
    ).map { (fields, message) ->
        DynamicTest.dynamicTest(fields) {
            val data = """{$fields,"subnet":{"edges":[]}}""".toByteArray()
            val error = assertRefused<UsageError> { decodePlan(data) }
            assertEquals(message, error.message)
            assertTrue("another version of Pathweave" in error.hint!!)
        }
    }

    @Test
    fun `fields that Python may leave out have its defaults`() {
        val plan = decodePlan("""{"format":2,"subnet":{"edges":[{"block":"o0"}]}}""".toByteArray())
        assertEquals(Plan(subnetOf("o0")), plan)
        val exits = """[{"exit":"x","threshold":1}]"""
        val early = decodePlan("""{"format":2,"subnet":{"edges":[]},"exits":$exits}""".toByteArray())
        assertEquals(Plan(Subnet(emptyList()), listOf(ExitChoice("x", 1.0))), early)
        val ask = decodePlan(
            """{"hard":{"server":{},"decider":{"threshold":1,"kind":"margin"},"kind":"ask"},
               "subnet":{"edges":[]},"format":2}""".toByteArray(),
        )
        assertEquals(Plan(Subnet(emptyList()), hard = Hard.Ask(Decider.Margin(1.0), RemoteRef())), ask)
    }

    @Test
    fun `names are escaped as in Python`() {
        val server = RemoteRef("a\"\\/\b\t\n\u000c\r\u0000\u001f\u007fé\u2028\uD83D\uDE00<>&'")
        val plan = Plan(Subnet(emptyList()), hard = Hard.Ask(Decider.Margin(0.5), server))
        val written = encodePlan(plan).decodeToString()
        val model = "a\\\"\\\\/\\b\\t\\n\\f\\r\\u0000\\u001f\u007fé\u2028\uD83D\uDE00<>&'"
        assertTrue("\"model\":\"$model\"" in written, written)
        assertEquals(plan, decodePlan(written.toByteArray()))
    }

    @TestFactory
    fun `numbers are written as in Python`() = mapOf(
        0.0 to "0.0",
        -0.0 to "-0.0",
        1.0 to "1.0",
        0.1 + 0.2 to "0.30000000000000004",
        2e-3 to "0.002",
        1.5e-5 to "0.000015",
        1.5e-6 to "1.5e-6",
        1e-9 to "1e-9",
        5.684341886080802e-14 to "5.684341886080802e-14", // 2⁻⁴⁴, below which doubles lie closer
        0.80941009521484375 to "0.8094100952148438", // between two of 16 digits
        952728873392055.25 to "952728873392055.2",
        5e-324 to "5e-324",
        1.5e15 to "1500000000000000.0",
        9007199254740992.0 to "9007199254740992.0",
        1e16 to "1e16",
        2e23 to "2e23",
        123456789012345680.0 to "1.2345678901234568e17",
        -Double.MAX_VALUE to "-1.7976931348623157e308",
        UNREACHABLE_CONFIDENCE to "1.0000000000000002",
    ).map { (value, text) ->
        DynamicTest.dynamicTest(text) { assertEquals(text, shortestDecimal(value)) }
    }

    @Test
    fun `numbers that JSON cannot hold are refused`() {
        for (value in listOf(Double.NaN, Double.POSITIVE_INFINITY, Double.NEGATIVE_INFINITY)) {
            val plan = Plan(supernet.original, hard = Hard.Abstain(Decider.Entropy(value)))
            assertRefused<UsageError> { encodePlan(plan) }
        }
    }
}
