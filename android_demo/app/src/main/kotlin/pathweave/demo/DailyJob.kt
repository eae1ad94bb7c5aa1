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
import pathweave.sdk.session.DeviceConditions
import pathweave.sdk.session.WorkResult

private const val PERIOD_MS = 24L * 60 * 60 * 1000

/** The core's work: it is told the device's conditions, and whether to stop. */
typealias Work = (conditions: () -> DeviceConditions, stopped: () -> Boolean) -> WorkResult

/**
 * Runs work of the core once a day while the device charges on an unmetered network. Decides nothing: the core does.
 *
 * The platform's scheduler, which WorkManager uses too, needs no library.
 */
abstract class DailyJob(private val name: String) : JobService() {
    private var stopped = AtomicBoolean() // of the run in progress

    /** What is to be done; null: nothing. */
    protected abstract fun work(): Work?

    override fun onStartJob(parameters: JobParameters): Boolean {
        val work = work() ?: return false
        val stopped = AtomicBoolean().also { stopped = it }
        thread(name = name) {
            val result = work({ conditions() }, stopped::get)
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
}

/** Runs [job] from now on under this [id], also after the device starts again; one that is scheduled already stays. */
fun scheduleDaily(context: Context, id: Int, job: Class<out DailyJob>) {
    val scheduler = context.getSystemService(Context.JOB_SCHEDULER_SERVICE) as JobScheduler
    if (scheduler.getPendingJob(id) != null) return
    val info = JobInfo.Builder(id, ComponentName(context, job))
        .setRequiredNetworkType(JobInfo.NETWORK_TYPE_UNMETERED)
        .setRequiresCharging(true)
        .setPersisted(true)
        .setPeriodic(PERIOD_MS)
        .build()
    scheduler.schedule(info)
}
