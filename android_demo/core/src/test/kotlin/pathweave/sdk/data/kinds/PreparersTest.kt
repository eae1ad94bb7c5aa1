package pathweave.sdk.data.kinds

import java.io.File
import kotlinx.serialization.json.Json
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertFalse
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.assertThrows
import pathweave.sdk.Contract
import pathweave.sdk.InputError
import pathweave.sdk.UsageError
import pathweave.sdk.data.seriesAt
import pathweave.sdk.get
import pathweave.sdk.items
import pathweave.sdk.numerics.DType
import pathweave.sdk.numerics.Tensor
import pathweave.sdk.supernet.SampleSize

/** Texts, sounds and values as a model takes them. */
class PreparersTest {
    private val file = Json.parseToJsonElement(File(Contract.repository, "tests/contract/tokenizers.json").readText())
        .get("tokenizers").items[0]["tokenizer"].toString().toByteArray()
    private val texts = TextPreparer(TextPreprocessing("0".repeat(64), file.size.toLong(), 8, padId = 0)) { file }

    @Test
    fun `texts are padded and their mask says how far they reach`() {
        val ids = texts.tokens(listOf("the fox", "the quick brown fox jumps over the lazy dog"))
        val tensor = texts.padded(ids, null)
        assertEquals(listOf(2, 2, 8), tensor.shape)
        assertEquals(DType.INT64, tensor.dtype)
        assertEquals(ids[0].size, (8 until 16).count { tensor[it] == 1.0 })
        assertEquals(8, (24 until 32).count { tensor[it] == 1.0 })
        assertEquals(ids[1].last().toDouble(), tensor[23])
    }

    @Test
    fun `a shorter length keeps the first tokens and the last one however it comes about`() {
        val ids = texts.tokens(listOf("the fox", "the quick brown fox"))
        val (at, cut) = texts.padded(ids, SampleSize(4)) to seriesAt(texts.padded(ids, null), 4)
        assertEquals(listOf(2, 2, 4), cut.shape)
        for (element in 0 until at.size) assertEquals(at[element], cut[element])
    }

    @Test
    fun `an empty text is refused by its number`() {
        val error = assertThrows<InputError> { texts.tokens(listOf("one", " \t")) }
        assertTrue("text 1 is empty" in error.message!!)
    }

    @Test
    fun `long sounds keep their middle and short ones are centred`() {
        val sounds = listOf(FloatArray(8) { it.toFloat() }, FloatArray(2) { 1f })
        val found = windows(sounds, SoundPreprocessing(4000, 4), null)
        assertEquals(listOf(2, 1, 4), found.shape)
        assertEquals(listOf(2f, 3f, 4f, 5f, 0f, 1f, 1f, 0f), found.floats().toList())
        assertEquals(listOf(3f, 4f, 1f, 1f), windows(sounds, SoundPreprocessing(4000, 4), SampleSize(2)).floats().toList())
    }

    @Test
    fun `a sound of no numbers is refused`() {
        for (sound in listOf(FloatArray(0), floatArrayOf(Float.NaN))) {
            assertThrows<InputError> { windows(listOf(sound), SoundPreprocessing(4000, 4), null) }
        }
        assertEquals(listOf(-1f, 0.5f), soundOf(shortArrayOf(-32768, 16384)).toList())
    }

    @Test
    fun `values are normalised by channel`() {
        val values = Tensor.of(floatArrayOf(1f, 2f, 3f, 4f), listOf(1, 2, 2))
        val how = TensorPreprocessing(listOf(1.0, 3.0), listOf(1.0, 0.5))
        assertEquals(listOf(0f, 1f, 0f, 2f), normalised(values, how).floats().toList())
        assertTrue(how.accepts(listOf(2, 7), DType.FLOAT32))
        assertFalse(how.accepts(listOf(3, 7), DType.FLOAT32))
    }

    @Test
    fun `what needs images says what the model takes`() {
        val error = assertThrows<UsageError> { SoundPreprocessing(4000, 4).ofImages() }
        assertTrue("the model takes sounds" in error.message!!)
    }
}
