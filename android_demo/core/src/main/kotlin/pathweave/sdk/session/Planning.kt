/**
 * Planning for `AdaptiveModel`: gathers what subnets and the connected server answer to private samples. Mirrors
 * device_sdk/session/planning.py, for the kinds of plans that policies/planning/PlanFinding.kt has.
 */
package pathweave.sdk.session

import java.util.Locale
import pathweave.sdk.InfeasibleBudgetError
import pathweave.sdk.TransferError
import pathweave.sdk.data.Image
import pathweave.sdk.data.Tensor
import pathweave.sdk.data.argmax
import pathweave.sdk.execution.Workspace
import pathweave.sdk.offload.Escalator
import pathweave.sdk.offload.Privacy
import pathweave.sdk.offload.measureUplink
import pathweave.sdk.policies.costs.Answering
import pathweave.sdk.policies.costs.AnswersEverywhere
import pathweave.sdk.policies.exits.withFurtherExits
import pathweave.sdk.policies.planning.Choice
import pathweave.sdk.policies.planning.PathEvidence
import pathweave.sdk.policies.planning.PlanEvidence
import pathweave.sdk.policies.planning.PlanFront
import pathweave.sdk.policies.planning.RemoteEvidence
import pathweave.sdk.policies.planning.everyPlan
import pathweave.sdk.profiling.NANOSECONDS_PER_MS
import pathweave.sdk.search.median
import pathweave.sdk.supernet.CostModel
import pathweave.sdk.supernet.ExitAtSize
import pathweave.sdk.supernet.Plan
import pathweave.sdk.supernet.Power
import pathweave.sdk.supernet.RemoteRef
import pathweave.sdk.supernet.Requirement
import pathweave.sdk.supernet.Subnet
import pathweave.sdk.supernet.Uplink
import pathweave.sdk.transports.HttpTransport

private const val BATCH = 64
private const val MOST_SUBNETS = 16
private const val TIMED = 9

/** What planning found: the [choice], judged on so many [samples]; [notes]: what could not be learned, and why. */
public class Planned internal constructor(
    public val choice: Choice,
    public val samples: Int,
    public val notes: List<String>,
    /** Null without a server. */
    internal val front: PlanFront?,
)

/** What plans are made for; [uplink]: instead of the measured one, [power]: of the device. */
internal class Wish(val requirement: Requirement, val uplink: Uplink?, val power: Power?)

/** Makes plans for the bundle of [workspace]. */
internal class Planning(
    workspace: Workspace,
    private val costs: CostModel,
    private val escalator: Escalator?,
) {
    private val bundle = workspace.bundle
    private val samples = SampleChecker(bundle)
    private val answering = Answering(workspace, costs)

    /**
     * The best plan of [subnets], the first [MOST_SUBNETS] of them, and the connected server, for [wish].
     *
     * [labels]: null: the server's answers stand in, or else the full model's.
     *
     * @throws InfeasibleBudgetError no plan keeps the requirement; names the nearest.
     */
    fun plan(images: List<Image>, labels: IntArray?, subnets: List<Subnet>, wish: Wish): Planned {
        val notes = mutableListOf<String>()
        val client = escalator?.takeIf { it.model.privacy == Privacy.INPUTS }
        val remote = client?.let { asked(it, images, wish.uplink, notes) }
        val full = bundle.supernet.original
        val (inputs, known) = samples.inputs(images) to (labels ?: remote?.let { argmax(it.logits) })
        val answers = mutableListOf<AnswersEverywhere>()
        for (subnet in (listOf(full) + subnets).filter(::canBeFed).distinct().take(MOST_SUBNETS)) {
            answers += answering.answer(subnet, inputs, known ?: answers.firstOrNull()?.labels, areTimed(subnet), BATCH)
        }
        val paths = answers.map { PathEvidence(it, answering.exitSets(it)) }
        val evidence = PlanEvidence(answers[0].labels, paths, remote)
        val front = everyPlan(evidence, costs, full, wish.requirement, wish.power)
        val choice = required(front.best(remote?.uplink))
        if (wish.requirement.peakBytes != null) return Planned(choice, images.size, notes, front.takeIf { remote != null })
        // under a memory limit, what is left of it is not known to suffice for more exits
        fun timed(plan: Plan) = withFurtherExits(bundle.supernet, plan)
        val kept = front.takeIf { remote != null }?.let { all -> all.copy(offers = all.offers.map { it.copy(plan = timed(it.plan)) }) }
        return Planned(choice.copy(plan = timed(choice.plan)), images.size, notes, kept)
    }

    /** Whether the profile knows the exits along [subnet]: they may be newer than it. */
    private fun areTimed(subnet: Subnet) = bundle.supernet.exitsAlong(subnet).all { exit ->
        listOf(null, subnet.inputSize).all { ExitAtSize(exit.id, exit.renditions[0].name, it) in costs.exitCosts }
    }

    private fun required(choice: Choice): Choice {
        if (choice.misses.isEmpty()) return choice
        val missed = choice.misses.entries.joinToString { (name, value) -> "$name ${"%.4g".format(Locale.ROOT, value)}" }
        throw InfeasibleBudgetError(
            "no plan keeps the requirement; the nearest (${choice.plan.kind}) has $missed",
            choice.plan.subnet.edges.map { it.block },
            choice.cost.latencyMs ?: Double.POSITIVE_INFINITY,
            choice.cost.peakBytes,
            "relax what it misses",
        )
    }

    /** Whether images become what [subnet] takes: for another input size the manifest has to say how. */
    private fun canBeFed(subnet: Subnet) = subnet.inputSize == null || bundle.manifest.preprocessing.resize != null

    /** The server's answers to all samples, and the way to it; null with a note if it does not answer. */
    private fun asked(
        escalator: Escalator,
        images: List<Image>,
        uplink: Uplink?,
        notes: MutableList<String>,
    ): RemoteEvidence? = try {
        val model = escalator.model
        val measured = measureUplink(HttpTransport(model.token), model.server)
        val logits = Tensor.joined(images.chunked(model.maxBatch).map { answer(escalator, it) })
        val one = images.take(1)
        val onceMs = median(List(TIMED) { timedMs { answer(escalator, one) } })
        val sizeBytes = escalator.requestBytes(samples.prepare(one, null), one)
        val answerMs = maxOf(onceMs - measured.transferMs(sizeBytes), 0.0)
        RemoteEvidence(RemoteRef(model.model, escalator.digest), logits, uplink ?: measured, sizeBytes, answerMs)
    } catch (error: TransferError) {
        notes += "no server is asked: ${error.message}"
        null
    }

    private fun answer(escalator: Escalator, images: List<Image>): Tensor {
        val reply = escalator.answer(samples.prepare(images, null), images)
        return reply.output ?: throw TransferError("the server does not answer: ${reply.failure}")
    }
}

private inline fun timedMs(work: () -> Unit): Double {
    val beganNs = System.nanoTime()
    work()
    return (System.nanoTime() - beganNs) / NANOSECONDS_PER_MS
}
