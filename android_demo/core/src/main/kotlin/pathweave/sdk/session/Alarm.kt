/** Sets stop signals at given times, in one thread. Mirrors device_sdk/session/timed_answers.py. */
package pathweave.sdk.session

import java.io.Closeable
import java.util.concurrent.ScheduledThreadPoolExecutor
import java.util.concurrent.TimeUnit.NANOSECONDS
import java.util.concurrent.TimeUnit.SECONDS
import kotlin.concurrent.thread
import pathweave.sdk.runtimes.StopSignal

private const val IDLE_S = 1L // after which the thread ends

/** [at] may be called from any thread. */
internal class Alarm : Closeable {
    private val timer = ScheduledThreadPoolExecutor(1) { work ->
        thread(start = false, isDaemon = true, name = "pathweave-deadline") { work.run() }
    }.apply {
        removeOnCancelPolicy = true
        setKeepAliveTime(IDLE_S, SECONDS)
        allowCoreThreadTimeOut(true)
    }

    /** Set [signal] in [delayNs]. Closing what is returned forgets it. After [close] nothing is set. */
    fun at(delayNs: Long, signal: StopSignal): Closeable {
        if (timer.isShutdown) return Closeable {}
        val waiting = timer.schedule(signal::set, delayNs, NANOSECONDS)
        return Closeable { waiting.cancel(false) }
    }

    /** End the thread; what waits is not set any more. May be called twice. */
    override fun close() {
        timer.shutdownNow()
    }
}
