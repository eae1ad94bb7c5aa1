/**
 * Live update: a thread that watches service times and exchanges the subnet when the device has changed.
 *
 * Source: AdaptiveNet §5.3. Switching.kt decides; here are the clock, the thread and the plans.
 */
package pathweave.sdk.live

import java.io.Closeable
import java.util.concurrent.ConcurrentHashMap
import java.util.concurrent.Semaphore
import java.util.logging.Level
import kotlin.concurrent.thread
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.JsonPrimitive
import pathweave.sdk.ClosedError
import pathweave.sdk.LOG
import pathweave.sdk.NANOSECONDS_PER_MS
import pathweave.sdk.PathweaveError
import pathweave.sdk.StorageError
import pathweave.sdk.execution.Active
import pathweave.sdk.execution.LoadedPlan
import pathweave.sdk.execution.PlanInUse
import pathweave.sdk.execution.ServiceTimes
import pathweave.sdk.logs.AdaptationLog
import pathweave.sdk.logs.event
import pathweave.sdk.search.Candidate
import pathweave.sdk.supernet.MB
import pathweave.sdk.supernet.Plan
import pathweave.sdk.supernet.Subnet

private const val PAUSE_MS = 20L // between two looks
private const val NOTE_AGAIN_S = 60.0 // a budget out of reach is not noted again sooner
private const val RETRY_S = 60.0 // after which a subnet that did not load is tried again
private const val JOIN_MS = 10_000L
private const val EXCHANGES = 8
private const val NS_PER_S = 1e9
private const val MS_PER_S = 1e3

/**
 * Keeps the budget of [pool] with its candidates, from [start] to [close].
 *
 * The thread sleeps until a call is out of bounds. It prepares what it switches to, and ahead of time what probably
 * comes next; calls never wait for it. [search], if given, looks for more candidates when none fits; [remember] is
 * called with the larger pool. [signals]: the system's words on its speed, which explain why the device became slower.
 */
