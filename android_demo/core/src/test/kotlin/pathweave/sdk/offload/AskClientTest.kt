package pathweave.sdk.offload

import java.net.ServerSocket
import java.util.concurrent.CountDownLatch
import java.util.concurrent.atomic.AtomicInteger
import kotlin.concurrent.thread
import kotlin.random.Random
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertNotNull
import org.junit.jupiter.api.Assertions.assertNull
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.Timeout
import pathweave.sdk.UsageError
import pathweave.sdk.assertRefused
import pathweave.sdk.data.Image
import pathweave.sdk.data.Preprocessing
import pathweave.sdk.data.RawImages
import pathweave.sdk.data.prepare
import pathweave.sdk.numerics.Tensor
import pathweave.sdk.supernet.SampleSize
import pathweave.sdk.transports.HttpTransport
import pathweave.sdk.transports.Transport

private const val SLACK_MS = 500 // other processes want the cores, too
private val FAULTS = listOf(
    "wrong id", "wrong model", "wrong version", "wrong name", "wrong shape", "wrong datatype", "one more sample", "nan",
    "stale", "expired token", "busy", "garbage", "html", "huge", "header length", "cut", "trailing", "down", "broken", "slow",
)

@Timeout(60)
class AskClientTest {
    private val server = FakeServer()
    private val preprocessing = Preprocessing(1.0 / 255, listOf(0.5, 0.4, 0.3), listOf(0.2, 0.25, 0.3))
    private val device = DeviceModel(listOf("red", "green", "blue"), listOf(3, 4, 5), listOf(3), preprocessing)
    private val random = Random(7)
    private val patient = CircuitBreaker(failures = Int.MAX_VALUE)

    private fun model(
        name: String = "bright:images",
        privacy: Privacy = Privacy.INPUTS,
        timeoutS: Double = 10.0,
        maxBatch: Int = 64,
        url: String = "http://server",
    ) = RemoteModel(url, name, privacy = privacy, timeoutS = timeoutS, maxBatch = maxBatch)

    private fun client(
        model: RemoteModel = model(),
        breaker: CircuitBreaker = patient,
        transport: Transport = server,
        listener: RequestListener? = null,
    ) = AskClient(model, device, listener, transport, breaker = breaker)

    private fun images(count: Int = 6) = List(count) { Image(random.nextBytes(60), SampleSize(4, 5), 3) }

    private fun tensors(images: List<Image>) = prepare(images, preprocessing, listOf(3, 4, 5))

    private fun brightness(images: List<Image>): List<Float> = images.flatMap { image ->
        List(3) { channel ->
            (0 until 20).map { (image.pixels[it * 3 + channel].toInt() and 255).toDouble() }.average().toFloat()
        }
    }

    /** One call: in time, and either exactly right or a failure in one line. */
    private fun ask(asked: AskClient, count: Int = 6): RemoteReply {
        val images = images(count)
        val began = System.nanoTime()
        val reply = asked.answer(tensors(images), RawImages(images))
        assertTrue((System.nanoTime() - began) / 1e6 < asked.model.timeoutS * 1e3 + SLACK_MS)
        assertTrue((reply.output == null) != (reply.failure == null))
        reply.output?.let { assertEquals(brightness(images), it.floats().toList()) }
        reply.failure?.let { assertTrue(it.isNotEmpty() && '\n' !in it, it) }
        return reply
    }

    /** Whether a call is answered soon: a busy machine may miss a short time-out. */
    private fun isAnswered(asked: AskClient): Boolean {
        val untilNs = System.nanoTime() + 10_000_000_000L
        while (ask(asked).failure != null) if (System.nanoTime() > untilNs) return false
        return true
    }

    @Test
    fun `images are sent, or recovered from tensors, and tensors where the server takes them`() {
        val images = images()
        assertNull(ask(client()).failure)
        assertEquals(brightness(images), client().answer(tensors(images), null).output!!.floats().toList())
        val reply = client(model("bright")).answer(tensors(images), RawImages(images))
        assertEquals(listOf(6, 3), reply.output!!.shape)
    }

