/** The runtime port: loads a stretch of blocks and runs it. Adapters stand beside this file. */
package pathweave.sdk.runtimes

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

    /**
     * Make [stretch] ready to run.
     *
     * @throws RuntimeFailedError the runtime refused the model.
     * @throws CompositionError the fragments do not make one model.
     */
    public fun load(stretch: Stretch): LoadedStretch
}
