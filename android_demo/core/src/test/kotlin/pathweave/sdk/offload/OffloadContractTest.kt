package pathweave.sdk.offload

import java.io.File
import kotlin.math.abs
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonElement
import kotlinx.serialization.json.JsonNull
import kotlinx.serialization.json.jsonObject
import org.junit.jupiter.api.Assertions.assertArrayEquals
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import pathweave.sdk.Contract
import pathweave.sdk.ProtocolError
import pathweave.sdk.UsageError
import pathweave.sdk.assertRefused
import pathweave.sdk.bytes
import pathweave.sdk.data.Image
import pathweave.sdk.data.Preprocessing
import pathweave.sdk.data.RawImages
import pathweave.sdk.data.RawTexts
import pathweave.sdk.data.kinds.TextPreprocessing
import pathweave.sdk.data.prepare
import pathweave.sdk.data.unprepare
import pathweave.sdk.double
import pathweave.sdk.get
import pathweave.sdk.int
import pathweave.sdk.items
import pathweave.sdk.numerics.DType
import pathweave.sdk.numerics.Tensor
import pathweave.sdk.policies.planning.PlanFront
import pathweave.sdk.policies.planning.decodeFront
import pathweave.sdk.policies.planning.encodeFront
import pathweave.sdk.supernet.Decider
import pathweave.sdk.supernet.SampleSize
import pathweave.sdk.supernet.Uplink
import pathweave.sdk.text
import pathweave.sdk.texts

private const val TOLERANCE = 1e-9

/** What both languages must write, read, send and take the network for: tests/contract/offload.json. */
class OffloadContractTest {
    private val vectors = Json.parseToJsonElement(File(Contract.repository, "tests/contract/offload.json").readText())
    private val classes = listOf("red", "green", "blue")
    private val preprocessing = Preprocessing(1.0 / 255, listOf(0.5, 0.4, 0.3), listOf(0.2, 0.25, 0.3))
    private val device = DeviceModel(classes, listOf(3, 4, 5), listOf(3), preprocessing)

    private fun <T> JsonElement.orNull(read: (JsonElement) -> T): T? = if (this is JsonNull) null else read(this)

    private fun shape(value: JsonElement) = value.items.map { it.int }

    private fun tensor(value: JsonElement) =
        NamedTensor(value["name"].text, Datatype.valueOf(value["datatype"].text), shape(value["shape"]), value["data"].bytes)

    private fun close(expected: Double?, found: Double?) = expected == found ||
        expected != null && found != null && abs(expected - found) <= TOLERANCE * maxOf(1.0, abs(expected))

    @Test
    fun `requests are the same bytes`() {
        for (case in vectors["requests"].items) {
            val outputs = case["outputs"].items.map { RequestedOutput(it.items[0].text, it.items[1].text == "true") }
            val request = InferRequest(
                case["inputs"].items.map(::tensor), outputs, case["id"].orNull { it.text },
                case["binary_output"].text == "true",
            )
            val message = encodeRequest(request, case["binary"].text == "true")
            assertEquals(String(case["body"].bytes, Charsets.ISO_8859_1), String(message.body, Charsets.ISO_8859_1))
            assertEquals(case["headers"].jsonObject.mapValues { it.value.text }, message.headers)
        }
    }

    @Test
    fun `replies are read and refused alike`() {
        for (case in vectors["responses"].items) {
            val (body, length) = case["body"].bytes to case["header_length"].orNull { it.int }
            val shown = String(body, Charsets.ISO_8859_1)
            val expected = case["read"].orNull { it }
            if (expected == null) {
                assertRefused<ProtocolError> { decodeResponse(body, length).also { println("taken: $shown") } }
                continue
            }
            val found = decodeResponse(body, length)
            val named = listOf(found.modelName, found.modelVersion, found.id)
            assertEquals(listOf("model", "version", "id").map { name -> expected[name].orNull { it.text } }, named, shown)
            val outputs = expected["outputs"].items.map(::tensor)
            assertEquals(outputs.map { it.name to it.datatype }, found.outputs.map { it.name to it.datatype })
            for ((one, other) in outputs.zip(found.outputs)) {
                assertEquals(one.shape, other.shape)
                assertArrayEquals(one.data, other.data, "${one.name} of $shown")
            }
        }
    }

