/** What the app does: one open model, and everything that a person has it do. Knows no Android. */
package pathweave.demo

import java.io.Closeable
import java.io.File
import kotlinx.coroutines.CancellationException
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.Job
import kotlinx.coroutines.SupervisorJob
import kotlinx.coroutines.currentCoroutineContext
import kotlinx.coroutines.ensureActive
import kotlinx.coroutines.launch
import kotlinx.coroutines.sync.Mutex
import kotlinx.coroutines.sync.withLock
import pathweave.sdk.AdaptiveModel
import pathweave.sdk.PathweaveError
import pathweave.sdk.UsageError
import pathweave.sdk.adapt
import pathweave.sdk.data.Image
import pathweave.sdk.data.fitted
import pathweave.sdk.logs.readLog
import pathweave.sdk.policies.AdaptationProgress
import pathweave.sdk.policies.AdaptationStage
import pathweave.sdk.policies.Found
import pathweave.sdk.profile
import pathweave.sdk.profiling.Profile
import pathweave.sdk.session.DeviceConditions
import pathweave.sdk.session.Signal
import pathweave.sdk.session.WorkConstraints
import pathweave.sdk.session.WorkResult
import pathweave.sdk.session.logPath
import pathweave.sdk.supernet.ExitChoice
import pathweave.sdk.supernet.Goal
import pathweave.sdk.supernet.Hard
import pathweave.sdk.supernet.Kind
import pathweave.sdk.supernet.Plan
import pathweave.sdk.supernet.Supernet

private const val EARLY_CONFIDENCE = 0.9
private const val LONGEST_MEAN_MS = 1000.0 // of a plan that asks the server
private const val COLOURS = 3 // channels of what is encoded
private const val LOG_LINES_SHOWN = 200
private val NOW = WorkConstraints(unmetered = false, charging = false) // a person asked for it
private val ANY_CONDITIONS = DeviceConditions(unmetered = false, charging = false)

/**
 * Outlives every screen: what runs goes on when the screen turns or leaves, but for live classification.
 *
 * Methods return at once; what they begin runs in the background, one thing after the other, and changes [state].
 */
