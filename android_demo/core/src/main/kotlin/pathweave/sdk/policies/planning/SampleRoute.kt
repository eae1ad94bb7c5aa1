/** The way of private samples through a plan: where each is answered, whether rightly, and what it takes. Pure. */
package pathweave.sdk.policies.planning

import pathweave.sdk.execution.corrected
import pathweave.sdk.numerics.Tensor
import pathweave.sdk.numerics.argmax
import pathweave.sdk.numerics.percentile
import pathweave.sdk.offload.LogarithmicPool
import pathweave.sdk.policies.costs.AnswersEverywhere
import pathweave.sdk.policies.costs.ExitSamples
import pathweave.sdk.supernet.CostModel
import pathweave.sdk.supernet.Decider
import pathweave.sdk.supernet.ExitAtSize
import pathweave.sdk.supernet.ExitChoice
import pathweave.sdk.supernet.Hard
import pathweave.sdk.supernet.Plan
import pathweave.sdk.supernet.PlanCost
import pathweave.sdk.supernet.Power
import pathweave.sdk.supernet.Prior
import pathweave.sdk.supernet.RemoteRef
import pathweave.sdk.supernet.SampleSize
import pathweave.sdk.supernet.Subnet
import pathweave.sdk.supernet.Uplink
import pathweave.sdk.supernet.hardSamples
import pathweave.sdk.tasks.byMargin
import pathweave.sdk.tasks.margin

/**
 * The way of all samples through exits and [plan]'s path to its end, here or at the server; [finished] looks at hard
 * samples.
 *
 * [open]: the sample reaches the end, since no exit answers it or asks; [deviceMs], [transferMs] and [serverMs]: where
 * its time goes; [logits]: of the end [count, classes]. A route is changed by [finished] alone.
 */
