package pathweave.demo

import android.app.job.JobInfo
import android.app.job.JobParameters
import android.app.job.JobScheduler
import android.app.job.JobService
import android.content.ComponentName
import android.content.Context
import android.net.ConnectivityManager
import android.os.BatteryManager
import java.util.concurrent.atomic.AtomicBoolean
import kotlin.concurrent.thread
import pathweave.sdk.DeviceConditions

private const val JOB = 1
private const val PERIOD_MS = 24L * 60 * 60 * 1000

/**
 * Updates the bundle that was opened last from a server, once a day while the device charges on an unmetered network.
 *
 * Decides nothing: the core's `UpdateWork` does. The platform's scheduler, which WorkManager uses too, needs no library.
 */
class UpdateJob : JobService() {
    private var stopped = AtomicBoolean() // of the run in progress

    override fun onStartJob(parameters: JobParameters): Boolean {
        val work = shelf(this).updateWork() ?: return false
        val stopped = AtomicBoolean().also { stopped = it }
        thread(name = "update") {
            val result = work.run({ conditions() }, stopped::get)
            jobFinished(parameters, result.retry)
        }
        return true
    }

    /** The system takes its leave back; true: run again. */
    override fun onStopJob(parameters: JobParameters): Boolean {
        stopped.set(true)
        return true
    }

    private fun conditions(): DeviceConditions {
        val network = getSystemService(Context.CONNECTIVITY_SERVICE) as ConnectivityManager
        val battery = getSystemService(Context.BATTERY_SERVICE) as BatteryManager
        return DeviceConditions(unmetered = !network.isActiveNetworkMetered, charging = battery.isCharging)
    }

    companion object {
        /** Run from now on, also after the device starts again; a job that is scheduled already stays. */
        fun schedule(context: Context) {
            val scheduler = context.getSystemService(Context.JOB_SCHEDULER_SERVICE) as JobScheduler
            if (scheduler.getPendingJob(JOB) != null) return
            val job = JobInfo.Builder(JOB, ComponentName(context, UpdateJob::class.java))
                .setRequiredNetworkType(JobInfo.NETWORK_TYPE_UNMETERED)
                .setRequiresCharging(true)
                .setPersisted(true)
                .setPeriodic(PERIOD_MS)
                .build()
            scheduler.schedule(job)
        }
    }
}
