/** Texts, sounds and prepared values as the tensor at cut point 0. */
package pathweave.sdk.data.kinds

import pathweave.sdk.InputError
import pathweave.sdk.data.Inputs
import pathweave.sdk.data.seriesAt
import pathweave.sdk.numerics.Tensor
import pathweave.sdk.supernet.SampleSize

private const val FULL_SCALE = 32_768f // of 16-bit samples

/** Texts for a model with this preprocessing. The tokenizer is read at the first text. Thread-safe. */
internal class TextPreparer(private val preprocessing: TextPreprocessing, private val readBlob: (String) -> ByteArray) {
    private val tokenizer by lazy { Tokenizer(readBlob(preprocessing.tokenizer), preprocessing.maxTokens) }

    /** The ids of each text; none may be empty ([InputError]). */
    fun tokens(texts: List<String>): List<IntArray> = texts.mapIndexed { position, text ->
        if (text.all { isSpace(it.code) }) throw InputError("text $position is empty", "leave empty texts out")
        tokenizer.ids(text)
    }

    /** Texts as int64 [n, rows, tokens] at an input size, null for the model's own. */
    fun padded(texts: List<IntArray>, inputSize: SampleSize?): Tensor {
        val length = inputSize?.width ?: preprocessing.maxTokens
        val rows = preprocessing.rows
        val found = LongArray(texts.size * rows * length)
        texts.forEachIndexed { text, ids ->
            val (idsAt, maskAt) = text * rows * length to (text * rows + 1) * length
            val kept = if (ids.size <= length) ids else ids.copyOf(length).also { it[length - 1] = ids.last() }
            for (at in 0 until length) {
                found[idsAt + at] = (if (at < kept.size) kept[at] else preprocessing.padId).toLong()
                found[maskAt + at] = if (at < kept.size) 1L else 0L
            }
        }
        return Tensor.of(found, listOf(texts.size, rows, length))
    }
}

/** Texts that were tokenized, padded or cut when their batch is taken. */
internal class TextInputs(val texts: List<String>, private val preparer: TextPreparer) : Inputs {
    private val tokens = preparer.tokens(texts)

    override val count: Int get() = texts.size

    override fun take(positions: List<Int>, inputSize: SampleSize?): Tensor =
        preparer.padded(positions.map(tokens::get), inputSize)
}

/** Prepared texts [n, rows, tokens] of a shorter length, padded to the model's own. */
internal fun lengthened(texts: Tensor, preprocessing: TextPreprocessing): Tensor {
    val (count, rows, have) = texts.shape
    val length = preprocessing.maxTokens
    val found = LongArray(count * rows * length)
    for (row in 0 until count * rows) {
        for (at in 0 until length) {
            val padding = if (row % rows == 0) preprocessing.padId else 0
            found[row * length + at] = if (at < have) texts[row * have + at].toLong() else padding.toLong()
        }
    }
    return Tensor.of(found, listOf(count, rows, length))
}

/**
 * Sounds at the model's rate as float32 [n, 1, samples]: a longer one is cut to its middle, a shorter one is centred
 * between zeros.
 *
 * @throws InputError a sound without samples, or with values that are no numbers.
 */
internal fun windows(sounds: List<FloatArray>, preprocessing: SoundPreprocessing, inputSize: SampleSize?): Tensor {
    val length = preprocessing.windowSamples
    val all = sounds.mapIndexed { position, sound ->
        if (sound.isEmpty() || !sound.all(Float::isFinite)) {
            throw InputError(
                "sound $position has no samples, or some that are no numbers",
                "pass one channel from −1 to 1 at the model's rate of ${preprocessing.sampleRateHz} Hz",
            )
        }
        seriesAt(Tensor.of(sound, listOf(1, 1, sound.size)), length)
    }
    return seriesAt(Tensor.joined(all), inputSize?.width ?: length)
}

/** 16-bit samples from −1 to 1. */
public fun soundOf(samples: ShortArray): FloatArray = FloatArray(samples.size) { samples[it] / FULL_SCALE }

/** Values [n, channels, …] as `(value - mean) / std` by channel. */
internal fun normalised(values: Tensor, preprocessing: TensorPreprocessing): Tensor {
    if (preprocessing.mean.isEmpty()) return values
    val all = values.floats()
    val channels = values.shape[1]
    val each = all.size / values.batch / channels
    for (at in all.indices) {
        val channel = at / each % channels
        all[at] = (all[at] - preprocessing.mean[channel].toFloat()) / preprocessing.std[channel].toFloat()
    }
    return Tensor.of(all, values.shape)
}
