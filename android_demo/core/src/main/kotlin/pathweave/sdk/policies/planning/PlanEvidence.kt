/** What plans are judged by: answers to private samples, and what is known of a server. Mirrors costs/evidence.py. Pure. */
package pathweave.sdk.policies.planning

import pathweave.sdk.execution.corrected
import pathweave.sdk.numerics.Tensor
import pathweave.sdk.numerics.argmax
import pathweave.sdk.offload.LogarithmicPool
import pathweave.sdk.policies.costs.AnswersEverywhere
import pathweave.sdk.policies.costs.ExitSamples
import pathweave.sdk.supernet.CostModel
import pathweave.sdk.supernet.ExitChoice
import pathweave.sdk.supernet.Prior
import pathweave.sdk.supernet.RemoteRef
import pathweave.sdk.supernet.Uplink

/**
 * What a subnet answers, and sets of its exits with thresholds.
 *
 * [worthwhile]: ids of the exits whose limits are chosen together with those of asking, in the order of the path.
 */
internal class PathEvidence(
    val answers: AnswersEverywhere,
    val exitSets: List<List<ExitChoice>>,
    val worthwhile: List<String> = emptyList(),
) {
    val logits: Tensor = answers.end

    /** An exit's answers to all samples. */
    fun atExit(id: String, costs: CostModel): ExitSamples =
        answers.atExit(answers.exits.indexOfFirst { it.id == id }, costs)
}

/**
 * Answers to the same private samples: of subnets, [paths], and of the server's model, [remote].
 *
 * [labels]: class indices, one per sample.
 */
internal class PlanEvidence(val labels: IntArray, val paths: List<PathEvidence>, val remote: RemoteEvidence?) {
    val count: Int get() = labels.size

    fun withoutExits() = PlanEvidence(labels, paths.map { PathEvidence(it.answers, emptyList()) }, remote)

    fun right(logits: Tensor): BooleanArray =
        argmax(logits).let { found -> BooleanArray(count) { found[it] == labels[it] } }
}

/**
 * What the model of a [server] answers, [logits], and the way to it: [uplink], bytes of a request with one sample, and
 * what the server works on one. [pool]: how its answer to a hard sample is pooled with the device's own; null: it
 * replaces it.
 */
internal class RemoteEvidence(
    val server: RemoteRef,
    val logits: Tensor,
    val uplink: Uplink,
    val inputBytes: Long,
    val answerMs: Double,
    val pool: LogarithmicPool? = null,
) {
    /** The logits of hard samples once the server was asked; [own]: the device's. */
    fun asked(own: Tensor): Tensor = pool?.pooled(own, logits) ?: logits

    /** The same with its logits corrected. */
    fun under(prior: Prior?) = RemoteEvidence(server, corrected(logits, prior), uplink, inputBytes, answerMs, pool)

    /** The same for the samples at [positions]. */
    fun part(positions: List<Int>) = RemoteEvidence(server, logits.rows(positions), uplink, inputBytes, answerMs, pool)

    /** A request with one sample over [uplink]; null: the way is unknown. */
    fun call(uplink: Uplink?): RemoteCall = when (uplink) {
        null -> RemoteCall(0, Double.NaN, Double.NaN)
        else -> RemoteCall(inputBytes, uplink.transferMs(inputBytes), answerMs)
    }
}

/** One sample's way to a server and back. Times are not a number where the server, or the way to it, is unknown. */
internal class RemoteCall(val sizeBytes: Long, val transferMs: Double, val serverMs: Double) {
    val totalMs: Double get() = transferMs + serverMs
    val isKnown: Boolean get() = !totalMs.isNaN()
}
