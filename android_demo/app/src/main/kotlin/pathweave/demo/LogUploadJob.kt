package pathweave.demo

import android.content.Context

private const val JOB = 2

/** Sends the adaptation logs of the bundle that was opened last to the server that it came from. */
class LogUploadJob : DailyJob("log upload") {
    override fun work(): Work? = bundlesOf(this).logUploadWork()?.let { it::run }

    companion object {
        /** Run from now on. */
        fun schedule(context: Context): Unit = scheduleDaily(context, JOB, LogUploadJob::class.java)
    }
}
