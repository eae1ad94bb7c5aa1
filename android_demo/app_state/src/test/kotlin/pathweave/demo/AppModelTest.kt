package pathweave.demo

import java.io.File
import java.nio.file.Path
import java.util.concurrent.CopyOnWriteArrayList
import kotlinx.coroutines.Job
import kotlinx.coroutines.runBlocking
import org.junit.jupiter.api.AfterEach
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertFalse
import org.junit.jupiter.api.Assertions.assertNotNull
import org.junit.jupiter.api.Assertions.assertNull
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.Timeout
import org.junit.jupiter.api.io.TempDir
import pathweave.sdk.memory_pressure.TrimMemory
import pathweave.sdk.policies.AdaptationStage
import pathweave.sdk.session.SERVER
import pathweave.sdk.session.SUBNET

private const val WATTS = 2.0
private const val ROOMY_BYTES = 1_000_000_000L

/** What the app does, with the real SDK on the reference bundle. */
@Timeout(60)
class AppModelTest {
    @TempDir
    lateinit var folder: Path

    private val settings = KeptSettings()
    private val images = Reference.images(60)
    private val cameras = CopyOnWriteArrayList<FakeCamera>()
    private var refused = false
    private val device = Device(
        memory = TrimMemory { ROOMY_BYTES },
        power = { WATTS },
        camera = {
            if (refused) throw UnreadableException("The camera was refused.")
            FakeCamera(images).also { cameras += it }
        },
    )
    private val bundles by lazy { Bundles(File(folder.toFile(), "state"), settings) }
    private val seen = CopyOnWriteArrayList<AppState>()
    private var started: AppModel? = null

    private fun start(): AppModel = AppModel(bundles, device, post = { it() }).also { app ->
        app.state.observe { seen += it }
        started = app
    }

    private fun opened(): AppModel = start().also { it.open(reference).done() }

    private val reference get() = BundleSource.Folder(Reference.folder, key = null)

    @AfterEach
    fun close() {
        started?.close()
    }

    private fun Job.done() = runBlocking { join() }

    private fun AppModel.failure(): String = (state.value.notice as Notice.Failed).text

    private fun waitFor(app: AppModel, what: String, condition: (AppState) -> Boolean) {
        val untilNs = System.nanoTime() + 20_000_000_000
        while (!condition(app.state.value)) {
            assertTrue(System.nanoTime() < untilNs, "$what: ${app.state.value}")
            Thread.sleep(5)
        }
    }

    private fun AppModel.withPictures(label: (Int) -> String? = { null }) {
        addPictures(typed = "") { images.mapIndexed { number, image -> PickedPicture(label(number)) { image } } }.done()
    }

    @Test
    fun `a bundle is opened, shown, and opened again at the next start`() {
        val app = opened()
        val shown = app.state.value
        assertTrue(shown.ready && shown.notice == null, "$shown")
        assertEquals("reference" to listOf("blue", "green", "red"), shown.opened!!.run { name to classNames.sorted() })
        assertEquals("subnet", shown.plan!!.kind)
        assertTrue(seen.any { it.busy == Busy.OPENING && it.opened == null })
        app.close()
        val again = start()
        again.reopen()
        waitFor(again, "reopened") { it.ready }
        assertEquals(shown.opened, again.state.value.opened)
    }

    @Test
    fun `a model of maps adapts to its own answers and says what the pixels are`() {
        val app = start()
        app.open(BundleSource.Folder(Reference.maps, Reference.key)).done()
        app.classify { images[0] }.done()
        val classified = checkNotNull(app.state.value.classified)
        assertTrue(Regex("(blue|green|red) [0-9]+ %(, .*)?").matches(classified.label!!), "$classified")
        assertNull(classified.confidence)
        app.addPictures(typed = "red") { emptyList() }.done()
        assertTrue("no labels here" in app.failure())
        app.withPictures { "red" }
        assertEquals(Pictures(count = 60, labelled = 0), app.state.value.pictures)
        app.profile().done()
        app.adapt(BudgetPositions(latency = SLIDER_STEPS - 1), exits = false).done()
        assertNull(app.state.value.notice)
        assertEquals(1.0, app.state.value.adapted!!.fullAccuracy)
        app.askServer(true).done()
        assertTrue("only classifiers ask" in app.failure())
    }

