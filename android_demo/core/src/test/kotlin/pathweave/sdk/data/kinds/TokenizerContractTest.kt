package pathweave.sdk.data.kinds

import java.io.File
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonArray
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.JsonPrimitive
import org.junit.jupiter.api.Assertions.assertArrayEquals
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.DynamicTest
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.TestFactory
import org.junit.jupiter.api.assertThrows
import pathweave.sdk.Contract
import pathweave.sdk.InputError
import pathweave.sdk.get
import pathweave.sdk.int
import pathweave.sdk.items
import pathweave.sdk.text

/** tests/contract/tokenizers.json: texts become the same tokens as in Python. */
class TokenizerContractTest {
    private val vectors = Json.parseToJsonElement(File(Contract.repository, "tests/contract/tokenizers.json").readText())
    private val maxTokens = vectors["max_tokens"].int
    private val texts = vectors["texts"].items.map { it.text }
    private val files = vectors["tokenizers"].items.associate { it["name"].text to (it["tokenizer"] as JsonObject) }

    private fun tokenizer(file: JsonObject) = Tokenizer(file.toString().toByteArray(), maxTokens)

    @TestFactory
    fun `texts become the same tokens as in Python`() = vectors["tokenizers"].items.flatMap { case ->
        val found = tokenizer(case["tokenizer"] as JsonObject)
        texts.zip(case["ids"].items).mapIndexed { number, (text, ids) ->
            DynamicTest.dynamicTest("${case["name"].text} $number") {
                assertArrayEquals(ids.items.map { it.int }.toIntArray(), found.ids(text), text)
            }
        }
    }

    @TestFactory
    fun `what this SDK does not read is refused by name`() = listOf(
        Triple("bert", "normalizer", """{"type": "Precompiled"}""") to "the normalizer Precompiled",
        Triple("bert", "pre_tokenizer", """{"type": "Metaspace"}""") to "the pre_tokenizer Metaspace",
        Triple("bert", "pre_tokenizer", "null") to "no pre_tokenizer",
        Triple("gpt2", "post_processor", """{"type": "Sequence"}""") to "the post_processor Sequence",
        Triple("gpt2", "model", """{"type": "Unigram"}""") to "the model Unigram",
        Triple("bert", "model", """{"type": "WordPiece"}""") to "cannot be read",
    ).map { (change, said) ->
        val (name, field, value) = change
        DynamicTest.dynamicTest(said) {
            val changed = JsonObject(files.getValue(name) + (field to Json.parseToJsonElement(value)))
            val error = assertThrows<InputError> { tokenizer(changed) }
            assertTrue(said in error.message!!, error.message!!)
        }
    }

    @Test
    fun `bytes that are no tokenizer are refused`() {
        for (data in listOf("", "[]", "{}", "\u0000", "{\"model\": 3}")) {
            assertThrows<InputError>(data) { Tokenizer(data.toByteArray(), maxTokens) }
        }
    }

    @Test
    fun `a long text keeps its last token and is read no further than tokens can tell`() {
        val ids = tokenizer(files.getValue("bert")).ids("word ".repeat(1_000_000))
        assertEquals(maxTokens, ids.size)
        assertEquals(tokenizer(files.getValue("bert")).ids("").last(), ids.last())
    }

    @Test
    fun `an added token that is a word by itself is refused`() {
        val token = JsonObject(
            mapOf("content" to JsonPrimitive("x"), "id" to JsonPrimitive(1), "single_word" to JsonPrimitive(true)),
        )
        val file = files.getValue("gpt2")
        val changed = JsonObject(file + ("added_tokens" to JsonArray(listOf(token))))
        assertThrows<InputError> { tokenizer(changed) }
    }
}
