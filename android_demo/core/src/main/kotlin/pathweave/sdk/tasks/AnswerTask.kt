/** The port of tasks on a device: how answers are compared with targets and with each other, and how they count. */
package pathweave.sdk.tasks

import kotlin.math.abs
import kotlin.math.exp
import kotlin.math.max
import kotlin.math.sqrt
import pathweave.sdk.InputError
import pathweave.sdk.bundles.Task
import pathweave.sdk.numerics.Tensor
import pathweave.sdk.numerics.argmax
import pathweave.sdk.supernet.confidence

private const val TINY = 1e-12f
private const val PLACES = 16 // along each side of a map that are compared; of a smaller map some are the same

/**
 * One thing that an answer says about a sample: [label], and what its task has of the others.
 *
 * [confidence]: a probability, of a class, a label or a box; [share]: of a map's pixels, 0 to 1; [value]: a number;
 * [box]: in shares of the image; [tokens]: of a span.
 */
public data class Prediction(
    val label: String,
    val confidence: Double? = null,
    val share: Double? = null,
    val value: Double? = null,
    val box: ObjectBox? = null,
    val tokens: IntRange? = null,
)

/**
 * One task: answers [count, *output] and [Targets]. Scores are 0 to 1.
 *
 * Without targets, the answers of the model as it is stand in, so that a score is an agreement.
 */
public interface AnswerTask {
    /** Of the score of many samples, as reports call it. */
    public val scoreName: String

    /** Whether one class is right for each sample, so that priors of classes, exits and deciders apply. */
    public val classifies: Boolean get() = false

    /** @throws InputError [targets] are of another task, or not what [count] samples of this one have. */
    public fun check(targets: Targets, count: Int)

    /** The score of each sample; their mean is what a search goes for. */
    public fun scores(answers: Tensor, targets: Targets): FloatArray

    /** Margins, by which the scores of samples like these are expected; above 0: more right than wrong. */
    public fun margins(answers: Tensor, targets: Targets): FloatArray = scoreMargins(scores(answers, targets))

    /** The scale on which margins become scores again. */
    public fun marginScale(fullModelMargins: DoubleArray, count: Int): Double = 1.0

    /** Targets that these answers meet. */
    public fun standIn(answers: Tensor): Targets

    /** What each answer says; nothing where it says nothing. */
    public fun predictions(answers: Tensor, classNames: List<String>): List<List<Prediction>>

    /** Values of each sample, whose distances say how much two answers differ. */
    public fun compared(answers: Tensor): List<FloatArray>
}

private val TASKS: Map<String, (classNames: List<String>) -> AnswerTask> = mapOf(
    "classification" to { Accuracy(it.size) },
    "segmentation" to { MeanIoU(it.size) },
    "detection" to { BoxesFound(it.size) },
    "multilabel" to { LabelsFound(it.size) },
    "regression" to { RelativeAgreement(it.size) },
    "embedding" to { Similarity },
    "token_classification" to ::tokensTask,
)

/** The task that judges the answers of a bundle's model. */
public fun answerTask(task: Task): AnswerTask = TASKS.getValue(task.kind)(task.classNames)

/** One class for each sample: logits [count, classes]. */
internal class Accuracy(private val classes: Int) : AnswerTask {
    override val scoreName get() = "accuracy"
    override val classifies get() = true

    override fun check(targets: Targets, count: Int) {
        val labels = ofKind<ClassTargets>(targets, count, "class indices").classes
        if (labels.min() < 0 || labels.max() >= classes) {
            throw InputError("labels must lie between 0 and ${classes - 1}, got ${labels.min()} to ${labels.max()}")
        }
    }

    override fun scores(answers: Tensor, targets: Targets): FloatArray {
        val (found, wanted) = argmax(answers) to (targets as ClassTargets).classes
        return FloatArray(found.size) { if (found[it] == wanted[it]) 1f else 0f }
    }

    override fun margins(answers: Tensor, targets: Targets): FloatArray {
        val wanted = (targets as ClassTargets).classes
        return flattened(answers).mapIndexed { at, logits -> margin(logits, wanted[at]) }.toFloatArray()
    }

    override fun marginScale(fullModelMargins: DoubleArray, count: Int): Double =
        pathweave.sdk.tasks.marginScale(fullModelMargins, count)

    override fun predictions(answers: Tensor, classNames: List<String>): List<List<Prediction>> {
        val (found, certain) = argmax(answers) to confidence(answers)
        return found.mapIndexed { at, label ->
            if (certain[at].isFinite()) listOf(Prediction(classNames[label], certain[at])) else emptyList()
        }
    }

    override fun standIn(answers: Tensor): ClassTargets = ClassTargets(argmax(answers))

    /** Logits shifted to a mean of 0, which leaves the probabilities unchanged. */
    override fun compared(answers: Tensor): List<FloatArray> = flattened(answers).map { logits ->
        val mean = (logits.sumOf { it.toDouble() } / logits.size).toFloat()
        FloatArray(logits.size) { logits[it] - mean }
    }
}

/** Any number of labels for each sample: logits [count, labels], each there above 0. A score is a sample's F1. */
internal class LabelsFound(private val labels: Int) : AnswerTask {
    override val scoreName get() = "F1"

    override fun check(targets: Targets, count: Int) {
        val values = values(targets, count, labels, "1 where a label is there, else 0")
        if (values.any { row -> row.any { it != 0f && it != 1f } }) {
            throw InputError("targets must be 1 where a label is there, else 0")
        }
    }