internal class LiveUpdate(
    private val inUse: PlanInUse,
    private val log: AdaptationLog?,
    pool: PlanPool,
    private val settings: LiveSettings,
    search: Search? = null,
    private val remember: (PlanPool) -> Unit = {},
    signals: SpeedSignals = SystemSpeed(),
    private val clock: () -> Double = { System.nanoTime() / NS_PER_S },
) : Closeable {
    /** Grows by what searches in the background find. */
    @Volatile
    var pool: PlanPool = pool
        private set

    private val searching = search?.let { BackgroundSearch(it, ::widen) }
    private val plans = ConcurrentHashMap<Subnet, Plan>() // as they were calibrated
    private val warm = WarmPlans()
    private val failedS = HashMap<Subnet, Double>() // this and what follows belongs to the thread
    private val speed = SpeedWatch(signals, clock, ::rest)
    private var last = LastSwitch()
    private var ratio = 1.0
    private var reachNotedS = Double.NEGATIVE_INFINITY

    @Volatile
    private var aheadWanted = true

    @Volatile
    private var stopped = false
    private val wanted = Semaphore(0)
    private val thread = thread(start = false, isDaemon = true, name = "pathweave-live") { watch() }

    /** What is ready ahead of being needed. */
    val warmSubnets: Set<Subnet> get() = warm.subnets

    /** Watch what is active, whose subnet is in the pool, from now on. */
    fun start() {
        speed.begin()
        follow()
        log?.write(watching(pool, inUse.running().plan.subnet))
        wake() // something can be prepared right away
        thread.start()
    }

    /** Watch the plan that is active now, and come back to just this plan whenever its subnet is best. */
    fun follow() {
        repeat(EXCHANGES) {
            val active = inUse.enter() // one use for the exchange, which takes it over
            plans[active.plan.subnet] = active.plan
            if (inUse.exchange(watched(active.plan, active.loaded), expected = active)) return
        }
    }

    /** Drop what was prepared ahead: the memory is needed, or its exits went. What fits later is prepared again. */
    fun dropWarm() {
        warm.clear()
        aheadWanted = true
        wake()
    }

    /** Plans lose the exits that are not [held]. */
    fun keepExits(held: Set<String>) {
        plans.replaceAll { _, plan -> plan.withExitsOf(held) }
        dropWarm()
    }

    /** End the thread; the plan in use stays. May be called twice. */
    override fun close() {
        stopped = true
        wake()
        searching?.stop()
        if (thread.isAlive && Thread.currentThread() !== thread) thread.join(JOIN_MS)
        warm.clear()
        try {
            val active = inUse.enter()
            if (active.times == null) active.leave() else inUse.exchange(Active(active.plan, active.loaded), active)
        } catch (_: ClosedError) {
            return
        }
    }

    private fun wake() {
        if (wanted.availablePermits() == 0) wanted.release()
    }

    // In the thread

    private fun watch() {
        while (!stopped) {
            wanted.acquireUninterruptibly()
            wanted.drainPermits()
            if (stopped) break
            try {
                look()
                prepareAhead()
            } catch (_: ClosedError) {
                break
            } catch (error: Exception) { // a thread that ends would leave the budget unwatched without a word
                LOG.log(Level.WARNING, "live update met an error and goes on", error)
            }
            Thread.sleep(PAUSE_MS)
        }
        warm.clear()
    }

    /** Waits for some [seconds], unless live update has ended. */
    private fun rest(seconds: Double) {
        if (!stopped) Thread.sleep((seconds * MS_PER_S).toLong())
    }

    /** Decide once, and do it. */
    private fun look() {
        val active = inUse.running()
        val current = pool.find(active.plan.subnet)
        if (active.times == null || current == null) return
        val available = available(current)
        val calls = active.times.last()
        val cause = if (isOver(current, calls, pool.budget, settings)) speed.stated() else Cause.UNKNOWN
        val decision = decide(current, available, pool.budget, calls, clock(), last, settings, cause) ?: return
        ratio = decision.ratio
        noteReach(decision)
        if (decision.target != null) switch(active, decision, decision.target, cause)
    }

    private fun available(current: Candidate): List<Candidate> {
        val nowS = clock()
        val failed = failedS.filterValues { nowS - it >= 0 && nowS - it < RETRY_S }.keys
        return beside(current, pool.candidates, pool.budget).filter { it.subnet !in failed }
    }

    private fun switch(active: Active, decision: Decision, target: Candidate, stated: Cause) {
        val plan = planFor(target)
        val ready = warm.take(plan)
        val prepared = ready ?: prepare(plan) ?: return
        // the old plan is kept ready, unless another exchange came first and freed it
        val kept = active.loaded.calls.enter()
        val startedNs = System.nanoTime()
        val done = inUse.exchange(watched(plan, prepared.loaded), expected = active)
        val exchangeMs = (System.nanoTime() - startedNs) / NANOSECONDS_PER_MS
        if (!done) {
            if (kept) active.loaded.calls.leave()
            return
        }
        val nowS = clock()
        val unknown = decision.isDown && stated == Cause.UNKNOWN
        val cause = if (unknown) speed.explained() else stated // after the exchange, which does not wait for it
        last = last.followedBy(decision.why, nowS, settings, cause)
        warm.put(PreparedPlan(active.plan, active.loaded, 0.0))
        aheadWanted = true
        val why = cause.takeIf { decision.isDown }
        log?.write(switched(decision, active.plan.subnet, target, prepared.prepareMs, ready != null, exchangeMs, why))
    }

    /** The plan that was taken on purpose for this subnet, else the pool's: thresholds hold for one subnet alone. */
    private fun planFor(target: Candidate): Plan =
        plans[target.subnet] ?: target.plan.withExitsOf(inUse.workspace.bundle.exits)

    private fun watched(plan: Plan, loaded: LoadedPlan): Active {
        val current = pool.find(plan.subnet) ?: return Active(plan, loaded)
        val (lowMs, highMs) = boundsMs(current, pool.candidates, pool.budget, settings)
        return Active(plan, loaded, ServiceTimes(lowMs, highMs, ::wake))
    }

    /** Make a plan ready; null, noted once, if that fails: then it is left alone for a while. */
    private fun prepare(plan: Plan): PreparedPlan? {
        val startedNs = System.nanoTime()
        val loaded = try {
            inUse.prepare(plan)
        } catch (error: PathweaveError) {
            if (plan.subnet !in failedS) log?.write(switchFailed(plan.subnet, error))
            failedS[plan.subnet] = clock()
            wake() // the next best may do
            return null
        }
        failedS -= plan.subnet
        return PreparedPlan(plan, loaded, (System.nanoTime() - startedNs) / NANOSECONDS_PER_MS)
    }

    /** Prepare one of the plans that probably come next; the others in the next rounds. */
    private fun prepareAhead() {
        if (!aheadWanted) return
        val current = pool.find(inUse.running().plan.subnet) ?: return
        val likely = likelyNext(current, available(current), pool.budget, ratio, settings)
        val missing = warm.want(likely, warmCapBytes(current))
        aheadWanted = missing.size > 1
        missing.firstOrNull()?.let { prepare(planFor(it)) }?.let(warm::put)
        if (aheadWanted) wake()
    }

    private fun warmCapBytes(current: Candidate): Long {
        if (inUse.workspace.memoryCapBytes != null) return 0 // who pages has no room for what is not used
        val memoryMb = pool.budget.memoryMb ?: return settings.warmBytes
        return minOf(settings.warmBytes, (memoryMb * MB).toLong() - current.cost.peakBytes)
    }

    /** Note, not again and again, that nothing fits any more, and have more candidates looked for. */
    private fun noteReach(decision: Decision) {
        if (decision.fits) return
        val isSearching = searchAgain(decision.ratio)
        val nowS = clock()
        if (nowS - reachNotedS >= 0 && nowS - reachNotedS < NOTE_AGAIN_S) return
        reachNotedS = nowS
        log?.write(outOfReach(pool, decision.ratio, isSearching))
    }

    private fun searchAgain(ratio: Double): Boolean {
        val wanted = scaled(pool.budget, ratio * pool.correction, settings)
        return searching?.begin(wanted, ratio, clock(), settings.searchCooldownS) ?: false
    }

    /** In the thread of the search: what it found belongs to the pool from now on. */
    private fun widen(outcome: SearchOutcome) {
        if (outcome.candidates.isNotEmpty()) {
            pool = pool.withMore(outcome.candidates)
            try {
                remember(pool)
            } catch (error: StorageError) {
                LOG.warning("the plan pool cannot be kept: ${error.message}")
            }
        }
        log?.write(searched(outcome))
        wake()
    }
}

