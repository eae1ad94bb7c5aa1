package pathweave.demo

import android.content.ContentResolver
import android.content.Context
import android.content.SharedPreferences
import android.net.Uri
import android.provider.DocumentsContract
import android.provider.DocumentsContract.Document
import java.io.File
import java.io.IOException
import pathweave.sdk.AdaptiveModel
import pathweave.sdk.LogUploadWork
import pathweave.sdk.Trust
import pathweave.sdk.UpdateWork
import pathweave.sdk.loadTrust
import pathweave.sdk.openAt
import pathweave.sdk.openStored

private const val LAST_FOLDER = "last_folder"
private const val LAST_URL = "last_url"
private const val LAST_KEY = "last_key"
private const val LAST_TOKEN = "last_token"
private const val SELF_TESTED = "self_tested"

/** A file or a folder that the person chose cannot be read. */
class UnreadableException(message: String, cause: Throwable? = null) : Exception(message, cause)

/** Where a bundle comes from. [key]: the public key (PEM) or key list (JSON) that it is verified by; null: none. */
sealed interface BundleSource {
    val key: String?

    class Server(val url: String, val token: String?, override val key: String?) : BundleSource

    class Folder(val tree: Uri, override val key: String?) : BundleSource

    class Here(val folder: File, override val key: String?) : BundleSource

    /** What was fetched from [url] last. */
    class Stored(val url: String, override val key: String?) : BundleSource
}

/** The shelf of this app. */
fun shelf(context: Context): BundleShelf = BundleShelf(
    context.filesDir,
    context.getSharedPreferences("bundles", Context.MODE_PRIVATE),
    context.contentResolver,
)

/** The bundles in the app's own files: ONNX Runtime reads from there, not from documents of others. */
class BundleShelf(
    private val files: File,
    private val settings: SharedPreferences,
    private val resolver: ContentResolver,
) {
    /** Bundles from servers, what is known of them, and their adaptation logs. */
    val state: File = File(files, "state")

    /** Brings the bundle here, verifies and self-tests it (PathweaveError). */
    fun open(source: BundleSource): AdaptiveModel {
        val key = source.key?.let { loadTrust(it.toByteArray()) }
        return when (source) {
            is BundleSource.Here -> openFolder(source, key)
            is BundleSource.Folder -> openFolder(copy(source), key)
            is BundleSource.Server -> AdaptiveModel
                .open(openAt(source.url, state, key, source.token), stateFolder = state)
                .also { remember(LAST_URL, source.url, source.key, source.token) }
            is BundleSource.Stored -> AdaptiveModel.open(openStored(source.url, state, key), stateFolder = state)
        }
    }

    /** What was opened last. */
    fun last(): BundleSource? {
        val key = settings.getString(LAST_KEY, null)
        settings.getString(LAST_URL, null)?.let { return BundleSource.Stored(it, key) }
        return settings.getString(LAST_FOLDER, null)?.let { BundleSource.Here(File(it), key) }
    }

    /** What updates the bundle that was opened last, if it came from a server. */
    fun updateWork(): UpdateWork? {
        val url = settings.getString(LAST_URL, null) ?: return null
        val key = settings.getString(LAST_KEY, null)?.let { loadTrust(it.toByteArray()) }
        return UpdateWork(url, state, key, settings.getString(LAST_TOKEN, null))
    }

    /** What sends the logs of the bundle that was opened last, if it came from a server. */
    fun logUploadWork(): LogUploadWork? =
        settings.getString(LAST_URL, null)?.let { LogUploadWork(it, state, settings.getString(LAST_TOKEN, null)) }

    private fun openFolder(here: BundleSource.Here, key: Trust?): AdaptiveModel {
        val model = AdaptiveModel.open(here.folder, key, selfTested = ::passedHere)
        remember(LAST_FOLDER, here.folder.path, here.key)
        settings.edit().putString(SELF_TESTED, model.bundle.digest).apply()
        return model
    }

    private fun passedHere(digest: String) = settings.getString(SELF_TESTED, null) == digest

    private fun remember(kind: String, place: String, key: String?, token: String? = null) = settings.edit()
        .remove(LAST_FOLDER)
        .remove(LAST_URL)
        .putString(kind, place)
        .putString(LAST_KEY, key)
        .putString(LAST_TOKEN, token)
        .apply()

    private fun copy(source: BundleSource.Folder): BundleSource.Here {
        val into = File(files, "copied")
        val fresh = File(files, "copying").apply { deleteRecursively() }
        val root = DocumentsContract.getTreeDocumentId(source.tree)
        try {
            copyChildren(source.tree, root, fresh, depth = 1)
        } catch (error: IOException) {
            throw UnreadableException("The folder cannot be copied: ${error.message}", error)
        } catch (error: SecurityException) {
            throw UnreadableException("The folder cannot be read: ${error.message}", error)
        }
        into.deleteRecursively()
        if (!fresh.renameTo(into)) throw UnreadableException("The folder cannot be copied.")
        return BundleSource.Here(into, source.key)
    }

    private fun copyChildren(tree: Uri, parent: String, into: File, depth: Int) {
        if (!into.mkdirs()) throw IOException("cannot make $into")
        val columns = arrayOf(Document.COLUMN_DOCUMENT_ID, Document.COLUMN_DISPLAY_NAME, Document.COLUMN_MIME_TYPE)
        val children = DocumentsContract.buildChildDocumentsUriUsingTree(tree, parent)
        val cursor = resolver.query(children, columns, null, null, null) ?: throw IOException("it cannot be listed")
        cursor.use {
            while (cursor.moveToNext()) {
                val (id, name, kind) = List(columns.size) { cursor.getString(it).orEmpty() }
                val target = File(into, File(name).name) // a provider may name its documents as it likes
                val document = DocumentsContract.buildDocumentUriUsingTree(tree, id)
                when {
                    kind != Document.MIME_TYPE_DIR -> copyFile(document, target)
                    depth > 0 -> copyChildren(tree, id, target, depth - 1)
                }
            }
        }
    }

    private fun copyFile(from: Uri, to: File) {
        val input = resolver.openInputStream(from) ?: throw IOException("$from cannot be opened")
        input.use { to.outputStream().use { out -> input.copyTo(out) } }
    }
}