class AppModel(
    private val bundles: Bundles,
    private val device: Device,
    post: (() -> Unit) -> Unit,
) : Closeable {
    val state = Observed(AppState(offline = bundles.offline), post)

    private val scope = CoroutineScope(SupervisorJob() + Dispatchers.IO)
    private val live = LiveControl(state, device.camera) { pictures.all }
    private val turn = Mutex() // one thing after the other
    private var model: AdaptiveModel? = null // guarded by turn

    @Volatile
    private var pictures = PrivatePictures(emptyList()) // changed under turn

    @Volatile
    private var measuring: Job? = null

    // -- bundles

    /** Opens what was open when the app was last used, if anything was; says if an adaptation was cut off. */
    fun reopen() {
        val interrupted = bundles.adapting.also { if (it) bundles.adapting = false }
        val last = bundles.last() ?: return
        begin(Busy.OPENING) {
            openNow(last)
            if (interrupted) state.change { it.copy(notice = Notice.Interrupted) }
        }
    }

    /** Opens another bundle; the one that is open stays if that fails. */
    fun open(source: BundleSource): Job = begin(Busy.OPENING) { openNow(source) }

    /** The same for a folder that [copy] brings into the app's own files. */
    fun openCopied(key: String?, copy: () -> File): Job = begin(Busy.COPYING) {
        openNow(BundleSource.Folder(copy(), key))
    }

    /** Whether nothing is fetched and nothing is sent from now on. */
    fun setOffline(offline: Boolean): Job {
        bundles.offline = offline
        state.change { it.copy(offline = offline) }
        return begin(busy = null) { model?.let(::connect) }
    }

    /** Connects the server where it may be asked; else none, and the device answers what plans send. */
    private fun connect(current: AdaptiveModel) {
        val server = if (bundles.asking) bundles.serverModel(jpegFor(current)) else null
        if (server == null) current.remote.disconnect() else current.remote.connect(server)
    }

    private fun openNow(source: BundleSource) {
        val found = bundles.open(source)
        val opened = found.model
        live.stop()
        model?.close()
        model = opened
        device.memory?.let { opened.live.start(Signal.MEMORY, pressure = it) }
        pictures = PrivatePictures(labelsOf(opened))
        state.change { it.with(found, fromServer = source !is BundleSource.Folder) }
        connect(opened)
        watch(opened)
        showPlan(opened)
        live.use(opened)
        live.restart()
    }

    // -- pictures and adaptation

    /**
     * Reads the pictures that [picked] lists, resized to what the model takes. [typed]: the class of all of them; empty:
     * unlabelled but for the names of folders.
     */
    fun addPictures(typed: String?, picked: () -> List<PickedPicture>): Job = begin(Busy.READING) {
        val current = requireModel()
        pictures.requireClass(typed)
        var unread = 0
        for ((number, one) in picked().withIndex()) {
            val image = try {
                prepared(current, one.read())
            } catch (_: UnreadableException) {
                null
            }
            if (image != null && pictures.hasRoom(image.pixels.size)) {
                pictures = pictures.with(image, typed?.ifBlank { null } ?: one.label)
            } else {
                unread++
            }
            showPictures(Notice.PicturesRead(number + 1 - unread, unread))
        }
    }

    /** Forgets the pictures. */
    fun clearPictures(): Job = begin(busy = null) {
        pictures = PrivatePictures(labelsOf(requireModel()))
        showPictures(notice = null)
    }

    private fun showPictures(notice: Notice?) =
        state.change { it.copy(pictures = Pictures(pictures.count, pictures.labelled), notice = notice) }

    /** Measures what blocks cost here, unless it is known; then the sliders have their ranges. */
    fun profile(): Job = begin(Busy.PROFILING) { profileNow(requireModel()) }.also { measuring = it }

    private suspend fun profileNow(current: AdaptiveModel) {
        val power = MeanPower(device.power)
        val context = currentCoroutineContext()
        val profile = current.profile { share ->
            context.ensureActive()
            power.read()
            showProgress(AdaptationProgress(AdaptationStage.PROFILE, share))
        }
        val watts = power.watts ?: state.value.ranges?.watts
        state.change { it.copy(ranges = rangesOf(current.bundle.supernet, profile, watts)) }
    }

    /**
     * Adapts to the sliders on the pictures, and keeps their limits from then on. [exits]: subnets compete with and without.
     */
    fun adapt(positions: BudgetPositions, exits: Boolean): Job =
        begin(Busy.ADAPTING) { adaptNow(requireModel(), positions, exits) }.also { measuring = it }

    /** Ends the profile or the adaptation; the plan in use stays. */
    fun cancel() {
        measuring?.cancel()
    }

    private suspend fun adaptNow(current: AdaptiveModel, positions: BudgetPositions, exits: Boolean) {
        val ranges = state.value.ranges ?: throw UsageError("the sliders have no range yet", "profile the device first")
        val goal = ranges.goal(positions) ?: throw UsageError("nothing is limited", "set a limit with a slider")
        val samples = pictures.samples()
        val kinds = setOfNotNull(Kind.SUBNETS, Kind.EXITS.takeIf { exits })
        bundles.adapting = true
        try {
            val inputs = current.inputs(samples.images)
            val found = current.adapt(inputs, goal, kinds, samples.labels, onProgress = ::showProgress)
            val shown = adaptedBy(found, current.profile(), current.bundle.supernet, samples.leftOut)
            state.change { it.copy(adapted = shown) }
        } finally {
            bundles.adapting = false
            watch(current)
            showPlan(current)
        }
    }

    private fun showProgress(progress: AdaptationProgress) = state.change { it.copy(progress = progress) }

    // -- the plan

    /**
     * With or without exits from now on, the subnet in use stays. Their threshold is a guess; adapting with exits
     * chooses it.
     */
    fun useExits(use: Boolean): Job = begin(busy = null) {
        val current = requireModel()
        val (supernet, subnet) = current.bundle.supernet to current.plan.subnet
        val exits = if (use) supernet.exitsAlong(subnet).distinctBy { it.position } else emptyList()
        current.use(Plan(subnet, exits.map { ExitChoice(it.id, EARLY_CONFIDENCE, it.renditions.first().name) }))
        watch(current)
        showPlan(current)
    }

    /**
     * Has the server asked about hard pictures from now on, or no longer.
     *
     * To begin with, device and server both answer the added pictures; then the most accurate plan is chosen whose mean
     * latency is at most [LONGEST_MEAN_MS].
     */
    fun askServer(ask: Boolean): Job = begin(Busy.PLANNING) {
        val current = requireModel()
        try {
            if (ask) askNow(current) else askNoLonger(current)
        } finally {
            watch(current)
            showPlan(current)
        }
    }

    private suspend fun askNow(current: AdaptiveModel) {
        val task = current.bundle.manifest.task
        if (!task.classifies) throw UsageError("only classifiers ask a server; this model is for ${task.kind}", "answer here")
        val server = bundles.serverModel(jpegFor(current))
            ?: throw UsageError("there is no server to ask", "open a bundle from a server, and go online")
        val samples = pictures.samples()
        val before = current.plan
        current.remote.connect(server)
        try {
            val inputs = current.inputs(samples.images)
            val found = current.adapt(inputs, Goal(latencyMs = LONGEST_MEAN_MS), labels = samples.labels)
            found.notes.firstOrNull()?.let { throw UsageError(it, "try again when the server answers") }
            bundles.asking = true
        } catch (error: PathweaveError) {
            current.use(before)
            connect(current)
            throw error
        }
    }

    private fun jpegFor(current: AdaptiveModel) =
        device.jpeg.takeIf { current.bundle.manifest.preprocessing.ofImages().channels == COLOURS }

    private fun askNoLonger(current: AdaptiveModel) {
        bundles.asking = false
        connect(current)
        val plan = current.plan
        if (plan.hard is Hard.Ask || plan.split != null) {
            current.use(Plan(plan.subnet, plan.exits.map { it.copy(askBelow = 0.0) }))
        }
    }

    /** Has live update keep the latency of the last adaptation, if there was one. */
    private fun watch(current: AdaptiveModel) = try {
        current.live.start(Signal.LATENCY, speed = device.speed)
    } catch (_: UsageError) {
        // there is no pool, or the plan in use is none of it: it stays as it is
    }

    private fun showPlan(current: AdaptiveModel) =
        state.change { it.copy(plan = current.plan, watching = Signal.LATENCY in current.live.running, figures = LiveFigures()) }

    // -- answers

    /** Classifies the picture that [read] decodes, as the mode says. */
    fun classify(read: () -> Image): Job = begin(Busy.CLASSIFYING) {
        val current = requireModel()
        val manifest = current.bundle.manifest
        val image = withChannels(read(), manifest.preprocessing.ofImages().channels)
        val classified = classified(image, current.answer(image, state.value.mode), manifest)
        state.change { it.copy(classified = classified) }
    }

    /** How pictures are answered from now on. */
    fun setMode(mode: AnswerMode): Unit = state.change { it.copy(mode = mode) }

    /** Classifies pictures from [source] one after the other; null: no longer. Also while the model adapts. */
    fun setLive(source: LiveSource?): Job {
        state.change { it.copy(live = source, figures = if (source == null) it.figures else LiveFigures()) }
        return scope.launch { live.restart() }
    }

    /** The screen is there: goes on with live classification. */
    fun visible(): Job {
        live.shown = true
        return scope.launch { live.restart() }
    }

    /** The screen is gone: live classification waits, and the camera is free. Everything else goes on. */
    fun hidden() {
        live.shown = false
        live.stop()
    }

    // -- the log

    /** Reads the newest lines of the adaptation log. */
    fun showLog(): Job = begin(busy = null) {
        val path = logPath(bundles.stateFolder, requireModel().bundle)
        val lines = if (path.exists()) readLog(path).takeLast(LOG_LINES_SHOWN).asReversed() else emptyList()
        state.change { it.copy(log = lines) }
    }

    /** Sends the logs of this bundle to its server now. */
    fun sendLog(): Job = begin(Busy.SENDING) {
        val notice = when (val result = bundles.logUploadWork(NOW)?.run({ ANY_CONDITIONS })) {
            null -> Notice.NoServer
            is WorkResult.Uploaded -> Notice.LogSent(result.stored.accepted, result.stored.duplicates)
            is WorkResult.Failed -> Notice.Failed(result.reason)
            else -> Notice.Failed(result.toString())
        }
        state.change { it.copy(notice = notice) }
    }

    // -- how it is done

    private fun requireModel(): AdaptiveModel =
        model ?: throw UsageError("no bundle is open", "open one from a server or a folder")

    /** Runs [work] after what was begun before. Failures become a notice. */
    private fun begin(busy: Busy?, work: suspend () -> Unit): Job = scope.launch {
        turn.withLock {
            state.change { it.copy(busy = busy, notice = if (busy == null) it.notice else null) }
            val notice = try {
                work()
                null
            } catch (error: PathweaveError) {
                Notice.Failed(textOf(error))
            } catch (error: UnreadableException) {
                Notice.Failed(error.message.orEmpty())
            } catch (_: CancellationException) {
                Notice.Cancelled
            }
            state.change { it.copy(busy = null, progress = null, notice = notice ?: it.notice) }
        }
    }

    /** Ends everything; the model is freed after its last call. */
    override fun close() {
        cancel()
        hidden()
        scope.launch { turn.withLock { model?.close() } }
    }
}

/** The classes that pictures may be labelled with: none of a model whose answers are no classes. */
private fun labelsOf(model: AdaptiveModel) = model.bundle.manifest.task.run { if (classifies) classNames else emptyList() }

/** [image] at the model's own size, so that many have room. */
private fun prepared(current: AdaptiveModel, image: Image): Image {
    val preprocessing = current.bundle.manifest.preprocessing.ofImages()
    return fitted(withChannels(image, preprocessing.channels), preprocessing)
}

private fun adaptedBy(found: Found, profile: Profile, supernet: Supernet, leftOut: Int) = Adapted(
    found.measured?.latencyMs,
    found.measured?.fullMs,
    found.heldOut?.accuracy,
    found.fullAccuracy,
    leftOut,
    withExits = found.plan.exits.any { it.decides },
    limitMs = found.goal.latencyMs,
    picture = pictureOf(found, supernet.original, profile.costModel().cost(supernet.original).latencyMs),
)

/** An error in one line, and one of advice. */
internal fun textOf(error: PathweaveError): String = listOfNotNull(error.message, error.hint).joinToString("\n")
