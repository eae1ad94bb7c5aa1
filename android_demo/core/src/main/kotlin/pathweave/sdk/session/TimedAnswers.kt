/** Answers by a deadline and at any time: the plan in use exit by exit. */
package pathweave.sdk.session

import java.io.Closeable
import java.util.Locale
import java.util.concurrent.ScheduledThreadPoolExecutor
import java.util.concurrent.TimeUnit.NANOSECONDS
import java.util.concurrent.TimeUnit.SECONDS
import java.util.concurrent.atomic.AtomicLong
import kotlin.concurrent.thread
import pathweave.sdk.Clock
import pathweave.sdk.InfeasibleDeadlineError
import pathweave.sdk.NANOSECONDS_PER_MS
import pathweave.sdk.PathweaveError
import pathweave.sdk.UsageError
import pathweave.sdk.execution.Active
import pathweave.sdk.execution.Outcome
import pathweave.sdk.execution.PlanInUse
import pathweave.sdk.execution.PlanRetired
import pathweave.sdk.execution.StepTimes
import pathweave.sdk.execution.lastInTime
import pathweave.sdk.numerics.Tensor
import pathweave.sdk.numerics.median
import pathweave.sdk.runtimes.StopSignal
import pathweave.sdk.supernet.Plan
import pathweave.sdk.supernet.SampleSize

private const val MEASURE_AGAIN_NS = 50_000_000L // at most so often, while deadlines are refused
private const val LIVE_CALLS = 5 // whose median says how slow the device is

/** Runs the plan in use with a deadline, or until it is stopped. Nothing is sent to a server. */
internal class TimedAnswers(
    private val inUse: PlanInUse,
    private val clock: Clock,
    private val made: (Plan, Outcome, startedNs: Long) -> Answer,
) : Closeable {
    private val alarm = Alarm()
    private val measureAgainNs = AtomicLong(clock())

    /**
     * By source (`exit <id>`, `subnet`): how long after its start a run is sure to have that answer now, in
     * milliseconds; in the order of the answers. [prepare] is told the input size of the plan.
     */
    fun answerTimesMs(prepare: (SampleSize?) -> Tensor): Map<String, Double> = inUse.call { active ->
        val times = times(active, prepare(active.loaded.inputSize))
        val end = if (active.plan.split == null) SUBNET else FALLBACK
        val sources = active.loaded.stepped().steps.map { step -> step.exit?.let { "exit ${it.exit}" } ?: end }
        sources.zip(times.answerTimesMs(presentSlowness(active, times))).toMap()
    }

    /**
     * The answer of the last exit, or of the end, that is sure to be there [deadlineMs] after [beganNs].
     *
     * 1. measure the steps if that was not done yet (then the time begins anew); 2. choose the step to end with;
     * 3. run up to it. If it turns out slower than expected, it ends with the step before.
     *
     * @throws InfeasibleDeadlineError not even the first exit is sure to be in time; says the least deadline.
     * @throws UsageError the deadline is not above 0.
     */
    fun byDeadline(deadlineMs: Double, beganNs: Long, prepare: (SampleSize?) -> Tensor): Answer {
        if (!(deadlineMs > 0)) throw UsageError("the deadline is $deadlineMs ms; it must be above 0")
        return inUse.call { active -> byDeadline(active, prepare(active.loaded.inputSize), deadlineMs, beganNs) }
    }

    private fun byDeadline(active: Active, tensor: Tensor, deadlineMs: Double, askedNs: Long): Answer {
        val known = active.loaded.stepped().isMeasured(tensor.batch)
        val times = times(active, tensor)
        val beganNs = if (known) askedNs else clock()
        val sureMs = times.answerTimesMs(presentSlowness(active, times))
        val startedNs = clock()
        val spentMs = (startedNs - beganNs) / NANOSECONDS_PER_MS
        val last = lastInTime(sureMs, deadlineMs - spentMs) ?: run {
            measureAgain(tensor)
            throw outOfReach(deadlineMs, leastMs = sureMs[0] + spentMs)
        }
        val stepsMs = listOf(sureMs[0]) + sureMs.zipWithNext { before, after -> after - before }
        val untilNs = beganNs + (deadlineMs * NANOSECONDS_PER_MS).toLong()
        val outcome = Guard(alarm, clock, untilNs, stepsMs).use { guard ->
            active.loaded.stepped().run(tensor, guard.stop, last, mayBegin = guard::mayBegin, settle = true)
        }
        return made(active.plan, checkNotNull(outcome), startedNs)
    }

    /** Begin an anytime run. [prepare] is told the input size of the plan that answers. */
    fun start(prepare: (SampleSize?) -> Tensor): Running {
        val size = inUse.running().loaded.inputSize
        val tensor = prepare(size) // here, so that what is no input is refused at once
        return Running { stop, answered ->
            var reached = 0 // of a run that begins again only the answers that are not behind the best are passed on
            inUse.call { active ->
                val startedNs = clock()
                val same = active.loaded.inputSize == size
                var number = 0
                active.loaded.stepped().run(if (same) tensor else prepare(active.loaded.inputSize), stop, answered = {
                    number++
                    if (number >= reached) answered(made(active.plan, it, startedNs))
                    reached = maxOf(reached, number)
                })
            }
        }
    }

    /** End the threads. May be called twice. */
    override fun close(): Unit = alarm.close()

    private fun times(active: Active, tensor: Tensor): StepTimes {
        inUse.timeBatch(tensor.batch)
        return active.loaded.stepped().times(tensor)
    }

    /** In the background, now and then: what is refused leaves no times, and the device may be faster by now. */
    private fun measureAgain(tensor: Tensor) {
        val (nowNs, dueNs) = clock() to measureAgainNs.get()
        if (nowNs < dueNs || !measureAgainNs.compareAndSet(dueNs, nowNs + MEASURE_AGAIN_NS)) return
        thread(isDaemon = true, name = "pathweave-measure") {
            try {
                val active = inUse.enter()
                try {
                    active.loaded.stepped().measureAgain(tensor)
                } finally {
                    active.leave()
                }
            } catch (_: PathweaveError) {
                // the next call meets it too
            } catch (_: PlanRetired) {
                // the next plan is measured when it is loaded
            }
        }
    }
}

