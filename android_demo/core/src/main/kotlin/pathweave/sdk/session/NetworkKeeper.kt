/**
 * What `AdaptiveModel` keeps to follow the network: the estimate and the thread. Mirrors
 * device_sdk/session/network_keeper.py.
 */
package pathweave.sdk.session

import java.io.Closeable
import pathweave.sdk.UsageError
import pathweave.sdk.execution.PlanInUse
import pathweave.sdk.live.DriftSettings
import pathweave.sdk.live.NetworkDrift
import pathweave.sdk.live.NetworkFollower
import pathweave.sdk.live.NetworkPlans
import pathweave.sdk.offload.LinkEstimate
import pathweave.sdk.policies.planning.Choice
import pathweave.sdk.policies.planning.PlanFront
import pathweave.sdk.supernet.Plan
import pathweave.sdk.supernet.Uplink

private const val SMALL_BYTES = 1L // a size beside that of an input: round trip and bandwidth both count

/** Starts and stops following the network. */
internal class NetworkKeeper(private val inUse: PlanInUse, private val remote: Remote) : Closeable {
    private var follower: NetworkFollower? = null // guarded by this

    /** Whether the network is followed. */
    val isRunning: Boolean get() = synchronized(this) { follower != null }

    /**
     * Keep the plan the best for the network, with the plans of [front] that the connected server allows.
     *
     * [exchanged] is told after each exchange what was chosen, and for which uplink.
     *
     * @throws UsageError no server is connected, or not one that the plans were made for.
     */
    fun start(front: PlanFront, settings: DriftSettings, exchanged: (Choice, Uplink?) -> Unit) {
        val usable = front.withOffers { remote.whyNot(it) == null }
        if (remote.model == null || usable == null) {
            throw UsageError("there is no network to follow: no server is connected that the plans know")
        }
        val link = LinkEstimate(front.uplink)
        val drift = NetworkDrift(front.uplink, listOf(SMALL_BYTES, maxOf(front.inputBytes, SMALL_BYTES)), settings)
        val started = NetworkFollower(inUse, link, drift, Front(usable, link, exchanged))
        close()
        remote.tell(link, front.answerMs)
        synchronized(this) { follower = started }
        started.start()
    }

    /** Follow no longer; the plan in use stays. May be called twice. */
    override fun close() {
        val old = synchronized(this) { follower.also { follower = null } }
        remote.tell(null)
        old?.close()
    }

    private inner class Front(
        private val front: PlanFront,
        link: LinkEstimate,
        private val told: (Choice, Uplink?) -> Unit,
    ) : NetworkPlans {
        private val prober = remote.prober(link)
        private var latest: Choice? = null // of the follower's thread alone

        override fun probe(): Unit = prober()

        override fun best(uplink: Uplink?): Plan = front.best(uplink).also { latest = it }.plan

        override fun exchanged(uplink: Uplink?) {
            if (uplink != null) remote.tryAgain()
            latest?.let { told(it, uplink) }
        }
    }
}
