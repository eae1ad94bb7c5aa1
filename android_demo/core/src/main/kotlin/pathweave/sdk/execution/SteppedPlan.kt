/**
 * A plan that runs exit by exit and can be ended between and within its steps. Mirrors
 * device_sdk/execution/stepped_plan.py.
 *
 * A step is a segment up to an answer. Every exit is evaluated, whatever its threshold; samples whose confidence
 * reaches the threshold keep that answer, as in any run of the plan. The others take the answer of each later step.
 */
package pathweave.sdk.execution

import pathweave.sdk.Clock
import pathweave.sdk.NANOSECONDS_PER_MS
import pathweave.sdk.numerics.Tensor
import pathweave.sdk.numerics.median
import pathweave.sdk.runtimes.LoadedStretch
import pathweave.sdk.runtimes.StopSignal
import pathweave.sdk.supernet.ExitChoice

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

    /** Whether the times of this batch size are known. */
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
