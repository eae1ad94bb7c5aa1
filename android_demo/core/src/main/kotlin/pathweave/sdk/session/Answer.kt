/** What a model answers. */
package pathweave.sdk.session

import pathweave.sdk.execution.Outcome
import pathweave.sdk.execution.confidence
import pathweave.sdk.execution.hardSamples
import pathweave.sdk.numerics.Tensor
import pathweave.sdk.numerics.argmax
import pathweave.sdk.supernet.Hard
import pathweave.sdk.supernet.Plan

/** [Answer.source] of a sample that reached the end of the subnet on the device. */
public const val SUBNET: String = "subnet"

/** [Answer.source] of a sample that a server's model, or the tail of a split plan at a server, answered. */
public const val SERVER: String = "server"

/** [Answer.source] of a sample that the plan sends to a server which did not answer: the device's answer. */
public const val FALLBACK: String = "fallback"

/** [Answer.source] of a hard sample that the plan leaves without an answer. */
public const val ABSTAINED: String = "abstained"

/**
 * The answer to a batch.
 *
 * [output]: logits [batch, classes]; [source]: where each answer comes from: `exit <id>`, `subnet`, `server`,
 * `fallback` (the device in place of a server that did not answer) or `abstained` (the plan gives no answer; the logits
 * are the subnet's, or not numbers where nothing of it ran); [latencyMs]: of running the plan, without the preparation of raw images; [plan]: the one that ran.
 */
public class Answer(
    public val output: Tensor,
    public val source: List<String>,
    public val latencyMs: Double,
    private val classNames: List<String>,
    public val plan: Plan,
) {
    /** The highest softmax probability of each sample, [batch]; NaN where its logits are not numbers. */
    public val confidence: List<Double> by lazy { confidence(output).toList() }

    /** The name of the most probable class of each sample; null where the plan abstained or the logits are not numbers. */
    public val labels: List<String?> by lazy {
        argmax(output).mapIndexed { sample, index ->
            classNames[index].takeUnless { source[sample] == ABSTAINED || confidence[sample].isNaN() }
        }
    }
}

/**
 * Where each answer of [outcome] to [plan] comes from, as [Answer.source] names it, without any server.
 *
 * Hard are samples that reached the end of the subnet. Those that the plan asks a server about are marked as [FALLBACK],
 * and so is the end of a plan that is split.
 */
internal fun sources(plan: Plan, outcome: Outcome): List<String> {
    val end = if (plan.split == null) SUBNET else FALLBACK
    val (decider, mark) = when (val policy = plan.hard) {
        Hard.AnswerLocally -> null to end
        is Hard.Abstain -> policy.decider to ABSTAINED
        is Hard.Ask -> policy.decider to FALLBACK
    }
    val hard = decider?.let { hardSamples(it, outcome.output) }
    return outcome.answeredBy.mapIndexed { sample, by ->
        val exit = plan.exits.getOrNull(by)
        when {
            exit != null -> "exit ${exit.exit}"
            hard != null && hard[sample] -> mark
            else -> end
        }
    }
}
