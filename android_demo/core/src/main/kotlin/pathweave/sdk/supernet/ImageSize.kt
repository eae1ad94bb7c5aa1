/** The size of an input. */
package pathweave.sdk.supernet

/** Pixels up and across. As text `160x160`, height first. */
public data class ImageSize(val height: Int, val width: Int) {
    override fun toString(): String = "${height}x$width"
}
