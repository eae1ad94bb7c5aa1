/** A state in which every screen has something to show, the same on every machine. */
package pathweave.demo

import kotlin.math.exp
import pathweave.sdk.data.Image
import pathweave.sdk.logs.LogLine
import pathweave.sdk.policies.AdaptationProgress
import pathweave.sdk.policies.AdaptationStage
import pathweave.sdk.tasks.ObjectBox
import pathweave.sdk.supernet.SampleSize

private const val SIDE = 28

private val plans = List(40) { number ->
    val ms = 1.1 + 0.08 * number
    PlanPoint(ms, 0.965 - 0.3 * exp(-ms) - 0.012 * (number * 7 % 5))
}

private val chosen = plans[10]

private val found = Adapted(
    measuredMs = chosen.latencyMs,
    fullMs = 4.4,
    accuracy = 0.934,
    fullAccuracy = 0.948,
    leftOut = 3,
    withExits = true,
    limitMs = 1.95,
    picture = AdaptationPicture(plans, chosen, PlanPoint(4.4, 0.962), limitMs = 1.95),
)

/** A seven, roughly. */
private val seven = Image(
    ByteArray(SIDE * SIDE) { at ->
        val (row, column) = at / SIDE to at % SIDE
        val bar = row in 5..8 && column in 7..20
        val leg = row in 9..23 && column in (20 - (row - 8) / 2 - 3)..(20 - (row - 8) / 2)
        (if (bar || leg) 255 else 16).toByte()
    },
    SampleSize(SIDE, SIDE), 1,
)

private val lines = listOf(
    LogLine("2026-03-01T09:14:05.120Z", bundle = "", runtime = "", event = "adapted", fields = mapOf("latency_ms" to "1.82", "accuracy" to "0.934", "plan" to "\"s3-e7\"")),
    LogLine("2026-03-01T09:13:40.004Z", bundle = "", runtime = "", event = "profiled", fields = mapOf("blocks" to "36")),
    LogLine("2026-03-01T09:13:02.771Z", bundle = "", runtime = "", event = "opened", fields = mapOf("bundle" to "\"reference\"", "version" to "1")),
)

/** Everything was done that can be done. The plan and what is open are as before. */
fun AppState.everything(): AppState = copy(
    ranges = BudgetRanges(SliderRange(1.1, 8.8), SliderRange(0.4, 6.0)),
    pictures = Pictures(count = 120, labelled = 117),
    adapted = found,
    classified = Classified(seven, "seven", 0.973, "exit", 0.84),
    figures = LiveFigures(sources = mapOf("subnet" to 41, "exit" to 87), switches = 2, tooLate = 1, recentMs = listOf(0.91)),
    watching = true,
    log = lines,
    notice = null,
)

/** A detector has answered. */
fun AppState.withBoxes(): AppState {
    val boxes = listOf(ObjectBox(0, 0.1f, 0.1f, 0.5f, 0.45f), ObjectBox(0, 0.4f, 0.4f, 0.95f, 0.9f))
    return copy(classified = Classified(seven, "2 × stroke", null, "subnet", 1.62, boxes), live = null)
}

/** It searches, and is not far yet. */
fun AppState.adapting(): AppState = copy(
    busy = Busy.ADAPTING,
    progress = AdaptationProgress(AdaptationStage.SEARCH, 0.4, "40 of 100"),
    adapted = null,
)