    @Test
    fun `JPEGs are sent as the encoder makes them, at the size of the tensors`() {
        val asked = client(RemoteModel("http://server", "bright:jpeg", privacy = Privacy.INPUTS, jpegQuality = 75, jpegEncoder = plainEncoder))
        assertNull(ask(asked).failure)
        val head = server.bodies.last().size - 6 * (4 + 1 + 60)
        assertEquals(listOf(61, 0, 0, 0, 75), server.bodies.last().drop(head).take(5).map { it.toInt() })
        val images = images()
        assertEquals(brightness(images), asked.answer(tensors(images), null).output!!.floats().toList())
        val other = images.map { Image(it.pixels + it.pixels, SampleSize(8, 5), 3) } // resized as the model would
        assertNull(asked.answer(tensors(images), RawImages(other)).failure)
        assertEquals(server.bodies.last().size.toLong() - head, asked.requestBytes(tensors(images), RawImages(images)) - requestOverheadBytes("bright:jpeg"))
    }

    @Test
    fun `without an encoder a model that takes JPEGs is refused`() {
        val failure = ask(client(model("bright:jpeg"), CircuitBreaker())).failure!!
        assertTrue("there is no encoder" in failure, failure)
        server.extensions = "[]" // then byte strings cannot travel
        assertTrue("does not fit" in ask(client(model("bright:jpeg"), CircuitBreaker())).failure!!)
        for (quality in listOf(0, 96)) {
            assertRefused<UsageError> { RemoteModel("http://s", "m", jpegQuality = quality) }
        }
    }

    @Test
    fun `a server without binary tensors gets JSON`() {
        server.extensions = "[]"
        assertNull(ask(client()).failure)
        assertTrue(String(server.bodies.last()).endsWith("}"))
        server.fault = "foreign" // without metadata of the server itself
        assertNull(ask(client()).failure)
    }

    @Test
    fun `samples travel in batches, the metadata once`() {
        val asked = client(model(maxBatch = 4))
        assertNull(ask(asked, count = 11).failure)
        assertNull(ask(asked, count = 3).failure)
        val methods = server.asked.map { it.substringBefore(" ") }
        assertEquals(listOf("GET", "GET", "POST", "POST", "POST", "POST"), methods)
        assertEquals("POST /models/bright%3Aimages/infer", server.asked.last())
    }

    @Test
    fun `nothing is sent that the privacy setting forbids, nor after it was closed`() {
        for (privacy in listOf(Privacy.NEVER, Privacy.ACTIVATIONS)) {
            assertTrue("privacy" in ask(client(model(privacy = privacy))).failure!!)
        }
        val closed = client().apply { close() }
        assertTrue("closed" in ask(closed).failure!!)
        val nan = Tensor.of(FloatArray(60) { Float.NaN }, listOf(1, 3, 4, 5))
        assertTrue("NaN" in client().answer(nan, null).failure!!)
        assertTrue("not [3, 4, 5]" in client().answer(Tensor.of(FloatArray(3), listOf(1, 3)), null).failure!!)
        assertEquals(emptyList<String>(), server.asked)
    }

    @Test
    fun `every fault is a failure in time, and over when the server is well again`() {
        val asked = client(model(timeoutS = 0.3))
        for (fault in FAULTS) {
            server.fault = ""
            assertTrue(isAnswered(asked))
            server.fault = fault
            assertNotNull(ask(asked).failure, fault)
        }
        server.fault = ""
        assertTrue(isAnswered(asked))
    }

