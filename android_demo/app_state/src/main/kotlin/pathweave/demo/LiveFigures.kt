/** What is shown while a model classifies one picture after the other. */
package pathweave.demo

import pathweave.sdk.data.Image
import pathweave.sdk.session.Answer
import pathweave.sdk.session.FALLBACK
import pathweave.sdk.session.SERVER
import pathweave.sdk.supernet.Plan

private const val RECENT = 30 // answers whose median is shown

/** The answer to one picture. [label]: null where the plan gives none. */
data class Classified(
    val image: Image,
    val label: String?,
    val confidence: Double,
    val source: String,
    val latencyMs: Double,
)

/** The answer to a picture that was classified alone. */
fun classified(image: Image, answer: Answer): Classified =
    Classified(image, answer.labels[0], answer.confidence[0], answer.source[0], answer.latencyMs)

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
