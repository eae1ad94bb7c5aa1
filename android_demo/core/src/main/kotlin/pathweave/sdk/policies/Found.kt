/** The one result of adapting, and how far an adaptation is. */
package pathweave.sdk.policies

import pathweave.sdk.numerics.median
import pathweave.sdk.policies.planning.PlanFront
import pathweave.sdk.search.Candidate
import pathweave.sdk.search.Stopped
import pathweave.sdk.supernet.Goal
import pathweave.sdk.supernet.Plan
import pathweave.sdk.supernet.PlanCost

/**
 * Latencies of a plan on this device when nothing else runs, without preparing the image, which takes [prepareMs].
 *
 * [latencyMs]: of a subnet at the goal's percentile, and [medianMs] at the median; of exits the mean, and beside it
 * [withoutExitsMs], in turns. [intervalMs]: 95 % of [latencyMs]; [withinBudgetProbability]: that it keeps the goal's.
 * [fullMs]: of the full model in the same circumstances; under a memory cap without room for both, alone, and in pages if
 * need be. [slowdown]: of the device during the measurement, over quiet.
 */
public data class Measured(
    val latencyMs: Double,
    val intervalMs: Pair<Double, Double>,
    val medianMs: Double,
    val withinBudgetProbability: Double,
    val fullMs: Double,
    val slowdown: Double,
    val prepareMs: Double,
    val withoutExitsMs: Double? = null,
)

/** The best plan of its kind; [misses]: the limits that it breaks, with what it has. */
public data class Option(val plan: Plan, val cost: PlanCost, val misses: Map<String, Double> = emptyMap())

/**
 * The one result of adapting. [goal]: with its latency in milliseconds.
 *
 * [expected]: on the samples that chose; [heldOut]: on the [judged] ones of all [samples] that did not, null without any,
 * and [fullAccuracy], the full model's on the same. [measured]: null of plans that ask, abstain or are no rival of others.
 * [byKind]: the best rival of each kind. [accuracyInterval]: 95 % of the accuracy on new samples like these. [considered]:
 * plans or subnets that were judged. [notes]: what could not be learned, and why. [pool]: the subnets of the search.
 */
public data class Found(
    val plan: Plan,
    val goal: Goal,
    val expected: PlanCost,
    val heldOut: PlanCost?,
    val measured: Measured?,
    val byKind: Map<String, Option>,
    val accuracyInterval: Pair<Double, Double>,
    val fullAccuracy: Double?,
    val samples: Int,
    val judged: Int,
    val considered: Int,
    val seconds: Double,
    val stopped: Stopped,
    val notes: List<String>,
    val pool: List<Candidate>,
    /** What asking from exits spares per sample, by name. */
    internal val saved: Map<String, Double> = emptyMap(),
    /** Makes the plans for other networks; null without a server. */
    internal val front: (() -> PlanFront)? = null,
)

/** What an adaptation is doing. */
public enum class AdaptationStage { PROFILE, SEARCH, CONFIRM, JUDGE }

/** How far a stage is: [share] of it, 0 to 1, and a short remark, which may be empty. */
public data class AdaptationProgress(val stage: AdaptationStage, val share: Double, val note: String = "")
