package pathweave.demo

import android.content.Context

private const val JOB = 1

/** Updates the bundle that was opened last from a server. */
class UpdateJob : DailyJob("update") {
    override fun work(): Work? = bundlesOf(this).updateWork()?.let { it::run }

    companion object {
        /** Run from now on. */
        fun schedule(context: Context): Unit = scheduleDaily(context, JOB, UpdateJob::class.java)
    }
}