    @Test
    fun `a model of other samples is not opened, nor the next time`() {
        val app = opened()
        app.open(BundleSource.Folder(Reference.prepared, key = null)).done()
        assertTrue("this needs a model of images" in app.failure(), app.failure())
        assertEquals("reference", app.state.value.opened!!.name)
        app.close()
        val again = start()
        again.reopen()
        waitFor(again, "reopened") { it.ready }
        assertNull(again.state.value.notice)
    }

    @Test
    fun `what cannot be opened says why, and what was open stays`() {
        val app = opened()
        app.open(BundleSource.Folder(File(folder.toFile(), "nothing"), null)).done()
        assertTrue(app.failure().isNotEmpty())
        assertTrue(app.state.value.ready)
        app.open(reference.copy(key = "no key")).done()
        assertTrue(app.failure().isNotEmpty())
        app.open(reference.copy(key = Reference.key)).done()
        assertTrue("sign" in app.failure(), app.failure())
        app.classify { images[0] }.done()
        assertNotNull(app.state.value.classified)
        app.open(BundleSource.Folder(Reference.signed, Reference.key)).done()
        assertTrue(app.state.value.ready && app.state.value.notice == null)
    }

    @Test
    fun `before a bundle is open everything says so`() {
        val app = start()
        for (begin in listOf<() -> Job>(
            { app.profile() },
            { app.classify { images[0] } },
            { app.adapt(BudgetPositions(), exits = true) },
            { app.useExits(true) },
            { app.askServer(true) },
            { app.showLog() },
        )) {
            begin().done()
            assertEquals("no bundle is open\nopen one from a server or a folder", app.failure())
        }
    }

    @Test
    fun `profiling shows its progress and gives the sliders their ranges`() {
        val app = opened()
        app.profile().done()
        val shares = seen.mapNotNull { it.progress }.filter { it.stage == AdaptationStage.PROFILE }.map { it.share }
        assertTrue(shares.isNotEmpty() && shares == shares.sorted() && shares.last() <= 1.0, "$shares")
        val ranges = app.state.value.ranges!!
        assertTrue(ranges.latencyMs.most >= ranges.latencyMs.least)
        assertEquals(WATTS, ranges.watts)
        assertNull(app.state.value.progress)
    }

    @Test
    fun `the app adapts to the sliders on labelled pictures, with exits too, and watches from then on`() {
        val app = opened()
        app.profile().done()
        app.withPictures { listOf("blue", "green", "red")[it % 3] }
        assertEquals(Pictures(60, 60), app.state.value.pictures)
        app.adapt(BudgetPositions(latency = SLIDER_STEPS - 1), exits = true).done()
        val state = app.state.value
        val adapted = state.adapted ?: throw AssertionError("${state.notice}")
        assertTrue(adapted.measuredMs!! > 0 && adapted.accuracy!! in 0.0..1.0)
        assertEquals(adapted.withExits, state.plan!!.exits.any { it.decides })
        assertTrue(state.watching && !bundles.adapting)
        assertTrue(AdaptationStage.entries.all { stage -> seen.any { it.progress?.stage == stage } })
        app.showLog().done()
        val events = app.state.value.log.map { it.event }
        assertEquals("opened", events.last(), "newest first")
        assertTrue(events.containsAll(listOf("profiled", "adapted", "watching")), "$events")
        assertEquals(events.map { 0 }, app.state.value.log.zipWithNext { a, b -> if (a.time >= b.time) 0 else 1 } + 0)
    }

    @Test
    fun `unlabelled pictures do as well, the full model's answers stand in`() {
        val app = opened()
        app.profile().done()
        app.withPictures { "Camera" }
        assertEquals(Pictures(60, 0), app.state.value.pictures)
        app.adapt(BudgetPositions(memory = SLIDER_STEPS - 1), exits = false).done()
        assertEquals(1.0, app.state.value.adapted?.fullAccuracy, "${app.state.value.notice}")
        assertFalse(app.state.value.watching, "there is no latency to keep")
    }

    @Test
    fun `sliders without a limit, no profile and no pictures are said`() {
        val app = opened()
        app.adapt(BudgetPositions(latency = 0), exits = false).done()
        assertEquals("the sliders have no range yet\nprofile the device first", app.failure())
        app.profile().done()
        app.adapt(BudgetPositions(), exits = false).done()
        assertEquals("nothing is limited\nset a limit with a slider", app.failure())
        app.adapt(BudgetPositions(latency = 50), exits = false).done()
        assertEquals("there are no samples to adapt on", app.failure())
    }

