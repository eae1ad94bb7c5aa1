package pathweave.demo

import android.graphics.Bitmap
import android.os.Handler
import android.os.Looper
import java.io.Closeable
import java.util.concurrent.Executors
import pathweave.sdk.AdaptiveModel
import pathweave.sdk.ExitChoice
import pathweave.sdk.PathweaveError
import pathweave.sdk.Plan
import pathweave.sdk.Supernet
import pathweave.sdk.subnetCount

private const val EARLY_CONFIDENCE = 0.9

/** What the model said about a picture. [label]: null where its plan gives no answer. */
data class Classified(val label: String?, val confidence: Double, val source: String, val latencyMs: Double)

/** What is open. */
data class Opened(val name: String, val version: Long, val subnets: String, val exits: Int)

/** All that the screen shows. */
data class ScreenState(
    val busy: Busy? = null,
    val opened: Opened? = null,
    val picture: Bitmap? = null,
    val classified: Classified? = null,
    val failure: String? = null,
)

/** What takes a moment. */
enum class Busy { OPENING, CLASSIFYING }

/**
 * The screen's state, and the work behind it. Outlives the activity when the screen turns.
 *
 * The model lives on one thread of its own; state is read and written on the main thread.
 */
class ClassifyViewModel(private val bundles: BundleShelf) : Closeable {
    private val main = Handler(Looper.getMainLooper())
    private val worker = Executors.newSingleThreadExecutor()
    private var model: AdaptiveModel? = null // used by the worker only

    var state = ScreenState()
        private set(value) {
            field = value
            shown(value)
        }

    /** Told of every change, on the main thread. */
    var shown: (ScreenState) -> Unit = {}

    /** Opens the bundle that [source] brings here; the one that was open stays if that fails. */
    fun open(source: BundleSource, useExits: Boolean) = work(Busy.OPENING) {
        val opened = bundles.open(source)
        model?.close()
        model = opened
        opened.use(plan(opened.bundle.supernet, useExits))
        val manifest = opened.bundle.manifest
        val subnets = subnetCount(opened.bundle.supernet).toString()
        val shown = Opened(manifest.name, manifest.version, subnets, manifest.exits.size);
        { it.copy(opened = shown, classified = null) }
    }

    /** Opens what was open when the app was last used, if anything was. */
    fun reopen(useExits: Boolean) {
        bundles.last()?.let { open(it, useExits) }
    }

    /** With or without exits from now on. */
    fun useExits(use: Boolean) = work(null) {
        model?.run { use(plan(bundle.supernet, use)) };
        { it }
    }

    /** Classifies the picture that [read] decodes. */
    fun classify(read: () -> Bitmap) = work(Busy.CLASSIFYING) {
        val picture = read()
        val classified = model?.let { model ->
            val answer = model.classify(pixelsOf(picture, model.bundle.manifest.preprocessing.channels))
            Classified(answer.labels[0], answer.confidence[0], answer.source[0], answer.latencyMs)
        };
        { it.copy(picture = picture, classified = classified) }
    }

    /** Runs [task] on the worker; it returns what is to change on the screen. Failures are shown as one line. */
    private fun work(busy: Busy?, task: () -> (ScreenState) -> ScreenState) {
        state = state.copy(busy = busy, failure = null)
        worker.execute {
            val change: (ScreenState) -> ScreenState = try {
                task()
            } catch (error: PathweaveError) {
                { it.copy(failure = listOfNotNull(error.message, error.hint).joinToString("\n")) }
            } catch (error: UnreadableException) {
                { it.copy(failure = error.message) }
            }
            main.post { state = change(state).copy(busy = null) }
        }
    }

    override fun close() {
        worker.execute { model?.close() }
        worker.shutdown()
    }
}

/**
 * The full model, with the first exit at each cut point if [useExits].
 *
 * Their threshold is a guess; a calibrated one takes labelled data (device_sdk/policies/calibration.py).
 */
private fun plan(supernet: Supernet, useExits: Boolean): Plan {
    val exits = if (useExits) supernet.exitsAlong(supernet.original).distinctBy { it.position } else emptyList()
    return Plan(supernet.original, exits.map { ExitChoice(it.id, EARLY_CONFIDENCE, it.renditions.first().name) })
}
