/** A model at a server, and the privacy setting for it. Mirrors device_sdk/offload/remote_model.py. */
package pathweave.sdk.offload

import pathweave.sdk.UsageError
import pathweave.sdk.data.Image

private const val MAX_TIMEOUT_S = 3600.0
private const val JPEG_QUALITY = 90
private val JPEG_QUALITIES = 1..95

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
 * Encodes images as JPEGs: Android and the desktop have an encoder each, and share none. Called from several threads.
 */
public fun interface JpegEncoder {
    /** [image], of 1 or 3 channels, as a JPEG of this [quality], 1 to 95. */
    public fun encode(image: Image, quality: Int): ByteArray
}

/**
 * A model at a server, and what may be sent to it.
 *
 * [server]: the URL before `/v2`. [timeoutS]: for all samples of a call together. [maxBatch]: samples per request.
 * [jpegQuality]: 1 to 95, for a model that takes JPEGs (`NAME:jpeg`), which [jpegEncoder] makes; the accuracy of a plan
 * holds for the quality, and the encoder, with which it was measured. [pool]: how its answers to hard samples are pooled
 * with the device's own; null: they replace them. [share]: of the samples that reach the end of a plan that asks, kept
 * by moving its decider's limit; null: the limit stays.
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
    public val jpegQuality: Int = JPEG_QUALITY,
    public val jpegEncoder: JpegEncoder? = null,
    public val pool: LogarithmicPool? = null,
    public val share: Double? = null,
) {
    init {
        if (server.isEmpty() || model.isEmpty()) {
            throw UsageError("a remote model needs a server and the name of a model there")
        }
        if (!(timeoutS > 0 && timeoutS <= MAX_TIMEOUT_S)) {
            throw UsageError("timeoutS is $timeoutS; it must be above 0 and at most ${MAX_TIMEOUT_S.toInt()}")
        }
        if (share != null && !(share in 0.0..1.0)) throw UsageError("the share $share is not between 0 and 1")
        if (jpegQuality !in JPEG_QUALITIES) throw UsageError("the JPEG quality is $jpegQuality; it must be from 1 to 95")
        if (maxBatch < 1) throw UsageError("maxBatch is $maxBatch; it must be at least 1")
    }

    override fun toString(): String = "RemoteModel($model at $server, privacy $privacy)" // without the token
}
