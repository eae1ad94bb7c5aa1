/** The app as it runs here: its real classes on Android's framework, and what tests need to use it as a person does. */
package pathweave.demo

import android.app.ActivityManager
import android.content.Context
import android.os.Looper
import android.view.View
import android.view.ViewGroup
import android.widget.TextView
import java.time.Duration
import org.junit.runners.model.FrameworkMethod
import org.robolectric.RobolectricTestRunner
import org.robolectric.RuntimeEnvironment
import org.robolectric.Shadows.shadowOf
import org.robolectric.internal.bytecode.InstrumentationConfiguration
import org.robolectric.shadows.ShadowChoreographer

private const val DEADLINE_NS = 60_000_000_000L
private const val POLL_MS = 10L
private val FRAME = Duration.ofMillis(16)

/** ONNX Runtime's native library is loaded once, outside of Robolectric's class loaders, of which each framework has one. */
class AppRunner(test: Class<*>) : RobolectricTestRunner(test) {
    override fun createClassLoaderConfig(method: FrameworkMethod): InstrumentationConfiguration =
        InstrumentationConfiguration.Builder(super.createClassLoaderConfig(method)).doNotAcquirePackage("ai.onnxruntime").build()
}

val app: PathweaveApp get() = RuntimeEnvironment.getApplication() as PathweaveApp

val state: AppState get() = app.model.state.value

/** Runs what was posted to the main thread, and one frame. */
fun idle(): Unit = shadowOf(Looper.getMainLooper()).idleFor(FRAME)

/** Waits, as work in the background goes on, until [condition] holds; fails after a minute with what the app shows then. */
fun waitFor(what: String, condition: () -> Boolean) {
    val untilNs = System.nanoTime() + DEADLINE_NS
    while (!condition()) {
        check(System.nanoTime() < untilNs) { "$what did not come: $state" }
        Thread.sleep(POLL_MS)
        idle()
    }
    idle()
}

/**
 * A phone with memory to spare, where Robolectric's has none and the app would page blocks; and one that draws a frame when
 * [idle] is called, where an animation without an end would keep Robolectric's busy for ever.
 */
fun preparePhone() {
    ShadowChoreographer.setPaused(true)
    ShadowChoreographer.setFrameDelay(FRAME)
    val manager = app.getSystemService(Context.ACTIVITY_SERVICE) as ActivityManager
    shadowOf(manager).setMemoryInfo(
        ActivityManager.MemoryInfo().apply {
            availMem = 2L shl 30
            totalMem = 4L shl 30
            threshold = 200L shl 20
        },
    )
}

/** Every view below this one, outer ones first. */
fun View.all(): List<View> = listOf(this) + if (this is ViewGroup) (0 until childCount).flatMap { getChildAt(it).all() } else emptyList()

/** All views of the activity that are on screen. */
fun MainActivity.views(): List<View> = findViewById<View>(android.R.id.content).all().filter { it.isShown }

/** The view that shows this text and can be used. */
fun MainActivity.named(text: Int): TextView {
    val words = getString(text)
    return views().filterIsInstance<TextView>().first { it.isClickable && it.text.toString() == words }
}

fun MainActivity.press(text: Int) {
    named(text).performClick()
    idle()
}

/** Whether any view on screen shows these words. */
fun MainActivity.shows(words: String): Boolean = views().filterIsInstance<TextView>().any { words in it.text }