private fun outOfReach(deadlineMs: Double, leastMs: Double) = InfeasibleDeadlineError(
    String.format(
        Locale.ROOT,
        "no answer is sure to be there within %.2f ms: the first takes up to %.2f ms",
        deadlineMs,
        leastMs,
    ),
    leastMs,
    "allow more, or calibrate the plan with earlier exits",
)

/** How slow live update sees ordinary calls, against the typical time to the end; null where it does not watch. */
private fun presentSlowness(active: Active, times: StepTimes): Double? {
    val callsMs = active.times?.last().orEmpty().takeLast(LIVE_CALLS)
    return if (callsMs.size == LIVE_CALLS) median(callsMs) / times.typicalMs.sum() else null
}

/** Ends a run that is slower than expected, once it has an answer. [stepsMs]: what steps are sure to need at most. */
private class Guard(
    private val alarm: Alarm,
    private val clock: Clock,
    private val untilNs: Long,
    private val stepsMs: List<Double>,
) : Closeable {
    val stop = StopSignal()
    private var armed: Closeable? = null

    /** Whether [step] will end in time; from the first one on the alarm ends it if it does not. */
    fun mayBegin(step: Int): Boolean {
        val leftNs = untilNs - clock()
        if (stepsMs[step] * NANOSECONDS_PER_MS > leftNs) return false
        if (armed == null) armed = alarm.at(leftNs, stop)
        return true
    }

    override fun close() {
        armed?.close()
    }
}

private const val IDLE_S = 1L // after which the thread ends

/** [at] may be called from any thread. */
internal class Alarm : Closeable {
    private val timer = ScheduledThreadPoolExecutor(1) { work ->
        thread(start = false, isDaemon = true, name = "pathweave-deadline") { work.run() }
    }.apply {
        removeOnCancelPolicy = true
        setKeepAliveTime(IDLE_S, SECONDS)
        allowCoreThreadTimeOut(true)
    }

    /** Set [signal] in [delayNs]. Closing what is returned forgets it. After [close] nothing is set. */
    fun at(delayNs: Long, signal: StopSignal): Closeable {
        if (timer.isShutdown) return Closeable {}
        val waiting = timer.schedule(signal::set, delayNs, NANOSECONDS)
        return Closeable { waiting.cancel(false) }
    }

    /** End the thread; what waits is not set any more. May be called twice. */
    override fun close() {
        timer.shutdownNow()
    }
}
