package pathweave.demo

import android.app.job.JobInfo
import android.app.job.JobParameters
import android.app.job.JobScheduler
import android.content.Context
import android.net.ConnectivityManager
import android.os.BatteryManager
import org.junit.After
import org.junit.Assert.assertEquals
import org.junit.Assert.assertFalse
import org.junit.Assert.assertTrue
import org.junit.Before
import org.junit.Test
import org.junit.runner.RunWith
import org.robolectric.Robolectric
import org.robolectric.Shadows.shadowOf
import org.robolectric.annotation.Config
import org.robolectric.shadow.api.Shadow
import org.robolectric.shadows.ShadowJobService
import org.robolectric.util.ReflectionHelpers

private const val DAY_MS = 24L * 60 * 60 * 1000

/** The two jobs, as Android's scheduler has them run. */
@RunWith(AppRunner::class)
@Config(sdk = [26, 35])
class JobsTest {
    private val server = BundleServer()

    @Before
    fun prepare() = preparePhone()

    @After
    fun close() {
        app.model.close()
        server.close()
    }

    private fun openFromServer() {
        app.model.open(BundleSource.Server(server.url, null, Reference.key))
        waitFor("the bundle") { state.ready }
    }

    private fun charge(charging: Boolean) {
        val battery = app.getSystemService(Context.BATTERY_SERVICE) as BatteryManager
        shadowOf(battery).setIsCharging(charging)
        val network = app.getSystemService(Context.CONNECTIVITY_SERVICE) as ConnectivityManager
        @Suppress("DEPRECATION")
        shadowOf(network).setActiveNetworkInfo(network.getNetworkInfo(ConnectivityManager.TYPE_WIFI))
    }

    private fun <T : DailyJob> started(kind: Class<T>): Pair<T, Boolean> {
        val job = Robolectric.buildService(kind).create().get()
        return job to job.onStartJob(ReflectionHelpers.callConstructor(JobParameters::class.java))
    }

    private fun ended(job: DailyJob): ShadowJobService {
        val shadow = Shadow.extract<ShadowJobService>(job)
        waitFor("the job's end") { shadow.isJobFinished }
        return shadow
    }

    @Test
    fun `both are scheduled daily, for when the device charges on an unmetered network`() {
        val scheduler = app.getSystemService(Context.JOB_SCHEDULER_SERVICE) as JobScheduler
        val jobs = scheduler.allPendingJobs.sortedBy { it.id }
        assertEquals(listOf("UpdateJob", "LogUploadJob"), jobs.map { it.service.className.substringAfterLast('.') })
        for (job in jobs) {
            @Suppress("DEPRECATION")
            assertEquals(JobInfo.NETWORK_TYPE_UNMETERED, job.networkType)
            assertTrue(job.isRequireCharging && job.isPersisted && job.isPeriodic)
            assertEquals(DAY_MS, job.intervalMillis)
        }
    }

    @Test
    fun `the update job looks at the server, and the log job sends the log`() {
        openFromServer()
        charge(true)
        val (update, begun) = started(UpdateJob::class.java)
        assertTrue(begun)
        assertFalse(ended(update).isRescheduleNeeded)
        val (upload, running) = started(LogUploadJob::class.java)
        assertTrue(running)
        assertFalse(ended(upload).isRescheduleNeeded)
        assertTrue("${server.lines}", server.lines.any { "opened" in it })
    }

    @Test
    fun `a server that is gone has the job run again`() {
        openFromServer()
        charge(true)
        server.close()
        val (upload, running) = started(LogUploadJob::class.java)
        assertTrue(running)
        assertTrue(ended(upload).isRescheduleNeeded)
    }

    @Test
    fun `nothing is sent on the battery`() {
        openFromServer()
        charge(false)
        ended(started(LogUploadJob::class.java).first)
        assertEquals(emptyList<String>(), server.lines)
    }

    @Test
    fun `without a bundle from a server there is nothing to do`() {
        assertFalse(started(UpdateJob::class.java).second)
        assertFalse(started(LogUploadJob::class.java).second)
    }

    @Test
    fun `the system can take its leave back, and the job runs again`() {
        openFromServer()
        charge(true)
        val (update, _) = started(UpdateJob::class.java)
        assertTrue(update.onStopJob(ReflectionHelpers.callConstructor(JobParameters::class.java)))
        ended(update)
    }
}
