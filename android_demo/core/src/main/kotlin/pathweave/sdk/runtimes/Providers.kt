/** Providers of ONNX Runtime's Java API: their options, and what ran where. */
package pathweave.sdk.runtimes

import ai.onnxruntime.OrtEnvironment
import ai.onnxruntime.OrtSession
import ai.onnxruntime.providers.NNAPIFlags
import java.io.File
import java.io.IOException
import java.util.EnumSet
import pathweave.sdk.RuntimeFailedError
import pathweave.sdk.files.JsonError
import pathweave.sdk.files.decodeJson
import pathweave.sdk.files.unique
import pathweave.sdk.supernet.CPU
import pathweave.sdk.supernet.Home
import pathweave.sdk.supernet.PROVIDERS

private const val HTP_LIBRARY = "libQnnHtp.so"
private const val PROFILE = "pathweave-profile."
private const val LEFT_MS = 3_600_000L

/**
 * What a provider is to this SDK.
 *
 * [oneSample]: its sessions take one sample at a time, since it compiles for fixed shapes. [relativeTolerance] of its
 * answers, over the largest magnitude among the golden ones of a block. [add]: to the options of a session.
 */
internal class OnnxProvider(
    short: String,
    val oneSample: Boolean = false,
    val relativeTolerance: Double = 1e-2,
    val add: (OrtSession.SessionOptions, Home) -> Unit,
) {
    /** As ONNX Runtime writes it. */
    val name: String = PROVIDERS.getValue(short)
}

/** By short name, those that a JVM's or a phone's ONNX Runtime may have. Options are those of Python's `providers.py`. */
private val KNOWN: Map<String, OnnxProvider> = mapOf(
    CPU to OnnxProvider(CPU) { _, _ -> },
    "xnnpack" to OnnxProvider("xnnpack") { options, home ->
        options.addXnnpack(mapOf("intra_op_num_threads" to home.threads.toString()))
    },
    "nnapi" to OnnxProvider("nnapi", oneSample = true) { options, _ ->
        options.addNnapi(EnumSet.of(NNAPIFlags.CPU_DISABLED)) // its own stand-in for the processor is slow
    },
    "qnn" to OnnxProvider("qnn", oneSample = true, relativeTolerance = 3e-2) { options, _ ->
        options.addQnn(mapOf("backend_path" to HTP_LIBRARY, "enable_htp_fp16_precision" to "1"))
    },
)

/** Name and version of the runtime, which all homes share. */
internal fun engineIdentity(): String = "onnxruntime-${quietEnvironment().version}"

/** Short names of the providers that ONNX Runtime was built with here. */
public fun availableProviders(): List<String> {
    val built = OrtEnvironment.getAvailableProviders().map { it.getName() }
    return KNOWN.filterValues { it.name in built }.keys.toList()
}

/** See [OnnxProvider]. */
internal fun relativeToleranceOf(provider: String): Double = KNOWN.getValue(provider).relativeTolerance

/**
 * The provider of [home].
 *
 * @throws RuntimeFailedError ONNX Runtime was not built with it, or the home names a cluster of cores.
 */
internal fun providerOf(home: Home, available: List<String> = availableProviders()): OnnxProvider {
    if (home.provider !in available) {
        val hint = "it has ${available.joinToString(", ") { PROVIDERS.getValue(it) }}"
        throw RuntimeFailedError("ONNX Runtime has no ${PROVIDERS[home.provider] ?: home.provider} here", hint = hint)
    }
    if (home.cluster.isNotEmpty()) {
        val hint = "threads are not bound to cores here: open ${home.copy(cluster = "")}"
        throw RuntimeFailedError("$home names a cluster of cores", hint = hint)
    }
    return KNOWN.getValue(home.provider)
}

/**
 * What one run of a session ran: its kernels by provider and operator.
 *
 * [byProvider]: a part that a provider compiled counts as one kernel. [wanted]: the provider
 * that should run them.
 */
internal class Kernels(private val byProvider: Map<String, Map<String, Int>>, private val wanted: String) {
    /** How many there are; 0 where the runtime does not tell. */
    val count: Int get() = byProvider.values.sumOf { it.values.sum() }

    /** How many the wanted provider ran. */
    val assigned: Int get() = byProvider[wanted].orEmpty().values.sum()

    /** By operator, how many others ran. */
    val refused: Map<String, Int>
        get() = byProvider.filterKeys { it != wanted }.values.flatMap { it.entries }
            .groupingBy { it.key }.fold(0) { sum, (_, number) -> sum + number }

    companion object {
        /** Where the runtime does not tell. */
        val UNKNOWN: Kernels = Kernels(emptyMap(), "")

        /** Of a profile as ONNX Runtime writes it; none where it cannot be read. */
        fun of(profile: ByteArray, wanted: String): Kernels = try {
            val found = mutableMapOf<String, MutableMap<String, Int>>()
            for (event in decodeJson(profile).items()) {
                if (event.optional("cat")?.text() != "Node" || !event["name"].text().endsWith("_kernel_time")) continue
                val operators = found.getOrPut(event["args"]["provider"].text()) { mutableMapOf() }
                operators.merge(event["args"]["op_name"].text(), 1, Int::plus)
            }
            Kernels(found, wanted)
        } catch (_: JsonError) {
            UNKNOWN
        }
    }
}

/**
 * Watches the first run of a session at [home], of which the runtime writes a profile, for what ran where.
 *
 * The Java API does not tell where nodes are assigned. The first run alone is slower for it, and other runs wait for its
 * end.
 */
internal class FirstRun(private val home: Home, private val provider: OnnxProvider) {
    private var failure: RuntimeFailedError? = null // guarded by this

    /** What ran where; null until the first run has ended. */
    @Volatile
    var kernels: Kernels? = null
        private set

    /** Have a session with [options] write a profile. */
    fun watch(options: OrtSession.SessionOptions) {
        removeLeft()
        options.enableProfiling(File(temporaries(), PROFILE + unique()).path)
    }

    /**
     * [run] on [session]; the first one ends with a look at what ran it.
     *
     * @throws RuntimeFailedError the provider ran nothing: the processor ran it all, slowly or by surprise.
     */
    fun <T> on(session: OrtSession, run: () -> T): T {
        if (kernels != null && failure == null) return run()
        return synchronized(this) {
            failure?.let { throw it }
            run().also { if (kernels == null) look(session) }
        }
    }

    /** End the watching of a [session] that never ran. */
    fun end(session: OrtSession): Unit = synchronized(this) {
        if (kernels == null) File(session.endProfiling()).delete()
    }

    private fun look(session: OrtSession) {
        val found = Kernels.of(taken(File(session.endProfiling())), provider.name)
        if (found.count > 0 && found.assigned == 0) {
            failure = RuntimeFailedError(
                "$home runs none of the ${found.count} kernels of the model: the processor runs them all",
                hint = "open the bundle at a home of the processor, such as cpu-${home.threads}t",
            )
        }
        kernels = found
        failure?.let { throw it }
    }

    private fun taken(profile: File): ByteArray = try {
        profile.readBytes().also { profile.delete() }
    } catch (_: IOException) {
        ByteArray(0)
    }

    /** Profiles of processes that were killed, which run no more after an hour. */
    private fun removeLeft() {
        val before = System.currentTimeMillis() - LEFT_MS
        temporaries().listFiles().orEmpty()
            .filter { it.name.startsWith(PROFILE) && it.lastModified() < before }.forEach { it.delete() }
    }

    private fun temporaries() = File(System.getProperty("java.io.tmpdir"))
}
