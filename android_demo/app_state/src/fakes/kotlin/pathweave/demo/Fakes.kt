package pathweave.demo

import com.sun.net.httpserver.HttpExchange
import com.sun.net.httpserver.HttpServer
import java.io.Closeable
import java.io.File
import java.net.InetSocketAddress
import java.util.concurrent.ConcurrentHashMap
import java.util.concurrent.CopyOnWriteArrayList
import kotlin.concurrent.thread
import kotlin.io.path.createTempDirectory
import pathweave.sdk.SplitMix64
import pathweave.sdk.data.Image
import pathweave.sdk.supernet.SampleSize

/** The reference bundle of tests/contract: three classes, images of 2x2 pixels with three channels. */
object Reference {
    private val contract = File(System.getProperty("pathweave.repository"), "tests/contract")

    /** As it is: signed, and it takes no other images. */
    val signed = File(contract, "bundle")

    /** The same with a map of the classes as its answer. */
    val maps = File(contract, "maps")

    /** Unsigned, and resizing images of any size, as bundles for a camera do. */
    val folder: File by lazy { unsigned { it.replaceFirst("\"resize\": null", "\"resize\": [2, 2]") } }

    /** A model of prepared values. */
    val prepared: File by lazy {
        unsigned { it.replaceFirst(Regex("\"preprocessing\": \\{[^}]*\\}"), "\"preprocessing\": {\"kind\": \"tensor\"}") }
    }

    private fun unsigned(change: (String) -> String): File {
        val copy = createTempDirectory("reference").toFile()
        Runtime.getRuntime().addShutdownHook(thread(start = false) { copy.deleteRecursively() })
        signed.copyRecursively(copy)
        File(copy, "manifest.sig").delete()
        val manifest = File(copy, "manifest.json")
        val (before, after) = manifest.readText().let { it to change(it) }
        check(after != before)
        return copy.also { manifest.writeText(after) }
    }
    val key: String = Regex("-----BEGIN PUBLIC KEY-----.*?-----END PUBLIC KEY-----\\\\n")
        .find(File(contract, "vectors.json").readText())!!.value.replace("\\n", "\n")
    val size = SampleSize(2, 2)

    fun images(count: Int, seed: Long = 5): List<Image> {
        val random = SplitMix64(seed)
        return List(count) { Image(ByteArray(12) { random.next().toByte() }, size, 3) }
    }
}

/** Settings in memory; a second model on the same ones is the next start of the app. */
class KeptSettings : Settings {
    private val values = ConcurrentHashMap<String, String>()

    override fun get(name: String): String? = values[name]

    override fun change(changes: Map<String, String?>) = changes.forEach { (name, value) ->
        if (value == null) values.remove(name) else values[name] = value
    }
}

/** A server with the signed reference bundle, which takes logs, and whose model finds the first class in all images. */
class BundleServer : Closeable {
    private val server = HttpServer.create(InetSocketAddress("127.0.0.1", 0), 0)
    private val path = "/v1/bundles/reference"
    val url = "http://127.0.0.1:${server.address.port}$path"

    /** The lines that came. */
    val lines = CopyOnWriteArrayList<String>()

    init {
        server.createContext(path) { exchange ->
            val file = File(Reference.signed, exchange.requestURI.path.removePrefix(path).trim('/'))
            answer(exchange, if (file.isFile) file.readBytes() else null)
        }
        server.createContext("/v1/probe") { exchange ->
            exchange.requestBody.readBytes()
            answer(exchange, "{}".toByteArray())
        }
        server.createContext("/v2") { exchange -> answer(exchange, inferred(exchange).toByteArray()) }
        server.createContext("/v1/logs") { exchange ->
            val fresh = exchange.requestBody.readBytes().decodeToString().lines().filter { it.isNotEmpty() && it !in lines }
            lines += fresh
            answer(exchange, """{"accepted":${fresh.size},"duplicates":0}""".toByteArray())
        }
        server.start()
    }

    /** Open Inference in plain JSON. */
    private fun inferred(exchange: HttpExchange): String {
        val body = exchange.requestBody.readBytes().decodeToString()
        val model = """"name": "reference:images", "versions": ["1"]"""
        val ends = """"inputs": [{"name": "image", "datatype": "UINT8", "shape": [-1, 2, 2, 3]}],
            "outputs": [{"name": "logits", "datatype": "FP32", "shape": [-1, 3]}]"""
        if (exchange.requestURI.path == "/v2") return """{"extensions": []}"""
        if (body.isEmpty()) return "{$model, $ends}"
        fun found(pattern: String) = checkNotNull(Regex(pattern).find(body)).groupValues[1]
        val (id, count) = found(""""id": ?"(\w+)"""") to found(""""shape": ?\[(\d+)""").toInt()
        val logits = List(count) { "9.0, 1.0, 1.0" }.joinToString()
        return """{"model_name": "reference:images", "model_version": "1", "id": "$id",
            "outputs": [{"name": "logits", "datatype": "FP32", "shape": [$count, 3], "data": [$logits]}]}"""
    }

    private fun answer(exchange: HttpExchange, body: ByteArray?) = exchange.use {
        it.sendResponseHeaders(if (body == null) 404 else 200, body?.size?.toLong() ?: -1)
        if (body != null) it.responseBody.write(body)
    }

    override fun close(): Unit = server.stop(0)
}

/** A camera that shows [images] as fast as they are taken. */
class FakeCamera(private val images: List<Image>) : Frames {
    @Volatile
    var closed = false
    private var next = 0

    override fun take(): Image? = if (closed) null else images[next++ % images.size]

    override fun close() {
        closed = true
    }
}
