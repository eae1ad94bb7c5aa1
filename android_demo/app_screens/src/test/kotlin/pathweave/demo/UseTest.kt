package pathweave.demo

import android.Manifest
import android.app.Activity
import android.content.Intent
import android.content.pm.PackageManager
import android.os.Bundle
import android.view.accessibility.AccessibilityNodeInfo
import android.widget.EditText
import android.widget.SeekBar
import android.widget.Switch
import java.io.File
import org.junit.After
import org.junit.Assert.assertEquals
import org.junit.Assert.assertFalse
import org.junit.Assert.assertNotNull
import org.junit.Assert.assertNull
import org.junit.Assert.assertTrue
import org.junit.Before
import org.junit.Rule
import org.junit.Test
import org.junit.rules.TemporaryFolder
import org.junit.runner.RunWith
import org.robolectric.Robolectric
import org.robolectric.RuntimeEnvironment
import org.robolectric.Shadows.shadowOf
import org.robolectric.android.controller.ActivityController
import org.robolectric.annotation.Config
import org.robolectric.annotation.GraphicsMode
import org.robolectric.util.ReflectionHelpers

/** The app as a person uses it, with a real bundle. */
@RunWith(AppRunner::class)
@GraphicsMode(GraphicsMode.Mode.NATIVE)
@Config(sdk = [35], qualifiers = "w360dp-h760dp-hdpi")
class UseTest {
    @get:Rule
    val temporary = TemporaryFolder()

    private lateinit var controller: ActivityController<MainActivity>
    private val activity: MainActivity get() = controller.get()

    @Before
    fun start() {
        preparePhone()
        controller = Robolectric.buildActivity(MainActivity::class.java).setup()
    }

    @After
    fun end() = app.model.close()

    private fun field(label: Int) = activity.views().first { it.id == label } as EditText

    private fun slider(name: Int) = activity.views().first { it.id == name } as SeekBar

    private fun switch(name: Int) = activity.views().first { it.id == name } as Switch

    /** As by TalkBack or a keyboard. */
    private fun slide(name: Int, position: Int) {
        val value = Bundle().apply { putFloat(AccessibilityNodeInfo.ACTION_ARGUMENT_PROGRESS_VALUE, position.toFloat()) }
        slider(name).performAccessibilityAction(AccessibilityNodeInfo.AccessibilityAction.ACTION_SET_PROGRESS.id, value)
        idle()
    }

    /** The screen turns: Android ends the activity and begins another with what it kept. */
    private fun turn() {
        val kept = Bundle()
        controller.saveInstanceState(kept).pause().stop().destroy()
        RuntimeEnvironment.setQualifiers("+land")
        controller = Robolectric.buildActivity(MainActivity::class.java).setup(kept)
        idle()
    }

    private fun openFolder() {
        activity.press(R.string.tab_bundle)
        activity.press(R.string.copy)
        activity.pick(pickedFolder(Reference.folder))
        waitFor("the bundle") { state.ready }
        assertNull(state.notice)
    }

    private fun profile() {
        activity.press(R.string.tab_adapt)
        activity.press(R.string.profile)
        waitFor("the profile") { state.ranges != null && state.ready }
    }

    private fun addPictures(count: Int) {
        activity.press(R.string.tab_adapt)
        for ((number, name) in listOf("red", "green", "blue").withIndex()) {
            field(R.string.label).setText(name)
            activity.press(R.string.add_pictures)
            activity.pick(pickedPictures((0 until count / 3).associate { "$name-$it.png" to png(3 * it + number) }))
            waitFor("pictures of $name") { state.ready && state.pictures.count == (number + 1) * (count / 3) }
        }
    }

    private fun adapt() {
        slide(R.string.latency_no_limit, SLIDER_STEPS - 1)
        activity.press(R.string.adapt)
    }

