package pathweave.sdk.offload

import kotlinx.serialization.json.Json
import pathweave.sdk.ProtocolError
import pathweave.sdk.TransferError
import pathweave.sdk.get
import pathweave.sdk.int
import pathweave.sdk.items
import pathweave.sdk.text
import pathweave.sdk.transports.Deadlines
import pathweave.sdk.transports.Reply
import pathweave.sdk.transports.Transport

/**
 * An Open Inference server behind the transport's port: it answers with the mean of each channel, or as [fault] says.
 *
 * Three models: `bright:images` takes UINT8 [-1, 4, 5, 3], `bright` FP32 [-1, 3, 4, 5], `bright:jpeg` byte strings: the
 * quality and the pixels, as [plainEncoder] makes them.
 */
internal class FakeServer : Transport {
    @Volatile
    var fault = ""

    @Volatile
    var extensions = """["binary_tensor_data"]"""
    val asked = java.util.concurrent.CopyOnWriteArrayList<String>()
    val bodies = java.util.concurrent.CopyOnWriteArrayList<ByteArray>()
    private var previous: Pair<ByteArray, Int>? = null

    override fun <T> send(
        method: String,
        url: String,
        headers: Map<String, String>,
        body: ByteArray?,
        deadlines: Deadlines,
        maxBytes: Long,
        use: (Reply) -> T,
    ): T {
        asked += "$method ${url.substringAfter("/v2")}"
        body?.let(bodies::add)
        if (fault == "slow") Thread.sleep(600)
        if (fault == "down") throw TransferError("no connection")
        if (fault == "cut once" && method == "POST") {
            fault = ""
            throw TransferError("the connection was cut")
        }
        if (fault == "broken") throw IllegalStateException("a bug\nof ours")
        val model = url.substringAfter("/v2/models/", "").substringBefore("/").replace("%3A", ":")
        return use(if (method == "GET") described(model, maxBytes) else answered(model, headers, body!!, maxBytes))
    }

    private fun described(model: String, maxBytes: Long): Reply {
        if (model.isEmpty()) {
            return if (fault == "foreign") FakeReply(404, "{}") else FakeReply(200, """{"extensions": $extensions}""")
        }
        val input = when {
            fault == "large_input" -> """{"name": "image", "datatype": "UINT8", "shape": [-1, 100000, 100000, 3]}"""
            model == "bright:jpeg" -> """{"name": "image", "datatype": "BYTES", "shape": [-1]}"""
            model == "bright" -> """{"name": "input", "datatype": "FP32", "shape": [-1, 3, 4, 5]}"""
            else -> """{"name": "image", "datatype": "UINT8", "shape": [-1, 4, 5, 3]}"""
        }
        val classes = if (fault == "classes") """["red"]""" else """["red", "green", "blue"]"""
        val name = if (fault == "another model") "dark" else model
        return FakeReply(
            200,
            """{"name": "$name", "versions": ["1"], "inputs": [$input],
                "outputs": [{"name": "logits", "datatype": "FP32", "shape": [-1, 3]}],
                "pathweave": {"bundle": "${"0".repeat(64)}", "class_names": $classes, "content": "image/jpeg"}}""",
            maxBytes = maxBytes,
        )
    }

