/** Adapting from coroutines: suspends, can be cancelled, reports progress. The work is that of `adaptBlocking`. */
package pathweave.sdk

import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.channels.Channel
import kotlinx.coroutines.ensureActive
import kotlinx.coroutines.flow.Flow
import kotlinx.coroutines.flow.buffer
import kotlinx.coroutines.flow.channelFlow
import kotlinx.coroutines.isActive
import kotlinx.coroutines.withContext
import pathweave.sdk.data.Image
import pathweave.sdk.data.Inputs
import pathweave.sdk.numerics.Tensor
import pathweave.sdk.policies.Adaptation
import pathweave.sdk.policies.AdaptationProgress
import pathweave.sdk.policies.AdaptationSettings
import pathweave.sdk.policies.Calibration
import pathweave.sdk.policies.CalibrationSettings
import pathweave.sdk.supernet.Budget

/**
 * Search for the most accurate subnet within [budget] on private data, and switch to it.
 *
 * [samples]: raw images of the model's own size; [labels]: class indices, or null: then the full model's answers stand
 * in. The old plan serves until the new one is ready. When the coroutine is cancelled, the plan in use stays; to take
 * the best so far instead, use the settings' `cancelled`. [onProgress] is called on a thread of the work. [live] and
 * [keepSamples]: as for [AdaptiveModel.adaptBlocking].
 *
 * @throws InfeasibleBudgetError no subnet fits; names the nearest. The plan in use stays.
 * @throws InputError samples or labels are not what the model takes.
 * @throws ClosedError the model was closed.
 */
public suspend fun AdaptiveModel.adapt(
    samples: List<Image>,
    labels: IntArray?,
    budget: Budget,
    settings: AdaptationSettings = AdaptationSettings(),
    live: Boolean = false,
    keepSamples: Boolean = false,
    onProgress: (AdaptationProgress) -> Unit = {},
): Adaptation = adapt(inputs(samples), labels, budget, settings, live, keepSamples, onProgress)

/** The same for prepared samples [count, *input] of the model's own size. */
public suspend fun AdaptiveModel.adapt(
    samples: Tensor,
    labels: IntArray?,
    budget: Budget,
    settings: AdaptationSettings = AdaptationSettings(),
    live: Boolean = false,
    keepSamples: Boolean = false,
    onProgress: (AdaptationProgress) -> Unit = {},
): Adaptation = adapt(inputs(samples), labels, budget, settings, live, keepSamples, onProgress)

/** The same for samples that are prepared by the caller. */
public suspend fun AdaptiveModel.adapt(
    samples: Inputs,
    labels: IntArray?,
    budget: Budget,
    settings: AdaptationSettings = AdaptationSettings(),
    live: Boolean = false,
    keepSamples: Boolean = false,
    onProgress: (AdaptationProgress) -> Unit = {},
): Adaptation = withContext(Dispatchers.Default) {
    val stopping = settings.copy(cancelled = { settings.cancelled() || !isActive })
    adaptBlocking(samples, labels, budget, stopping, live, keepSamples) {
        ensureActive()
        onProgress(it)
    }
}

/**
 * Set the exits and the threshold of hard samples for the subnet in use, and switch to that plan.
 *
 * [samples] and [labels] as for [adapt], but others than those it searched on; without labels the subnet's own answers
 * stand in. It is not interrupted: a cancelled coroutine ends when it has ended.
 *
 * @throws InputError samples or labels are not what the model takes.
 * @throws ClosedError the model was closed.
 */
public suspend fun AdaptiveModel.calibrate(
    samples: Inputs,
    labels: IntArray?,
    settings: CalibrationSettings = CalibrationSettings(),
): Calibration = withContext(Dispatchers.Default) { calibrateBlocking(samples, labels, settings) }

/** What [adaptation] reports: progress, and the [result] once, as the last. */
public data class AdaptationReport(val progress: AdaptationProgress?, val result: Adaptation?)

/**
 * The same as [adapt] as a flow: starts when it is collected, ends with the result, and drops reports that come faster
 * than they are collected.
 */
public fun AdaptiveModel.adaptation(
    samples: Inputs,
    labels: IntArray?,
    budget: Budget,
    settings: AdaptationSettings = AdaptationSettings(),
): Flow<AdaptationReport> = channelFlow {
    val result = adapt(samples, labels, budget, settings) { trySend(AdaptationReport(it, null)) }
    send(AdaptationReport(null, result))
}.buffer(Channel.CONFLATED)