    @Test
    @Config(sdk = [26, 35])
    fun `a signed bundle is opened from a server`() = BundleServer().use { server ->
        field(R.string.address).setText(server.url)
        field(R.string.key).setText(Reference.key)
        activity.press(R.string.fetch)
        waitFor("the bundle") { state.ready || state.notice != null }
        assertEquals("reference" to null, state.opened?.name to state.notice)
        activity.press(R.string.tab_log)
        waitFor("the log") { activity.shows("opened") }
        activity.press(R.string.send_log)
        waitFor("the log at the server") { state.notice is Notice.LogSent }
        assertTrue(server.lines.any { "opened" in it })
        assertTrue(activity.shows(activity.words(R.string.log_sent, server.lines.size, 0)))
    }

    @Test
    @Config(sdk = [26, 35])
    fun `the device is measured, pictures are added, and the model adapts and says what it found`() {
        openFolder()
        profile()
        addPictures(60)
        assertEquals(Pictures(60, 60), state.pictures)
        adapt()
        waitFor("the adaptation") { state.adapted != null && state.ready }
        assertTrue(activity.shows(activity.words(R.string.adapted, activity.number(state.adapted!!.measuredMs!!))))
        val chart = activity.views().filterIsInstance<AdaptationChart>().single()
        assertTrue(chart.contentDescription.startsWith("Chart of latency and accuracy"))
        assertTrue(state.adapted!!.picture!!.plans.isNotEmpty())
        assertEquals(state.adapted!!.limitMs, state.adapted!!.picture!!.limitMs)
    }

    @Test
    fun `an adaptation goes on while the screen turns`() {
        openFolder()
        profile()
        addPictures(60)
        adapt()
        waitFor("the adaptation to begin") { state.busy == Busy.ADAPTING }
        turn()
        waitFor("its end") { state.busy == null }
        assertNotNull("${state.notice}", state.adapted)
        assertTrue(activity.views().any { it is AdaptationChart })
    }

    @Test
    fun `an adaptation is cancelled`() {
        openFolder()
        profile()
        addPictures(60)
        val before = state.plan
        val pressed = java.util.concurrent.atomic.AtomicBoolean()
        adapt()
        waitFor("progress") {
            val cancel = activity.views().find { it.id == R.string.cancel }
            if (cancel != null && pressed.compareAndSet(false, true)) cancel.performClick()
            pressed.get() && state.busy == null
        }
        if (state.adapted == null) assertEquals(Notice.Cancelled to before, state.notice to state.plan)
    }

    @Test
    fun `what was typed and where one was stay when the screen turns`() {
        field(R.string.address).setText("https://bundles.example/v1/bundles/digits")
        openFolder()
        activity.press(R.string.tab_adapt)
        profile()
        field(R.string.label).setText("red")
        slide(R.string.memory_no_limit, 40)
        turn()
        assertEquals("red", field(R.string.label).text.toString())
        assertEquals(40, slider(R.string.memory_no_limit).progress)
        activity.press(R.string.tab_bundle)
        assertEquals("https://bundles.example/v1/bundles/digits", field(R.string.address).text.toString())
        assertEquals("reference", state.opened?.name)
    }

    @Test
    fun `a process that ended while it adapted begins again where it was`() {
        openFolder()
        activity.press(R.string.tab_adapt)
        field(R.string.label).setText("red")
        bundlesOf(app).adapting = true // as it is while the model adapts
        val saved = Bundle()
        controller.saveInstanceState(saved).pause().stop().destroy()
        app.model.close()
        val next = android.app.Instrumentation.newApplication(PathweaveApp::class.java, app.baseContext) as PathweaveApp
        controller = Robolectric.buildActivity(MainActivity::class.java)
        ReflectionHelpers.setField(Activity::class.java, activity, "mApplication", next)
        controller.setup(saved)
        waitFor("the bundle, opened again") { next.model.state.value.ready }
        assertEquals("red", field(R.string.label).text.toString())
        assertTrue(activity.shows(activity.words(R.string.interrupted)))
        assertFalse(bundlesOf(app).adapting)
        next.model.close()
    }