    @Test
    fun `a header that states another length is refused`() {
        assertRefused<ProtocolError> { decodeResponse(ByteArray(4), 5) }
        assertRefused<ProtocolError> { decodeResponse(ByteArray(4), -1) }
    }

    private fun metadata(case: JsonElement): ModelMetadata {
        fun one(name: String, value: JsonElement) =
            TensorMetadata(name, value.items[0].text, shape(value.items[1]))
        return ModelMetadata(
            List(case["inputs"].int) { one("in", case["input"]) },
            listOf(one("out", case["output"])),
            classNames = case["classes"].orNull { it.texts },
            task = case["task"].orNull { it.text },
            content = case.jsonObject["content"]?.orNull { it.text },
            binary = case.jsonObject["binary"]?.text != "false",
        )
    }

    @Test
    fun `what is sent to a model follows from its metadata`() {
        for (case in vectors["agreements"].items) {
            val sends = try {
                agree(metadata(case), device).sends.toString()
            } catch (_: UsageError) {
                null
            }
            assertEquals(case["sends"].orNull { it.text }, sends, "$case")
        }
        for (case in vectors["overheads"].items) {
            assertEquals(case["bytes"].int.toLong(), requestOverheadBytes(case["model"].text))
        }
    }

    private val texts = TextPreprocessing("0".repeat(64), 1, 8, padId = 5)
    private val ofTexts = DeviceModel(classes, listOf(2, 8), listOf(3), texts, inputType = DType.INT64)

    @Test
    fun `texts are sent as UTF-8 or as tokens where the server has the same input`() {
        for (case in vectors["texts"].items) {
            val agreed = try {
                agree(metadata(case), ofTexts)
            } catch (_: UsageError) {
                null
            }
            assertEquals(case["sends"].orNull { it.text }, agreed?.sends?.toString(), "$case")
            val sent = case["filled"].orNull { tensor(it) } ?: continue
            val tokens = Tensor.of(case["tokens"].items.map { it.int.toLong() }.toLongArray(), listOf(2, 2, 8))
            val filled = filled(agreed!!, tokens, RawTexts(case["texts"].texts), texts)
            assertEquals(sent.shape to sent.datatype, filled.shape to filled.datatype)
            assertArrayEquals(sent.data, filled.data)
        }
    }

    @Test
    fun `images are sent as they are or recovered from tensors or resized`() {
        for (case in vectors["inputs"].items) {
            val pixels = case["pixels"].bytes
            val images = pixels.toList().chunked(60).map { Image(it.toByteArray(), SampleSize(4, 5), 3) }
            val tensors = prepare(images, preprocessing, listOf(3, 4, 5))
            assertArrayEquals(pixels, unprepare(tensors, preprocessing).flatMap { it.pixels.toList() }.toByteArray())
            val expected = tensor(case["filled"])
            for (known in listOf(RawImages(images), null)) {
                val filled = filled(agree(metadata(case), device), tensors, known, preprocessing)
                assertEquals(expected.shape to expected.datatype, filled.shape to filled.datatype)
                val apart = expected.data.zip(filled.data) { one, other -> abs((one.toInt() and 255) - (other.toInt() and 255)) }
                assertTrue(apart.max() <= 1, "$apart")
            }
        }
    }

    private fun logits(value: JsonElement): Tensor {
        val rows = value.items.map { row -> row.items.map { one -> one.orNull { it.double } ?: Double.POSITIVE_INFINITY } }
        return Tensor.of(rows.flatten().map { it.toFloat() }.toFloatArray(), listOf(rows.size, rows[0].size))
    }

    @Test
    fun `answers of device and server are pooled alike`() {
        for (case in vectors["pools"].items) {
            val (device, server) = case["weights"].items.map { it.double }
            val found = LogarithmicPool(device, server).pooled(logits(case["device"]), logits(case["server"]))
            assertArrayEquals(logits(case["pooled"]).floats(), found.floats(), 1e-6f)
        }
        for ((device, server) in listOf(-1.0 to 1.0, 0.0 to 0.0, 1.0 to Double.NaN, Double.POSITIVE_INFINITY to 1.0)) {
            assertRefused<UsageError> { LogarithmicPool(device, server) }
        }
    }