    @Test
    fun `a cancelled adaptation leaves the plan in use`() {
        val app = opened()
        app.profile().done()
        app.withPictures()
        val before = app.state.value.plan
        app.state.observe { if (it.progress?.stage == AdaptationStage.SEARCH) app.cancel() }
        app.adapt(BudgetPositions(latency = SLIDER_STEPS - 1), exits = false).done()
        val state = app.state.value
        assertEquals(listOf(Notice.Cancelled, before, null, null), listOf(state.notice, state.plan, state.busy, state.adapted))
        assertFalse(bundles.adapting)
    }

    @Test
    fun `an adaptation that the process did not survive is said at the next start`() {
        opened().close()
        bundles.adapting = true // as it is when the process is killed
        val next = start()
        next.reopen()
        waitFor(next, "reopened") { it.ready }
        assertEquals(Notice.Interrupted, next.state.value.notice)
        assertFalse(bundles.adapting)
    }

    @Test
    fun `pictures that cannot be read and labels that are no class are said`() {
        val app = opened()
        val broken = PickedPicture("red") { throw UnreadableException("broken") }
        app.addPictures(typed = null) { listOf(PickedPicture("red") { images[0] }, broken) }.done()
        assertEquals(Notice.PicturesRead(1, 1), app.state.value.notice)
        app.addPictures(typed = "mauve") { listOf(PickedPicture(null) { images[1] }) }.done()
        assertTrue(app.failure().startsWith("'mauve' is none of the 3 classes"))
        app.addPictures(typed = "blue") { listOf(PickedPicture(null) { images[1] }) }.done()
        assertEquals(Pictures(2, 2), app.state.value.pictures)
        app.clearPictures().done()
        assertEquals(Pictures(), app.state.value.pictures)
    }

    @Test
    fun `live classification runs while it is visible and goes on after the screen turned`() {
        val app = opened()
        app.setLive(LiveSource.CAMERA).done()
        assertEquals(0, cameras.size, "nothing is on screen yet")
        app.visible().done()
        waitFor(app, "answers") { it.figures.count > 3 }
        app.hidden()
        assertTrue(cameras.single().closed)
        val count = app.state.value.figures.count
        Thread.sleep(30)
        assertEquals(count, app.state.value.figures.count)
        app.visible().done()
        waitFor(app, "answers again") { it.figures.count > count }
        app.setLive(null).done()
        assertTrue(cameras.last().closed)
        val figures = app.state.value.figures
        assertEquals(figures.count, figures.sources[SUBNET])
        assertTrue(figures.medianMs!! > 0)
    }

    @Test
    fun `a screen that comes and goes at once leaves no camera open`() {
        val app = opened()
        app.setLive(LiveSource.CAMERA).done()
        repeat(20) {
            val coming = app.visible()
            app.hidden()
            coming.done()
        }
        assertTrue(cameras.all { it.closed })
    }

    @Test
    fun `live classification goes on while the model adapts`() {
        val app = opened()
        app.profile().done()
        app.withPictures()
        app.visible().done()
        app.setLive(LiveSource.PICTURES).done()
        val adapting = app.adapt(BudgetPositions(latency = SLIDER_STEPS - 1), exits = false)
        app.setLive(LiveSource.CAMERA).done()
        waitFor(app, "answers") { it.figures.count > 3 }
        adapting.done()
        assertNotNull(app.state.value.adapted, "${app.state.value.notice}")
        val count = app.state.value.figures.count
        waitFor(app, "more answers") { it.figures.count > count }
    }

    @Test
    fun `a refused camera and missing pictures end it with the reason`() {
        val app = opened()
        app.visible().done()
        refused = true
        app.setLive(LiveSource.CAMERA).done()
        assertEquals("The camera was refused." to null, app.failure() to app.state.value.live)
        app.setLive(LiveSource.PICTURES).done()
        assertEquals("There are no pictures yet: add some first." to null, app.failure() to app.state.value.live)
    }

