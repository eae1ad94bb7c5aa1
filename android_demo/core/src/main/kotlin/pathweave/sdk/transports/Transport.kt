/**
 * Requests to a server, bounded in time and size.
 *
 * HttpURLConnection is what Java and Android share. Its time-out holds for each read; a timer that drops the connection
 * enforces the total deadline while headers trickle in, and every chunk of a body is checked. An overrun is at most the
 * idle time.
 */
package pathweave.sdk.transports

import java.io.ByteArrayOutputStream
import java.io.IOException
import java.io.InputStream
import java.net.ConnectException
import java.net.HttpURLConnection
import java.net.MalformedURLException
import java.net.NoRouteToHostException
import java.net.ProtocolException
import java.net.SocketTimeoutException
import java.net.URI
import java.net.URISyntaxException
import java.net.URL
import java.net.UnknownHostException
import java.util.Timer
import javax.net.ssl.SSLException
import kotlin.concurrent.schedule
import pathweave.sdk.Clock
import pathweave.sdk.DeadlineError
import pathweave.sdk.ProtocolError
import pathweave.sdk.RefusedError
import pathweave.sdk.TransferError
import pathweave.sdk.UsageError
import pathweave.sdk.files.JsonError
import pathweave.sdk.files.decodeJson

internal const val CHUNK_BYTES = 1 shl 16
private const val MS_PER_S = 1_000.0
private const val REASON_MAX_BYTES = 65_536
private const val REASON_MAX_CHARACTERS = 300
private const val ERRORS_FROM = 400
private val SUCCESS = 200 until 300
private val REDIRECTS = 300 until 400
private const val UNAUTHORIZED = 401
private const val FORBIDDEN = 403
internal const val NOT_FOUND = 404

/** A response whose head has arrived. */
internal interface Reply {
    val status: Int

    fun header(name: String): String?

    /**
     * Gives the body to [use] as it arrives: a buffer, and how many bytes of it are new.
     *
     * @throws DeadlineError a deadline passed. [TransferError] the connection was cut before the announced length.
     *   [ProtocolError] the body is longer than the request allows.
     */
    fun chunks(use: (ByteArray, Int) -> Unit)
}

/** Sends requests. Redirects are not followed; error statuses are returned, not thrown. */
internal interface Transport {
    /**
     * What [use] makes of the answer to a request of this [method] with this [body], whose own body has at most
     * [maxBytes].
     *
     * @throws TransferError no connection ([DeadlineError]: not in time).
     */
    fun <T> send(
        method: String,
        url: String,
        headers: Map<String, String> = emptyMap(),
        body: ByteArray? = null,
        deadlines: Deadlines,
        maxBytes: Long,
        use: (Reply) -> T,
    ): T

    fun <T> get(
        url: String,
        headers: Map<String, String> = emptyMap(),
        deadlines: Deadlines,
        maxBytes: Long,
        use: (Reply) -> T,
    ): T = send("GET", url, headers, null, deadlines, maxBytes, use)
}

/**
 * HTTP; redirects are not followed. [token] goes to the origin of [server] alone.
 *
 * @throws UsageError the token cannot be sent, or there is no address of a server for it.
 */
internal class HttpTransport(
    private val token: String?,
    server: String? = null,
    private val clock: Clock = System::nanoTime,
) : Transport {
    private val origin = server?.let { originOf(base(it)) }

    init {
        if (token != null && origin == null) throw UsageError("a token needs the address of its server")
        if (token != null && !Regex("[\\x21-\\x7e]+").matches(token)) {
            throw UsageError("the token is empty or has a space or a character that is not printable ASCII")
        }
    }

    override fun <T> send(
        method: String,
        url: String,
        headers: Map<String, String>,
        body: ByteArray?,
        deadlines: Deadlines,
        maxBytes: Long,
        use: (Reply) -> T,
    ): T {
        val connection = connection(url, headers, deadlines)
        connection.requestMethod = method
        val endsAtNs = clock() + (deadlines.totalS * MS_PER_S * 1e6).toLong()
        val server = connection.url.authority
        val timer = Timer("deadline", true)
        timer.schedule((deadlines.totalS * MS_PER_S).toLong().coerceAtLeast(1)) { connection.disconnect() }
        val expired = { clock() >= endsAtNs }
        var reply: HttpReply? = null
        try {
            val status = translated(server, expired) {
                if (body != null) write(connection, body)
                connection.responseCode
            }
            if (status < 0) throw ProtocolError("$server does not answer as HTTP")
            reply = HttpReply(connection, status, server, maxBytes, expired)
            return use(reply)
        } finally {
            timer.cancel()
            if (reply?.whole != true) connection.disconnect() // else the next request takes the same connection
        }
    }

    /** Streamed, so that the platform neither buffers it nor sends it again by itself. */
    private fun write(connection: HttpURLConnection, body: ByteArray) {
        connection.doOutput = true
        connection.setFixedLengthStreamingMode(body.size)
        connection.outputStream.use { it.write(body) }
    }

    private fun connection(url: String, headers: Map<String, String>, deadlines: Deadlines): HttpURLConnection {
        val connection = URL(url).openConnection() as HttpURLConnection
        val patienceMs = (minOf(deadlines.idleS, deadlines.totalS) * MS_PER_S).toInt().coerceAtLeast(1)
        connection.connectTimeout = patienceMs
        connection.readTimeout = patienceMs
        connection.instanceFollowRedirects = false
        connection.useCaches = false
        connection.setRequestProperty("User-Agent", "pathweave")
        connection.setRequestProperty("Accept-Encoding", "identity") // ranges and lengths count plain bytes
        for ((name, value) in headers) connection.setRequestProperty(name, value)
        if (token != null && originOf(url) == origin) connection.setRequestProperty("Authorization", "Bearer $token")
        return connection
    }
}