/** Live update began with [subnet] in use. */
internal fun watching(pool: PlanPool, subnet: Subnet): JsonObject {
    val latenciesMs = pool.candidates.map { it.cost.latencyMs }
    return event(
        "watching",
        "budget_latency_ms" to JsonPrimitive(pool.budget.latencyMs),
        "budget_memory_mb" to JsonPrimitive(pool.budget.memoryMb),
        "subnet" to JsonPrimitive(subnet.toString()),
        "candidates" to JsonPrimitive(pool.candidates.size),
        "fastest_ms" to JsonPrimitive(latenciesMs.min()),
        "slowest_ms" to JsonPrimitive(latenciesMs.max()),
    )
}

internal fun switched(
    decision: Decision,
    old: Subnet,
    target: Candidate,
    prepareMs: Double,
    ahead: Boolean,
    exchangeMs: Double,
    cause: Cause?,
): JsonObject = event(
    "switched",
    "why" to JsonPrimitive(decision.why.text),
    "old_subnet" to JsonPrimitive(old.toString()),
    "subnet" to JsonPrimitive(target.subnet.toString()),
    "drift_ratio" to JsonPrimitive(decision.ratio),
    "service_ms" to JsonPrimitive(decision.serviceMs),
    "expected_ms" to JsonPrimitive(decision.ratio * target.cost.latencyMs),
    "prepare_ms" to JsonPrimitive(prepareMs),
    "ahead" to JsonPrimitive(ahead),
    "exchange_ms" to JsonPrimitive(exchangeMs),
    "cause" to JsonPrimitive(cause?.text),
)

/** [subnet] could not be made ready. */
internal fun switchFailed(subnet: Subnet, error: PathweaveError): JsonObject = event(
    "switch_failed",
    "subnet" to JsonPrimitive(subnet.toString()),
    "failure" to JsonPrimitive(error.message),
)

/** Nothing keeps the budget of [pool] at this drift ratio. */
internal fun outOfReach(pool: PlanPool, ratio: Double, searching: Boolean): JsonObject = event(
    "out_of_reach",
    "budget_latency_ms" to JsonPrimitive(pool.budget.latencyMs),
    "drift_ratio" to JsonPrimitive(ratio),
    "fastest_ms" to JsonPrimitive(ratio * pool.candidates.minOf { it.cost.latencyMs }),
    "searching" to JsonPrimitive(searching),
)

internal fun searched(outcome: SearchOutcome): JsonObject = event(
    "searched",
    "budget_latency_ms" to JsonPrimitive(outcome.budget.latencyMs),
    "drift_ratio" to JsonPrimitive(outcome.ratio),
    "candidates" to JsonPrimitive(outcome.candidates.size),
    "seconds" to JsonPrimitive(outcome.seconds),
    "failure" to JsonPrimitive(outcome.failure),
)

/** A plan, the model that runs it, of which this is one use, and how long it took to make it ready. */
internal class PreparedPlan(val plan: Plan, val loaded: LoadedPlan, val prepareMs: Double)

/** Prepared plans under a cap of bytes, by the predicted peak of their subnets. Thread-safe. */
internal class WarmPlans {
    private val ready = LinkedHashMap<Subnet, PreparedPlan>() // guarded by this

    val subnets: Set<Subnet> get() = synchronized(this) { ready.keys.toSet() }

    /** Keep the first of [candidates] that fit under the cap together and drop the rest; those to be prepared. */
    fun want(candidates: List<Candidate>, capBytes: Long): List<Candidate> {
        var left = capBytes
        val wanted = candidates.filter { one -> (one.cost.peakBytes <= left).also { if (it) left -= one.cost.peakBytes } }
        val subnets = wanted.map { it.subnet }.toSet()
        return synchronized(this) {
            drop { it !in subnets }
            wanted.filter { it.subnet !in ready }
        }
    }

    /** Keep a plan until [want] drops it. */
    fun put(prepared: PreparedPlan) {
        synchronized(this) { ready.put(prepared.plan.subnet, prepared) }?.loaded?.calls?.leave()
    }

    /** The prepared model of just this plan, if there is one; it is not kept any longer. */
    fun take(plan: Plan): PreparedPlan? = synchronized(this) {
        ready[plan.subnet]?.takeIf { it.plan == plan }?.also { ready -= plan.subnet }
    }

    fun clear(): Unit = synchronized(this) { drop { true } }

    private fun drop(which: (Subnet) -> Boolean) {
        for (subnet in ready.keys.filter(which)) ready.remove(subnet)?.loaded?.calls?.leave()
    }
}
