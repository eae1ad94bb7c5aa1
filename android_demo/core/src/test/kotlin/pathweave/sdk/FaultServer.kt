package pathweave.sdk

import java.io.Closeable
import java.io.File
import java.io.InputStream
import java.io.OutputStream
import java.net.InetAddress
import java.net.ServerSocket
import java.net.Socket
import java.net.SocketException
import java.util.concurrent.ConcurrentHashMap
import java.util.concurrent.CopyOnWriteArrayList
import kotlin.concurrent.thread
import pathweave.sdk.files.sha256

/**
 * What happens to one answer at byte [at] of its body.
 *
 * CUT, RESET: the connection ends there; STALL: nothing more comes; DRIP: single bytes from there on; FLIP: one bit is
 * another; WRONG_LENGTH: Content-Length is [at] too large.
 */
data class Fault(val kind: Kind, val at: Int = 0) {
    enum class Kind { CUT, RESET, STALL, DRIP, DRIP_HEADERS, FLIP, WRONG_LENGTH, NO_RANGES, STATUS }
}

/** A request with a body, of which [body] came; [headers] by their names in lower case. */
class Posted(val path: String, val headers: Map<String, String>, val body: ByteArray)

/** An answer to [Posted]; [headers] are whole lines. */
class PostAnswer(val status: Int, val body: String, vararg val headers: String)

/**
 * Serves the files of [folder] over HTTP, with ranges, one request per connection, and damages answers.
 *
 * [faults]: by a part of the path, the first entry meets the first request. [pauseMs]: between chunks of 1 kB. [post]
 * answers requests with a body, null by closing the connection; of those, CUT and RESET end the connection after as many
 * bytes of the request. [redirect]: the address that answers the request for a path instead, by 307.
 */
class FaultServer(private val folder: File) : Closeable {
    val faults = HashMap<String, ArrayDeque<Fault>>()
    val requests = CopyOnWriteArrayList<String>()
    val ranges = CopyOnWriteArrayList<String?>()
    val tokens = CopyOnWriteArrayList<String?>()
    val headers = CopyOnWriteArrayList<Map<String, String>>() // of each request, by their names in lower case
    private val before = ConcurrentHashMap<String, () -> Unit>()

    @Volatile
    var pauseMs = 0L

    @Volatile
    var post: (Posted) -> PostAnswer? = { PostAnswer(404, "{}") }

    @Volatile
    var redirect: (path: String, headers: Map<String, String>) -> String? = { _, _ -> null }

    @Volatile
    private var over = false
    private val listener = ServerSocket(0, 50, InetAddress.getByName("127.0.0.1"))
    val url = "http://127.0.0.1:${listener.localPort}"

    init {
        thread(isDaemon = true) {
            try {
                while (true) {
                    val client = listener.accept()
                    if (over) { // a connection can still arrive while the listener closes
                        client.close()
                        break
                    }
                    thread(isDaemon = true) { serve(client) }
                }
            } catch (_: SocketException) {
                // closed
            }
        }
    }

    fun fault(part: String, vararg more: Fault) {
        faults[part] = ArrayDeque(more.asList())
    }

    /** Runs [work] once, before the next file whose path has [part] is read. */
    fun before(part: String, work: () -> Unit) {
        before[part] = work
    }

    private fun serve(client: Socket) = client.use {
        try {
            val lines = head(it.getInputStream()) ?: return@use
            val path = lines[0].split(' ')[1]
            fun header(name: String) = lines.find { line -> line.startsWith("$name: ", ignoreCase = true) }
                ?.substringAfter(": ")
            requests += path
            ranges += header("Range")
            tokens += header("Authorization")
            before.keys.find { part -> part in path }?.let { part -> before.remove(part) }?.invoke()
            if (lines[0].startsWith("POST ")) return@use posted(it, path, lines)
            val named = named(lines)
            headers += named
            redirect(path, named)?.let { place ->
                val head = "HTTP/1.1 307 x\r\nLocation: $place\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
                return@use it.getOutputStream().write(head.toByteArray())
            }
            answer(it, path, header("Range"), header("If-Range"), take(path))
        } catch (_: SocketException) {
            // the client is gone
        }
    }

