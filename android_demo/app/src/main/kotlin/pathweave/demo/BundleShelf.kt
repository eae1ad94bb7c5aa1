package pathweave.demo

import android.content.ContentResolver
import android.content.SharedPreferences
import android.net.Uri
import android.provider.DocumentsContract
import android.provider.DocumentsContract.Document
import java.io.File
import java.io.IOException
import pathweave.sdk.AdaptiveModel
import pathweave.sdk.Manifest
import pathweave.sdk.TrustedKey
import pathweave.sdk.fetchBundle

private const val LAST_FOLDER = "last_folder"
private const val LAST_BLOBS = "last_blobs"
private const val LAST_KEY = "last_key"
private const val SELF_TESTED = "self_tested"

/** A file or a folder that the person chose cannot be read. */
class UnreadableException(message: String, cause: Throwable? = null) : Exception(message, cause)

/** Where a bundle comes from. [key]: the public key of who has to have signed it, as PEM; null: anyone. */
sealed interface BundleSource {
    val key: String?

    class Server(val url: String, val token: String?, override val key: String?) : BundleSource

    class Folder(val tree: Uri, override val key: String?) : BundleSource

    class Here(val folder: File, val blobs: File, override val key: String?) : BundleSource
}

/** The bundles in the app's own files: ONNX Runtime reads from there, not from documents of others. */
class BundleShelf(
    private val files: File,
    private val settings: SharedPreferences,
    private val resolver: ContentResolver,
) {
    /** Brings the bundle here, verifies and self-tests it (PathweaveError). */
    fun open(source: BundleSource, previous: Manifest?): AdaptiveModel {
        val key = source.key?.let { TrustedKey.fromPem(it) }
        val here = when (source) {
            is BundleSource.Here -> source
            is BundleSource.Folder -> copy(source)
            is BundleSource.Server -> {
                val into = File(files, "fetched")
                val fetched = fetchBundle(source.url, into, key, source.token, previous)
                BundleSource.Here(fetched.folder, fetched.blobs, source.key)
            }
        }
        val model = AdaptiveModel.open(here.folder, key, blobs = here.blobs, selfTested = ::passedHere)
        remember(here, model.bundle.digest)
        return model
    }

    /** What was opened last. */
    fun last(): BundleSource.Here? {
        val folder = settings.getString(LAST_FOLDER, null) ?: return null
        val blobs = settings.getString(LAST_BLOBS, null) ?: return null
        return BundleSource.Here(File(folder), File(blobs), settings.getString(LAST_KEY, null))
    }

    private fun passedHere(digest: String) = settings.getString(SELF_TESTED, null) == digest

    private fun remember(here: BundleSource.Here, digest: String) = settings.edit()
        .putString(LAST_FOLDER, here.folder.path)
        .putString(LAST_BLOBS, here.blobs.path)
        .putString(LAST_KEY, here.key)
        .putString(SELF_TESTED, digest)
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
        return BundleSource.Here(into, File(into, "blobs"), source.key)
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