    @Test
    fun `deadlines, and answers whenever it is time, come from exits`() {
        val app = opened()
        app.useExits(true).done()
        assertTrue(app.state.value.plan!!.exits.isNotEmpty())
        for (mode in listOf(AnswerMode(deadlineMs = 5000.0), AnswerMode(deadlineMs = 5000.0, anytime = true))) {
            app.setMode(mode)
            app.classify { images[0] }.done()
            assertNull(app.state.value.notice, "$mode")
            assertNotNull(app.state.value.classified)
        }
        app.setMode(AnswerMode(deadlineMs = 1e-6))
        app.classify { images[0] }.done()
        assertTrue(app.failure().contains("no answer is sure") || app.failure().contains("first"), app.failure())
        app.visible().done()
        app.setLive(LiveSource.CAMERA).done()
        waitFor(app, "too late") { it.figures.tooLate > 2 }
        assertEquals(LiveSource.CAMERA, app.state.value.live, "it goes on, for the device may become faster")
        app.setMode(AnswerMode(deadlineMs = 1e-6, anytime = true))
        waitFor(app, "late answers") { it.figures.count > 2 }
        app.useExits(false).done()
        assertEquals(0, app.state.value.plan!!.exits.size)
    }

    @Test
    fun `offline nothing is sent, updated or fetched`() {
        val app = opened()
        assertNull(bundles.updateWork(), "it came from a folder")
        app.sendLog().done()
        assertEquals(Notice.NoServer, app.state.value.notice)
        settings.change(mapOf("last_url" to "http://127.0.0.1:9/v1/bundles/reference"))
        assertNotNull(bundles.updateWork())
        assertNotNull(bundles.logUploadWork())
        app.setOffline(true)
        assertNull(bundles.updateWork())
        assertNull(bundles.logUploadWork())
        assertTrue(start().state.value.offline, "it is remembered")
        app.open(BundleSource.Server("http://127.0.0.1:9/v1/bundles/reference", "secret", null)).done()
        assertTrue("nothing was fetched from" in app.failure(), app.failure())
    }

    @Test
    fun `a bundle from a server is kept when the server is gone, and its log is sent`() {
        val app = start()
        BundleServer().use { server ->
            val source = BundleSource.Server(server.url, "secret", Reference.key)
            app.open(source).done()
            assertTrue(app.state.value.ready && app.state.value.notice == null, "${app.state.value.notice}")
            assertTrue(app.state.value.opened!!.fromServer)
            app.sendLog().done()
            assertEquals(Notice.LogSent(accepted = 2, duplicates = 0), app.state.value.notice)
            assertTrue(listOf("delivered", "opened").all { event -> server.lines.any { event in it } }, "${server.lines}")
            server.close()
            app.open(source).done()
            assertTrue(app.state.value.notice is Notice.Kept, "${app.state.value.notice}")
            assertTrue(app.state.value.ready)
            app.sendLog().done()
            assertTrue(app.state.value.notice is Notice.Failed)
            app.setOffline(true)
            app.open(source).done()
            assertTrue(app.state.value.ready && app.state.value.notice == null, "offline nobody is asked")
        }
    }

    private fun AppModel.sources(): Set<String> = images.map { image ->
        classify { image }.done()
        checkNotNull(state.value.classified).source
    }.toSet()

    @Test
    fun `the server is asked about hard pictures once the person wants it, and not offline`() {
        val app = start()
        app.askServer(true).done()
        assertTrue("no bundle is open" in app.failure())
        BundleServer().use { server ->
            app.open(BundleSource.Server(server.url, null, Reference.key)).done()
            assertFalse(SERVER in app.sources())
            app.withPictures()
            app.askServer(true).done()
            assertTrue(app.state.value.asks, "${app.state.value}")
            assertTrue(seen.any { it.busy == Busy.PLANNING })
            assertTrue(SERVER in app.sources())
            app.setOffline(true).done()
            assertFalse(SERVER in app.sources())
            app.setOffline(false).done()
            assertTrue(SERVER in app.sources())
            app.close()
            val again = start()
            again.reopen()
            waitFor(again, "reopened") { it.ready }
            assertTrue(SERVER in again.sources(), "what the person wanted is remembered")
            again.askServer(false).done()
            assertFalse(again.state.value.asks)
            assertFalse(SERVER in again.sources())
            server.close()
            again.withPictures()
            val before = again.state.value.plan
            again.askServer(true).done()
            assertTrue("no server is asked" in again.failure(), again.failure())
            assertEquals(before, again.state.value.plan)
            assertFalse(bundles.asking)
        }
    }

    @Test
    fun `closing ends everything, and nothing is answered any more`() {
        val app = opened()
        app.setLive(LiveSource.CAMERA).done()
        app.visible().done()
        waitFor(app, "answers") { it.figures.count > 0 }
        app.close()
        assertTrue(cameras.all { it.closed })
    }
}
