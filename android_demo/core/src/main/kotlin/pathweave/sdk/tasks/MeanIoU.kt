/** One class for each pixel. */
package pathweave.sdk.tasks

import pathweave.sdk.InputError
import pathweave.sdk.numerics.Tensor

private const val MOST_POINTS = 64 // along each side of a map, of those by which one sample is scored

/**
 * The mean intersection over union of the classes that a sample or its answer has: logits [count, classes, rows, columns].
 *
 * A sample's score is that of at most 64 × 64 of its pixels, evenly spread; answers of another resolution are interpolated.
 */
internal class MeanIoU(private val classes: Int) : AnswerTask {
    override val scoreName get() = "mIoU"

    override fun check(targets: Targets, count: Int) {
        val maps = ofKind<MapTargets>(targets, count, "maps of class indices")
        if (maps.maps.any { it.size != maps.height * maps.width }) {
            throw InputError("every map must have ${maps.height} × ${maps.width} pixels")
        }
        if (maps.maps.any { map -> map.any { it !in 0 until classes && it != UNLABELLED } }) {
            throw InputError("pixels must lie between 0 and ${classes - 1}, or be $UNLABELLED")
        }
    }

    override fun scores(answers: Tensor, targets: Targets): FloatArray {
        val wanted = targets as MapTargets
        val down = places(wanted.height, minOf(wanted.height, MOST_POINTS))
        val across = places(wanted.width, minOf(wanted.width, MOST_POINTS))
        val (rows, columns) = answers.shape.drop(2)
        val vertical = Points(DoubleArray(down.size) { (down[it] + 0.5) / wanted.height }, rows)
        val horizontal = Points(DoubleArray(across.size) { (across[it] + 0.5) / wanted.width }, columns)
        val scores = FloatArray(answers.batch)
        flattened(answers).forEachIndexed { sample, logits ->
            val found = classesAt(logits, vertical, horizontal)
            val map = wanted.maps[sample]
            val pairs = LongArray(classes * classes) // [wanted, found]
            for ((row, y) in down.withIndex()) {
                for ((column, x) in across.withIndex()) {
                    val label = map[y * wanted.width + x]
                    if (label != UNLABELLED) pairs[label * classes + found[row * across.size + column]]++
                }
            }
            scores[sample] = meanIoU(pairs)
        }
        return scores
    }

    override fun standIn(answers: Tensor): MapTargets {
        val (rows, columns) = answers.shape.drop(2)
        val size = rows * columns
        return MapTargets(flattened(answers).map { map -> IntArray(size) { best(map, it, size) } }, rows, columns)
    }

    /** The classes of the pixels, the largest first. */
    override fun predictions(answers: Tensor, classNames: List<String>): List<List<Prediction>> =
        standIn(answers).maps.map { map ->
            val counts = IntArray(classes).also { all -> map.forEach { all[it]++ } }
            counts.indices.filter { counts[it] > 0 }.sortedByDescending { counts[it] }
                .map { Prediction(classNames[it], share = counts[it].toDouble() / map.size) }
        }

    override fun compared(answers: Tensor): List<FloatArray> = comparedPlaces(answers)

    /** The class of each point, of logits [classes, rows, columns]: interpolated down, then across, in float32. */
    private fun classesAt(logits: FloatArray, vertical: Points, horizontal: Points): IntArray {
        val (rows, columns) = vertical.extent to horizontal.extent
        val (height, width) = vertical.count to horizontal.count
        val down = FloatArray(classes * height * columns)
        for (channel in 0 until classes) {
            for (y in 0 until height) {
                val weight = vertical.weights[y]
                val low = (channel * rows + vertical.low[y]) * columns
                val high = (channel * rows + vertical.high[y]) * columns
                for (x in 0 until columns) {
                    down[(channel * height + y) * columns + x] = logits[low + x] * (1 - weight) + logits[high + x] * weight
                }
            }
        }
        val both = FloatArray(classes * height * width)
        for (line in 0 until classes * height) {
            for (x in 0 until width) {
                val weight = horizontal.weights[x]
                val (low, high) = line * columns + horizontal.low[x] to line * columns + horizontal.high[x]
                both[line * width + x] = down[low] * (1 - weight) + down[high] * weight
            }
        }
        return IntArray(height * width) { best(both, it, height * width) }
    }

    /** The class of the largest logit at [place] of [classes, size], the first of equals. */
    private fun best(logits: FloatArray, place: Int, size: Int): Int {
        var found = 0
        for (channel in 1 until classes) if (logits[channel * size + place] > logits[found * size + place]) found = channel
        return found
    }

    private fun meanIoU(pairs: LongArray): Float {
        val wanted = LongArray(classes) { label -> (0 until classes).sumOf { pairs[label * classes + it] } }
        val found = LongArray(classes) { label -> (0 until classes).sumOf { pairs[it * classes + label] } }
        var (sum, present) = 0.0 to 0
        for (label in 0 until classes) {
            val shared = pairs[label * classes + label]
            val union = wanted[label] + found[label] - shared
            if (union == 0L) continue
            sum += shared.toDouble() / union
            present++
        }
        return (sum / maxOf(present, 1)).toFloat()
    }
}

/** Points of one axis in shares of its length, between which pixels of an [extent]: bilinear, pixels as areas. */
private class Points(shares: DoubleArray, val extent: Int) {
    val count = shares.size
    private val places = DoubleArray(count) { (shares[it] * extent - 0.5).coerceIn(0.0, extent - 1.0) }
    val low = IntArray(count) { places[it].toInt() }
    val high = IntArray(count) { minOf(low[it] + 1, extent - 1) }
    val weights = FloatArray(count) { (places[it] - low[it]).toFloat() }
}
