/** All that the screens show, and how they are told of changes. */
package pathweave.demo

import pathweave.sdk.logs.LogLine
import pathweave.sdk.policies.AdaptationProgress
import pathweave.sdk.supernet.Hard
import pathweave.sdk.supernet.Plan
import pathweave.sdk.supernet.subnetCount

/** What takes a moment. */
enum class Busy { OPENING, COPYING, READING, CLASSIFYING, PROFILING, ADAPTING, PLANNING, SENDING }

/** What is open. [classNames]: what it tells apart. */
data class Opened(
    val name: String,
    val version: Long,
    val subnets: String,
    val exits: Int,
    val classNames: List<String>,
    val fromServer: Boolean,
)

/** What an adaptation found, in milliseconds and shares of right answers; null: not known. [limitMs]: what was allowed. */
data class Adapted(
    val measuredMs: Double?,
    val fullMs: Double?,
    val accuracy: Double?,
    val fullAccuracy: Double?,
    val leftOut: Int,
    val withExits: Boolean,
    val limitMs: Double? = null,
    val picture: AdaptationPicture? = null,
)

/** The pictures that are kept for adapting. */
data class Pictures(val count: Int = 0, val labelled: Int = 0)

/** What happened, for the person to read; the screen has the words. */
sealed interface Notice {
    /** It failed; [text] says why and what to do. */
    data class Failed(val text: String) : Notice

    /** The last good bundle is open, for the server's cannot be had or used; [reason]: why. */
    data class Kept(val reason: String) : Notice

    /** The process ended while it adapted; the plan from before is in use. */
    data object Interrupted : Notice

    /** The adaptation was cancelled; the plan from before is in use. */
    data object Cancelled : Notice

    /** [unread]: pictures that there was no room for, or that could not be read. */
    data class PicturesRead(val count: Int, val unread: Int) : Notice

    /** The server has the log: lines that were new to it, and lines that it had. */
    data class LogSent(val accepted: Long, val duplicates: Long) : Notice

    /** Nothing was sent, since the app is offline or the bundle came from a folder. */
    data object NoServer : Notice
}

/** Which pictures are classified live. */
enum class LiveSource { CAMERA, PICTURES }

/** [plan]: in use. [log]: newest first. [live]: what the person asked for, also while nothing is on screen. */
data class AppState(
    val busy: Busy? = null,
    val progress: AdaptationProgress? = null,
    val opened: Opened? = null,
    val plan: Plan? = null,
    val ranges: BudgetRanges? = null,
    val pictures: Pictures = Pictures(),
    val adapted: Adapted? = null,
    val classified: Classified? = null,
    val live: LiveSource? = null,
    val figures: LiveFigures = LiveFigures(),
    val mode: AnswerMode = AnswerMode(),
    val watching: Boolean = false,
    val log: List<LogLine> = emptyList(),
    val offline: Boolean = false,
    val notice: Notice? = null,
) {
    /** Whether the plan in use sends pictures to a server. */
    val asks: Boolean get() = plan?.let { it.hard is Hard.Ask || it.split != null } == true

    /** Whether a model is open and nothing else is under way. */
    val ready: Boolean get() = opened != null && busy == null

    /** Another bundle is open; what was known of the one before is gone. */
    internal fun with(found: OpenModel, fromServer: Boolean): AppState {
        val (bundle, manifest) = found.model.bundle to found.model.bundle.manifest
        val (subnets, names) = subnetCount(bundle.supernet).toString() to manifest.task.classNames
        return AppState(
            busy = busy,
            opened = Opened(manifest.name, manifest.version, subnets, bundle.exits.size, names, fromServer),
            live = live,
            mode = mode,
            offline = offline,
            notice = found.failure?.let(Notice::Kept),
        )
    }
}

/** A state that any thread may change, and an observer that [post] calls where it wants to be called. */
class Observed(initial: AppState, private val post: (() -> Unit) -> Unit) {
    @Volatile
    var value: AppState = initial
        private set

    @Volatile
    private var observer: ((AppState) -> Unit)? = null

    /** Tell [observer] of the state now and of every change; null: nobody. Called where [post] calls. */
    fun observe(observer: ((AppState) -> Unit)?) {
        this.observer = observer
        observer?.invoke(value)
    }

    fun change(change: (AppState) -> AppState) {
        synchronized(this) { value = change(value) }
        post { observer?.invoke(value) }
    }
}

/** A line of the log for a person: the time of day (UTC), the event, and what it says. */
fun logText(line: LogLine): String {
    val time = line.time.substringAfter('T').substringBefore('.')
    val fields = line.fields.filterValues { it != "null" && it != "[]" && it != "{}" }
    return "$time  ${line.event}" + fields.entries.joinToString("") { (name, value) -> "\n  $name: $value" }
}