    override fun scores(answers: Tensor, targets: Targets): FloatArray = each(answers, targets) { found, there ->
        val matched = found.indices.count { found[it] > 0 && there[it] > 0 }
        val both = found.count { it > 0 } + there.count { it > 0 }
        if (both == 0) 1f else (2.0 * matched / both).toFloat()
    }

    override fun standIn(answers: Tensor): ValueTargets =
        ValueTargets(flattened(answers).map { row -> FloatArray(row.size) { if (row[it] > 0) 1f else 0f } })

    /** The labels that are there, the surest first. */
    override fun predictions(answers: Tensor, classNames: List<String>): List<List<Prediction>> =
        flattened(answers).map { row ->
            row.indices.filter { row[it] > 0 }.sortedByDescending { row[it] }
                .map { Prediction(classNames[it], logistic(row[it])) }
        }

    override fun compared(answers: Tensor): List<FloatArray> = flattened(answers)
}

/** Numbers for each sample [count, values]. A score is 1 less the symmetric mean absolute percentage error. */
internal class RelativeAgreement(private val numbers: Int) : AnswerTask {
    override val scoreName get() = "1 − sMAPE"

    override fun check(targets: Targets, count: Int) {
        requireFinite(values(targets, count, numbers, "$numbers numbers each"))
    }

    override fun scores(answers: Tensor, targets: Targets): FloatArray = each(answers, targets) { own, wanted ->
        var apart = 0f
        for (at in own.indices) apart += abs(own[at] - wanted[at]) / max(abs(own[at]) + abs(wanted[at]), TINY)
        1 - apart / own.size
    }

    override fun standIn(answers: Tensor): ValueTargets = ValueTargets(flattened(answers))

    /** The numbers, in their order. */
    override fun predictions(answers: Tensor, classNames: List<String>): List<List<Prediction>> =
        flattened(answers).map { row -> row.mapIndexed { at, value -> Prediction(classNames[at], value = value.toDouble()) } }

    override fun compared(answers: Tensor): List<FloatArray> = flattened(answers)
}

/** A vector for each sample [count, values], by which samples are compared. A score is a cosine, at least 0. */
internal object Similarity : AnswerTask {
    override val scoreName get() = "cosine similarity"

    override fun check(targets: Targets, count: Int) {
        requireFinite(ofKind<ValueTargets>(targets, count, "vectors").values)
    }

    override fun scores(answers: Tensor, targets: Targets): FloatArray = each(answers, targets) { own, wanted ->
        val (one, other) = unit(own) to unit(wanted)
        var cosine = 0f
        for (at in one.indices) cosine += one[at] * other[at]
        cosine.coerceIn(0f, 1f)
    }

    override fun standIn(answers: Tensor): ValueTargets = ValueTargets(flattened(answers))

    /** None: the answer is the vector itself. */
    override fun predictions(answers: Tensor, classNames: List<String>): List<List<Prediction>> =
        List(answers.batch) { emptyList() }

    override fun compared(answers: Tensor): List<FloatArray> = flattened(answers).map(::unit)

    private fun unit(vector: FloatArray): FloatArray {
        val length = max(sqrt(vector.sumOf { (it * it).toDouble() }).toFloat(), TINY)
        return FloatArray(vector.size) { vector[it] / length }
    }
}

internal fun logistic(logit: Float): Double = 1 / (1 + exp(-logit.toDouble()))

private inline fun each(answers: Tensor, targets: Targets, score: (FloatArray, FloatArray) -> Float): FloatArray {
    val wanted = (targets as ValueTargets).values
    return FloatArray(answers.batch).also { found ->
        flattened(answers).forEachIndexed { at, own -> found[at] = score(own, wanted[at]) }
    }
}

private fun values(targets: Targets, count: Int, size: Int, what: String): List<FloatArray> {
    val found = ofKind<ValueTargets>(targets, count, what).values
    found.find { it.size != size }?.let {
        throw InputError("targets must be $what; one sample has ${it.size} values, not $size")
    }
    return found
}

private fun requireFinite(values: List<FloatArray>) {
    if (!values.all { row -> row.all { it.isFinite() } }) throw InputError("targets must be finite")
}

/** [targets] as those of this kind, for [count] samples. */
internal inline fun <reified T : Targets> ofKind(targets: Targets, count: Int, what: String): T {
    if (targets.count != count) throw InputError("there are $count samples and ${targets.count} labels")
    return targets as? T ?: throw InputError("targets must be $what, got ${targets::class.simpleName}")
}

/** The samples of a tensor [count, …], flattened. */
internal fun flattened(tensor: Tensor): List<FloatArray> {
    val (values, size) = tensor.floats() to tensor.size / tensor.batch
    return List(tensor.batch) { values.copyOfRange(it * size, (it + 1) * size) }
}

/** Maps [count, channels, rows, columns] at some places, each place's values centred to a mean of 0. */
internal fun comparedPlaces(answers: Tensor): List<FloatArray> {
    val (channels, rows, columns) = answers.shape.drop(1)
    val (down, across) = places(rows, PLACES) to places(columns, PLACES)
    return flattened(answers).map { map ->
        val found = FloatArray(channels * PLACES * PLACES)
        for ((row, y) in down.withIndex()) {
            for ((column, x) in across.withIndex()) {
                val sum = (0 until channels).sumOf { map[(it * rows + y) * columns + x].toDouble() }
                val mean = (sum / channels).toFloat()
                for (channel in 0 until channels) {
                    found[(channel * PLACES + row) * PLACES + column] = map[(channel * rows + y) * columns + x] - mean
                }
            }
        }
        found
    }
}

/** [count] positions, evenly spread over [extent], as centres of equal parts. */
internal fun places(extent: Int, count: Int): IntArray = IntArray(count) { ((it + 0.5) * extent / count).toInt() }