    @Test
    fun `a model that does not fit is a failure that says why, and is asked only once`() {
        for (fault in listOf("classes", "large_input", "another model")) {
            server.fault = fault
            assertNotNull(ask(client(breaker = CircuitBreaker())).failure, fault)
        }
        server.fault = ""
        val breaker = CircuitBreaker()
        val images = images()
        val other = client(breaker = breaker)
        val failure = other.answer(tensors(images), RawImages(images), digest = "1".repeat(64)).failure
        assertEquals("the server's bright:images is not the one that the plan was made for", failure)
        assertEquals(BreakerState.OPEN, breaker.state)
        val before = server.asked.size
        assertTrue("no requests to the server" in ask(other).failure!!)
        assertEquals(before, server.asked.size)
        assertNull(client().answer(tensors(images), RawImages(images), digest = "0".repeat(64)).failure)
    }

    @Test
    fun `a failing server is left alone until it is seen to answer`() {
        val breaker = CircuitBreaker(failures = 2, cooldownS = 60.0)
        val asked = client(breaker = breaker)
        server.fault = "busy"
        repeat(2) { assertNotNull(ask(asked).failure) }
        server.fault = ""
        assertTrue("since" in ask(asked).failure!!)
        asked.tryAgain()
        assertNull(ask(asked).failure)
        assertEquals(BreakerState.CLOSED, breaker.state)
    }

    @Test
    fun `a connection that was cut is tried once more`() {
        val asked = client()
        assertNull(ask(asked).failure)
        server.fault = "cut once"
        assertNull(ask(asked).failure)
    }

    @Test
    fun `calls that hang are abandoned in time, and no more than eight hang`() {
        val accepted = AtomicInteger()
        ServerSocket(0).use { silent ->
            thread(isDaemon = true) {
                try {
                    while (true) silent.accept().also { accepted.incrementAndGet() }
                } catch (_: java.io.IOException) {
                    // closed
                }
            }
            val remote = model(url = "http://127.0.0.1:${silent.localPort}", timeoutS = 0.3)
            val asked = client(remote, transport = HttpTransport(null))
            val begin = CountDownLatch(1)
            val failures = java.util.concurrent.CopyOnWriteArrayList<String>()
            val callers = List(12) { thread { begin.await().also { failures += ask(asked).failure!! } } }
            begin.countDown()
            callers.forEach { it.join() }
            assertTrue(failures.count { "in progress" in it } >= 4, "$failures")
            assertTrue(accepted.get() <= MAX_UNDER_WAY)
        }
    }

    @Test
    fun `whoever listens is told of requests and of calls without an answer`() {
        val told = java.util.concurrent.CopyOnWriteArrayList<String>()
        val listener = object : RequestListener {
            override fun answered(sizeBytes: Long, samples: Int, seconds: Double) {
                told += "$sizeBytes $samples ${seconds >= 0}"
            }

            override fun failed() {
                told += "failed"
            }
        }
        val asked = client(model(maxBatch = 2), listener = listener)
        ask(asked, count = 3)
        server.fault = "busy"
        ask(asked)
        val overhead = requestOverheadBytes("bright:images")
        assertEquals(listOf("${120 + overhead} 2 true", "${60 + overhead} 1 true", "failed"), told)
    }

    @Test
    fun `settings that make no sense are refused, and the token is not shown`() {
        assertRefused<UsageError> { RemoteModel("", "m") }
        assertRefused<UsageError> { RemoteModel("http://s", "") }
        for (timeoutS in listOf(0.0, -1.0, Double.NaN, Double.POSITIVE_INFINITY, 3601.0)) {
            assertRefused<UsageError> { RemoteModel("http://s", "m", timeoutS = timeoutS) }
        }
        assertRefused<UsageError> { RemoteModel("http://s", "m", maxBatch = 0) }
        assertRefused<UsageError> { client(RemoteModel("nowhere", "m")) }
        assertTrue("secret" !in "${RemoteModel("http://s", "m", token = "secret")}")
        assertEquals(Privacy.NEVER, RemoteModel("http://s", "m").privacy)
    }
}
