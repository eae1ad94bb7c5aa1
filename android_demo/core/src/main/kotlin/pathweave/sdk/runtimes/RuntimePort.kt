/** The runtime port: loads a stretch of blocks and runs it. Adapters stand beside this file. */
package pathweave.sdk.runtimes

import ai.onnxruntime.OrtEnvironment
import ai.onnxruntime.OrtLoggingLevel
import java.io.Closeable
import pathweave.sdk.CompositionError
import pathweave.sdk.RuntimeFailedError
import pathweave.sdk.bundles.Stretch
import pathweave.sdk.numerics.Tensor

/** A stretch that is ready to run. [run] may be called from several threads at once. */
public interface LoadedStretch : Closeable {
    /**
     * Run one batch: one tensor [batch, *shape] per tensor of the stretch's start; returns the same for its end.
     *
     * @throws RuntimeFailedError the runtime refused the inputs or failed, or the stretch was closed.
     */
    public fun run(inputs: List<Tensor>): List<Tensor>

    /**
     * As [run], but ends soon once [stop] is set, from any thread: then null.
     *
     * A runtime that cannot end a run finishes it.
     */
    public fun runUntil(inputs: List<Tensor>, stop: StopSignal): List<Tensor>? =
        if (stop.isSet) null else run(inputs)

    /** Free what it holds, once the runs in progress have ended. May be called twice. */
    override fun close()
}

/** One inference engine with fixed settings. */
public interface Runtime {
    /** Name, version, provider really used and threads: profiles are valid for one identity. */
    public val identity: String

    /** The number of stretches that can run at once at full speed; 1 where they would wait for each other. */
    public val concurrency: Int get() = 1

    /** True if runs wait for other threads of the runtime, so that this waiting is part of their latency. */
    public val waitsForThreads: Boolean get() = false

    /**
     * Make [stretch] ready to run.
     *
     * @throws RuntimeFailedError the runtime refused the model.
     * @throws CompositionError the fragments do not make one model.
     */
    public fun load(stretch: Stretch): LoadedStretch
}

/** Once set, from any thread, calls that take it end soon. It stays set. */
public class StopSignal {
    private val enders = mutableListOf<() -> Unit>() // guarded by this

    /** Whether calls have to end. */
    @Volatile
    public var isSet: Boolean = false
        private set

    /** End the calls that run now, and those that begin later. Idempotent; waits for none of them. */
    public fun set(): Unit = synchronized(this) {
        isSet = true
        enders.forEach { it() }
    }

    /** While [work] runs, [set] calls [end], which has to be quick; at once if it is set already. */
    public fun <T> endingBy(end: () -> Unit, work: () -> T): T {
        synchronized(this) {
            enders += end
            if (isSet) end()
        }
        try {
            return work()
        } finally {
            synchronized(this) { enders -= end }
        }
    }
}

private const val VARIABLE = "ORT_DISABLE_TELEMETRY"

/**
 * The runtime's environment of this process, with its telemetry off.
 *
 * From 1.29 on it sends events unless the variable `ORT_DISABLE_TELEMETRY` is 1 when it is made; a call made later stops
 * all but the first. Android sets variables from within, a JVM does not: there who starts it sets the variable.
 */
internal fun quietEnvironment(): OrtEnvironment {
    setVariable(VARIABLE, "1")
    val environment = OrtEnvironment.getEnvironment(OrtLoggingLevel.ORT_LOGGING_LEVEL_ERROR)
    environment.setTelemetry(false)
    return environment
}

/** Sets a variable of this process where there is Android's `Os.setenv`; tells whether it did. */
internal fun setVariable(name: String, value: String, system: String = "android.system.Os"): Boolean = try {
    val set = Class.forName(system).getMethod("setenv", String::class.java, String::class.java, Boolean::class.java)
    set.invoke(null, name, value, true)
    true
} catch (_: ReflectiveOperationException) { // no Android, or one that refuses
    false
}
