/**
 * The one chooser: gathers evidence, has plans proposed, judges them, and confirms the best by measuring.
 *
 * Subnets come from a search, everything else from the planner over what the best subnets and the connected server answer.
 * Samples that are held back judge what the others chose.
 */
package pathweave.sdk.policies

import java.util.Locale
import kotlin.math.sqrt
import pathweave.sdk.InfeasibleBudgetError
import pathweave.sdk.InputError
import pathweave.sdk.NANOSECONDS_PER_MS
import pathweave.sdk.TransferError
import pathweave.sdk.UsageError
import pathweave.sdk.bundles.Bundle
import pathweave.sdk.data.Inputs
import pathweave.sdk.data.rawOf
import pathweave.sdk.data.searchPositions
import pathweave.sdk.execution.Workspace
import pathweave.sdk.numerics.Tensor
import pathweave.sdk.numerics.median
import pathweave.sdk.offload.AskClient
import pathweave.sdk.offload.Privacy
import pathweave.sdk.offload.measureUplink
import pathweave.sdk.policies.costs.Answering
import pathweave.sdk.policies.costs.AnswersEverywhere
import pathweave.sdk.policies.costs.dropsWithin
import pathweave.sdk.policies.exits.withFurtherExits
import pathweave.sdk.policies.planning.Choice
import pathweave.sdk.policies.planning.Nearest
import pathweave.sdk.policies.planning.PathEvidence
import pathweave.sdk.policies.planning.PlanEvidence
import pathweave.sdk.policies.planning.Planner
import pathweave.sdk.policies.planning.RemoteEvidence
import pathweave.sdk.policies.planning.expectedCost
import pathweave.sdk.policies.planning.margins
import pathweave.sdk.profiling.Profile
import pathweave.sdk.search.Candidate
import pathweave.sdk.search.SearchResult
import pathweave.sdk.search.Stopped
import pathweave.sdk.supernet.ExitAtSize
import pathweave.sdk.supernet.Goal
import pathweave.sdk.supernet.Kind
import pathweave.sdk.supernet.Plan
import pathweave.sdk.supernet.PlanCost
import pathweave.sdk.supernet.Power
import pathweave.sdk.supernet.RemoteRef
import pathweave.sdk.supernet.SampleSize
import pathweave.sdk.supernet.Subnet
import pathweave.sdk.supernet.Uplink
import pathweave.sdk.tasks.ClassTargets
import pathweave.sdk.tasks.Targets
import pathweave.sdk.tasks.answerTask
import pathweave.sdk.tasks.marginScale
import pathweave.sdk.transports.HttpTransport

private const val PREPARED = 5 // images that preparing is timed on
private const val SHORTLISTED = 12 // subnets of the pool that other kinds of plans are made of
private const val SLOWEST = 3.0 // times the latency wanted: exits and servers rarely save more
private const val FEW_SAMPLES = 30 // below, none are held back unless subnets are searched
private const val CHOSEN_AGAIN = 4 // times that a cascade may measure too slow
private const val STRICTER = 0.95 // how much stricter the limit gets
private const val LEAST_ACCURACY = 1e-6 // that a requirement can state
private const val ANSWERS_S = 60.0 // of subnets that answer all samples
private const val TIMED = 9 // requests
private const val ROUNDING = 1e-9
private val MAY_BE_FASTER = setOf(Kind.EXITS, Kind.ASK) // than every subnet alone
private val PYTHONS = setOf(Kind.SPLIT, Kind.HYBRID)

/**
 * What is wanted, and on what: [kinds] of plans, rivals of [inUse] on [inputs] with [targets], or null.
 *
 * [known]: subnets of an earlier choice; [client]: of the connected server, if any; [uplink]: instead of the measured
 * one; [power]: of the device.
 */
