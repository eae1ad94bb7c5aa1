/** What an open model keeps to by itself: the latency, the network, the memory. */
package pathweave.sdk.session

import java.io.Closeable
import java.util.concurrent.CountDownLatch
import java.util.concurrent.TimeUnit.NANOSECONDS
import kotlin.concurrent.thread
import pathweave.sdk.ClosedError
import pathweave.sdk.LOG
import pathweave.sdk.UsageError
import pathweave.sdk.data.Inputs
import pathweave.sdk.execution.PlanInUse
import pathweave.sdk.live.CapState
import pathweave.sdk.live.DriftSettings
import pathweave.sdk.live.ElasticSettings
import pathweave.sdk.live.LiveSettings
import pathweave.sdk.live.LiveUpdate
import pathweave.sdk.live.NetworkDrift
import pathweave.sdk.live.NetworkFollower
import pathweave.sdk.live.NetworkPlans
import pathweave.sdk.live.PlanPool
import pathweave.sdk.live.PoolSearch
import pathweave.sdk.live.SpeedSignals
import pathweave.sdk.live.SystemSpeed
import pathweave.sdk.live.nextCap
import pathweave.sdk.live.poolOf
import pathweave.sdk.logs.AdaptationLog
import pathweave.sdk.logs.followed
import pathweave.sdk.logs.resized
import pathweave.sdk.memory_pressure.MemoryPressure
import pathweave.sdk.memory_pressure.MemoryReading
import pathweave.sdk.memory_pressure.SystemMemory
import pathweave.sdk.offload.LinkEstimate
import pathweave.sdk.policies.AdaptationSettings
import pathweave.sdk.policies.Found
import pathweave.sdk.policies.exits.leastPlanBytes
import pathweave.sdk.policies.exits.planWithin
import pathweave.sdk.policies.exits.wholePlanBytes
import pathweave.sdk.policies.planning.Choice
import pathweave.sdk.policies.planning.PlanFront
import pathweave.sdk.policies.standIns
import pathweave.sdk.profiling.Profile
import pathweave.sdk.search.SearchProgress
import pathweave.sdk.supernet.Budget
import pathweave.sdk.supernet.Goal
import pathweave.sdk.supernet.Plan
import pathweave.sdk.supernet.Prior
import pathweave.sdk.supernet.Subnet
import pathweave.sdk.supernet.Uplink
import pathweave.sdk.tasks.Targets

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
    internal val latency = LiveKeeper(state, inUse)
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
     * Follow [signals] from now on. [goal]: with another latency than the adaptation's. [pressure]: where memory is read;
     * [speed]: where the reasons of a slower device are, which an app gives the means of `PowerManager`.
     *
     * The next open starts with the plan that was taken on purpose.
     *
     * @throws UsageError nothing was adapted to a latency here, the plan in use is split or not of the pool, no plans for
     *   networks are kept, or no server is connected that they know.
     * @throws pathweave.sdk.MeasurementError there is no reading of the memory.
     */
    public fun start(
        vararg signals: Signal,
        goal: Goal? = null,
        settings: LiveSettings = LiveSettings(),
        drift: DriftSettings = DriftSettings(),
        elastic: ElasticSettings = ElasticSettings(),
        pressure: MemoryPressure = SystemMemory(),
        speed: SpeedSignals = SystemSpeed(),
    ): Unit = synchronized(change) {
        inUse.running()
        for (signal in signals.distinct()) {
            when (signal) {
                Signal.LATENCY -> latency.start(goal?.budget, settings, speed)
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

    /** Keep what an adaptation found, whose plan is in use. */
    internal fun remember(found: Found, samples: PrivateSamples, progress: SearchProgress) {
        if (found.pool.isNotEmpty()) latency.remember(found, samples, progress) else latency.follow()
        found.front?.let { front = it }
    }

    /** Another plan was taken on purpose. */
    internal fun closePlans(): Unit = stop(Signal.LATENCY, Signal.NETWORK)

    internal fun closeNetwork(): Unit = network.close()

    override fun close() {
        stop()
        latency.forget()
    }
}

private const val FILL_SHARE = 1.0 // of the time that the adaptation took, for the other latencies of the pool
private const val FILL_LEAST_S = 5.0

/** Private inputs with targets or null, and how they are searched on. */
internal class PrivateSamples(
    val inputs: Inputs,
    val targets: Targets?,
    val settings: AdaptationSettings,
    val profile: Profile,
)

/** Starts and stops live update. [state]: null keeps the pool in memory alone, where private samples always stay. */
internal class LiveKeeper(private val state: DeviceState?, private val inUse: PlanInUse) : Closeable {
    private var pool: PlanPool? = null // guarded by this, as what follows
    private var live: LiveUpdate? = null
    private var search: PoolSearch? = null

    /** Whether live update runs. */
    val isRunning: Boolean get() = current() != null

    /** Of the last adaptation's pool, the best first; none without an adaptation. */
    val subnets: List<Subnet>
        get() = (synchronized(this) { pool } ?: state?.loadPool())?.candidates.orEmpty()
            .sortedByDescending { it.expected ?: it.accuracy }.map { it.subnet }

    /**
     * Keep the pool of an adaptation; its settings say whether to fill it at all latencies, and to search again.
     *
     * Without a latency budget there is nothing to keep, and no pool.
     */
    fun remember(found: Found, samples: PrivateSamples, progress: SearchProgress) {
        forget()
        val own = poolOf(found) ?: return
        synchronized(this) { pool = own }
        val settings = samples.settings
        if (!settings.fillPool && !settings.keepSamples) return
        val search = poolSearch(samples, found.plan.prior)
        if (settings.fillPool) {
            val limitS = maxOf(FILL_LEAST_S, FILL_SHARE * found.seconds)
            poolOf(found, search.fill(found.goal.budget, limitS, progress))?.let(::remember)
        }
        if (settings.keepSamples) synchronized(this) { this.search = search }
    }

    private fun remember(pool: PlanPool) {
        synchronized(this) { this.pool = pool }
        state?.savePool(pool)
    }

    /** Drop the private samples. */
    fun forget(): Unit = synchronized(this) { search = null }

    /**
     * Watch the plan in use with the pool, at another [budget] if there is one; [speed] explains a slower device.
     *
     * @throws UsageError nothing was adapted, or the plan in use cannot be watched; says why.
     */
    fun start(budget: Budget?, settings: LiveSettings, speed: SpeedSignals) {
        close()
        val pool = pool(budget, inUse.running().plan)
        val search = synchronized(this) { search }?.let { kept ->
            { wanted: Budget, cancelled: () -> Boolean -> kept.search(wanted, settings.searchTimeLimitS, cancelled) }
        }
        val started = LiveUpdate(inUse, state?.log, pool, settings, search, ::remember, speed)
        synchronized(this) { live = started }
        started.start()
    }

    /** The plans of the watched pool lose all exits that are not [held]. */
    fun keepExits(held: Set<String>) {
        current()?.apply {
            keepExits(held)
            follow()
        }
    }

    /** Another plan was taken on purpose: watch that, while live update runs. */
    fun follow() {
        current()?.follow()
    }

    /** The memory cap changed: watch the plan in use, and prepare others under that cap. */
    fun resized() {
        current()?.apply {
            dropWarm()
            follow()
        }
    }

    /** Watch no longer. May be called twice. */
    override fun close() {
        synchronized(this) { live.also { live = null } }?.close()
    }

    private fun current(): LiveUpdate? = synchronized(this) { live }

    private fun poolSearch(samples: PrivateSamples, prior: Prior?): PoolSearch {
        val (workspace, settings) = inUse.lendWorkspace() to samples.settings
        val targets = samples.targets ?: standIns(workspace, samples.inputs, settings.batch, usePrior = prior != null).first
        return PoolSearch(workspace, samples.profile.costModel(), samples.inputs, targets, settings, prior)
    }

    private fun pool(budget: Budget?, plan: Plan): PlanPool {
        val known = (synchronized(this) { pool } ?: state?.loadPool())
            ?: throw UsageError("there is no plan pool to switch in", "adapt to a latency budget first")
        if (plan.split != null) {
            throw UsageError("a plan that is split with a server cannot be watched", "adapt again, without split")
        }
        if (known.find(plan.subnet) == null) {
            throw UsageError("the plan in use is not in the plan pool", "adapt first")
        }
        if (budget == null) return known
        if (budget.latencyMs?.isFinite() != true) {
            throw UsageError("live update keeps a latency budget, and there is none", "set Goal(latencyMs = …)")
        }
        return known.copy(budget = budget)
    }
}

private const val SMALL_BYTES = 1L // a size beside that of an input: round trip and bandwidth both count

/** Starts and stops following the network. */
internal class NetworkKeeper(private val inUse: PlanInUse, private val remote: Remote) : Closeable {
    private var follower: NetworkFollower? = null // guarded by this

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

private const val JOIN_MS = 10_000L
private const val NS_PER_S = 1e9

/**
 * Changes the cap under running calls. Elastic.kt decides when, ElasticPlan.kt what remains.
 *
 * The plan that was taken on purpose is remembered, and comes back as far as there is room. [resized]: called after a
 * change.
 */
internal class ElasticMemory(
    private val inUse: PlanInUse,
    private val log: AdaptationLog?,
    private val resized: () -> Unit,
) {
    private var made: Pair<Plan, Plan>? = null // what runs, and of what it is a part; guarded by this
    private var bounds: Pair<Plan, Pair<Long, Long>>? = null // asked for at every reading
    private val watching = Any() // guards the next

    @Volatile
    private var watch: Watch? = null

    private val bundle get() = inUse.workspace.bundle

    /** The cap; null for none. */
    val capBytes: Long? get() = inUse.workspace.memoryCapBytes

    /**
     * Change it now. The memory is kept to once the calls in progress have ended.
     *
     * @throws BudgetError not even the path to the plan's first exit fits; says the least that works. Nothing changes.
     * @throws UsageError it is not above 0.
     */
    fun setCap(capBytes: Long?) {
        if (capBytes != null && capBytes <= 0) {
            throw UsageError("the memory cap is $capBytes bytes; it must be above 0")
        }
        resize(capBytes, "asked")
        watch?.allow(capBytes)
    }

    /** Follow the system's memory from now on; the cap that was set is the most. Throws as [MemoryPressure.read]. */
    fun watch(pressure: MemoryPressure, settings: ElasticSettings) {
        pressure.read()
        synchronized(watching) {
            stop()
            watch = Watch(pressure, settings, capBytes)
        }
    }

    /** Whether the system's memory is followed. */
    val isWatching: Boolean get() = watch != null

    /** Stay with the cap in use. May be called twice. */
    fun stop() {
        synchronized(watching) { watch.also { watch = null } }?.stop()
    }

    /** One decision of a watch, done. */
    private fun follow(state: CapState, reading: MemoryReading, ceiling: Long?, settings: ElasticSettings): CapState {
        val (leastBytes, mostBytes) = boundsBytes()
        val active = inUse.enter()
        val takenBytes = try {
            active.loaded.takenBytes
        } finally {
            active.leave()
        }
        val nowS = System.nanoTime() / NS_PER_S
        val wanted = nextCap(state, reading, takenBytes, mostBytes, ceiling, nowS, settings)
        val capBytes = wanted.capBytes?.let { maxOf(it, leastBytes) }
        if (capBytes != state.capBytes) {
            val sinks = capBytes != null && (state.capBytes == null || capBytes < state.capBytes)
            resize(capBytes, if (sinks) "pressure" else "room", reading.availableBytes)
        }
        return CapState(capBytes, wanted.roomySinceS)
    }

    /** The least cap under which any part of the plan runs, and what all of it takes. */
    private fun boundsBytes(): Pair<Long, Long> = synchronized(this) {
        val plan = whole()
        val known = bounds?.takeIf { it.first == plan }
            ?: (plan to (leastPlanBytes(bundle, plan) to wholePlanBytes(bundle, plan))).also { bounds = it }
        known.second
    }

    /** The plan that was taken on purpose, of which what runs now may be a part. */
    private fun whole(): Plan {
        val plan = inUse.running().plan
        return made?.takeIf { it.first == plan }?.second?.withExitsOf(bundle.exits) ?: plan
    }

    private fun resize(capBytes: Long?, why: String, availableBytes: Long? = null) {
        val (oldCapBytes, plan) = synchronized(this) {
            val (before, whole) = this.capBytes to whole()
            if (capBytes == before) return
            val plan = planWithin(bundle, whole, capBytes)
            inUse.exchangeCap(capBytes, plan, hurry = why == "pressure")
            made = plan to whole
            before to plan
        }
        resized()
        log?.write(resized(why, oldCapBytes, capBytes, availableBytes, plan))
    }

    /** The thread that reads the system's memory. */
    private inner class Watch(
        private val pressure: MemoryPressure,
        private val settings: ElasticSettings,
        private var ceilingBytes: Long?,
    ) {
        private var state = CapState(ceilingBytes) // this and the ceiling are guarded by this
        private val stopped = CountDownLatch(1)
        private val thread = thread(isDaemon = true, name = "pathweave-memory") { follow() }

        /** The user set another cap. */
        fun allow(capBytes: Long?): Unit = synchronized(this) {
            ceilingBytes = capBytes
            state = CapState(capBytes)
        }

        fun stop() {
            stopped.countDown()
            if (Thread.currentThread() !== thread) thread.join(JOIN_MS)
        }

        private fun follow() {
            var noted = false
            while (!stopped.await((settings.intervalS * NS_PER_S).toLong(), NANOSECONDS)) {
                try {
                    val reading = pressure.read()
                    synchronized(this) { state = follow(state, reading, ceilingBytes, settings) }
                    noted = false
                } catch (_: ClosedError) {
                    return
                } catch (error: Exception) { // a thread that ends would leave the memory unwatched without a word
                    if (!noted) LOG.warning("the memory cap stays as it is: ${error.message}")
                    noted = true
                }
            }
        }
    }
}
