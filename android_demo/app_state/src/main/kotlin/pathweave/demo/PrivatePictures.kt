/** The pictures that a person picked to adapt on. They stay in memory and never leave the device. */
package pathweave.demo

import pathweave.sdk.UsageError
import pathweave.sdk.data.Image

/** Most bytes of pixels that are kept. */
const val PICTURES_MAX_BYTES: Long = 64_000_000

/**
 * Pictures with their classes. [labels]: class indices, or null: none is labelled. [leftOut]: pictures without a label
 * beside labelled ones.
 */
class Samples(val images: List<Image>, val labels: IntArray?, val leftOut: Int)

/** [names]: of the model's classes. */
class PrivatePictures private constructor(
    private val names: List<String>,
    private val images: List<Image>,
    private val classes: List<Int?>,
) {
    constructor(classNames: List<String>) : this(classNames, emptyList(), emptyList())

    /** All of them, as they were added. */
    val all: List<Image> get() = images

    val count: Int get() = images.size

    val labelled: Int get() = classes.count { it != null }

    private val bytes = images.sumOf { it.pixels.size.toLong() }

    /** Whether there is room for one more of [size] bytes. */
    fun hasRoom(size: Int): Boolean = bytes + size <= PICTURES_MAX_BYTES

    /**
     * These and one more. [label]: the name of a class, or what may be one: the name of a picture's folder.
     *
     * A label that names no class is left out: most folders are not named for what their pictures show.
     */
    fun with(image: Image, label: String?): PrivatePictures =
        PrivatePictures(names, images + image, classes + classNamed(label))

    /** @throws UsageError the typed [label] is the name of no class. */
    fun requireClass(label: String?) {
        if (label.isNullOrBlank() || classNamed(label) != null) return
        if (names.isEmpty()) throw UsageError("pictures of this model have no labels here", "leave the label empty: it adapts to its own answers")
        val some = names.take(5).joinToString(", ")
        throw UsageError("'${label.trim().take(40)}' is none of the ${names.size} classes", "for example: $some")
    }

    private fun classNamed(label: String?): Int? {
        val wanted = label?.trim() ?: return null
        val exact = names.indexOf(wanted)
        val found = if (exact >= 0) exact else names.indexOfFirst { it.equals(wanted, ignoreCase = true) }
        return found.takeIf { it >= 0 }
    }

    /**
     * The pictures as samples. Where some have a label, those without are left out; without any label, the full model's
     * answers stand in.
     */
    fun samples(): Samples {
        val some = labelled > 0
        val used = images.indices.filter { !some || classes[it] != null }
        val labels = if (some) IntArray(used.size) { checkNotNull(classes[used[it]]) } else null
        return Samples(used.map(images::get), labels, images.size - used.size)
    }
}
