/**
 * A plan that runs exit by exit and can be ended between and within its steps.
 *
 * A step is a segment up to an answer. Every exit is evaluated, whatever its threshold; samples whose confidence
 * reaches the threshold keep that answer, as in any run of the plan. The others take the answer of each later step.
 */
package pathweave.sdk.execution

import kotlin.math.ceil
import kotlin.math.max
import pathweave.sdk.Clock
import pathweave.sdk.NANOSECONDS_PER_MS
import pathweave.sdk.numerics.Tensor
import pathweave.sdk.numerics.median
import pathweave.sdk.runtimes.LoadedStretch
import pathweave.sdk.runtimes.StopSignal
import pathweave.sdk.supernet.ExitChoice
import pathweave.sdk.supernet.confidence

private const val WARM_UPS = 2
private const val MEASURED_RUNS = 10
private const val BATCH_SIZES = 8 // whose times are kept

/** What runs between two answers. [exit]: whose answer it is; null: that of the end. */
internal class Step(val number: Int, val stretch: LoadedStretch, val exit: ExitChoice?)

/** The steps of a loaded plan. Thread-safe; the caller keeps the plan from being freed. */
internal class SteppedPlan(
    found: List<PlanSegment>,
    stretches: List<LoadedStretch?>,
    private val hurry: StopSignal,
    private val clock: Clock = System::nanoTime,
) {
    val steps: List<Step> = found.zip(stretches).mapIndexed { number, (segment, stretch) ->
        Step(number, checkNotNull(stretch) { "a step without edges" }, segment.exit)
    }
    private val times = LinkedHashMap<Int, StepTimes>() // by batch size; guarded by itself

    fun isMeasured(batch: Int): Boolean = synchronized(times) { batch in times }

    /** How long the steps take for batches like [tensor]; measured when they are first asked for. Throws as [run]. */
    fun times(tensor: Tensor): StepTimes {
        synchronized(times) { times[tensor.batch] }?.let { return it }
        repeat(WARM_UPS) { runThrough(tensor) }
        val runs = List(MEASURED_RUNS) { runThrough(tensor) }
        val measured = StepTimes(steps.indices.map { step -> median(runs.map { it[step] }) }, clock)
        runs.forEach(measured::record)
        return synchronized(times) {
            while (times.size >= BATCH_SIZES) times.remove(times.keys.first())
            times.getOrPut(tensor.batch) { measured }
        }
    }

    /** Run all steps once, so that the times of batches like [tensor] are those of now. Throws as [run]. */
    fun measureAgain(tensor: Tensor): Unit = times(tensor).record(runThrough(tensor))

    /** Run every step on all samples; how long each took, in milliseconds. Throws as [run]. */
    fun runThrough(tensor: Tensor): List<Double> {
        val run = SteppedRun(tensor, clock, leaving = false)
        for (step in steps) run.take(step, StopSignal())
        return run.takenMs
    }

    /**
     * Answer a batch [batch, *input]: at the latest with step [last], or with the step before [stop] was set.
     *
     * [answered] is called with the answers so far after each step. [mayBegin]: whether a step may begin when there is
     * an answer already. [settle]: for that answer rather than PlanRetired. Null: it was stopped before the first
     * answer.
     *
     * @throws RuntimeFailedError, BlobError: a step failed. [PlanRetired] the plan gave way to another one.
     */
    fun run(
        tensor: Tensor,
        stop: StopSignal,
        last: Int = steps.size - 1,
        answered: (Outcome) -> Unit = {},
        mayBegin: (Int) -> Boolean = { true },
        settle: Boolean = false,
    ): Outcome? {
        val run = SteppedRun(tensor, clock)
        if (!run.take(steps[0], stop)) return null
        answered(run.outcome())
        hurry.endingBy(stop::set) {
            for (step in steps.subList(1, last + 1)) {
                if (run.rest.isEmpty() || !mayBegin(step.number)) break
                if (!taken(run, step, stop, settle)) break
                answered(run.outcome())
            }
        }
        synchronized(times) { times[tensor.batch] }?.record(run.takenMs)
        return run.outcome()
    }

    /** Whether a later step was finished. */
    private fun taken(run: SteppedRun, step: Step, stop: StopSignal, settle: Boolean): Boolean = try {
        run.take(step, stop)
    } catch (retired: PlanRetired) {
        if (!settle && !stop.isSet) throw retired
        false
    }
}

/** One run: [rest] are the samples that no exit has answered for good; [takenMs]: of steps on all samples. */
private class SteppedRun(tensor: Tensor, private val clock: Clock, private val leaving: Boolean = true) {
    val takenMs = mutableListOf<Double>()
    var rest = (0 until tensor.batch).toList()
        private set
    private val batch = tensor.batch
    private val answers = Answers(batch)
    private var features = listOf(tensor)
    private var beganNs = clock()

