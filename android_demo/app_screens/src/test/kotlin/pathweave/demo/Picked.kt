/** What a person picks: pictures and folders, as Android's pickers give them to the app. */
package pathweave.demo

import android.content.ClipData
import android.content.ContentProvider
import android.content.ContentValues
import android.content.Intent
import android.database.Cursor
import android.database.MatrixCursor
import android.graphics.Bitmap
import android.net.Uri
import android.os.ParcelFileDescriptor
import android.provider.DocumentsContract
import android.provider.DocumentsContract.Document
import java.io.ByteArrayInputStream
import java.io.ByteArrayOutputStream
import java.io.File
import org.robolectric.Robolectric
import org.robolectric.Shadows.shadowOf

private const val AUTHORITY = "pathweave.documents"
private const val ROOT = "root"

/** The folder [root] and what is in it, as a provider of documents shows them. Their ids are paths. */
class FolderProvider : ContentProvider() {
    override fun onCreate(): Boolean = true

    private fun file(id: String) = if (id == ROOT) root else File(root, id)

    override fun query(uri: Uri, columns: Array<out String>?, selection: String?, values: Array<out String>?, order: String?): Cursor {
        val names = columns ?: emptyArray()
        val rows = MatrixCursor(names)
        for (child in file(DocumentsContract.getDocumentId(uri)).listFiles().orEmpty().sorted()) {
            rows.addRow(
                names.map { column ->
                    when (column) {
                        Document.COLUMN_DOCUMENT_ID -> child.relativeTo(root).path
                        Document.COLUMN_DISPLAY_NAME -> child.name
                        else -> if (child.isDirectory) Document.MIME_TYPE_DIR else if (child.extension == "png") "image/png" else "application/x"
                    }
                },
            )
        }
        return rows
    }

    override fun openFile(uri: Uri, mode: String): ParcelFileDescriptor =
        ParcelFileDescriptor.open(file(DocumentsContract.getDocumentId(uri)), ParcelFileDescriptor.MODE_READ_ONLY)

    override fun getType(uri: Uri): String? = null
    override fun insert(uri: Uri, values: ContentValues?): Uri? = null
    override fun delete(uri: Uri, selection: String?, values: Array<out String>?): Int = 0
    override fun update(uri: Uri, values: ContentValues?, selection: String?, arguments: Array<out String>?): Int = 0

    companion object {
        lateinit var root: File
    }
}

/** [folder] as what the picker of folders gives back. */
fun pickedFolder(folder: File): Intent {
    FolderProvider.root = folder
    Robolectric.buildContentProvider(FolderProvider::class.java).create(AUTHORITY)
    return Intent().setData(DocumentsContract.buildTreeDocumentUri(AUTHORITY, ROOT))
}

/** Pictures as what the picker of pictures gives back: [named] by what their addresses end with. */
fun pickedPictures(named: Map<String, ByteArray>): Intent {
    val addresses = named.map { (name, bytes) ->
        Uri.parse("content://pictures/$name").also { address ->
            shadowOf(app.contentResolver).registerInputStreamSupplier(address) { ByteArrayInputStream(bytes) }
        }
    }
    if (addresses.size == 1) return Intent().setData(addresses.single())
    val clip = ClipData.newRawUri("", addresses.first())
    for (address in addresses.drop(1)) clip.addItem(ClipData.Item(address))
    return Intent().apply { clipData = clip }
}

/** A file as a camera would write it. */
fun png(number: Int): ByteArray {
    val picture = bitmapOf(Reference.images(1, seed = number.toLong()).single())
    return ByteArrayOutputStream().also { picture.compress(Bitmap.CompressFormat.PNG, 100, it) }.toByteArray()
}

/** Answers the picker that the app has opened last. */
fun MainActivity.pick(given: Intent, result: Int = android.app.Activity.RESULT_OK) {
    val asked = shadowOf(this).nextStartedActivityForResult
    shadowOf(this).receiveResult(asked.intent, result, given)
    idle()
}
