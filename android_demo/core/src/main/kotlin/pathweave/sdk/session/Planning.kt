/**
 * Planning for `AdaptiveModel`: gathers what subnets and the connected server answer to private samples. Mirrors
 * device_sdk/session/planning.py and policies/planning/plan_choice.py, for the kinds of plans that
 * policies/planning/PlanFinding.kt has.
 */
package pathweave.sdk.session

import java.util.Locale
import pathweave.sdk.InfeasibleBudgetError
import pathweave.sdk.NANOSECONDS_PER_MS
import pathweave.sdk.TransferError
import pathweave.sdk.data.Image
import pathweave.sdk.execution.Workspace
import pathweave.sdk.execution.corrected
import pathweave.sdk.numerics.Tensor
import pathweave.sdk.numerics.argmax
import pathweave.sdk.numerics.median
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
import pathweave.sdk.policies.planning.Planner
import pathweave.sdk.policies.planning.RemoteEvidence
import pathweave.sdk.policies.planning.bestRungs
import pathweave.sdk.policies.planning.expectedCost
import pathweave.sdk.supernet.CostModel
import pathweave.sdk.supernet.ExitAtSize
import pathweave.sdk.supernet.Plan
import pathweave.sdk.supernet.PlanCost
import pathweave.sdk.supernet.Power
import pathweave.sdk.supernet.RemoteRef
import pathweave.sdk.supernet.Requirement
import pathweave.sdk.supernet.Subnet
import pathweave.sdk.supernet.Uplink
import pathweave.sdk.transports.HttpTransport

private const val BATCH = 64
private const val MOST_SUBNETS = 16
private const val TIMED = 9
private const val HELD_OUT = 3 // every third sample, from the first on, judges the choice
private const val FEW_SAMPLES = 30 // below, all of them choose

/**
 * What planning found among [samples]: the [choice], made on two thirds of them.
 *
 * [notes]: what could not be learned, and why.
 * [heldOut]: what the plan is expected to cost on the [judged] others, which it did not see; null where there were too
 * few samples to hold any out.
 */
public class Planned internal constructor(
    public val choice: Choice,
    public val heldOut: PlanCost?,
    public val samples: Int,
    public val judged: Int,
    public val notes: List<String>,
    /** Makes the plans for other networks; null without a server. */
    internal val front: (() -> PlanFront)?,
)

/** What plans are made for; [uplink]: instead of the measured one, [power]: of the device. */
internal class Wish(val requirement: Requirement, val uplink: Uplink?, val power: Power?)

/** Makes plans for the bundle of [workspace], whose prior corrects all answers and becomes part of the plans. */
internal class Planning(
    private val workspace: Workspace,
    private val costs: CostModel,
    private val escalator: Escalator?,
) {
    private val bundle = workspace.bundle
    private val samples = SampleChecker(bundle)
    private val answering = Answering(workspace, costs)

    /**
     * The best plan of [subnets], the first [MOST_SUBNETS] of them, the best rungs of the ladder, and the connected server,
     * for [wish].
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
        val answers = mutableListOf(answering.answer(full, inputs, known, areTimed(full), BATCH))
        val own = answers[0].labels
        val (judging, choosing) = own.indices.partition { own.size >= FEW_SAMPLES && it % HELD_OUT == 0 }
        val rungs = bestRungs(workspace, costs, inputs, own, choosing, wish.requirement)
        val others = (listOf(full) + subnets).distinct().take(MOST_SUBNETS) + rungs
        for (subnet in others.filter(::canBeFed).distinct() - full) {
            answers += answering.answer(subnet, inputs, own, areTimed(subnet), BATCH)
        }
        val planner = Planner(evidence(answers, remote, choosing, withExits = true), costs)
        val choice = required(planner.nearest(wish.requirement, remote?.uplink, wish.power).choice)
        val heldOut = judging.takeIf { it.isNotEmpty() }?.let {
            val evidence = evidence(answers, remote, it, withExits = false)
            expectedCost(evidence, costs, choice.plan, remote?.uplink, wish.power)
        }
        // under a memory limit, what is left of it is not known to suffice for more exits
        fun finished(plan: Plan) = plan.withPrior(workspace.prior).let {
            if (wish.requirement.peakBytes == null) withFurtherExits(bundle.supernet, it) else it
        }
        fun front(): PlanFront {
            val found = planner.front(wish.requirement, wish.power)
            return found.copy(offers = found.offers.map { it.copy(plan = finished(it.plan)) })
        }
        val makeFront = if (remote == null) null else ::front
        return Planned(choice.copy(plan = finished(choice.plan)), heldOut, images.size, judging.size, notes, makeFront)
    }

    /** What the samples at [positions] say. [withExits]: also which exits are worth taking. */
    private fun evidence(
        answers: List<AnswersEverywhere>,
        remote: RemoteEvidence?,
        positions: List<Int>,
        withExits: Boolean,
    ): PlanEvidence {
        val paths = answers.map { it.part(positions) }.map { part ->
            val worthwhile = if (withExits) answering.placed(part, memoryBytes = null) else emptyList()
            val sets = if (withExits) answering.exitSets(part) else emptyList()
            PathEvidence(part, sets, worthwhile.map { part.exits[it].id })
        }
        return PlanEvidence(paths[0].answers.labels, paths, remote?.part(positions))
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
        RemoteEvidence(
            RemoteRef(model.model, escalator.digest),
            corrected(logits, workspace.prior),
            uplink ?: measured,
            sizeBytes,
            answerMs,
            model.pool,
        )
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