    private fun answered(model: String, headers: Map<String, String>, body: ByteArray, maxBytes: Long): Reply {
        when (fault) {
            "expired token" -> return FakeReply(401, """{"error": "the token has expired"}""")
            "busy" -> return FakeReply(503, """{"error": "the queue is full"}""")
            "garbage" -> return FakeReply(200, "\u0001\u0002 garbage", mapOf(HEADER_LENGTH to "3"))
            "html" -> return FakeReply(200, "<html>Welcome</html>")
            "huge" -> return FakeReply(200, " ".repeat(20_000_000), maxBytes = maxBytes)
            "header length" -> return FakeReply(200, "{}", mapOf(HEADER_LENGTH to "-5"))
        }
        val head = headers[HEADER_LENGTH]?.toInt() ?: body.size
        val request = Json.parseToJsonElement(String(body, 0, head))
        val tensor = request["inputs"].items[0]
        val count = tensor["shape"].items[0].int
        val values = if (head == body.size) {
            tensor["data"].items.map { it.text.toDouble() }.toDoubleArray()
        } else {
            val shape = tensor["shape"].items.map { it.int }
            val sent = NamedTensor("", Datatype.valueOf(tensor["datatype"].text), shape, body.copyOfRange(head, body.size))
            if (sent.datatype == Datatype.BYTES) pixels(sent) else sent.doubles()
        }
        val means = FloatArray(count * 3) { at ->
            val (sample, channel) = at / 3 to at % 3
            (0 until 20).map { place ->
                val position = if (model == "bright") (sample * 3 + channel) * 20 + place else (sample * 20 + place) * 3 + channel
                values[position]
            }.average().toFloat()
        }
        val (reply, length) = encoded(request["id"].text, means, count)
        val (given, givenLength) = if (fault == "stale") previous ?: (reply to length) else reply to length
        previous = reply to length
        val cut = when (fault) {
            "cut" -> given.dropLast(3).toByteArray()
            "trailing" -> given + ByteArray(4)
            else -> given
        }
        return FakeReply(200, cut, mapOf(HEADER_LENGTH to "$givenLength"), maxBytes)
    }

    /** The pixels of all strings, each behind its length and its quality. */
    private fun pixels(sent: NamedTensor): DoubleArray = sent.data.toList().chunked(4 + 1 + 60)
        .flatMap { string -> string.drop(5).map { (it.toInt() and 255).toDouble() } }.toDoubleArray()

    private fun encoded(id: String, means: FloatArray, count: Int): Pair<ByteArray, Int> {
        val (rows, columns) = if (fault == "wrong shape") 3 to count else count to 3
        val wide = fault == "wrong datatype"
        val values = means.mapIndexed { at, value -> if (fault == "nan" && at == 1) Float.NaN else value }
        val extra = if (fault == "one more sample") values.take(3) else emptyList()
        val all = values + extra
        val data = littleEndian(ByteArray(all.size * (if (wide) 8 else 4)))
        for (value in all) if (wide) data.putDouble(value.toDouble()) else data.putFloat(value)
        val shape = "[${rows + extra.size / 3}, $columns]"
        val name = if (fault == "wrong name") "other" else "logits"
        val head = """{"model_name": "${if (fault == "wrong model") "dark" else modelOf()}", "model_version": """ +
            """"${if (fault == "wrong version") "2" else "1"}", "id": "${if (fault == "wrong id") "7" else id}",""" +
            """"outputs": [{"name": "$name", "datatype": "${if (wide) "FP64" else "FP32"}", "shape": $shape,""" +
            """"parameters": {"binary_data_size": ${data.array().size}}}]}"""
        return head.toByteArray() + data.array() to head.toByteArray().size
    }

    private fun modelOf() = asked.last().substringAfter("/models/").substringBefore("/").replace("%3A", ":")
}

/** In place of a JPEG: the quality, and the pixels as they are. */
internal val plainEncoder = JpegEncoder { image, quality -> byteArrayOf(quality.toByte()) + image.pixels }

private class FakeReply(
    override val status: Int,
    private val body: ByteArray,
    private val headers: Map<String, String> = emptyMap(),
    private val maxBytes: Long = Long.MAX_VALUE,
) : Reply {
    constructor(status: Int, body: String, headers: Map<String, String> = emptyMap(), maxBytes: Long = Long.MAX_VALUE) :
        this(status, body.toByteArray(), headers, maxBytes)

    override fun header(name: String): String? = headers[name]

    override fun chunks(use: (ByteArray, Int) -> Unit) {
        if (body.size > maxBytes) throw ProtocolError("more than the $maxBytes bytes allowed")
        use(body, body.size)
    }
}
