package pathweave.demo

import android.graphics.Rect
import android.view.View
import android.view.WindowInsets
import android.widget.EditText
import android.widget.ImageView
import android.widget.ProgressBar
import android.widget.TextView
import org.junit.After
import org.junit.Assert.assertEquals
import org.junit.Assert.assertTrue
import org.junit.Before
import org.junit.Test
import org.junit.runner.RunWith
import org.robolectric.Robolectric
import org.robolectric.RuntimeEnvironment
import org.robolectric.annotation.Config
import org.robolectric.annotation.GraphicsMode

private val TABS = listOf(R.string.tab_bundle, R.string.tab_adapt, R.string.tab_live, R.string.tab_log)
private const val BAR_PX = 60

/** What TalkBack reads, what a finger touches, and that nothing is cut off, however large the text. */
@RunWith(AppRunner::class)
@GraphicsMode(GraphicsMode.Mode.NATIVE)
@Config(sdk = [35], qualifiers = "w360dp-h760dp-hdpi")
class AccessTest {
    private val activity: MainActivity by lazy { Robolectric.buildActivity(MainActivity::class.java).setup().get() }

    @Before
    fun prepare() = preparePhone()

    @After
    fun close() = app.model.close()

    /** Every tab, empty and with everything. */
    private fun everywhere(check: (String) -> Unit) {
        for (full in listOf(false, true)) {
            if (full) {
                app.model.open(BundleSource.Folder(Reference.folder, key = null))
                waitFor("the bundle") { state.ready }
            }
            for (tab in TABS) {
                activity.press(tab)
                if (full) app.model.state.change { it.everything().adapting().everything() }
                idle()
                drawn(activity)
                check("${activity.getString(tab)}, ${if (full) "full" else "empty"}")
            }
        }
    }

    @Test
    fun `everything that can be used has a name`() = everywhere { where ->
        for (view in activity.views()) {
            val labelled = activity.views().any { it.labelFor != View.NO_ID && it.labelFor == view.id }
            val named = !view.contentDescription.isNullOrBlank() || view !is EditText && view is TextView && view.text.isNotBlank()
            val needsName = view is EditText || view is ImageView || view is ProgressBar || view is AdaptationChart || view.isClickable
            if (needsName) assertTrue("$where: $view", named || labelled)
        }
    }

    @Test
    fun `what is touched is at least 48 dp high`() = everywhere { where ->
        for (view in activity.views().filter { it.isClickable && !(it is TextView && it.isTextSelectable && it !is EditText) }) {
            assertTrue("$where: $view has ${view.height} px", view.height >= activity.dp(TOUCH_DP))
        }
    }

    @Test
    fun `one tab says that it is selected, and it is the one that is shown`() = everywhere { where ->
        val selected = activity.views().filter { it.isSelected && it.id in TABS }
        assertTrue(where, selected.size == 1 && where.startsWith((selected.single() as TextView).text))
    }

    @Test
    fun `no text is cut off where it is largest`() {
        RuntimeEnvironment.setFontScale(2f)
        everywhere { where ->
            for (view in activity.views().filterIsInstance<TextView>().filter { it.text.isNotEmpty() && it !is EditText }) {
                val (layout, room) = checkNotNull(view.layout) to view.width - view.totalPaddingLeft - view.totalPaddingRight
                assertTrue("$where: '${view.text}' is too wide", (0 until layout.lineCount).all { layout.getLineMax(it) <= room + 1 })
                val ends = (0 until layout.lineCount - 1).map { view.text[layout.getLineEnd(it) - 1] }
                assertTrue("$where: '${view.text}' is broken within a word", ends.none { it.isLetterOrDigit() })
                val high = view.height - view.compoundPaddingTop - view.compoundPaddingBottom
                assertTrue("$where: '${view.text}' is too high", layout.height <= high + 1 || view.parent.parent is android.widget.ScrollView)
                assertEquals("$where: '${view.text}'", 0, (0 until layout.lineCount).sumOf(layout::getEllipsisCount))
            }
        }
    }

    @Test
    fun `hints fit their fields`() = everywhere { where ->
        for (field in activity.views().filterIsInstance<EditText>().filter { it.hint != null }) {
            val room = field.width - field.totalPaddingLeft - field.totalPaddingRight
            assertTrue("$where: ${field.hint}", field.paint.measureText(field.hint.toString()) <= room)
        }
    }

    @Test
    @Config(qualifiers = "ar-ldrtl-w360dp-h760dp-hdpi")
    fun `texts and their numbers are in one language, from the right`() = everywhere { where ->
        assertEquals(View.LAYOUT_DIRECTION_RTL, activity.window.decorView.layoutDirection)
        val words = activity.views().flatMap { listOfNotNull((it as? TextView)?.text, it.contentDescription) }
        assertTrue(where, words.none { text -> text.any { it in '٠'..'٩' } })
        val (first, last) = TABS.first() to TABS.last()
        assertTrue(where, place(activity.named(first)).left > place(activity.named(last)).left)
    }

    @Test
    fun `Android 15 draws the app behind its bars, and nothing that can be used is there`() {
        val bars = WindowInsets(Rect(0, BAR_PX, 0, BAR_PX))
        everywhere { where ->
            val content = activity.findViewById<View>(android.R.id.content)
            content.dispatchApplyWindowInsets(bars)
            drawn(activity)
            val tabs = activity.named(R.string.tab_bundle)
            assertTrue("$where: ${place(tabs)}", place(tabs).top >= BAR_PX)
            val root = (tabs.parent as View).parent as View
            assertEquals(where, BAR_PX, root.paddingBottom)
        }
    }

    private fun place(view: View): Rect {
        val at = IntArray(2).also(view::getLocationInWindow)
        return Rect(at[0], at[1], at[0] + view.width, at[1] + view.height)
    }
}
