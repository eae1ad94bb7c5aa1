/** Upload of the adaptation log to a server. */
package pathweave.sdk.delivery

import java.io.ByteArrayOutputStream
import java.io.File
import java.io.IOException
import java.io.InputStream
import java.util.concurrent.CancellationException
import pathweave.sdk.ProtocolError
import pathweave.sdk.UsageError
import pathweave.sdk.files.JsonError
import pathweave.sdk.files.completeLines
import pathweave.sdk.files.decodeJson
import pathweave.sdk.files.openedFiles
import pathweave.sdk.files.reason
import pathweave.sdk.transports.Deadlines
import pathweave.sdk.transports.HttpTransport
import pathweave.sdk.transports.base
import pathweave.sdk.transports.readAll
import pathweave.sdk.transports.requireSuccess

internal const val BODY_MAX_BYTES = 1_000_000 // the server's limit is four times as large
private const val REPLY_MAX_BYTES = 64_000L
private val BODY_DEADLINES = Deadlines(idleS = 10.0, totalS = 60.0)

/** [accepted]: lines new to the server; [duplicates]: lines it had already. */
public data class UploadResult(public val accepted: Long, public val duplicates: Long) {
    internal operator fun plus(other: UploadResult) =
        UploadResult(accepted + other.accepted, duplicates + other.duplicates)
}

/**
 * Send the log at [path], oldest file first, to the server at [url] as the log of [device] ([deviceId]).
 *
 * An incomplete last line is left out. Idempotent: after an error or the end of the process, call it again; the server
 * stores no line twice. [deadlines]: of each body. [stopped]: asked before each body; true ends the upload with
 * CancellationException.
 *
 * @throws UsageError no such log, a line of more than 64,000 bytes, or an invalid device name.
 * @throws RefusedError the server refused lines; the message names them. [TransferError] they could not be sent.
 */
public fun uploadLog(
    path: File,
    url: String,
    device: String,
    token: String? = null,
    deadlines: Deadlines = BODY_DEADLINES,
    stopped: () -> Boolean = { false },
): UploadResult {
    val headers = mapOf(DEVICE_HEADER to checkedDevice(device), "Content-Type" to "application/x-ndjson")
    val address = "${base(url)}/v1/logs"
    val transport = HttpTransport(token, address)
    return try {
        openedFiles(path) { opened ->
            opened.asSequence().flatMap { (file, input) -> bodies(file, input) }.map { body ->
                if (stopped()) throw CancellationException("the upload was stopped")
                transport.send("POST", address, headers, body.data, deadlines, REPLY_MAX_BYTES) { reply ->
                    requireSuccess(reply, "${body.file}, from line ${body.firstLine}")
                    decoded(readAll(reply))
                }
            }.fold(UploadResult(0, 0), UploadResult::plus)
        }
    } catch (error: IOException) { // of the files: the network's is translated
        throw UsageError("cannot read the log $path: ${reason(error)}")
    }
}

/** Complete lines of one file. [firstLine]: where they begin in the [file], from 1. */
private class LogBody(val data: ByteArray, val file: String, val firstLine: Int)

/** The complete lines of a file in bodies of at most BODY_MAX_BYTES. */
private fun bodies(path: File, input: InputStream): Sequence<LogBody> = sequence {
    val data = ByteArrayOutputStream()
    var firstLine = 1
    for ((index, line) in completeLines(path, input.buffered()).withIndex()) {
        if (data.size() > 0 && data.size() + line.size > BODY_MAX_BYTES) {
            yield(LogBody(data.toByteArray(), path.name, firstLine))
            data.reset()
            firstLine = index + 1
        }
        data.write(line)
    }
    if (data.size() > 0) yield(LogBody(data.toByteArray(), path.name, firstLine))
}

private fun decoded(data: ByteArray): UploadResult = try {
    val stored = decodeJson(data)
    UploadResult(stored["accepted"].whole(least = 0), stored["duplicates"].whole(least = 0))
} catch (error: JsonError) {
    throw ProtocolError("the server's response to a log breaks the protocol: ${error.message}", cause = error)
}
