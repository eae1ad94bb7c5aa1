/** Boxes of objects, each with a class. */
package pathweave.sdk.tasks

import kotlin.math.exp
import kotlin.math.max
import kotlin.math.min
import pathweave.sdk.InputError
import pathweave.sdk.numerics.Tensor

private const val SIDES = 4 // channels of a detector's answer behind its classes
private const val OVERLAP = 0.5f // intersection over union of the same box
private const val MOST_BOXES = 100 // of one image that stand in
private const val TINY = 1e-9f

/**
 * The harmonic mean of precision and recall of boxes: cells [count, classes + 4, rows, columns] ([pathweave.sdk.bundles.Task]).
 *
 * A box is found where one of its class overlaps it by a half; 1 where nothing is and nothing was found.
 */
internal class BoxesFound(private val classes: Int) : AnswerTask {
    override val scoreName get() = "boxes found"

    override fun check(targets: Targets, count: Int) {
        val boxes = ofKind<BoxTargets>(targets, count, "boxes").boxes.flatten()
        val sound = boxes.all { it.classIndex in 0 until classes && it.sides.all(Float::isFinite) }
        if (!sound) throw InputError("boxes must be finite, with classes between 0 and ${classes - 1}")
    }

    override fun scores(answers: Tensor, targets: Targets): FloatArray {
        val there = (targets as BoxTargets).boxes
        return found(answers).mapIndexed { at, own -> f1(own.map { it.first }, there[at]) }.toFloatArray()
    }

    override fun standIn(answers: Tensor): BoxTargets = BoxTargets(found(answers).map { own -> own.map { it.first } })

    /** The boxes, the surest first; of those of a class that overlap, the surest. */
    override fun predictions(answers: Tensor, classNames: List<String>): List<List<Prediction>> =
        found(answers).map { own -> own.map { (box, logit) -> Prediction(classNames[box.classIndex], logistic(logit), box = box) } }

    override fun compared(answers: Tensor): List<FloatArray> = comparedPlaces(answers)

    /**
     * Boxes of each sample with the logits of their classes, the surest first, at most [MOST_BOXES], without those that
     * overlap a surer one of their class.
     */
    private fun found(answers: Tensor): List<List<Pair<ObjectBox, Float>>> {
        val (rows, columns) = answers.shape.drop(2)
        return flattened(answers).map { cells ->
            val size = rows * columns
            val named = IntArray(size) { place ->
                (1 until classes).fold(0) { best, at -> if (cells[at * size + place] > cells[best * size + place]) at else best }
            }
            val sure = FloatArray(size) { cells[named[it] * size + it] }
            val order = (0 until size).filter { sure[it] > 0 }.sortedByDescending { sure[it] }
            val kept = ArrayList<Pair<ObjectBox, Float>>()
            for (place in order) {
                if (kept.size == MOST_BOXES) break
                val box = box(cells, named[place], place, rows, columns)
                if (kept.none { (it) -> it.classIndex == box.classIndex && overlap(it, box) >= OVERLAP }) kept += box to sure[place]
            }
            kept
        }
    }

    private fun box(cells: FloatArray, label: Int, place: Int, rows: Int, columns: Int): ObjectBox {
        val size = rows * columns
        val y = (place / columns + 0.5f) / rows
        val x = (place % columns + 0.5f) / columns
        fun side(number: Int) = exp(cells[(classes + number) * size + place].toDouble()).toFloat()
        return ObjectBox(label, x - side(0), y - side(1), x + side(2), y + side(SIDES - 1))
    }
}

private val ObjectBox.sides get() = listOf(left, top, right, bottom)

/** Intersection over union. */
private fun overlap(one: ObjectBox, other: ObjectBox): Float {
    val width = max(min(one.right, other.right) - max(one.left, other.left), 0f)
    val height = max(min(one.bottom, other.bottom) - max(one.top, other.top), 0f)
    val shared = width * height
    return shared / max(area(one) + area(other) - shared, TINY)
}

private fun area(box: ObjectBox) = max(box.right - box.left, 0f) * max(box.bottom - box.top, 0f)

/** Of boxes [found], the surest first, matched one to one. */
private fun f1(found: List<ObjectBox>, there: List<ObjectBox>): Float {
    if (found.isEmpty() && there.isEmpty()) return 1f
    val free = BooleanArray(there.size) { true }
    var matched = 0
    for (box in found) {
        val overlaps = there.mapIndexed { at, one ->
            if (free[at] && one.classIndex == box.classIndex) overlap(box, one) else 0f
        }
        val best = overlaps.indices.maxByOrNull(overlaps::get) ?: continue
        if (overlaps[best] < OVERLAP) continue
        free[best] = false
        matched++
    }
    return (2.0 * matched / (found.size + there.size)).toFloat()
}
