/** The size of an input. */
package pathweave.sdk.supernet

/**
 * The size of a sample besides its channels: pixels up and across, or one length, such as of tokens.
 *
 * As text `160x160`, height first, or `64`.
 */
public class SampleSize private constructor(public val extents: List<Int>) {
    /** Of an image. */
    public constructor(height: Int, width: Int) : this(listOf(height, width))

    /** Of a text or another series. */
    public constructor(length: Int) : this(listOf(length))

    /** Pixels up; of a series its length. */
    public val height: Int get() = extents.first()

    /** Pixels across; of a series its length. */
    public val width: Int get() = extents.last()

    public operator fun component1(): Int = height

    public operator fun component2(): Int = width

    override fun equals(other: Any?): Boolean = other is SampleSize && extents == other.extents

    override fun hashCode(): Int = extents.hashCode()

    override fun toString(): String = extents.joinToString("x")
}
