package pathweave.sdk.session

import com.sun.net.httpserver.HttpExchange
import com.sun.net.httpserver.HttpServer
import java.net.InetAddress
import java.net.InetSocketAddress
import kotlinx.serialization.json.Json
import org.junit.jupiter.api.AfterEach
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.Timeout
import pathweave.sdk.AdaptiveModel
import pathweave.sdk.Contract
import pathweave.sdk.execution.corrected
import pathweave.sdk.execution.goldenInputs
import pathweave.sdk.get
import pathweave.sdk.numerics.Tensor
import pathweave.sdk.offload.Privacy
import pathweave.sdk.offload.RemoteModel
import pathweave.sdk.seed
import pathweave.sdk.supernet.Decider
import pathweave.sdk.supernet.Hard
import pathweave.sdk.supernet.Plan
import pathweave.sdk.supernet.Prior
import pathweave.sdk.supernet.RemoteRef
import pathweave.sdk.supernet.Sends
import pathweave.sdk.supernet.Split
import pathweave.sdk.supernet.UNREACHABLE_CONFIDENCE
import pathweave.sdk.text

private const val SAMPLES = 6
private const val TAIL = "reference:tail"
private const val WHOLE = "reference"

/** What a server answers is corrected by the plan's prior, whatever was sent to it. */
@Timeout(60)
class PriorAtServerTest {
    private val bundle = Contract.reference()
    private val supernet = bundle.supernet
    private val input =
        goldenInputs(supernet.cutPoints[0], Contract.vectors["bundle"]["plans"]["seed"].seed, batch = SAMPLES)[0]
    private val said = Tensor.of(FloatArray(SAMPLES * 3) { it / 4f }, listOf(SAMPLES, 3))
    private val server = HttpServer.create(InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 0).apply {
        createContext("/", ::answer)
        start()
    }

    @AfterEach
    fun stop() = server.stop(0)

    private fun answer(exchange: HttpExchange) {
        val body = exchange.requestBody.readBytes()
        val model = exchange.requestURI.path.substringAfter("/v2/models/", "").substringBefore("/")
        val reply = when {
            model.isEmpty() -> """{"extensions": []}"""
            exchange.requestMethod == "GET" -> described(model)
            else -> answered(model, Json.parseToJsonElement(String(body))["id"].text)
        }.toByteArray()
        exchange.sendResponseHeaders(200, reply.size.toLong())
        exchange.responseBody.use { it.write(reply) }
    }

    private fun described(model: String): String {
        val takes = if (model == TAIL) """"UINT8", "shape": [1, -1]""" else """"FP32", "shape": [-1, 3, 2, 2]"""
        return """{"name": "$model", "versions": ["1"], "inputs": [{"name": "input", "datatype": $takes}],
            "outputs": [{"name": "logits", "datatype": "FP32", "shape": [-1, 3]}],
            "pathweave": {"bundle": "${bundle.digest}", "class_names": ["blue", "green", "red"]}}"""
    }

    private fun answered(model: String, id: String) = """{"model_name": "$model", "model_version": "1", "id": "$id",
        "outputs": [{"name": "logits", "datatype": "FP32", "shape": [$SAMPLES, 3], "data": ${said.floats().toList()}}]}"""

    private fun plans(): List<Plan> {
        val tail = supernet.original.edges.drop(2)
        val (atTail, atWhole) = RemoteRef(TAIL, bundle.digest) to RemoteRef(WHOLE)
        val hard = Decider.MaxConfidence(UNREACHABLE_CONFIDENCE)
        val bits = List(supernet.cutPoints[2].tensors.size) { 8 }
        return listOf(
            Plan(supernet.original, split = Split(2, bits, tail, atTail)),
            Plan(supernet.original, split = Split(0, emptyList(), emptyList(), atWhole)),
            Plan(supernet.original, hard = Hard.Ask(hard, atWhole)),
            Plan(supernet.original, hard = Hard.Ask(hard, atTail, Sends.Activations(2), tail)),
        )
    }

    @Test
    fun `answers to splits, to whole images and to hard samples are corrected once`() {
        val prior = Prior(listOf(-2.0, 1.0, 0.5), 1.5)
        AdaptiveModel.open(Contract.referenceFolder, Contract.key, selfTested = { true }).use { model ->
            val url = "http://127.0.0.1:${server.address.port}"
            for (name in listOf(TAIL, WHOLE)) {
                model.remote.connect(RemoteModel(url, name, privacy = Privacy.INPUTS, timeoutS = 10.0))
            }
            for (plan in plans()) {
                for (wanted in listOf(null, prior)) {
                    model.use(plan.withPrior(wanted))
                    val answer = model.infer(input)
                    assertEquals(List(SAMPLES) { SERVER }, answer.source, "$plan")
                    val expected = corrected(said, wanted).floats().toList()
                    assertEquals(expected, answer.output.floats().toList(), "$plan")
                }
            }
        }
    }
}