internal class Wish(
    val goal: Goal,
    val kinds: Set<Kind>,
    val inUse: Plan,
    val inputs: Inputs,
    val targets: Targets?,
    val known: List<Subnet> = emptyList(),
    val client: AskClient? = null,
    val uplink: Uplink? = null,
    val power: Power? = null,
)

/**
 * The plan that [wish]'s goal puts first, blocking. [onProgress] may throw to give up.
 *
 * Under the memory cap of [workspace], which [profile] was made under, subnets that would run in pages are left out if
 * there is any that would not; where all would, they are measured in pages. All that is loaded keeps to the cap. Without
 * labels the server's answers stand in, or else the full model's, or where subnets are not considered, those of the one in
 * use. [measure]: how latencies of subnets are taken, by default on this device.
 *
 * @throws InfeasibleBudgetError no plan keeps the goal; names the nearest.
 * @throws pathweave.sdk.BudgetError the search was stopped before it had anything, or the cap is too small.
 * @throws InputError there are no inputs, or labels do not match them or the classes.
 * @throws UsageError a kind lacks what it needs; says what.
 */
internal fun choose(
    wish: Wish,
    workspace: Workspace,
    profile: Profile,
    settings: AdaptationSettings,
    measure: Measure? = null,
    onProgress: (AdaptationProgress) -> Unit = {},
): Found {
    requireMeans(wish, workspace.bundle)
    if (wish.inputs.count == 0) throw InputError("there are no samples to adapt on")
    return Choosing(wish, workspace, profile, settings, measure, onProgress).choose()
}

private fun requireMeans(wish: Wish, bundle: Bundle) {
    val (supernet, task) = bundle.supernet to bundle.manifest.task
    val others = wish.kinds - Kind.SUBNETS
    val (missing, hint) = when {
        !task.classifies && others.isNotEmpty() ->
            "${others.first()} needs a classifier; this model is for ${task.kind}" to "leave consider out, or give SUBNETS alone"
        !task.classifies && !wish.goal.isBudget ->
            "a model for ${task.kind} adapts to a budget" to "give limits alone: Goal(latencyMs = …), latencyRatio, memoryMb"
        wish.goal.certainty != null -> "a certainty is promised by Python's planner only" to "leave it out"
        wish.kinds.any { it in PYTHONS } -> "splits and hybrids are planned by Python" to "take its plan with use"
        Kind.EXITS in wish.kinds && supernet.exits.isEmpty() -> "there are no exits here" to "hold some with exits.hold"
        Kind.ASK in wish.kinds && wish.client == null ->
            "no server is connected that answers samples" to "model.remote.connect(RemoteModel(…))"
        Kind.ASK in wish.kinds && wish.client?.model?.privacy != Privacy.INPUTS ->
            "the server must not be sent inputs" to "allow it with Privacy.INPUTS"
        else -> return
    }
    throw UsageError(missing, hint)
}