private class HttpReply(
    private val connection: HttpURLConnection,
    override val status: Int,
    private val server: String,
    private val maxBytes: Long,
    private val expired: () -> Boolean,
) : Reply {
    /** Whether the body was read to its end. */
    var whole = false
        private set

    override fun header(name: String): String? = connection.getHeaderField(name)

    override fun chunks(use: (ByteArray, Int) -> Unit) {
        val encoding = header("Content-Encoding")?.trim()?.lowercase() ?: "identity"
        if (encoding != "identity") throw ProtocolError("$server sent the content encoding ${encoding.take(40)}")
        val announced = header("Content-Length")?.toLongOrNull()
        if (announced != null && announced > maxBytes) throw tooLong()
        val body = translated(server, expired) {
            if (status >= ERRORS_FROM) connection.errorStream else connection.inputStream
        } ?: return
        val received = body.use { readAll(it, use) }
        if (announced != null && received < announced) {
            throw TransferError("the connection to $server was cut after $received of $announced bytes")
        }
        whole = true
    }

    private fun readAll(body: InputStream, use: (ByteArray, Int) -> Unit): Long {
        val buffer = ByteArray(CHUNK_BYTES)
        var received = 0L
        while (true) {
            val count = translated(server, expired) { body.read(buffer) }
            if (count < 0) return received
            received += count
            if (received > maxBytes) throw tooLong()
            if (count > 0) use(buffer, count)
            if (expired()) throw slow(server, null)
        }
    }

    private fun tooLong() = ProtocolError("$server sent more than the $maxBytes bytes allowed")
}

/** The whole body, of at most the request's `maxBytes`. */
internal fun readAll(reply: Reply): ByteArray {
    val body = ByteArrayOutputStream()
    reply.chunks { buffer, count -> body.write(buffer, 0, count) }
    return body.toByteArray()
}

/** Throws [RefusedError] unless the status is 2xx. [what]: the request, for the message. */
internal fun requireSuccess(reply: Reply, what: String) {
    if (reply.status in SUCCESS) return
    val hint = when (reply.status) {
        UNAUTHORIZED, FORBIDDEN -> "give a valid token for this server"
        NOT_FOUND -> "check the address"
        in REDIRECTS -> "redirects are not followed: give the address that the server names"
        else -> null
    }
    val reason = if (reply.status in REDIRECTS) shown(reply.header("Location").orEmpty()) else reasonIn(reply)
    val said = oneLine(reason).let { if (it.isEmpty()) it else ": $it" }
    throw RefusedError("$what: the server answered ${reply.status}$said", reply.status, hint)
}

/** The server's error message; empty if the body has none. */
private fun reasonIn(reply: Reply): String = try {
    val body = ByteArrayOutputStream()
    reply.chunks { buffer, count -> if (body.size() <= REASON_MAX_BYTES) body.write(buffer, 0, count) }
    decodeJson(body.toByteArray())["error"].text()
} catch (_: TransferError) {
    ""
} catch (_: JsonError) {
    ""
}

/** [text] without line breaks and control characters, since terminals show it. */
private fun oneLine(text: String): String =
    text.take(4 * REASON_MAX_CHARACTERS).map { if (it.isISOControl() || it.isWhitespace()) ' ' else it }
        .joinToString("").trim().replace(Regex(" +"), " ").take(REASON_MAX_CHARACTERS)

