/** What is right for samples, by the task of the model. */
package pathweave.sdk.tasks

/** Of a pixel without a class: it does not count. */
public const val UNLABELLED: Int = 255

/** Targets of samples. */
public sealed interface Targets {
    /** Number of samples. */
    public val count: Int

    /** Those at [positions], in that order. */
    public fun at(positions: List<Int>): Targets
}

/** Of classification: a class index for each sample. */
public class ClassTargets(public val classes: IntArray) : Targets {
    override val count: Int get() = classes.size
    override fun at(positions: List<Int>): ClassTargets = ClassTargets(IntArray(positions.size) { classes[positions[it]] })
}

/** Of segmentation: for each sample the class indices of its pixels, row by row, or [UNLABELLED]. */
public class MapTargets(public val maps: List<IntArray>, public val height: Int, public val width: Int) : Targets {
    override val count: Int get() = maps.size
    override fun at(positions: List<Int>): MapTargets = MapTargets(positions.map(maps::get), height, width)
}

/** Of token classification: for each text the class indices of its tokens, below 0 where one does not count. */
public class TokenTargets(public val classes: List<IntArray>) : Targets {
    override val count: Int get() = classes.size
    override fun at(positions: List<Int>): TokenTargets = TokenTargets(positions.map(classes::get))
}

/** A box of an object, its sides in shares of the image. */
public data class ObjectBox(
    val classIndex: Int,
    val left: Float,
    val top: Float,
    val right: Float,
    val bottom: Float,
)

/** Of detection: for each sample the boxes of its objects. */
public class BoxTargets(public val boxes: List<List<ObjectBox>>) : Targets {
    override val count: Int get() = boxes.size
    override fun at(positions: List<Int>): BoxTargets = BoxTargets(positions.map(boxes::get))
}

/** Of the other tasks: for each sample its values; of labels 1 where one is there, else 0. */
public class ValueTargets(public val values: List<FloatArray>) : Targets {
    override val count: Int get() = values.size
    override fun at(positions: List<Int>): ValueTargets = ValueTargets(positions.map(values::get))
}
