/** The rungs of the ladder that plans are made of. Mirrors device_sdk/policies/planning/best_rungs.py. */
package pathweave.sdk.policies.planning

import pathweave.sdk.data.Inputs
import pathweave.sdk.data.SomeInputs
import pathweave.sdk.execution.Workspace
import pathweave.sdk.policies.costs.Answering
import pathweave.sdk.search.rungsNear
import pathweave.sdk.supernet.Budget
import pathweave.sdk.supernet.CostModel
import pathweave.sdk.supernet.MB
import pathweave.sdk.supernet.Requirement
import pathweave.sdk.supernet.Subnet

private const val SAMPLES = 128 // that rungs are compared on
private const val LIMIT_S = 20.0 // spent at most
private const val BATCH = 16

/**
 * Rungs that keep the memory limit and that no faster one matches in accuracy, the slowest first.
 *
 * Compared on some of the samples at [positions]; [labels] are of all [inputs]. The most promising rungs for the required
 * latency are tried first, and no further ones once they have taken 20 seconds by prediction.
 */
internal fun bestRungs(
    workspace: Workspace,
    costs: CostModel,
    inputs: Inputs,
    labels: IntArray,
    positions: List<Int>,
    requirement: Requirement,
): List<Subnet> {
    val supernet = workspace.bundle.supernet
    val step = maxOf(1, positions.size / SAMPLES)
    val few = positions.indices.step(step).map(positions::get)
    val (samples, right) = SomeInputs(inputs, few) to IntArray(few.size) { labels[few[it]] }
    val memoryMb = requirement.peakBytes?.let { it.toDouble() / MB }
    val fullMs = costs.latencyMs(supernet.original)
    val latencyMs = minOf(requirement.latencyMs ?: fullMs, fullMs)
    val near = listOf(latencyMs, fullMs).flatMap { rungsNear(supernet, costs, Budget(it, memoryMb)) }.distinct()
        .filter { workspace.memoryCapBytes == null || workspace.fits(it.edges) }
        .filter { it.inputSize == null || workspace.bundle.manifest.preprocessing.resize != null }
    val answering = Answering(workspace, costs)
    val tried = mutableListOf<Triple<Double, Double, Subnet>>()
    var leftS = LIMIT_S
    for (rung in near) {
        val tookMs = costs.latencyMs(rung)
        leftS -= few.size * tookMs / 1e3
        if (leftS < 0 && tried.isNotEmpty()) break
        val answers = answering.answer(rung, samples, right, useExits = false, batch = BATCH)
        tried += Triple(tookMs, answers.rightAtEnd.count { it }.toDouble() / few.size, rung)
    }
    var best = -1.0
    val kept = mutableListOf<Subnet>()
    for ((_, accuracy, rung) in tried.sortedWith(compareBy({ it.first }, { -it.second }))) {
        if (accuracy > best) {
            best = accuracy
            kept += rung
        }
    }
    return kept.reversed()
}