internal class SampleRoute(
    val plan: Plan,
    private val path: PathEvidence,
    private val evidence: PlanEvidence,
    private val costs: CostModel,
    uplink: Uplink?,
) {
    val count: Int = evidence.count
    val open = BooleanArray(count) { true }
    val correct = DoubleArray(count) // what each answer counts, 0 to 1
    val deviceMs = DoubleArray(count)
    private val transferMs = DoubleArray(count)
    private val serverMs = DoubleArray(count)
    private val sentBytes = LongArray(count)
    private val askedEarly = BooleanArray(count)
    private var asked = BooleanArray(count)
    private var abstained = BooleanArray(count)
    private var second = BooleanArray(count)
    var isTimed: Boolean = true
        private set
    var peakBytes: Long
        private set
    val logits: Tensor

    init {
        val deciding = plan.exits.filter { it.decides }
        val counted = deciding.associate { it.exit to path.credit(it.exit, evidence) }
        peakBytes = costs.peakBytes(plan.subnet) + exitBytes(costs, plan.copy(exits = deciding))
        var triedMs = costs.callOverheadMs
        for (choice in deciding) {
            val exit = path.atExit(choice.exit, costs)
            triedMs += exit.branchMs
            for (at in 0 until count) {
                if (!open[at]) continue
                val answers = exit.confidence[at] >= choice.threshold
                val asks = exit.confidence[at] < choice.askBelow
                if (!answers && !asks) continue
                open[at] = false
                deviceMs[at] = exit.reachMs + triedMs
                if (answers) correct[at] = counted.getValue(choice.exit)[at]
                askedEarly[at] = asks
            }
        }
        val remote = evidence.remote.takeIf { plan.split != null }
        logits = remote?.logits ?: path.logits
        val right = evidence.credit(logits)
        val endMs = if (remote == null) costs.latencyMs(plan.subnet) + triedMs else triedMs
        for (at in 0 until count) {
            if (!open[at]) continue
            correct[at] = right[at]
            deviceMs[at] = endMs
        }
        if (remote != null) {
            asked = open.copyOf()
            send(open, remote.call(uplink))
        }
    }

    /** End to end, of each sample; without what is unknown. */
    val latencyMs: DoubleArray get() = latencyMs(decidingMs = 0.0)

    /** The same once the open samples have been decided about. */
    fun latencyMs(decidingMs: Double): DoubleArray =
        DoubleArray(count) { deviceMs(it, decidingMs) + transferMs[it] + serverMs[it] }

    /** Energy of the device for each sample (HI Eq. 4), once the open ones have been decided about. */
    fun energyMj(power: Power, decidingMs: Double = 0.0): DoubleArray = DoubleArray(count) {
        power.activeW * deviceMs(it, decidingMs) + power.radioW * transferMs[it] + power.waitingW * serverMs[it]
    }

    private fun deviceMs(at: Int, decidingMs: Double) = deviceMs[at] + if (open[at]) decidingMs else 0.0

    /** The share of the samples that a server's model is asked about, so far. */
    val shareAsked: Double get() = share { asked[it] }

    val meanSentBytes: Double get() = sentBytes.sum().toDouble() / count

    /** The same route once the plan's hard samples, and those that exits ask about, are dealt with. */
    fun finished(uplink: Uplink?): SampleRoute {
        when (val policy = plan.hard) {
            Hard.AnswerLocally -> Unit
            is Hard.Abstain -> abstained = decided(policy.decider)
            is Hard.Ask -> ask(decided(policy.decider), checkNotNull(evidence.remote), uplink)
            is Hard.Cascade -> cascade(policy)
        }
        return this
    }

    private fun cascade(policy: Hard.Cascade) {
        val found = cascading(policy)
        second = decided(policy.decider, found.apartMs)
        for (at in 0 until count) {
            if (!second[at]) continue
            deviceMs[at] += found.hereMs
            correct[at] = found.correct[at]
        }
        peakBytes = checkNotNull(found.peakBytes)
    }

    /** What the cascade's second path does, if every sample took it. Both paths stay loaded; one runs at a time. */
    fun cascading(policy: Hard.Cascade): Asking {
        val other = evidence.paths.first { it.answers.subnet == policy.subnet }
        val shared = if (policy.position > 0) sharedEdges(plan.subnet, policy.subnet) else 0
        val rest = Subnet(policy.subnet.edges.drop(shared))
        val again = if (policy.subnet.inputSize == plan.inputSize) 0.0 else evidence.prepareMs[policy.subnet.inputSize] ?: 0.0
        return Asking(
            evidence.credit(other.logits),
            hereMs = costs.latencyMs(rest) + costs.callOverheadMs + again,
            apartMs = if (policy.position > 0) costs.exitOverheadMs else 0.0,
            peakBytes = peakBytes + costs.peakBytes(rest),
        )
    }

    /** What the decision takes for each sample that is open; not yet part of the way to the end. */
    fun decidingMs(decider: Decider): Double = costs.decidingMs(decider)

    /** The open samples that [decider] calls hard, once the decision is paid for. */
    private fun decided(decider: Decider, apartMs: Double = 0.0): BooleanArray {
        val decidingMs = decidingMs(decider) + apartMs
        for (at in 0 until count) if (open[at]) deviceMs[at] += decidingMs
        val found = hardSamples(decider, logits)
        return BooleanArray(count) { open[it] && found[it] }
    }

    private fun ask(hard: BooleanArray, remote: RemoteEvidence, uplink: Uplink?) {
        asked = BooleanArray(count) { hard[it] || askedEarly[it] }
        send(asked, remote.call(uplink))
        // an exit's answer is not pooled with the server's
        val (servers, pooled) = evidence.credit(remote.logits) to evidence.credit(remote.asked(path.logits))
        for (at in 0 until count) if (asked[at]) correct[at] = if (askedEarly[at]) servers[at] else pooled[at]
    }

    private fun send(samples: BooleanArray, call: RemoteCall) {
        if (samples.none { it }) return
        isTimed = isTimed && call.isKnown
        for (at in 0 until count) {
            if (!samples[at]) continue
            sentBytes[at] += call.sizeBytes
            if (!call.isKnown) continue
            transferMs[at] += call.transferMs
            serverMs[at] += call.serverMs
        }
    }

    /** The mean over all samples. */
    fun cost(power: Power?): PlanCost {
        val answered = (0 until count).filter { !abstained[it] }
        val knownMs = latencyMs.takeIf { isTimed }
        return PlanCost(
            accuracy = if (answered.isEmpty()) null else answered.sumOf { correct[it] } / answered.size,
            latencyMs = knownMs?.average(),
            p95LatencyMs = knownMs?.let { percentile(it.sorted(), P95) },
            bytesSent = meanSentBytes,
            peakBytes = peakBytes,
            energyMj = power?.takeIf { isTimed }?.let { energyMj(it).average() },
            shareEarly = 1 - share { open[it] || askedEarly[it] },
            shareAsked = shareAsked,
            shareAbstained = share { abstained[it] },
            shareAskedEarly = share { askedEarly[it] },
            shareSecond = share { second[it] },
        )
    }

    /** The plan as an offer for any network; over [uplink] its times are known. */
    fun offer(): Offer {
        val cost = cost(null)
        val ways = (0 until count).groupingBy { Triple(deviceMs[it], sentBytes[it], serverMs[it]) }.eachCount()
            .map { (way, samples) -> Way(samples, way.first, way.second, 0.0, way.third) }
            .sortedWith(compareBy({ it.deviceMs }, { it.sentBytes }, { it.serverMs }))
        return Offer(
            plan, cost.accuracy, peakBytes, cost.shareEarly, cost.shareAsked, cost.shareAbstained, ways, cost.shareAskedEarly,
        )
    }

    private fun share(counts: (Int) -> Boolean) = (0 until count).count(counts).toDouble() / count
}

