package pathweave.demo

import android.graphics.Canvas
import android.graphics.Paint
import android.graphics.Rect
import org.junit.After
import org.junit.Assert.assertFalse
import org.junit.Assert.assertTrue
import org.junit.Assert.fail
import org.junit.Before
import org.junit.Test
import org.junit.runner.RunWith
import org.robolectric.Robolectric
import org.robolectric.RuntimeEnvironment
import org.robolectric.annotation.Config
import org.robolectric.annotation.GraphicsMode

private const val PHONE = "w360dp-h760dp-hdpi"
private val TABS = listOf(R.string.tab_bundle, R.string.tab_adapt, R.string.tab_live, R.string.tab_log)
private val NAMES = listOf("bundle", "adapt", "live", "log")

/** Every screen looks as it did when it was last looked at. */
@RunWith(AppRunner::class)
@GraphicsMode(GraphicsMode.Mode.NATIVE)
@Config(sdk = [35], qualifiers = PHONE)
class ScreensTest {
    private val unlike = ArrayList<String>()

    @Before
    fun prepare() = preparePhone()

    @After
    fun close() = app.model.close()

    private fun started(): MainActivity = Robolectric.buildActivity(MainActivity::class.java).setup().get()

    private fun withEverything(): MainActivity {
        app.model.open(BundleSource.Folder(Reference.folder, key = null))
        waitFor("the bundle") { state.ready }
        return started().also { app.model.state.change { it.everything() } }
    }

    private fun shown(activity: MainActivity, tab: Int) {
        activity.press(TABS[tab])
        if (tab == TABS.lastIndex) {
            waitFor("the log") { state.log.any { it.event == "opened" } || state.opened == null }
            app.model.state.change { if (it.opened == null) it else it.everything() }
        }
        idle()
    }

    private fun compare(activity: MainActivity, name: String) {
        val picture = drawn(activity)
        val file = write(picture, name)
        val reference = keptAs(name)
        if (reference == null) unlike += "$name: none is kept. If $file is well, copy it into src/test/screens"
        else if (!looksLike(picture, reference)) unlike += "$name: differs by ${farthest(picture, reference)}: see $file"
    }

    private fun compareAll(variant: String, tabs: List<Int> = TABS.indices.toList()) {
        val activity = withEverything()
        for (tab in tabs) {
            shown(activity, tab)
            compare(activity, "$variant-${NAMES[tab]}")
        }
        if (unlike.isNotEmpty()) fail(unlike.joinToString("\n"))
    }

    @Test
    fun `by day`() = compareAll("day")

    @Test
    fun `before anything was opened`() {
        val activity = started()
        for (tab in listOf(0, 1, 2)) {
            shown(activity, tab)
            compare(activity, "empty-${NAMES[tab]}")
        }
        if (unlike.isNotEmpty()) fail(unlike.joinToString("\n"))
    }

    @Test
    fun `while it adapts, and after it failed`() {
        val activity = withEverything()
        shown(activity, 1)
        app.model.state.change { it.adapting() }
        compare(activity, "adapting")
        app.model.state.change { it.copy(busy = null, progress = null, notice = Notice.Failed("no plan keeps 0.2 ms\nthe nearest takes 0.9 ms")) }
        compare(activity, "failed")
        if (unlike.isNotEmpty()) fail(unlike.joinToString("\n"))
    }

    @Test
    fun `boxes in a picture`() {
        val activity = withEverything()
        shown(activity, 2)
        app.model.state.change { it.withBoxes() }
        compare(activity, "boxes")
        if (unlike.isNotEmpty()) fail(unlike.joinToString("\n"))
    }

    @Test
    @Config(qualifiers = "+night")
    fun `by night`() = compareAll("night", listOf(1, 2))

    @Test
    fun `with the largest text`() {
        RuntimeEnvironment.setFontScale(2f)
        compareAll("large", listOf(1, 2))
    }

    @Test
    @Config(qualifiers = "ar-ldrtl-$PHONE")
    fun `in Arabic`() = compareAll("arabic", listOf(1, 2))

    @Test
    @Config(qualifiers = "w760dp-h360dp-land-hdpi")
    fun across() = compareAll("across", listOf(1))

    @Test
    fun `a tab that no longer shows that it is selected is a difference`() {
        val activity = withEverything()
        shown(activity, 1)
        val before = drawn(activity)
        assertTrue(looksLike(before, drawn(activity)))
        val tab = activity.named(R.string.tab_adapt)
        val line = Rect(0, tab.height - activity.dp(3), tab.width, tab.height).also { area ->
            val place = IntArray(2).also(tab::getLocationInWindow)
            area.offset(place[0], place[1])
        }
        val without = before.copy(before.config!!, true)
        Canvas(without).drawRect(line, Paint().apply { color = Palette.of(activity).background })
        assertFalse("the line alone", looksLike(before, without))
        tab.isSelected = false
        assertFalse("as it is drawn", looksLike(before, drawn(activity)))
    }
}