    fun outcome(): Outcome = answers.outcome()

    /** Run one step; whether it was finished. */
    fun take(step: Step, stop: StopSignal): Boolean {
        val outputs = step.stretch.runUntil(features, stop) ?: return false
        val logits = outputs.last()
        answers.put(rest, logits, step.number)
        val whole = rest.size == batch
        if (step.exit != null) {
            features = outputs.dropLast(1)
            if (leaving) letGo(confidence(logits), step.exit.threshold)
        }
        val nowNs = clock()
        if (whole) takenMs += (nowNs - beganNs) / NANOSECONDS_PER_MS
        beganNs = nowNs
        return true
    }

    private fun letGo(confidence: DoubleArray, threshold: Double) {
        val unsure = rest.indices.filterNot { confidence[it] >= threshold }
        if (unsure.size == rest.size) return
        rest = unsure.map(rest::get)
        if (rest.isNotEmpty()) features = features.map { it.rows(unsure) }
    }
}

private const val KEPT_RUNS = 128 // at most
private const val KEPT_NS = 2_000_000_000L // older ones go, but for the last RECENT_RUNS

/**
 * The times of the last runs of one batch size. [typicalMs]: of each step, when it was measured. Thread-safe.
 *
 * Old runs are forgotten, so that a device that was busy for a while is not taken to be so for ever.
 */
internal class StepTimes(val typicalMs: List<Double>, private val clock: Clock = System::nanoTime) {
    private val runs = ArrayDeque<Pair<Long, List<Double>>>() // guarded by this

    /** A run took so long for its first steps; one that ended before its first answer says nothing. */
    fun record(runMs: List<Double>) {
        if (runMs.isEmpty()) return
        synchronized(this) {
            if (runs.size == KEPT_RUNS) runs.removeFirst()
            runs.addLast(clock() to runMs)
        }
    }

    fun answerTimesMs(presentSlowness: Double? = null): List<Double> =
        answerTimesMs(last(), typicalMs, presentSlowness)

    private fun last(): List<List<Double>> = synchronized(this) {
        val oldestNs = clock() - KEPT_NS
        while (runs.size > RECENT_RUNS && runs.first().first < oldestNs) runs.removeFirst()
        runs.map { it.second }
    }
}

/** Of the times of earlier runs: a deadline is kept this often. */
public const val DEADLINE_QUANTILE: Double = 0.99

internal const val RECENT_RUNS = 9 // whose median says how slow the device is now

/**
 * How many times as long as [typicalMs] the last runs took: the upper median of their ratios; 1 without runs.
 *
 * [runsMs]: per run, the oldest first, the milliseconds of its first steps, at least one.
 */
public fun slowness(runsMs: List<List<Double>>, typicalMs: List<Double>): Double {
    val ratios = runsMs.takeLast(RECENT_RUNS).map { it.sum() / typicalMs.take(it.size).sum() }.sorted()
    return if (ratios.isEmpty()) 1.0 else ratios[ratios.size / 2]
}

/**
 * The time from the start within which each step's answer is there, in all but 1 - [quantile] of the runs.
 *
 * What a run did not reach counts as [typicalMs] times the present [slowness]. [presentSlowness]: what ordinary calls
 * say of it; if it is worse than what the runs say, all times are scaled by the difference.
 */
public fun answerTimesMs(
    runsMs: List<List<Double>>,
    typicalMs: List<Double>,
    presentSlowness: Double? = null,
    quantile: Double = DEADLINE_QUANTILE,
): List<Double> {
    val now = slowness(runsMs, typicalMs)
    val scale = if (presentSlowness == null) 1.0 else max(1.0, presentSlowness / now)
    if (runsMs.isEmpty()) return summed(typicalMs).map { scale * it }
    val answers = runsMs.map { run -> summed(typicalMs.mapIndexed { step, ms -> run.getOrNull(step) ?: (now * ms) }) }
    val rank = max(ceil(quantile * runsMs.size).toInt() - 1, 0)
    return typicalMs.indices.map { step -> scale * answers.map { it[step] }.sorted()[rank] }
}

/** The last step whose answer is there within [deadlineMs]; null if not even the first is. */
public fun lastInTime(timesMs: List<Double>, deadlineMs: Double): Int? =
    timesMs.indexOfLast { it <= deadlineMs }.takeIf { it >= 0 }

private fun summed(values: List<Double>): List<Double> = values.runningReduce(Double::plus)
