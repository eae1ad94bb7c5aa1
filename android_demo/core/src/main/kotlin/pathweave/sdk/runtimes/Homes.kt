/** Several homes of one runtime: each part of a stretch runs where its plan says. */
package pathweave.sdk.runtimes

import pathweave.sdk.RuntimeFailedError
import pathweave.sdk.UsageError
import pathweave.sdk.bundles.Stretch
import pathweave.sdk.numerics.Tensor
import pathweave.sdk.supernet.Home
import pathweave.sdk.supernet.PROVIDERS

/**
 * Runs each stretch at its home, and stretches with parts one after the other: a session per run of equal home.
 *
 * [runtimes]: by home, the first of which runs what names no home, or the first that its renditions are for. [engine]:
 * name, version and settings that all of them share.
 *
 * @throws UsageError there is no home.
 */
public class HomesRuntime(private val runtimes: Map<Home, Runtime>, private val engine: String) : Runtime {
    private val byName = runtimes.entries.associate { (home, runtime) -> "$home" to runtime }

    init {
        if (runtimes.isEmpty()) throw UsageError("there is no home", "name one, such as cpu-1t")
    }

    /** The names of the homes, the first one first. */
    public val homes: List<String> get() = byName.keys.toList()

    /** For example `onnxruntime-1.26.0[cpu-1t,cpu-2t]`. */
    override val identity: String get() = "$engine[${homes.joinToString(",")}]"

    /** That of the home with the fewest. */
    override val concurrency: Int get() = byName.values.minOf { it.concurrency }

    /** Of what names no home. */
    override val waitsForThreads: Boolean get() = runtimes.values.first().waitsForThreads

    /** @throws RuntimeFailedError also if the home is not open. */
    override fun load(stretch: Stretch): LoadedStretch {
        if (stretch.parts.isEmpty()) return at(stretch).load(stretch)
        val loaded = mutableListOf<LoadedStretch>()
        try {
            for (part in stretch.parts) loaded += at(part).load(part)
        } catch (error: Throwable) {
            loaded.forEach { it.close() }
            throw error
        }
        return ChainedStretch(loaded)
    }

    private fun at(stretch: Stretch): Runtime {
        if (stretch.home.isNotEmpty()) {
            return byName[stretch.home] ?: throw RuntimeFailedError(
                "the plan runs blocks at ${stretch.home}, which is not open here",
                hint = "open the bundle with homes that include it; open: ${homes.joinToString(", ")}",
            )
        }
        val able = runtimes.entries.find { (home, _) ->
            stretch.providers.isEmpty() || PROVIDERS.getValue(home.provider) in stretch.providers
        }
        return able?.value
            ?: throw RuntimeFailedError("no home here runs blocks for ${stretch.providers.joinToString(" or ")}")
    }
}

/** Stretches that run one after the other, the outputs of one being the inputs of the next. */
internal class ChainedStretch(private val stretches: List<LoadedStretch>) : LoadedStretch {
    override fun run(inputs: List<Tensor>): List<Tensor> = stretches.fold(inputs) { live, stretch -> stretch.run(live) }

    override fun runUntil(inputs: List<Tensor>, stop: StopSignal): List<Tensor>? =
        stretches.fold<LoadedStretch, List<Tensor>?>(inputs) { live, stretch -> live?.let { stretch.runUntil(it, stop) } }

    override fun close(): Unit = stretches.forEach { it.close() }
}
