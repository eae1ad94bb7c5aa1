/** Sending the adaptation logs to the bundle's server in the background. */
package pathweave.sdk.session

import java.io.File
import pathweave.sdk.delivery.UploadResult
import pathweave.sdk.delivery.uploadLog
import pathweave.sdk.transports.serverAndName

/**
 * Sends the logs of all versions of the bundle at [url] (`http(s)://…/v1/bundles/NAME`) that ran on this device to the
 * server of that address. Logs of other bundles stay here.
 */
public class LogUploadWork(
    private val url: String,
    private val stateFolder: File,
    private val token: String? = null,
    private val constraints: WorkConstraints = WorkConstraints(),
) {
    /**
     * Run once, as long as [conditions] allow and it is not [stopped]; both are asked again before each body of at most
     * 1 MB. Does not throw: an error is a result. The next run sends everything again, and the server stores no line
     * twice.
     */
    public fun run(conditions: () -> DeviceConditions, stopped: () -> Boolean = { false }): WorkResult =
        runWithin(constraints, conditions, stopped) { over ->
            val (server, _) = serverAndName(url)
            val logs = storeIn(stateFolder).lastGoodAt(url)?.let { logsOf(stateFolder, it.name) }.orEmpty()
            val stored = logs.map { uploadLog(it, server, deviceId(stateFolder), token, stopped = over) }
            WorkResult.Uploaded(stored.fold(UploadResult(0, 0), UploadResult::plus))
        }
}
