/** Reading the adaptation log. Mirrors `read_log` of device_sdk/logs/adaptation_log.py. */
package pathweave.sdk.logs

import java.io.File
import java.io.IOException
import pathweave.sdk.UsageError
import pathweave.sdk.files.JsonError
import pathweave.sdk.files.JsonPlace
import pathweave.sdk.files.completeLines
import pathweave.sdk.files.decodeJson
import pathweave.sdk.files.openedFiles
import pathweave.sdk.files.reason

/**
 * One line of the adaptation log.
 *
 * [time]: ISO 8601, UTC; [bundle]: sha256 of its manifest; [event]: its name, as docs/adaptation_log.md lists them;
 * [fields]: what else it says, by name: texts as they are, everything else as JSON.
 */
public data class LogLine(
    val time: String,
    val bundle: String,
    val runtime: String,
    val event: String,
    val fields: Map<String, String>,
)

/**
 * The lines of the log at [path] ([logPath]), oldest file first; an incomplete last line is left out.
 *
 * @throws UsageError there is no such log, or a line breaks the schema; says which.
 */
public fun readLog(path: File): List<LogLine> = try {
    openedFiles(path) { opened ->
        opened.flatMap { (file, input) ->
            completeLines(file, input.buffered()).mapIndexed { index, line -> logLine(file, index + 1, line) }.toList()
        }
    }
} catch (error: IOException) {
    throw UsageError("cannot read the log $path: ${reason(error)}")
}

private fun logLine(file: File, number: Int, data: ByteArray): LogLine = try {
    val line = decodeJson(data)
    line["schema"].whole(least = 1)
    val event = line["event"]
    LogLine(
        line["time"].text(),
        line["bundle"].text(),
        line["runtime"].text(),
        event["event"].text(),
        event.entries().minus("event").mapValues { (_, value) -> value.shown() },
    )
} catch (error: JsonError) {
    throw UsageError("line $number of ${file.name} breaks the schema: ${error.message}")
}

private fun JsonPlace.shown(): String = toString().let { json -> if (json.startsWith('"')) text() else json }
