/** What an open model keeps to by itself: the latency, the network, the memory. */
package pathweave.sdk.session

import java.io.Closeable
import pathweave.sdk.UsageError
import pathweave.sdk.execution.PlanInUse
import pathweave.sdk.live.DriftSettings
import pathweave.sdk.live.ElasticSettings
import pathweave.sdk.live.LiveSettings
import pathweave.sdk.logs.followed
import pathweave.sdk.memory_pressure.MemoryPressure
import pathweave.sdk.memory_pressure.SystemMemory
import pathweave.sdk.policies.Found
import pathweave.sdk.policies.planning.PlanFront
import pathweave.sdk.search.SearchProgress
import pathweave.sdk.supernet.Goal
import pathweave.sdk.supernet.Subnet

/** What is followed. As text `latency`, `network`, `memory`. */
public enum class Signal {
    /** How long single samples take: the subnet is exchanged for the most accurate that then fits. */
    LATENCY,

    /** Bandwidth and round trip: another plan of the last adaptation that knew a server takes over within seconds. */
    NETWORK,

    /**
     * The memory that the system has left: the cap sinks at once, and running calls then answer with the last exit that
     * they reached; it rises when there has been room for a while. The cap that was set is the most.
     */
    MEMORY,
    ;

    override fun toString(): String = name.lowercase()
}

/** Starts and stops following signals. A plan that is taken on purpose ends [Signal.LATENCY] and [Signal.NETWORK]. */
public class Live internal constructor(
    private val state: DeviceState?,
    private val inUse: PlanInUse,
    private val remote: Remote,
    private val memory: ElasticMemory,
    private val change: Any,
) : Closeable {
    private val latency = LiveKeeper(state, inUse)
    private val network = NetworkKeeper(inUse, remote)
    private var front: (() -> PlanFront)? = null // of the last adaptation; guarded by change

    /** What is followed now. */
    public val running: Set<Signal>
        get() = setOfNotNull(
            Signal.LATENCY.takeIf { latency.isRunning },
            Signal.NETWORK.takeIf { network.isRunning },
            Signal.MEMORY.takeIf { memory.isWatching },
        )

    /**
     * Follow [signals] from now on. [goal]: with another latency than the adaptation's. [pressure]: where memory is read.
     *
     * The next open starts with the plan that was taken on purpose.
     *
     * @throws UsageError nothing was adapted to a latency here, the plan in use is split or not of the pool, no plans for
     *   networks are kept, or no server is connected that they know.
     * @throws pathweave.sdk.MeasurementError there is no reading of the memory.
     * @throws pathweave.sdk.ClosedError the model was closed.
     */
    public fun start(
        vararg signals: Signal,
        goal: Goal? = null,
        settings: LiveSettings = LiveSettings(),
        drift: DriftSettings = DriftSettings(),
        elastic: ElasticSettings = ElasticSettings(),
        pressure: MemoryPressure = SystemMemory(),
    ): Unit = synchronized(change) {
        inUse.running()
        for (signal in signals.distinct()) {
            when (signal) {
                Signal.LATENCY -> latency.start(goal?.budget, settings)
                Signal.NETWORK -> follow(drift)
                Signal.MEMORY -> memory.watch(pressure, elastic)
            }
        }
    }

    private fun follow(drift: DriftSettings) {
        val made = front?.invoke()?.also { state?.saveFront(it) }
        front = null
        val plans = made ?: state?.loadFront()
            ?: throw UsageError("no plans for other networks are kept here", "adapt with a server first")
        latency.close()
        network.start(plans, drift) { choice, uplink -> state?.log?.write(followed(choice, plans, uplink)) }
    }

    /** Stay with what is in use, whatever changes; all of [Signal] by default. May be called twice. */
    public fun stop(vararg signals: Signal) {
        for (signal in signals.ifEmpty { Signal.entries.toTypedArray() }) {
            when (signal) {
                Signal.LATENCY -> latency.close()
                Signal.NETWORK -> network.close()
                Signal.MEMORY -> memory.stop()
            }
        }
    }

    /** Of the last adaptation's pool, the best first. */
    internal val subnets: List<Subnet> get() = latency.subnets

    /** Keep what an adaptation found, whose plan is in use. */
    internal fun remember(found: Found, samples: PrivateSamples, progress: SearchProgress) {
        if (found.pool.isNotEmpty()) latency.remember(found, samples, progress) else latency.follow()
        found.front?.let { front = it }
    }

    /** Another plan was taken on purpose. */
    internal fun closePlans(): Unit = stop(Signal.LATENCY, Signal.NETWORK)

    internal fun closeNetwork(): Unit = network.close()

    internal fun keepExits(held: Set<String>): Unit = latency.keepExits(held)

    internal fun resized(): Unit = latency.resized()

    override fun close() {
        stop()
        latency.forget()
    }
}
