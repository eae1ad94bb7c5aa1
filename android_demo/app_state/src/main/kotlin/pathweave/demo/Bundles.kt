/** Which bundle is open, where it comes from, and what the app remembers between its starts. */
package pathweave.demo

import java.io.File
import pathweave.sdk.AdaptiveModel
import pathweave.sdk.UsageError
import pathweave.sdk.bundles.loadTrust
import pathweave.sdk.offload.JpegEncoder
import pathweave.sdk.offload.Privacy
import pathweave.sdk.offload.RemoteModel
import pathweave.sdk.session.LogUploadWork
import pathweave.sdk.session.OpenedBundle
import pathweave.sdk.session.UpdateWork
import pathweave.sdk.session.WorkConstraints
import pathweave.sdk.session.openAt
import pathweave.sdk.session.openStored
import pathweave.sdk.transports.serverAndName

private const val LAST_FOLDER = "last_folder"
private const val LAST_URL = "last_url"
private const val LAST_KEY = "last_key"
private const val LAST_TOKEN = "last_token"
private const val OFFLINE = "offline"
private const val ASKING = "asking"
private const val ADAPTING = "adapting"
private const val YES = "yes"
private const val TIMEOUT_S = 2.0

/** Texts by name that outlive the process; the app keeps them in its private preferences. Thread-safe. */
interface Settings {
    operator fun get(name: String): String?

    /** All [changes] or none; null removes. */
    fun change(changes: Map<String, String?>)
}

/** Where a bundle comes from. [key]: the public key (PEM) or key list (JSON) that it is verified by; null: none. */
sealed interface BundleSource {
    val key: String?

    data class Server(val url: String, val token: String?, override val key: String?) : BundleSource

    /** What was fetched from [url] last; nothing is fetched. */
    data class Stored(val url: String, val token: String?, override val key: String?) : BundleSource

    /** A folder in the app's own files. */
    data class Folder(val folder: File, override val key: String?) : BundleSource
}

/** [failure]: why it is the last good bundle and not the server's; null: it is the one that was asked for. */
class OpenModel(val model: AdaptiveModel, val failure: String? = null)

/** [stateFolder]: bundles from servers, what is known of each bundle, and the adaptation logs. */
class Bundles(val stateFolder: File, private val settings: Settings) {
    /** Whether nothing is fetched and nothing is sent. */
    var offline: Boolean
        get() = settings[OFFLINE] == YES
        set(value) = settings.change(mapOf(OFFLINE to YES.takeIf { value }))

    /** Whether the person lets the server be asked about hard pictures. */
    var asking: Boolean
        get() = settings[ASKING] == YES
        set(value) = settings.change(mapOf(ASKING to YES.takeIf { value }))

    /** Whether an adaptation runs, or ran when the process ended. */
    var adapting: Boolean
        get() = settings[ADAPTING] == YES
        set(value) = settings.change(mapOf(ADAPTING to YES.takeIf { value }))

    /** Opens, verifies and self-tests the bundle (PathweaveError), and remembers where it came from. */
    fun open(source: BundleSource): OpenModel {
        val key = source.key?.let { loadTrust(it.toByteArray()) }
        val model = when (source) {
            is BundleSource.Folder -> OpenModel(AdaptiveModel.open(source.folder, key, stateFolder = stateFolder))
            is BundleSource.Stored -> openModel(openStored(source.url, stateFolder, key, token = source.token))
            is BundleSource.Server -> {
                if (offline) return open(BundleSource.Stored(source.url, source.token, source.key))
                openModel(openAt(source.url, stateFolder, key, source.token))
            }
        }
        requireImages(model.model)
        remember(source)
        return model
    }

    /** The app shows pictures: models of other samples are closed again (UsageError). */
    private fun requireImages(model: AdaptiveModel) = try {
        model.bundle.manifest.preprocessing.ofImages()
    } catch (error: UsageError) {
        model.close()
        throw error
    }

    private fun openModel(opened: OpenedBundle) =
        OpenModel(AdaptiveModel.open(opened, stateFolder = stateFolder), opened.delivered.failure)

    /** What was opened last, as it lies here. */
    fun last(): BundleSource? {
        val key = settings[LAST_KEY]
        settings[LAST_URL]?.let { return BundleSource.Stored(it, settings[LAST_TOKEN], key) }
        return settings[LAST_FOLDER]?.let { BundleSource.Folder(File(it), key) }
    }

    /** What updates the bundle that was opened last; null: it came from no server, or the app is offline. */
    fun updateWork(): UpdateWork? = online { url ->
        UpdateWork(url, stateFolder, settings[LAST_KEY]?.let { loadTrust(it.toByteArray()) }, settings[LAST_TOKEN])
    }

    /** What sends the logs of the bundle that was opened last; null: it came from no server, or the app is offline. */
    fun logUploadWork(constraints: WorkConstraints = WorkConstraints()): LogUploadWork? = online { url ->
        LogUploadWork(url, stateFolder, settings[LAST_TOKEN], constraints)
    }

    /**
     * The full network at the server of the bundle that was opened last, which may be sent pictures; null: it came from
     * no server, or the app is offline. [jpeg]: encodes them; null: they travel as pixels.
     */
    fun serverModel(jpeg: JpegEncoder?): RemoteModel? = online { url ->
        val (server, name) = serverAndName(url)
        val model = name + if (jpeg == null) ":images" else ":jpeg"
        RemoteModel(server, model, settings[LAST_TOKEN], Privacy.INPUTS, TIMEOUT_S, jpegEncoder = jpeg)
    }

    private fun <T> online(work: (url: String) -> T): T? = if (offline) null else settings[LAST_URL]?.let(work)

    private fun remember(source: BundleSource) {
        val (url, token) = when (source) {
            is BundleSource.Server -> source.url to source.token
            is BundleSource.Stored -> source.url to source.token
            is BundleSource.Folder -> null to null
        }
        val folder = (source as? BundleSource.Folder)?.folder?.path
        settings.change(mapOf(LAST_FOLDER to folder, LAST_URL to url, LAST_TOKEN to token, LAST_KEY to source.key))
    }
}
