package pathweave.sdk.supernet

import java.nio.ByteBuffer
import java.nio.ByteOrder
import java.util.Base64
import kotlin.math.abs
import kotlin.math.ln
import kotlinx.serialization.json.JsonElement
import kotlinx.serialization.json.boolean
import kotlinx.serialization.json.jsonPrimitive
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.DynamicTest
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.TestFactory
import pathweave.sdk.Contract
import pathweave.sdk.double
import pathweave.sdk.floats
import pathweave.sdk.get
import pathweave.sdk.int
import pathweave.sdk.items
import pathweave.sdk.numerics.Tensor
import pathweave.sdk.size
import pathweave.sdk.text

class DecidersTest {
    private val vectors = Contract.vectors["deciders"]
    private val rows = vectors["logits"].items.map { it.floats }
    private val logits = tensor(*rows.map { it.toFloatArray() }.toTypedArray())

    private fun tensor(vararg samples: FloatArray) =
        Tensor.of(samples.flatMap { it.toList() }.toFloatArray(), listOf(samples.size, samples[0].size))

    @TestFactory
    fun `the same samples are hard everywhere`() = vectors["deciders"].items.map { case ->
        DynamicTest.dynamicTest(case["kind"].text) {
            val threshold = case["threshold"].double
            val decider = when (case["kind"].text) {
                "max_confidence" -> Decider.MaxConfidence(threshold)
                "entropy" -> Decider.Entropy(threshold)
                "logistic" -> Decider.Logistic(
                    threshold,
                    case["features"].items.map { name -> LogitFeature.entries.single { it.key == name.text } },
                    case["weights"].items.map { it.double },
                    case["bias"].double,
                    case["by_answer"].items.map { it.double },
                    case["by_runner_up"].items.map { it.double },
                )
                "router" -> router(case)
                else -> Decider.Margin(threshold).also { assertEquals("margin", case["kind"].text) }
            }
            assertEquals(case["hard"].items.map { it.jsonPrimitive.boolean }, hardSamples(decider, logits))
        }
    }

    @TestFactory
    fun `exits answer and ask about the same samples everywhere`() = vectors["exits"].items.map { case ->
        DynamicTest.dynamicTest("${case["threshold"].double} ${case["ask_below"].double}") {
            val samples = rows.map { it.toFloatArray() } + FloatArray(rows[0].size) { Float.NaN }
            val choice = ExitChoice("x", case["threshold"].double, askBelow = case["ask_below"].double)
            val found = leaving(choice, tensor(*samples.toTypedArray()))
            assertEquals(case["answers"].items.map { it.jsonPrimitive.boolean }, found.answered)
            assertEquals(case["asks"].items.map { it.jsonPrimitive.boolean }, found.asked)
        }
    }

    private fun router(case: JsonElement): Decider.Router {
        val bytes = ByteBuffer.wrap(Base64.getDecoder().decode(case["weights"].text)).order(ByteOrder.LITTLE_ENDIAN)
        val weights = bytes.asFloatBuffer().let { buffer -> List(buffer.remaining()) { buffer.get(it) } }
        val (first, second) = case["hidden"].items.map { it.int }
        return Decider.Router(case["threshold"].double, first to second, weights)
    }

    @Test
    fun `a router estimates the same everywhere, and its features are the same`() {
        val samples = vectors["router"]["logits"].items.map { it.floats }
        val logits = tensor(*samples.map { it.toFloatArray() }.toTypedArray())
        val found = estimates(router(vectors["router"]["decider"]), logits)
        for ((sample, expected) in vectors["router"]["ease"].items.withIndex()) {
            assertEquals(expected.double, found[sample], 1e-9)
        }
        for ((sample, row) in vectors["router"]["features"].items.withIndex()) {
            val features = metaFeatures(DoubleArray(samples[sample].size) { samples[sample][it].toDouble() })
            assertEquals(ROUTER_FEATURES, features.size)
            for ((one, expected) in features.zip(row.items)) assertEquals(expected.double, one, 1e-9)
        }
    }

    @Test
    fun `logits that hold no number are hard for every decider`() {
        val none = floatArrayOf(Float.NaN, 0f, 0f)
        val endless = floatArrayOf(Float.POSITIVE_INFINITY, 0f, 0f)
        val logistic = Decider.Logistic(0.0, LogitFeature.entries, List(LogitFeature.entries.size) { 1.0 }, 0.0)
        val router = router(vectors["router"]["decider"]).copy(threshold = 0.0)
        for (decider in listOf(Decider.MaxConfidence(0.0), Decider.Entropy(9.0), Decider.Margin(0.0), logistic, router)) {
            assertEquals(listOf(true, true), hardSamples(decider, tensor(none, endless)), "$decider")
        }
    }

    @Test
    fun `confidence is the same everywhere`() {
        for (case in Contract.vectors["confidence"].items) {
            val sample = case["logits"].items.map { it.double.toFloat() }.toFloatArray()
            val expected = case["confidence"].double
            val actual = confidence(tensor(sample))[0]
            assertTrue(abs(actual - expected) <= 1e-12 * expected, "$actual instead of $expected")
        }
    }

    @Test
    fun `scores of logits whose probabilities are known`() {
        val even = floatArrayOf(3f, 3f, 3f, 3f)
        val sure = floatArrayOf(1000f, 0f, 0f, -1000f)
        val two = floatArrayOf(ln(3f), 0f, -1000f, -1000f) // 3/4 and 1/4
        assertScores(listOf(0.25, 1.0, 0.75), confidence(tensor(even, sure, two)))
        assertScores(listOf(0.0, 1.0, 0.5), margin(tensor(even, sure, two)))
        assertScores(listOf(ln(4.0), 0.0, ln(4.0) - 0.75 * ln(3.0)), entropy(tensor(even, sure, two)))
        assertScores(listOf(1.0, 1.0), margin(tensor(floatArrayOf(2f), floatArrayOf(-2f))))
    }

    private fun assertScores(expected: List<Double>, found: DoubleArray) {
        assertEquals(expected.size, found.size)
        for ((one, other) in expected.zip(found.toList())) assertEquals(one, other, 1e-7)
    }

    @Test
    fun `a sample at the threshold is not hard, and no confidence reaches the unreachable one`() {
        val sample = tensor(rows[0].toFloatArray())
        val certain = tensor(floatArrayOf(1000f, 0f))
        assertEquals(listOf(false), hardSamples(Decider.MaxConfidence(confidence(sample)[0]), sample))
        assertEquals(listOf(false), hardSamples(Decider.Entropy(entropy(sample)[0]), sample))
        assertEquals(listOf(false), hardSamples(Decider.Margin(margin(sample)[0]), sample))
        assertEquals(listOf(false), hardSamples(Decider.MaxConfidence(1.0), certain))
        assertEquals(listOf(true), hardSamples(Decider.MaxConfidence(UNREACHABLE_CONFIDENCE), certain))
    }
}