private fun slow(server: String, cause: IOException?) =
    DeadlineError("$server was too slow", cause, hint = "try again, or allow more time")

/** Turns what sockets throw into ours. */
private inline fun <T> translated(server: String, expired: () -> Boolean, work: () -> T): T = try {
    work()
} catch (error: IOException) {
    throw when {
        error is SocketTimeoutException || expired() -> slow(server, error)
        error is UnknownHostException || error is ConnectException || error is NoRouteToHostException ->
            TransferError("no connection to $server: ${oneLine(error.message.orEmpty())}", "check the address", error)
        error is SSLException -> TransferError("no secure connection to $server: ${error.message}", null, error)
        error is ProtocolException -> ProtocolError("$server does not answer as HTTP", null, error)
        else -> TransferError("the connection to $server was cut: ${oneLine(error.message.orEmpty())}", null, error)
    }
}

private const val BUNDLES = "/v1/bundles/"
private const val EXAMPLE = "an address looks like https://models.example.org/v1/bundles/NAME"
private const val SHOWN_CHARACTERS = 200
private const val MAX_PORT = 65_535
private val SCHEMES = listOf("http", "https")
private val HOST_AND_PORT = Regex("(?:\\[[0-9a-fA-F:.]+]|[A-Za-z0-9._-]+)(?::([0-9]{0,5}))?") // names may have underscores
private val PRINTABLE = Regex("[\\x21-\\x7e]+")

/**
 * [url] without a trailing slash, for appending paths.
 *
 * @throws UsageError not an absolute http or https URL, or one with a user name, a password, a query or a fragment.
 */
internal fun base(url: String): String {
    val parts = try {
        URI(url)
    } catch (_: URISyntaxException) {
        throw notAnAddress(url)
    }
    val authority = parts.rawAuthority.orEmpty()
    if (parts.scheme?.lowercase() !in SCHEMES || !PRINTABLE.matches(url)) throw notAnAddress(url)
    if ('@' in authority) {
        throw UsageError(
            "the address of ${authority.substringAfterLast('@')} contains a user name or a password",
            "give a token instead",
        )
    }
    val port = HOST_AND_PORT.matchEntire(authority)?.groupValues?.get(1) ?: throw notAnAddress(url)
    if ((port.toIntOrNull() ?: 0) > MAX_PORT) throw notAnAddress(url)
    if (parts.rawQuery != null || parts.rawFragment != null) {
        throw UsageError("'${shown(url)}' has a query or a fragment", EXAMPLE)
    }
    return url.trimEnd('/')
}

/**
 * The address of the server that has the bundle at [url], and the bundle's name there.
 *
 * @throws UsageError [url] does not end in /v1/bundles/NAME.
 */
public fun serverAndName(url: String): Pair<String, String> {
    val address = base(url)
    val (server, name) = address.substringBeforeLast(BUNDLES, "") to address.substringAfterLast(BUNDLES, "")
    if (server.isEmpty()) {
        throw UsageError("${shown(url)} is not the address of a bundle at a server", "it ends in /v1/bundles/NAME")
    }
    return server to name
}

/** Scheme, host and port of [url] in lower case, to which a token is bound; null if it is no address of http or https. */
internal fun originOf(url: String): String? {
    val parts = try {
        URL(url)
    } catch (_: MalformedURLException) {
        return null
    }
    val port = if (parts.port < 0) parts.defaultPort else parts.port
    val usable = parts.protocol in SCHEMES && parts.host.isNotEmpty() && port <= MAX_PORT && PRINTABLE.matches(url)
    return if (usable) "${parts.protocol}://${parts.host}:$port".lowercase() else null
}

private fun notAnAddress(url: String) = UsageError("'${shown(url)}' is not an address", EXAMPLE)

/** [url] for messages: without user name, password, query and fragment, which may be secrets. */
internal fun shown(url: String): String {
    val scheme = if (url.split("://").size == 2) url.substringBefore("://") + "://" else ""
    val rest = url.removePrefix(scheme)
    val place = rest.substringAfterLast('@').split('?', '#').first() // a password may have any of / ? #
    return (scheme + (if ('@' in rest) "…@" else "") + place).take(SHOWN_CHARACTERS)
}

/** Time limits of a transfer: [idleS] without a byte, [totalS] altogether. */
public data class Deadlines(public val idleS: Double = 10.0, public val totalS: Double = 600.0)
