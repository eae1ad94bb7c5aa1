/** What is shown while a model classifies one picture after the other. */
package pathweave.demo

import java.math.BigDecimal
import java.math.MathContext
import kotlin.math.roundToInt
import pathweave.sdk.bundles.Manifest
import pathweave.sdk.data.Image
import pathweave.sdk.session.Answer
import pathweave.sdk.session.FALLBACK
import pathweave.sdk.session.SERVER
import pathweave.sdk.supernet.Plan
import pathweave.sdk.tasks.ObjectBox
import pathweave.sdk.tasks.Prediction

private const val RECENT = 30 // answers whose median is shown
private const val NAMED = 4 // things that were found
private const val DIGITS = 4 // of a number

/**
 * The answer to one picture. [label]: a class, or what else was found; null where that is nothing, or the plan gives no
 * answer. [confidence]: of a class. [boxes]: in shares of the picture.
 */
data class Classified(
    val image: Image,
    val label: String?,
    val confidence: Double?,
    val source: String,
    val latencyMs: Double,
    val boxes: List<ObjectBox> = emptyList(),
)

/** The answer to a picture that was given to a model with this [manifest] alone. */
fun classified(image: Image, answer: Answer, manifest: Manifest): Classified {
    val found = answer.predictions[0]
    val seesAll = manifest.preprocessing.ofImages().crop == null // else boxes are in shares of what is cropped
    return Classified(
        image,
        foundWords(found),
        found.singleOrNull()?.confidence.takeIf { manifest.task.classifies },
        answer.source[0],
        answer.latencyMs,
        found.mapNotNull { it.box }.takeIf { seesAll }.orEmpty(),
    )
}

/** What was found, in one line: boxes are counted, the rest is named, the first of it; null: nothing. */
internal fun foundWords(found: List<Prediction>): String? {
    val boxes = found.filter { it.box != null }.groupingBy { it.label }.eachCount()
    val words = if (boxes.isNotEmpty()) boxes.map { (label, count) -> "$count × $label" } else found.map(::word)
    val more = if (words.size > NAMED) ", …" else ""
    return words.take(NAMED).joinToString().ifEmpty { null }?.plus(more)
}

private fun shortened(value: Double): String =
    if (value.isFinite()) BigDecimal(value).round(MathContext(DIGITS)).stripTrailingZeros().toPlainString() else "$value"

private fun word(one: Prediction): String {
    val (share, value) = one.share to one.value
    return when {
        share != null -> "${one.label} ${(100 * share).roundToInt()} %"
        value != null -> "${one.label} ${shortened(value)}"
        else -> one.label
    }
}

/**
 * Figures over the answers since it began.
 *
 * [sources]: how many answers came from where, as [Answer.source] names it; [switches]: how often another plan answered
 * than the time before; [tooLate]: pictures without an answer by the deadline; [recentMs]: latencies of the last answers.
 */
data class LiveFigures(
    val last: Classified? = null,
    val plan: Plan? = null,
    val sources: Map<String, Int> = emptyMap(),
    val switches: Int = 0,
    val tooLate: Int = 0,
    val recentMs: List<Double> = emptyList(),
) {
    /** Pictures that were answered. */
    val count: Int get() = sources.values.sum()

    /** Hard samples for which a server was asked, whether it answered or not. */
    val asked: Int get() = answeredByServer + (sources[FALLBACK] ?: 0)

    /** Of these, those that it answered. */
    val answeredByServer: Int get() = sources[SERVER] ?: 0

    /** Of the last answers, in milliseconds; null before the first. */
    val medianMs: Double?
        get() {
            if (recentMs.isEmpty()) return null
            val sorted = recentMs.sorted()
            return (sorted[(sorted.size - 1) / 2] + sorted[sorted.size / 2]) / 2
        }

    /** One more answer, by [plan]. */
    fun with(answer: Classified, plan: Plan): LiveFigures = copy(
        last = answer,
        plan = plan,
        sources = sources + (answer.source to (sources[answer.source] ?: 0) + 1),
        switches = if (this.plan == null || this.plan.subnet == plan.subnet) switches else switches + 1,
        recentMs = (recentMs + answer.latencyMs).takeLast(RECENT),
    )

    /** One more picture without an answer in time. */
    fun withTooLate(): LiveFigures = copy(tooLate = tooLate + 1)
}

/** A plan in a few words: its kind, its subnet, and the exits that may answer. */
fun planText(plan: Plan): String {
    val exits = plan.exits.joinToString(", ") { it.exit }
    return if (exits.isEmpty()) "${plan.kind}: ${plan.subnet}" else "${plan.kind}: ${plan.subnet}, exits $exits"
}