/** The number of edges with which both paths begin. */
private fun sharedEdges(one: Subnet, other: Subnet): Int =
    one.edges.zip(other.edges).takeWhile { (own, others) -> own == others }.size

/** What the exits of [plan] take while they are loaded. */
internal fun exitBytes(costs: CostModel, plan: Plan): Long = plan.exits.sumOf {
    costs.exitCosts.getValue(ExitAtSize(it.exit, it.rendition, plan.inputSize)).residentBytes
}

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

    /** What each answer of an exit counts. */
    fun credit(id: String, evidence: PlanEvidence): DoubleArray =
        evidence.credit(answers.ofExit(answers.exits.indexOfFirst { it.id == id }))

    fun atExit(id: String, costs: CostModel): ExitSamples =
        answers.atExit(answers.exits.indexOfFirst { it.id == id }, costs)
}

/**
 * Answers to the same private samples: of subnets, [paths], and of the server's model, [remote].
 *
 * [labels]: class indices, one per sample. [prepareMs]: of preparing a sample at an input size; 0 where it was not
 * measured. [marginScale]: answers count by their margins, on this scale ([byMargin]); 0: as right or wrong.
 */
internal class PlanEvidence(
    val labels: IntArray,
    val paths: List<PathEvidence>,
    val remote: RemoteEvidence?,
    val prepareMs: Map<SampleSize?, Double> = emptyMap(),
    private val marginScale: Double = 0.0,
) {
    val count: Int get() = labels.size

    fun withoutExits() = PlanEvidence(labels, paths.map { PathEvidence(it.answers, emptyList()) }, remote, prepareMs, marginScale)

    /** What each answer of [logits] [count, classes] counts, 0 to 1. */
    fun credit(logits: Tensor): DoubleArray = when (marginScale) {
        0.0 -> right(logits).let { found -> DoubleArray(count) { if (found[it]) 1.0 else 0.0 } }
        else -> byMargin(margins(logits, labels), marginScale)
    }

    fun right(logits: Tensor): BooleanArray =
        argmax(logits).let { found -> BooleanArray(count) { found[it] == labels[it] } }
}

/** [margin] of each sample: [count, classes] → [count]. */
internal fun margins(logits: Tensor, labels: IntArray): DoubleArray {
    val (values, classes) = logits.floats() to logits.size / logits.batch
    return DoubleArray(labels.size) { sample ->
        margin(values.copyOfRange(sample * classes, (sample + 1) * classes), labels[sample]).toDouble()
    }
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