private class Choosing(
    private val wish: Wish,
    private val workspace: Workspace,
    private val profile: Profile,
    private val settings: AdaptationSettings,
    private val measure: Measure?,
    private val onProgress: (AdaptationProgress) -> Unit,
) {
    private val startedNs = System.nanoTime()
    private val supernet = workspace.bundle.supernet
    private val costs = profile.costModel()
    private val inputs = wish.inputs
    private val notes = mutableListOf<String>()
    private val searches = Kind.SUBNETS in wish.kinds
    private var prior = wish.inUse.prior
    private val remote = if (Kind.ASK in wish.kinds) asked(checkNotNull(wish.client)) else null
    private val task = answerTask(workspace.bundle.manifest.task)
    private val targets = (wish.targets ?: remote?.let { task.standIn(it.logits) } ?: standIns())
        .also { task.check(it, inputs.count) }
    private val split = // of the samples: those that choose, and those that judge
        if (searches || targets.count >= FEW_SAMPLES) searchPositions(targets, settings)
        else (0 until targets.count).toList() to emptyList()
    private var goal = wish.goal
    private lateinit var confirmation: Confirmation
    private var searched: SearchResult? = null

    fun choose(): Found {
        if (searches) {
            SubnetSearch(workspace, profile, goal, inputs, targets, split.first, settings, measure, onProgress).use { search ->
                confirmation = search.confirmation
                goal = goal.copy(memoryMb = confirmation.budget.memoryMb)
                try {
                    keep(search.find(prior, settings.usePrior && wish.targets != null && task.classifies))
                } catch (error: InfeasibleBudgetError) {
                    if (wish.kinds.none { it in MAY_BE_FASTER }) throw error
                }
            }
        }
        goal = goal.resolved(if (searches) confirmation.fullMs else profile.originalMs + profile.callOverheadMs)
        return if (searched != null && goal.isBudget && wish.kinds.size == 1) confirmed() else planned()
    }

    private fun keep(found: SubnetsFound) {
        prior = found.prior
        searched = found.result.run { copy(pool = pool.filter { inputs.has(it.subnet.inputSize) }) }
    }

    // 1. gather

    private fun standIns(): Targets {
        if (!searches) {
            val answering = Answering(workspace.copy(prior = prior), costs)
            return ClassTargets(answering.answer(wish.inUse.subnet, inputs, null, useExits = false, settings.batch).labels)
        }
        val (found, mix) = standIns(workspace, inputs, settings.batch, settings.usePrior)
        prior = mix
        return found
    }

    /** The server's answers to all samples, and the way to it; null with a note if it does not answer. */
    private fun asked(client: AskClient): RemoteEvidence? = try {
        val model = client.model
        val measured = measureUplink(HttpTransport(model.token, model.server), model.server)
        val logits = Tensor.joined((0 until inputs.count).chunked(model.maxBatch).map { answer(client, it) })
        val onceMs = median(List(TIMED) { timedMs { answer(client, listOf(0)) } })
        val sizeBytes = client.requestBytes(inputs.take(listOf(0), null), rawOf(inputs)?.at(listOf(0)))
        val answerMs = maxOf(onceMs - measured.transferMs(sizeBytes), 0.0)
        val server = RemoteRef(model.model, client.digest)
        RemoteEvidence(server, logits, wish.uplink ?: measured, sizeBytes, answerMs, model.pool)
    } catch (error: TransferError) {
        notes += "no server is asked: ${error.message}"
        null
    }

    private fun answer(client: AskClient, positions: List<Int>): Tensor {
        val reply = client.answer(inputs.take(positions, null), rawOf(inputs)?.at(positions))
        return reply.output ?: throw TransferError("the server does not answer: ${reply.failure}")
    }

    private fun report(stage: AdaptationStage, share: Double) = onProgress(AdaptationProgress(stage, share))

    /** The most accurate subnet of the search that keeps the budget when it is measured. */
    private fun confirmed(): Found {
        val best = confirmation.best(checkNotNull(searched).pool)
        val one = confirmation.fastest(best, atEachHome(workspace, costs, best.candidate, goal.threads))
        val chosen = one.candidate
        report(AdaptationStage.JUDGE, 0.0)
        val (own, full) = judged(listOf(chosen.subnet, supernet.original))
        report(AdaptationStage.JUDGE, 1.0)
        fun cost(accuracy: Double) =
            PlanCost(accuracy, chosen.cost.latencyMs, chosen.cost.latencyMs, 0.0, chosen.cost.peakBytes)
        return found(Option(chosen.plan, cost(chosen.accuracy))).copy(
            heldOut = own?.let(::cost),
            measured = measured(one),
            accuracyInterval = wilson(chosen.expectedAccuracy, inputs.count),
            fullAccuracy = full,
        )
    }

    /** Accuracies on held-back samples; null without any. */
    private fun judged(subnets: List<Subnet>): List<Double?> {
        if (split.second.isEmpty()) return subnets.map { null }
        return makeEvaluator(workspace, costs, settings, inputs, targets, split.second).use { evaluator ->
            evaluator.usePrior(prior)
            evaluator.accuracies(subnets)
        }
    }

    // 2. judge plans of all kinds

    /** The best plan of all kinds over what the best subnets and the server answer. */
    private fun planned(): Found {
        val answering = Answering(workspace.copy(prior = prior), costs)
        val subnets = affordable(shortlist())
        val answers = subnets.mapIndexed { number, subnet ->
            val useExits = Kind.EXITS in wish.kinds && areTimed(subnet)
            answering.answer(subnet, inputs, (targets as ClassTargets).classes, useExits, settings.batch)
                .also { report(AdaptationStage.JUDGE, (number + 1.0) / subnets.size) }
        }
        val servers = remote?.under(prior)
        val (choosing, judging) = split
        val known = evidence(answers, servers, choosing, answering)
        val least = goal.maxDrop?.let { maxOf(known.credit(known.paths[0].logits).average() - it - ROUNDING, LEAST_ACCURACY) }
        val requirement = goal.requirement(least)
        var planner = Planner(known, costs, wish.kinds)
        var nearest = planner.nearest(requirement, servers?.uplink, wish.power)
        var timed = inTurns(answering, nearest.choice.plan)
        var (limited, kinds, again) = Triple(requirement, wish.kinds, CHOSEN_AGAIN)
        while (timed != null && !pays(timed, nearest.choice.plan)) {
            val (cascades, limitMs) = (nearest.choice.plan.second != null) to limited.latencyMs
            var quicker: Nearest? = null
            if (--again > 0 && cascades && limitMs != null) {
                limited = limited.copy(latencyMs = limitMs * minOf(limitMs / timed[0], STRICTER))
                quicker = planner.nearest(limited, servers?.uplink, wish.power).takeIf { it.choice.misses.isEmpty() }
            }
            if (quicker != null) {
                nearest = quicker
            } else {
                val (withMs, withoutMs) = timed.map { "%.3g".format(Locale.ROOT, it) }
                val named = if (cascades) "cascades" else "exits"
                notes += "$named are left out: with them calls took $withMs ms, without $withoutMs ms"
                kinds = kinds - if (cascades) Kind.CASCADE else Kind.EXITS
                planner = Planner(if (Kind.EXITS in kinds) known else known.withoutExits(), costs, kinds)
                nearest = planner.nearest(requirement, servers?.uplink, wish.power)
            }
            timed = inTurns(answering, nearest.choice.plan)
        }
        val choice = nearest.choice
        val byKind = nearest.byKind.mapValues { (_, plan) ->
            val cost = expectedCost(known, costs, plan, servers?.uplink, wish.power)
            Option(plan.withPrior(prior), cost, requirement.misses(cost))
        }
        if (searched != null && goal.isBudget && choice.plan.kind == "subnet") {
            return confirmed().run { copy(byKind = byKind + this.byKind, considered = choice.considered) }
        }
        if (choice.misses.isNotEmpty()) throw infeasible(choice)
        val heldOut = judging.takeIf { it.isNotEmpty() }?.let { evidence(answers, servers, it) }
        fun finished(plan: Plan): Plan { // under a memory limit, what is left of it is not known to suffice for more exits
            val keeps = Kind.EXITS in wish.kinds && goal.memoryMb == null
            return plan.withPrior(prior).let { if (keeps) withFurtherExits(supernet, it) else it }
        }
        fun front() = planner.front(requirement, wish.power)
            .run { copy(offers = offers.map { it.copy(plan = finished(it.plan)) }) }
        return found(Option(finished(choice.plan), choice.cost)).copy(
            heldOut = heldOut?.let { expectedCost(it, costs, choice.plan, servers?.uplink, wish.power) },
            measured = timed?.let { mean(it, choice.plan.subnet) } ?: confirmedAlone(choice.plan),
            byKind = byKind,
            accuracyInterval = wilson(choice.cost.accuracy ?: 0.0, inputs.count),
            fullAccuracy = heldOut?.paths?.get(0)?.answers?.accuracyAtEnd,
            considered = choice.considered,
            saved = choice.savedByAskingEarly,
            front = if (servers == null) null else ::front,
        )
    }

    /** What plans are made of; first the reference of a drop: the full model, or without other subnets the one in use. */
    private fun shortlist() = if (!searches) listOf(wish.inUse.subnet) else
        shortlist(
            supernet.original,
            searched?.pool.orEmpty(),
            goal.latencyMs,
            listOf(wish.inUse.subnet) + wish.known + if (Kind.EXITS in wish.kinds) supernet.membersWithExits else emptyList(),
        ).filter { inputs.has(it.inputSize) }

    /** The first subnets, as far as answering all samples takes a minute by prediction; two always. */
    private fun affordable(subnets: List<Subnet>): List<Subnet> {
        val spentS = subnets.drop(2).runningFold(0.0) { sum, one -> sum + inputs.count * costs.latencyMs(one) / 1e3 }
        return subnets.take(2 + spentS.drop(1).takeWhile { it <= ANSWERS_S }.size)
    }

    /** What the samples at [positions] say; [answering]: also which exits are worth taking. */
    private fun evidence(
        answers: List<AnswersEverywhere>,
        remote: RemoteEvidence?,
        positions: List<Int>,
        answering: Answering? = null,
    ): PlanEvidence {
        val drops = dropsWithin(goal.maxDrop)
        val paths = answers.map { it.part(positions) }.map { part ->
            val placed = answering?.placed(part).orEmpty()
            PathEvidence(part, answering?.exitSets(part, placed, drops).orEmpty(), placed.map { part.exits[it].id })
        }
        val sizes = if (Kind.CASCADE in wish.kinds) paths.map { it.answers.subnet.inputSize }.distinct() else emptyList()
        // many pairs of paths are tried: right and wrong answers alone would favour lucky ones
        val scale = if (Kind.CASCADE !in wish.kinds || answering == null) 0.0 else
            marginScale(margins(answers[0].end, answers[0].labels), positions.size)
        val preparingMs = sizes.associateWith(::prepareMs)
        return PlanEvidence(paths[0].answers.labels, paths, remote?.part(positions), preparingMs, scale)
    }

    /** Whether the profile knows the exits along [subnet]: they may be newer than it. */
    private fun areTimed(subnet: Subnet) = supernet.exitsAlong(subnet).all { exit ->
        listOf(null, subnet.inputSize).all { ExitAtSize(exit.id, exit.renditions[0].name, it) in costs.exitCosts }
    }

    private fun infeasible(choice: Choice): InfeasibleBudgetError {
        val missed = choice.misses.entries.joinToString { (name, value) -> "$name ${"%.4g".format(Locale.ROOT, value)}" }
        return InfeasibleBudgetError(
            "no plan keeps the goal; the nearest (${choice.plan.kind}) has $missed",
            choice.plan.subnet.edges.map { it.block },
            choice.cost.latencyMs ?: Double.POSITIVE_INFINITY,
            choice.cost.peakBytes,
            "relax what it misses",
        )
    }

    // 3. confirm

    /** Mean latency of a plan with exits that samples leave by, or a cascade, and of its subnet alone, in turns. */
    private fun inTurns(answering: Answering, plan: Plan): List<Double>? {
        if (plan.kind != "exits" && plan.second == null) return null
        report(AdaptationStage.CONFIRM, 1.0)
        return answering.measured(plan.withPrior(prior), inputs)
    }

    private fun pays(timed: List<Double>, plan: Plan): Boolean =
        (plan.second != null || timed[0] < timed[1]) &&
            timed[0] <= EQUAL_LATENCY * (goal.latencyMs ?: Double.POSITIVE_INFINITY)

    private fun mean(timed: List<Double>, subnet: Subnet): Measured {
        val (meanMs, withoutMs) = timed
        val fullMs = if (searches) confirmation.fullMs else profile.originalMs + profile.callOverheadMs
        return Measured(meanMs, meanMs to meanMs, meanMs, 1.0, fullMs, 1.0, prepareMs(subnet.inputSize), withoutMs)
    }

    /** The measured latency of a subnet that was chosen for something else than its accuracy within a budget. */
    private fun confirmedAlone(plan: Plan): Measured? {
        if (searched == null || plan.kind != "subnet") return null
        return measured(confirmation.best(listOf(Candidate(plan, costs.cost(plan.subnet), accuracy = 0.0))))
    }

    private fun measured(one: Confirmed) = Measured(
        one.measuredMs,
        one.intervalMs,
        one.medianMs,
        one.probability,
        one.fullMs,
        one.slowdown,
        prepareMs(one.candidate.subnet.inputSize),
    )

    /** Median time of preparing one image at an input size; near 0 for prepared tensors. */
    private fun prepareMs(size: SampleSize?): Double = median(
        List(minOf(PREPARED, inputs.count)) { timedMs { inputs.take(listOf(it), size) } },
    )

    private fun found(option: Option) = Found(
        option.plan,
        goal,
        option.cost,
        heldOut = null,
        measured = null,
        mapOf("subnet" to option),
        accuracyInterval = 0.0 to 1.0,
        fullAccuracy = null,
        inputs.count,
        split.second.size,
        searched?.subnetsEvaluated ?: 0,
        (System.nanoTime() - startedNs) / 1e9,
        searched?.stopped ?: Stopped.DONE,
        notes,
        pooled(option),
    )

    /** The pool of the search, with the chosen subnet, so that it can be watched. */
    private fun pooled(option: Option): List<Candidate> {
        val (pool, subnet) = searched?.pool.orEmpty() to option.plan.subnet
        if (pool.isEmpty() || pool.any { it.subnet == subnet }) return pool
        return pool + Candidate(Plan(subnet).withPrior(prior), costs.cost(subnet), option.cost.accuracy ?: 0.0)
    }
}