    @Test
    fun `a picture is classified, and what is no picture is said`() {
        openFolder()
        activity.press(R.string.tab_live)
        activity.press(R.string.pick)
        activity.pick(pickedPictures(mapOf("one.png" to png(1))))
        waitFor("the answer") { state.classified != null && state.ready }
        assertTrue(activity.shows(checkNotNull(state.classified?.label)))
        activity.press(R.string.pick)
        activity.pick(pickedPictures(mapOf("none.png" to "text".toByteArray())))
        waitFor("the reason") { activity.shows(activity.words(R.string.no_image)) }
        activity.press(R.string.pick)
        activity.pick(Intent(), Activity.RESULT_CANCELED)
        assertNull(state.busy)
    }

    @Test
    fun `pictures of a folder get the names of its folders, and are classified one after the other`() {
        openFolder()
        val folder = temporary.newFolder()
        for ((number, name) in listOf("red", "green", "holiday").withIndex()) {
            File(folder, name).mkdirs()
            repeat(4) { File(folder, "$name/$it.png").writeBytes(png(10 * number + it)) }
        }
        File(folder, "notes.txt").writeText("no picture")
        activity.press(R.string.tab_adapt)
        activity.press(R.string.add_folder)
        activity.pick(pickedFolder(folder))
        waitFor("the pictures") { state.pictures == Pictures(12, 8) && state.ready }
        activity.press(R.string.tab_live)
        switch(R.string.live_pictures).performClick()
        waitFor("answers") { state.figures.count > 2 }
        controller.pause().stop()
        val count = state.figures.count
        assertNotNull("it is wanted still", state.live)
        controller.restart().start().resume()
        waitFor("more answers") { state.figures.count > count }
        switch(R.string.live_pictures).performClick()
        assertNull(state.live)
    }

    @Test
    fun `a refused camera is said, and live classification stays off`() {
        openFolder()
        activity.press(R.string.tab_live)
        switch(R.string.live_camera).performClick()
        val asked = shadowOf(activity).lastRequestedPermission
        assertEquals(listOf(Manifest.permission.CAMERA), asked.requestedPermissions.toList())
        activity.onRequestPermissionsResult(asked.requestCode, asked.requestedPermissions, intArrayOf(PackageManager.PERMISSION_DENIED))
        waitFor("the reason") { activity.shows(activity.words(R.string.camera_refused)) }
        assertFalse(switch(R.string.live_camera).isChecked)
    }

    @Test
    fun `an allowed camera that is not there is said`() {
        openFolder()
        shadowOf(app).grantPermissions(Manifest.permission.CAMERA)
        activity.press(R.string.tab_live)
        switch(R.string.live_camera).performClick()
        waitFor("the reason") { activity.shows(activity.words(R.string.camera_failed)) }
        assertFalse(switch(R.string.live_camera).isChecked)
    }

    @Test
    fun `what is greyed out says what is missing`() {
        activity.press(R.string.tab_adapt)
        assertFalse(activity.named(R.string.adapt).isEnabled)
        assertTrue(activity.shows(activity.words(R.string.missing_bundle)))
        openFolder()
        activity.press(R.string.tab_adapt)
        assertTrue(activity.shows(activity.words(R.string.missing_profile)))
        profile()
        assertTrue(activity.shows(activity.words(R.string.missing_pictures)))
        addPictures(3)
        assertTrue(activity.shows(activity.words(R.string.missing_limits)))
        slide(R.string.latency_no_limit, SLIDER_STEPS - 1)
        assertTrue(activity.named(R.string.adapt).isEnabled)
        activity.press(R.string.tab_log)
        assertTrue(activity.shows(activity.words(R.string.missing_server)))
    }

    @Test
    fun `exits and deadlines change how pictures are answered`() {
        openFolder()
        activity.press(R.string.tab_live)
        switch(R.string.use_exits).performClick()
        waitFor("exits") { state.plan!!.exits.isNotEmpty() && state.ready }
        switch(R.string.anytime).performClick()
        idle()
        assertTrue(state.mode.anytime)
        activity.press(R.string.pick)
        activity.pick(pickedPictures(mapOf("one.png" to png(1))))
        waitFor("the answer") { state.classified != null && state.ready }
    }
}
