package pathweave.demo

import android.content.ContentResolver
import android.graphics.Bitmap
import android.graphics.BitmapFactory
import android.graphics.Color
import android.graphics.Matrix
import android.media.ExifInterface
import android.net.Uri
import java.io.IOException
import java.io.InputStream
import pathweave.sdk.Image
import pathweave.sdk.ImageSize

private const val DECODED_SIDE = 2048 // pixels; a photo is decoded at about this size, however large it is
private const val RED_SHARE = 0.299f
private const val GREEN_SHARE = 0.587f
private const val BLUE_SHARE = 0.114f

/** The image at [uri], upright, its longer side at most about twice [DECODED_SIDE]. */
fun readPicture(resolver: ContentResolver, uri: Uri, unreadable: String): Bitmap {
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
        inSampleSize = maxOf(1, Integer.highestOneBit(maxOf(bounds.outWidth, bounds.outHeight, 1) / DECODED_SIDE))
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

/** The pixels of [picture], 1 (grey) or 3 [channels], channels last; the core resizes them. */
fun pixelsOf(picture: Bitmap, channels: Int): Image {
    val size = ImageSize(picture.height, picture.width)
    val colours = IntArray(size.width * size.height)
    picture.getPixels(colours, 0, size.width, 0, 0, size.width, size.height)
    val pixels = ByteArray(colours.size * channels)
    for ((at, colour) in colours.withIndex()) {
        if (channels == 1) {
            pixels[at] = grey(colour).toByte()
        } else {
            pixels[3 * at] = Color.red(colour).toByte()
            pixels[3 * at + 1] = Color.green(colour).toByte()
            pixels[3 * at + 2] = Color.blue(colour).toByte()
        }
    }
    return Image(pixels, size, if (channels == 1) 1 else 3)
}

private fun grey(colour: Int): Int =
    (RED_SHARE * Color.red(colour) + GREEN_SHARE * Color.green(colour) + BLUE_SHARE * Color.blue(colour)).toInt()