    private fun posted(client: Socket, path: String, lines: List<String>) {
        val headers = named(lines)
        val fault = take(path)
        val length = headers.getValue("content-length").toInt()
        val body = client.getInputStream().readNBytes(minOf(fault?.at ?: length, length))
        if (fault != null) {
            if (fault.kind == Fault.Kind.RESET) client.setSoLinger(true, 0)
            return
        }
        val answer = post(Posted(path, headers, body)) ?: return
        val data = answer.body.toByteArray()
        val head = listOf("HTTP/1.1 ${answer.status} x", *answer.headers, "Content-Length: ${data.size}", "Connection: close")
        client.getOutputStream().write(head.joinToString("\r\n", postfix = "\r\n\r\n").toByteArray() + data)
    }

    private fun take(path: String): Fault? = synchronized(faults) {
        faults.entries.find { it.key in path && it.value.isNotEmpty() }?.value?.removeFirst()
    }

    private fun answer(client: Socket, path: String, range: String?, ifRange: String?, fault: Fault?) {
        val out = client.getOutputStream()
        val file = File(folder, path.substringBefore('?'))
        if (fault?.kind == Fault.Kind.STATUS || !file.isFile) {
            val status = fault?.at ?: 404
            val body = "{\"error\": \"status $status\"}"
            val head = "HTTP/1.1 $status x\r\nContent-Length: ${body.length}\r\nConnection: close\r\n\r\n"
            out.write((head + body).toByteArray())
            return
        }
        val data = file.readBytes()
        val etag = "\"${sha256(data)}\""
        val from = range?.removePrefix("bytes=")?.removeSuffix("-")?.toInt()
            ?.takeIf { fault?.kind != Fault.Kind.NO_RANGES && (ifRange == null || ifRange == etag) } ?: 0
        val body = data.copyOfRange(minOf(from, data.size), data.size)
        val status = when {
            from == 0 -> "200 OK"
            from >= data.size -> "416 Range Not Satisfiable"
            else -> "206 Partial Content"
        }
        val where = if (from >= data.size) "*" else "$from-${data.size - 1}"
        val contentRange = if (from > 0) "Content-Range: bytes $where/${data.size}\r\n" else ""
        val length = body.size + if (fault?.kind == Fault.Kind.WRONG_LENGTH) fault.at else 0
        val head = "HTTP/1.1 $status\r\nETag: $etag\r\n$contentRange" +
            "Content-Length: $length\r\nConnection: close\r\n\r\n"
        send(client, out, head, body, fault)
    }

    private fun send(client: Socket, out: OutputStream, head: String, body: ByteArray, fault: Fault?) {
        if (fault?.kind == Fault.Kind.DRIP_HEADERS) drip(out, head.toByteArray(), 0)
        out.write(head.toByteArray())
        when (fault?.kind) {
            Fault.Kind.FLIP -> body[fault.at] = (body[fault.at].toInt() xor 1).toByte()
            Fault.Kind.CUT, Fault.Kind.RESET, Fault.Kind.STALL, Fault.Kind.DRIP -> {
                out.write(body, 0, minOf(fault.at, body.size))
                out.flush()
                if (fault.kind == Fault.Kind.STALL) Thread.sleep(60_000)
                if (fault.kind == Fault.Kind.RESET) client.setSoLinger(true, 0)
                if (fault.kind == Fault.Kind.DRIP) drip(out, body, fault.at)
                return
            }
            else -> {}
        }
        for (start in body.indices step CHUNK) {
            out.write(body, start, minOf(CHUNK, body.size - start))
            if (pauseMs > 0) Thread.sleep(pauseMs)
        }
    }

    private fun drip(out: OutputStream, data: ByteArray, from: Int) {
        for (at in from until data.size) {
            Thread.sleep(20)
            out.write(data, at, 1)
            out.flush()
        }
    }

    override fun close() {
        over = true
        listener.close()
    }

    private companion object {
        const val CHUNK = 1024
    }
}

/** The headers of a head, by their names in lower case. */
private fun named(lines: List<String>): Map<String, String> = lines.drop(1).filter { ": " in it }
    .associate { it.substringBefore(": ").lowercase() to it.substringAfter(": ") }

private fun head(input: InputStream): List<String>? {
    val data = StringBuilder()
    while (!data.endsWith("\r\n\r\n")) {
        val byte = input.read()
        if (byte < 0) return null
        data.append(byte.toChar())
    }
    return data.lines()
}