/**
 * The subnets that other kinds of plans are made of: the full model, [others], and the best of a search's pool.
 *
 * Those are the most accurate that exits or servers may make fit, and each that no faster one matches in accuracy.
 */
public fun shortlist(
    original: Subnet,
    pool: List<Candidate>,
    latencyMs: Double?,
    others: List<Subnet> = emptyList(),
): List<Subnet> {
    val near = pool.filter { latencyMs == null || it.cost.latencyMs <= SLOWEST * latencyMs }
    val accurate = near.sortedWith(compareBy({ -it.expectedAccuracy }, { it.cost.latencyMs }))
    var best = -1.0
    val front = near.sortedWith(compareBy({ it.cost.latencyMs }, { -it.expectedAccuracy }))
        .filter { one -> (one.expectedAccuracy > best).also { if (it) best = one.expectedAccuracy } }
    val chosen = (accurate.take(SHORTLISTED / 2) + front.reversed()).take(SHORTLISTED)
    return (listOf(original) + others + chosen.map { it.subnet }).distinct()
}

// Wilson's interval at 95 %
private fun wilson(accuracy: Double, samples: Int): Pair<Double, Double> {
    val z2 = NORMAL_95 * NORMAL_95
    val centre = (accuracy + z2 / (2 * samples)) / (1 + z2 / samples)
    val spread = sqrt(accuracy * (1 - accuracy) / samples + z2 / (4.0 * samples * samples))
    val half = NORMAL_95 * spread / (1 + z2 / samples)
    return maxOf(0.0, centre - half) to minOf(1.0, centre + half)
}

private inline fun timedMs(work: () -> Unit): Double {
    val beganNs = System.nanoTime()
    work()
    return (System.nanoTime() - beganNs) / NANOSECONDS_PER_MS
}
