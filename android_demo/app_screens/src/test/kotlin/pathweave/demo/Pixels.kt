/** Screens as pictures: drawn, written, and compared with those that are kept. */
package pathweave.demo

import android.app.Activity
import android.graphics.Bitmap
import android.graphics.BitmapFactory
import android.graphics.Canvas
import android.view.View.MeasureSpec
import java.io.File
import kotlin.math.abs

private const val TILE = 24 // pixels; of the squares that are compared
private const val TOLERATED = 6.0 // of 255; the mean difference in a square, over its pixels and their three colours

private val written = File(System.getProperty("pathweave.screens")).apply { mkdirs() }
private val kept = File(System.getProperty("pathweave.references"))

/** What the activity shows, as large as its window. */
fun drawn(activity: Activity): Bitmap {
    idle()
    val (view, metrics) = activity.window.decorView to activity.resources.displayMetrics
    val (width, height) = metrics.widthPixels to metrics.heightPixels
    view.measure(MeasureSpec.makeMeasureSpec(width, MeasureSpec.EXACTLY), MeasureSpec.makeMeasureSpec(height, MeasureSpec.EXACTLY))
    view.layout(0, 0, width, height)
    return Bitmap.createBitmap(width, height, Bitmap.Config.ARGB_8888).also { view.draw(Canvas(it)) }
}

/** Writes [picture] into the build's folder, beside what it is compared with. */
fun write(picture: Bitmap, name: String): File = File(written, "$name.png").also { file ->
    file.outputStream().use { picture.compress(Bitmap.CompressFormat.PNG, 100, it) }
}

/** The picture that is kept under this name; null: none is. */
fun keptAs(name: String): Bitmap? = File(kept, "$name.png").takeIf { it.isFile }?.let { BitmapFactory.decodeFile(it.path) }

/** Whether two pictures look the same: of equal size, and in no square do they differ by more than is tolerated. */
fun looksLike(one: Bitmap, other: Bitmap): Boolean = farthest(one, other) <= TOLERATED

/** The largest mean difference of any square, of 255; infinite where the sizes differ. */
fun farthest(one: Bitmap, other: Bitmap): Double {
    if (one.width != other.width || one.height != other.height) return Double.POSITIVE_INFINITY
    val (first, second) = pixels(one) to pixels(other)
    return (0 until one.height step TILE).maxOf { top ->
        (0 until one.width step TILE).maxOf { left ->
            val rows = top until minOf(top + TILE, one.height)
            val columns = left until minOf(left + TILE, one.width)
            val sum = rows.sumOf { y -> columns.sumOf { x -> difference(first[y * one.width + x], second[y * one.width + x]) } }
            sum.toDouble() / (3 * rows.count() * columns.count())
        }
    }
}

private fun pixels(picture: Bitmap) =
    IntArray(picture.width * picture.height).also { picture.getPixels(it, 0, picture.width, 0, 0, picture.width, picture.height) }

private fun difference(one: Int, other: Int): Int =
    intArrayOf(0, 8, 16).sumOf { shift -> abs((one shr shift and 0xff) - (other shr shift and 0xff)) }
