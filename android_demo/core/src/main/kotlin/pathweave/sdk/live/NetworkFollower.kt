/**
 * A thread that takes another plan when the network has changed.
 *
 * NetworkDrift.kt decides; the plans come from a front over the same evidence.
 */
package pathweave.sdk.live

import java.io.Closeable
import java.util.concurrent.CountDownLatch
import java.util.concurrent.TimeUnit.MILLISECONDS
import java.util.logging.Level
import kotlin.concurrent.thread
import pathweave.sdk.ClosedError
import pathweave.sdk.LOG
import pathweave.sdk.PathweaveError
import pathweave.sdk.execution.Active
import pathweave.sdk.execution.PlanInUse
import pathweave.sdk.offload.LinkEstimate
import pathweave.sdk.supernet.Plan
import pathweave.sdk.supernet.Uplink

private const val PAUSE_MS = 200L // between two looks
private const val PROBE_AFTER_S = 0.6 // without a request
private const val JOIN_MS = 10_000L
private const val NS_PER_S = 1e9

/** What a [NetworkFollower] asks for. */
internal interface NetworkPlans {
    /** One small request, that [LinkEstimate] is told of. */
    fun probe()

    /** The best plan over [uplink], null for a server out of reach; or the nearest to keeping the requirement. */
    fun best(uplink: Uplink?): Plan

    /** The plan that was best over [uplink] is in use now. */
    fun exchanged(uplink: Uplink?)
}

/**
 * Keeps the plan in use the best for the network, from [start] to [close].
 *
 * [link]: told of every request by those who make them; [NetworkPlans.probe] makes one when there was none for a while.
 */
internal class NetworkFollower(
    private val inUse: PlanInUse,
    private val link: LinkEstimate,
    private val drift: NetworkDrift,
    private val plans: NetworkPlans,
    private val clock: () -> Double = { System.nanoTime() / NS_PER_S },
) : Closeable {
    private val stopped = CountDownLatch(1)
    private val thread = thread(start = false, isDaemon = true, name = "pathweave-network") { follow() }

    /** Follow from now on. */
    fun start(): Unit = thread.start()

    /** End the thread; the plan in use stays. May be called twice. */
    override fun close() {
        stopped.countDown()
        if (thread.isAlive && Thread.currentThread() !== thread) thread.join(JOIN_MS)
    }

    // In the thread

    private fun follow() {
        while (!stopped.await(PAUSE_MS, MILLISECONDS)) {
            try {
                look()
            } catch (_: ClosedError) {
                return
            } catch (error: RuntimeException) { // a thread that ends would leave the plan behind without a word
                LOG.log(Level.WARNING, "following the network met an error and goes on", error)
            } catch (error: PathweaveError) {
                LOG.log(Level.WARNING, "following the network met an error and goes on", error)
            }
        }
    }

    /** Probe if no request told anything lately, decide once, and do it. */
    fun look() {
        if (link.quietS >= PROBE_AFTER_S) plans.probe()
        val uplink = link.uplink
        if (stopped.count == 0L || !drift.callsForAPlan(uplink, clock())) return
        val old = inUse.running()
        val plan = plans.best(uplink)
        drift.plannedWith(uplink, clock())
        if (plan != old.plan) exchange(old, plan, uplink)
    }

    private fun exchange(old: Active, plan: Plan, uplink: Uplink?) {
        val loaded = try {
            inUse.prepare(plan)
        } catch (error: PathweaveError) {
            if (error is ClosedError) throw error
            LOG.warning("the plan for the changed network does not load: ${error.message}")
            return
        }
        if (stopped.count == 0L) {
            loaded.calls.leave()
        } else if (inUse.exchange(Active(plan, loaded), expected = old)) {
            plans.exchanged(uplink)
        }
    }
}

private const val LEAST_MS = 1e-9

/**
 * [factor]: by which a transfer is slower or quicker than planned; [patienceS]: for how long in a row; [cooldownS]: after
 * a plan was made, before the next one.
 */
public data class DriftSettings(
    val factor: Double = 1.5,
    val patienceS: Double = 0.8,
    val cooldownS: Double = 1.5,
)

/**
 * Watches the way to a server against the one that was planned with.
 *
 * [sizes]: of typical requests in bytes, whose transfer times count. A server that is out of reach, or back again, is a
 * change too. Not thread-safe.
 */
public class NetworkDrift(
    private var planned: Uplink?,
    private val sizes: List<Long>,
    private val settings: DriftSettings = DriftSettings(),
) {
    private var sinceS: Double? = null // when the drift began
    private var plannedS = Double.NEGATIVE_INFINITY

    /** Whether to plan again with [now], the uplink of this moment. A clock that jumps back begins anew. */
    public fun callsForAPlan(now: Uplink?, nowS: Double): Boolean {
        if (nowS < plannedS || sinceS.let { it != null && nowS < it }) {
            sinceS = null
            plannedS = Double.NEGATIVE_INFINITY
        }
        if (!hasDrifted(now)) {
            sinceS = null
            return false
        }
        val since = sinceS ?: nowS.also { sinceS = it }
        return nowS - since >= settings.patienceS && nowS - plannedS >= settings.cooldownS
    }

    /** A plan was made with this uplink. */
    public fun plannedWith(uplink: Uplink?, nowS: Double) {
        planned = uplink
        plannedS = nowS
        sinceS = null
    }

    private fun hasDrifted(now: Uplink?): Boolean {
        val before = planned
        if (now == null || before == null) return (now == null) != (before == null)
        return sizes.any { size ->
            val ratio = now.transferMs(size) / maxOf(before.transferMs(size), LEAST_MS)
            !(1 / settings.factor < ratio && ratio < settings.factor)
        }
    }
}