    @Test
    fun `the same samples are hard where a share is kept`() {
        for (case in vectors["shares"].items) {
            val keeper = AskedShare(case["share"].double)
            for (step in case["steps"].items) {
                val margin = step["margin"].text == "true"
                val decider = if (margin) Decider.Margin(0.25) else Decider.MaxConfidence(0.75)
                assertEquals(step["hard"].texts.map { it == "true" }, keeper.hard(decider, logits(step["logits"])), "$step")
            }
        }
        for (share in listOf(-0.1, 1.1, Double.NaN)) {
            assertRefused<UsageError> { RemoteModel("http://server", "m", share = share) }
        }
    }

    @Test
    fun `a server is left alone after the same failures`() {
        for (case in vectors["breakers"].items) {
            var nowNs = 0L
            val breaker = CircuitBreaker(
                { nowNs }, case["failures"].int, case["cooldown_s"].double, case["longest_cooldown_s"].double,
            )
            for (step in case["steps"].items) {
                val (atS, what, allowed, state, retryInS) = step.items
                nowNs = (atS.double * 1e9).toLong()
                val found: Any? = when (what.text) {
                    "allows" -> breaker.allows()
                    "failed" -> breaker.failed().let { null }
                    "succeeded" -> breaker.succeeded().let { null }
                    "trip" -> breaker.trip().let { null }
                    else -> breaker.endCooldown().let { null }
                }
                assertEquals(allowed.orNull { it.text == "true" }, found, "$step")
                assertEquals(state.text to retryInS.double, breaker.state.toString() to breaker.retryInS, "$step")
            }
        }
    }

    @Test
    fun `the network is taken for the same`() {
        for (case in vectors["links"].items) {
            var nowNs = 8_000_000_000L
            val (mbps, tripMs) = case["known"].items.map { it.double }
            val link = LinkEstimate(Uplink(mbps, tripMs)) { nowNs }
            assertEquals(Double.POSITIVE_INFINITY, link.quietS)
            for (step in case["steps"].items) {
                nowNs = (step["at_s"].double * 1e9).toLong()
                val sent = step["sent"].orNull { it.items }
                if (sent == null) link.failed() else link.record(sent[0].text.toLong(), sent[1].double, sent[2].double)
                val expected = step["uplink"].orNull { one -> one.items.map { it.double } }
                val found = link.uplink?.let { listOf(it.mbps, it.roundTripMs) }
                val alike = expected == found || expected != null && found != null &&
                    expected.zip(found).all { (one, other) -> abs(one - other) <= 1e-6 * abs(one) }
                assertTrue(alike, "$expected and $found: $step")
                assertEquals(step["quiet_s"].double, link.quietS, TOLERANCE)
            }
        }
    }

    @Test
    fun `the same plan is the best on each network at the same cost`() {
        for (case in vectors["fronts"].items) {
            val front: PlanFront = decodeFront(case["json"].text.toByteArray())
            assertEquals(case["json"].text, String(encodeFront(front)))
            val before = case["json"].text.replace(",\"share_asked\":null", "") // as it was written before there was that limit
            assertEquals(front, decodeFront(before.toByteArray()))
            for (one in case["best"].items) {
                val uplink = one["uplink"].orNull { it.items.let { (mbps, trip) -> Uplink(mbps.double, trip.double) } }
                val best = front.best(uplink)
                assertEquals(front.offers[one["offer"].int].plan, best.plan, "$one")
                for ((offer, expected) in front.offers.zip(one["costs"].items)) {
                    val cost = offer.cost(uplink, front.power)
                    val found = listOf(cost.latencyMs, cost.p95LatencyMs, cost.bytesSent, cost.energyMj, cost.coverage)
                    val wanted = expected.items.map { value -> value.orNull { it.double } }
                    assertTrue(wanted.zip(found).all { (want, has) -> close(want, has) }, "$wanted and $found")
                }
                val misses = one["misses"].jsonObject.mapValues { it.value.orNull { value -> value.double } }
                assertEquals(misses.keys, best.misses.keys)
                for ((name, value) in misses) assertTrue(close(value ?: Double.POSITIVE_INFINITY, best.misses[name]))
            }
        }
    }

    @Test
    fun `a front that is none is refused`() {
        val text = vectors["fronts"].items[0]["json"].text
        for (broken in listOf("", "[]", text.dropLast(1), text.replace("\"mbps\":8.0", "\"mbps\":0.0"))) {
            assertRefused<UsageError> { decodeFront(broken.toByteArray()) }
        }
    }
}
