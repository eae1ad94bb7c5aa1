/** Homes: where a rendition may run on a device. A home is a provider of the runtime with a number of threads. */
package pathweave.sdk.supernet

import pathweave.sdk.UsageError

/** Short names of providers, as plans have them, with those of ONNX Runtime. */
public val PROVIDERS: Map<String, String> = mapOf(
    "cpu" to "CPUExecutionProvider",
    "xnnpack" to "XnnpackExecutionProvider",
    "cuda" to "CUDAExecutionProvider",
    "tensorrt" to "TensorrtExecutionProvider",
    "openvino" to "OpenVINOExecutionProvider",
    "qnn" to "QNNExecutionProvider",
    "nnapi" to "NnapiExecutionProvider",
    "coreml" to "CoreMLExecutionProvider",
)

internal const val CPU = "cpu"
private const val MOST_THREADS = 256
private const val SHOWN_CHARACTERS = 64
private val HOME_TEXT = Regex("([a-z0-9]{1,24})-([1-9][0-9]{0,2})t(?:-([a-z]{1,16}))?")

/**
 * One home: a short name of [PROVIDERS], a number of threads, and a cluster of cores.
 *
 * [cluster]: a name of the machine's, such as `big`; empty for any core.
 */
public data class Home(val provider: String = CPU, val threads: Int = 1, val cluster: String = "") {
    /** True if it is a set of threads of the processor, without a provider of its own. */
    public val onProcessor: Boolean get() = provider == CPU

    override fun toString(): String = "$provider-${threads}t" + if (cluster.isEmpty()) "" else "-$cluster"

    public companion object {
        /**
         * The home that [toString] writes as [text], such as `cpu-2t` or `cpu-4t-big`.
         *
         * @throws UsageError it is none, or its provider has no short name.
         */
        public fun parse(text: String): Home {
            val (provider, digits, cluster) = HOME_TEXT.matchEntire(text)?.destructured ?: throw noHome(text)
            val threads = digits.toInt()
            if (provider !in PROVIDERS || threads > MOST_THREADS) throw noHome(text)
            return Home(provider, threads, cluster)
        }

        private fun noHome(text: String) = UsageError(
            "'${text.take(SHOWN_CHARACTERS)}' is no home",
            "write PROVIDER-THREADSt, such as cpu-2t; providers: ${PROVIDERS.keys.joinToString(", ")}",
        )
    }
}
