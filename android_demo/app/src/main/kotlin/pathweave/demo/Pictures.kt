package pathweave.demo

import android.content.ContentResolver
import android.graphics.Bitmap
import android.graphics.BitmapFactory
import android.graphics.Canvas
import android.graphics.Color
import android.graphics.Matrix
import android.graphics.Paint
import android.media.ExifInterface
import android.net.Uri
import java.io.ByteArrayOutputStream
import java.io.IOException
import java.io.InputStream
import pathweave.sdk.data.Image
import pathweave.sdk.supernet.SampleSize
import pathweave.sdk.tasks.ObjectBox

/** Pixels; a photo is decoded at about this size, however large it is. */
const val PHOTO_SIDE: Int = 2048

/** Of pictures to adapt on, of which there are many; models take smaller ones. */
const val SAMPLE_SIDE: Int = 512

private const val CHANNELS = 3
private const val FINE = 256 // pixels along a side that lines of boxes need
private const val LINES = 100f // widths of a box's line that a picture has room for

/** The image at [uri], upright, its longer side at most about twice [side]. */
fun readPicture(resolver: ContentResolver, uri: Uri, unreadable: String, side: Int): Bitmap {
    fun <T> open(read: (InputStream) -> T): T = try {
        resolver.openInputStream(uri)?.use(read)
    } catch (error: IOException) {
        throw UnreadableException(unreadable, error)
    } catch (error: SecurityException) {
        throw UnreadableException(unreadable, error)
    } ?: throw UnreadableException(unreadable)

    val bounds = BitmapFactory.Options().apply { inJustDecodeBounds = true }
    open { BitmapFactory.decodeStream(it, null, bounds) ?: Unit } // decodes nothing, but fills the bounds
    val options = BitmapFactory.Options().apply {
        inSampleSize = maxOf(1, Integer.highestOneBit(maxOf(bounds.outWidth, bounds.outHeight, 1) / side))
    }
    val picture = open { BitmapFactory.decodeStream(it, null, options) ?: throw UnreadableException(unreadable) }
    return upright(picture, degrees = open { rotationOf(ExifInterface(it)) })
}

private fun rotationOf(exif: ExifInterface): Float =
    when (exif.getAttributeInt(ExifInterface.TAG_ORIENTATION, ExifInterface.ORIENTATION_NORMAL)) {
        ExifInterface.ORIENTATION_ROTATE_90 -> 90f
        ExifInterface.ORIENTATION_ROTATE_180 -> 180f
        ExifInterface.ORIENTATION_ROTATE_270 -> 270f
        else -> 0f
    }

private fun upright(picture: Bitmap, degrees: Float): Bitmap {
    if (degrees == 0f) return picture
    val turn = Matrix().apply { postRotate(degrees) }
    return Bitmap.createBitmap(picture, 0, 0, picture.width, picture.height, turn, true)
}

/** The pixels of [picture] in three channels, channels last; the core resizes them. */
fun pixelsOf(picture: Bitmap): Image {
    val size = SampleSize(picture.height, picture.width)
    val colours = IntArray(size.width * size.height)
    picture.getPixels(colours, 0, size.width, 0, 0, size.width, size.height)
    val pixels = ByteArray(colours.size * CHANNELS)
    for ((at, colour) in colours.withIndex()) {
        pixels[CHANNELS * at] = Color.red(colour).toByte()
        pixels[CHANNELS * at + 1] = Color.green(colour).toByte()
        pixels[CHANNELS * at + 2] = Color.blue(colour).toByte()
    }
    return Image(pixels, size, CHANNELS)
}

/** [image], of three channels, as a JPEG. */
fun jpegOf(image: Image, quality: Int): ByteArray {
    val encoded = ByteArrayOutputStream()
    bitmapOf(image).compress(Bitmap.CompressFormat.JPEG, quality, encoded)
    return encoded.toByteArray()
}

/** [picture] with [boxes] in this [colour], enlarged where its pixels are wider than their lines. */
fun withBoxes(picture: Bitmap, boxes: List<ObjectBox>, colour: Int): Bitmap {
    if (boxes.isEmpty()) return picture
    val times = maxOf(1, FINE / minOf(picture.width, picture.height))
    val enlarged = Bitmap.createScaledBitmap(picture, times * picture.width, times * picture.height, false)
    val drawn = enlarged.copy(Bitmap.Config.ARGB_8888, true)
    val (width, height) = drawn.width.toFloat() to drawn.height.toFloat()
    val line = Paint().apply {
        color = colour
        style = Paint.Style.STROKE
        strokeWidth = maxOf(1f, minOf(width, height) / LINES)
    }
    val canvas = Canvas(drawn)
    for (box in boxes) canvas.drawRect(box.left * width, box.top * height, box.right * width, box.bottom * height, line)
    return drawn
}

/** [image], of one channel or three, for the screen. */
fun bitmapOf(image: Image): Bitmap {
    val (height, width) = image.size
    val colours = IntArray(height * width) { at ->
        fun channel(number: Int) = image.pixels[image.channels * at + number % image.channels].toInt() and 0xff
        Color.rgb(channel(0), channel(1), channel(2))
    }
    return Bitmap.createBitmap(colours, width, height, Bitmap.Config.ARGB_8888)
}
