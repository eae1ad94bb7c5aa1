/** A model at a server, and the privacy setting for it. Mirrors device_sdk/offload/remote_model.py. */
package pathweave.sdk.offload

import pathweave.sdk.UsageError

private const val MAX_TIMEOUT_S = 3600.0

/** What may be sent to a server, from nothing to the samples themselves. As text `never`, `activations`, `inputs`. */
public enum class Privacy {
    NEVER,

    /** Intermediate activations, not the samples. */
    ACTIVATIONS,

    /** The samples too. */
    INPUTS,
    ;

    override fun toString(): String = name.lowercase()

    /** Whether activations at cut point [position] may be sent; those at 0 are the samples. */
    internal fun allows(position: Int): Boolean = this == INPUTS || this == ACTIVATIONS && position > 0
}

/**
 * A model at a server, and what may be sent to it.
 *
 * [server]: the URL before `/v2`. [timeoutS]: for all samples of a call together. [maxBatch]: samples per request.
 *
 * @throws UsageError a value is out of range.
 */
public class RemoteModel(
    public val server: String,
    public val model: String,
    internal val token: String? = null,
    public val privacy: Privacy = Privacy.NEVER,
    public val timeoutS: Double = 1.0,
    public val maxBatch: Int = 64,
) {
    init {
        if (server.isEmpty() || model.isEmpty()) {
            throw UsageError("a remote model needs a server and the name of a model there")
        }
        if (!(timeoutS > 0 && timeoutS <= MAX_TIMEOUT_S)) {
            throw UsageError("timeoutS is $timeoutS; it must be above 0 and at most ${MAX_TIMEOUT_S.toInt()}")
        }
        if (maxBatch < 1) throw UsageError("maxBatch is $maxBatch; it must be at least 1")
    }

    override fun toString(): String = "RemoteModel($model at $server, privacy $privacy)" // without the token
}
