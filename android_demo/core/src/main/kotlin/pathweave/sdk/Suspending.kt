/** What takes long, from coroutines: the work of the functions named `…Blocking`, away from the calling thread. */
package pathweave.sdk

import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.ensureActive
import kotlinx.coroutines.isActive
import kotlinx.coroutines.withContext
import pathweave.sdk.data.Image
import pathweave.sdk.data.Inputs
import pathweave.sdk.policies.AdaptationProgress
import pathweave.sdk.policies.AdaptationSettings
import pathweave.sdk.policies.Found
import pathweave.sdk.profiling.Profile
import pathweave.sdk.session.Answer
import pathweave.sdk.session.Exits
import pathweave.sdk.session.PlacedExits
import pathweave.sdk.supernet.Goal
import pathweave.sdk.supernet.Kind
import pathweave.sdk.supernet.Power
import pathweave.sdk.supernet.Uplink
import pathweave.sdk.tasks.Targets

private suspend fun <T> away(work: CoroutineScope.() -> T): T = withContext(Dispatchers.Default, work)

/**
 * [AdaptiveModel.adaptBlocking], suspending. When the coroutine is cancelled, the plan in use stays; to take the best so
 * far instead, use the settings' `cancelled`.
 */
public suspend fun AdaptiveModel.adapt(
    samples: Inputs,
    goal: Goal,
    consider: Set<Kind>? = null,
    labels: IntArray? = null,
    take: Boolean = true,
    settings: AdaptationSettings = AdaptationSettings(),
    uplink: Uplink? = null,
    power: Power? = null,
    targets: Targets? = null,
    onProgress: (AdaptationProgress) -> Unit = {},
): Found = away {
    val stopping = settings.copy(cancelled = { settings.cancelled() || !isActive })
    adaptBlocking(samples, goal, consider, labels, take, stopping, uplink, power, targets) {
        ensureActive()
        onProgress(it)
    }
}

/** [AdaptiveModel.profileBlocking], suspending; a cancelled coroutine ends it. */
public suspend fun AdaptiveModel.profile(again: Boolean = false, onProgress: (Double) -> Unit = {}): Profile = away {
    profileBlocking(again) {
        ensureActive()
        onProgress(it)
    }
}

/** A call of the model, suspending; a call that has begun is not interrupted. */
public suspend fun AdaptiveModel.acall(vararg images: Image, deadlineMs: Double? = null): Answer =
    away { invoke(*images, deadlineMs = deadlineMs) }

/** [Exits.holdBlocking], suspending. */
public suspend fun Exits.hold(names: Collection<String>): Unit = away { holdBlocking(names) }

/** [Exits.placeBlocking], suspending. */
public suspend fun Exits.place(memoryMb: Double? = null): PlacedExits = away { placeBlocking(memoryMb) }
