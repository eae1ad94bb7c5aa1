/** Batches in parallel: a few threads that each take the next one. */
package pathweave.sdk.search

import java.io.Closeable
import java.util.concurrent.ExecutionException
import java.util.concurrent.Executors
import java.util.concurrent.Future
import pathweave.sdk.ClosedError

/** Runs work on many items, [count] of them at a time; with one, in the calling thread. */
internal class Workers(private val count: Int) : Closeable {
    private val pool = if (count > 1) Executors.newFixedThreadPool(count, ::thread) else null
    private var closed = false

    /**
     * Call [work] on every item, in order of their start; ends when all that was begun has ended.
     *
     * [shouldStop] is called in this thread before an item is begun. Throws what [work] throws first.
     *
     * @throws EvaluationStopped [shouldStop] returned true before the last item.
     * @throws ClosedError it was closed.
     */
    fun <T> each(items: Iterable<T>, shouldStop: () -> Boolean, work: (T) -> Unit) {
        val running = ArrayDeque<Future<*>>()
        try {
            for (item in items) {
                if (running.size == count) running.removeFirst().finish()
                if (shouldStop()) throw EvaluationStopped()
                if (closed) throw ClosedError("the evaluator was closed")
                if (pool == null) work(item) else running.addLast(pool.submit { work(item) })
            }
            while (running.isNotEmpty()) running.removeFirst().finish()
        } finally {
            for (one in running) runCatching { one.get() }
        }
    }

    /** End the threads. May be called twice. */
    override fun close() {
        closed = true
        pool?.shutdown()
    }

    private fun thread(work: Runnable): Thread = Thread(work, "pathweave-evaluate").apply { isDaemon = true }

    private fun Future<*>.finish() {
        try {
            get()
        } catch (error: ExecutionException) {
            throw error.cause ?: error
        }
    }
}
