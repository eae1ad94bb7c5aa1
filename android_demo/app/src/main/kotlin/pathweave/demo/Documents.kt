package pathweave.demo

import android.content.ContentResolver
import android.content.Intent
import android.net.Uri
import android.provider.DocumentsContract
import android.provider.DocumentsContract.Document
import java.io.File
import java.io.IOException

private const val MOST_PICTURES = 2000 // of a folder and its folders that are looked at
private const val BUNDLE_DEPTH = 1 // folders of a bundle in its folder
private const val PICTURES_DEPTH = 1 // a folder for each class

/** One document of a folder that the person chose. */
private class Entry(val id: String, val name: String, val kind: String) {
    val isFolder get() = kind == Document.MIME_TYPE_DIR
}

/** Copies a bundle into [into], in the app's own files: the runtime reads from there, not from documents of others. */
fun copyBundle(resolver: ContentResolver, tree: Uri, into: File): File {
    val fresh = File(into.parentFile, "${into.name}.part").apply { deleteRecursively() }
    readable {
        copyFolder(resolver, tree, DocumentsContract.getTreeDocumentId(tree), fresh, BUNDLE_DEPTH)
    }
    into.deleteRecursively()
    if (!fresh.renameTo(into)) throw UnreadableException("The folder cannot be copied.")
    return into
}

private fun copyFolder(resolver: ContentResolver, tree: Uri, id: String, into: File, depth: Int) {
    if (!into.mkdirs()) throw IOException("cannot make $into")
    for (entry in entries(resolver, tree, id)) {
        val target = File(into, File(entry.name).name) // a provider may name its documents as it likes
        val document = DocumentsContract.buildDocumentUriUsingTree(tree, entry.id)
        when {
            !entry.isFolder -> copyFile(resolver, document, target)
            depth > 0 -> copyFolder(resolver, tree, entry.id, target, depth - 1)
        }
    }
}

private fun copyFile(resolver: ContentResolver, from: Uri, to: File) {
    val input = resolver.openInputStream(from) ?: throw IOException("$from cannot be opened")
    input.use { to.outputStream().use { out -> input.copyTo(out) } }
}

private fun entries(resolver: ContentResolver, tree: Uri, id: String): List<Entry> {
    val columns = arrayOf(Document.COLUMN_DOCUMENT_ID, Document.COLUMN_DISPLAY_NAME, Document.COLUMN_MIME_TYPE)
    val children = DocumentsContract.buildChildDocumentsUriUsingTree(tree, id)
    val cursor = resolver.query(children, columns, null, null, null) ?: throw IOException("it cannot be listed")
    return cursor.use {
        generateSequence { cursor.takeIf { it.moveToNext() } }.map { row ->
            val (document, name, kind) = List(columns.size) { row.getString(it).orEmpty() }
            Entry(document, name, kind)
        }.toList()
    }
}

/** The pictures in a folder and in its folders, which may be named for classes. Read where they are needed. */
fun picturesIn(resolver: ContentResolver, tree: Uri, unreadable: String): List<PickedPicture> = readable {
    val found = ArrayList<PickedPicture>()
    fun look(id: String, label: String?, depth: Int) {
        for (entry in entries(resolver, tree, id)) {
            if (found.size == MOST_PICTURES) return
            if (entry.isFolder && depth > 0) look(entry.id, entry.name, depth - 1)
            if (!entry.kind.startsWith("image/")) continue
            val uri = DocumentsContract.buildDocumentUriUsingTree(tree, entry.id)
            found += PickedPicture(label) { pixelsOf(readPicture(resolver, uri, unreadable, SAMPLE_SIDE)) }
        }
    }
    look(DocumentsContract.getTreeDocumentId(tree), label = null, PICTURES_DEPTH)
    found
}

/** The pictures that were picked one by one. */
fun picturesOf(resolver: ContentResolver, picked: Intent, unreadable: String): List<PickedPicture> {
    val clip = picked.clipData
    val uris = if (clip == null) listOfNotNull(picked.data) else List(clip.itemCount) { clip.getItemAt(it).uri }
    return uris.take(MOST_PICTURES).map { uri ->
        PickedPicture(label = null) { pixelsOf(readPicture(resolver, uri, unreadable, SAMPLE_SIDE)) }
    }
}

private fun <T> readable(work: () -> T): T = try {
    work()
} catch (error: IOException) {
    throw UnreadableException("The folder cannot be read: ${error.message}", error)
} catch (error: SecurityException) {
    throw UnreadableException("The folder cannot be read: ${error.message}", error)
}
