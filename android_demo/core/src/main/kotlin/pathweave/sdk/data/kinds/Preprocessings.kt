/** How texts, sounds and prepared values become the tensor at cut point 0, as a manifest states it. */
package pathweave.sdk.data.kinds

import pathweave.sdk.data.AnyPreprocessing
import pathweave.sdk.numerics.DType

/**
 * A text's tokens: of a Hugging Face `tokenizer.json`, special tokens included.
 *
 * [tokenizer]: sha256 of the blob with that file, [tokenizerBytes] long. A text of more than [maxTokens] keeps the first
 * ones and the last one, which ends it; a shorter one is padded with [padId]. The model's only input is int64 [rows,
 * tokens]: token ids, attention mask and, with [typeIds], zeros.
 */
public data class TextPreprocessing(
    val tokenizer: String,
    val tokenizerBytes: Long,
    val maxTokens: Int,
    val padId: Int = 0,
    val typeIds: Boolean = false,
) : AnyPreprocessing {
    init {
        require(tokenizerBytes in 1..MAX_TOKENIZER_BYTES) { "a tokenizer has 1 to $MAX_TOKENIZER_BYTES bytes" }
        require(maxTokens in 2..MAX_TOKENS) { "a model takes 2 to $MAX_TOKENS tokens" }
        require(padId >= 0) { "an id is not below 0" }
    }

    override val samples: String get() = "texts"

    override val blobs: Map<String, Long> get() = mapOf(tokenizer to tokenizerBytes)

    /** Rows of the model's input. */
    public val rows: Int get() = if (typeIds) 3 else 2

    override fun accepts(shape: List<Int>, dtype: DType): Boolean = shape == listOf(rows, maxTokens) && dtype == DType.INT64

    private companion object {
        const val MAX_TOKENIZER_BYTES = 64_000_000L
        const val MAX_TOKENS = 8_192
    }
}

/** A window of [windowSamples] at [sampleRateHz], one channel, from −1 to 1: float32 [1, samples]. */
public data class SoundPreprocessing(val sampleRateHz: Int, val windowSamples: Int) : AnyPreprocessing {
    init {
        require(sampleRateHz in 1..MAX_RATE) { "the sampling rate lies between 1 and $MAX_RATE Hz" }
        require(windowSamples in 1..MAX_WINDOW) { "a window has 1 to $MAX_WINDOW samples" }
    }

    override val samples: String get() = "sounds"

    override fun accepts(shape: List<Int>, dtype: DType): Boolean =
        shape == listOf(1, windowSamples) && dtype == DType.FLOAT32

    private companion object {
        const val MAX_RATE = 768_000
        const val MAX_WINDOW = 1 shl 24
    }
}

/** Values [channels, …] of a sensor or of features: `(value - mean) / std` by channel; empty for values as they are. */
public data class TensorPreprocessing(val mean: List<Double> = emptyList(), val std: List<Double> = emptyList()) :
    AnyPreprocessing {
    init {
        require(mean.size == std.size) { "there are ${mean.size} means and ${std.size} deviations" }
        require((mean + std).all { it.isFinite() }) { "mean and std must be finite" }
        require(std.all { it > 0 }) { "every std must be above zero" }
    }

    override val samples: String get() = "values"

    override fun accepts(shape: List<Int>, dtype: DType): Boolean =
        dtype == DType.FLOAT32 && (mean.isEmpty() || shape.firstOrNull() == mean.size)
}
