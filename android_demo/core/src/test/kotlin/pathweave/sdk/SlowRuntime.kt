package pathweave.sdk

import java.util.concurrent.atomic.AtomicInteger
import pathweave.sdk.bundles.Stretch
import pathweave.sdk.numerics.Tensor
import pathweave.sdk.runtimes.LoadedStretch
import pathweave.sdk.runtimes.OnnxRuntime
import pathweave.sdk.runtimes.Runtime
import pathweave.sdk.runtimes.StopSignal

private const val LOOK_MS = 1L // between two looks at the stop signal

/** ONNX Runtime whose stretches take some milliseconds more, by their outputs; a run can be ended meanwhile. */
class SlowRuntime(@Volatile var delayMs: (outputs: List<String>) -> Long = { 0 }) : Runtime {
    private val runtime = OnnxRuntime()
    val open = AtomicInteger() // stretches that are loaded and not closed

    override val identity get() = runtime.identity

    override fun load(stretch: Stretch): LoadedStretch {
        val loaded = runtime.load(stretch)
        val outputs = stretch.outputs.map { it.name }
        open.incrementAndGet()
        return object : LoadedStretch {
            private var closed = false

            override fun run(inputs: List<Tensor>) = checkNotNull(runUntil(inputs, StopSignal()))

            override fun runUntil(inputs: List<Tensor>, stop: StopSignal): List<Tensor>? {
                val endNs = System.nanoTime() + delayMs(outputs) * 1_000_000
                while (System.nanoTime() < endNs) {
                    if (stop.isSet) return null
                    Thread.sleep(LOOK_MS)
                }
                return loaded.runUntil(inputs, stop)
            }

            override fun close() {
                loaded.close()
                synchronized(this) {
                    if (!closed) open.decrementAndGet()
                    closed = true
                }
            }
        }
    }
}
