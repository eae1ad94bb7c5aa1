/** A Hugging Face `tokenizer.json` in use. */
package pathweave.sdk.data.kinds

import pathweave.sdk.InputError
import pathweave.sdk.files.JsonError
import pathweave.sdk.files.JsonPlace
import pathweave.sdk.files.decodeJson

/** A token of its own in a text, such as `[MASK]`. */
private class AddedToken(val text: String, val id: Int, val takesBefore: Boolean, val takesAfter: Boolean)

/**
 * Texts to ids of tokens, special tokens included: WordPiece with BERT's normaliser, or byte-pair encoding of bytes.
 *
 * Other tokenizers are refused by name, rather than read approximately.
 *
 * @throws InputError the file is no such tokenizer.
 */
public class Tokenizer(data: ByteArray, private val maxTokens: Int) {
    private val added: List<AddedToken>
    private val normaliser: TextNormaliser
    private val divider: TextDivider
    private val model: TokenModel
    private val before: List<Int>
    private val after: List<Int>

    init {
        try {
            val root = decodeJson(data)
            added = root.optional("added_tokens")?.items().orEmpty().map(::addedToken)
            normaliser = normaliser(root.nullable("normalizer"))
            divider = divider(root.nullable("pre_tokenizer") ?: throw unsupported("no pre_tokenizer"))
            model = model(root["model"])
            val ends = ends(root.nullable("post_processor"))
            before = ends.first
            after = ends.second
        } catch (error: JsonError) {
            throw InputError("the tokenizer cannot be read: ${error.message}", HINT)
        }
    }

    /** The ids of the tokens of [text]: at most as many as the model takes, the last one always among them. */
    public fun ids(text: String): IntArray {
        val most = CHARACTERS_PER_TOKEN * maxTokens
        val read = if (text.codePointCount(0, text.length) <= most) text else text.substring(0, text.offsetByCodePoints(0, most))
        val found = before + between(read) + after
        return if (found.size <= maxTokens) found.toIntArray() else (found.take(maxTokens - 1) + found.last()).toIntArray()
    }

    /** The ids of the parts between added tokens, and of these. */
    private fun between(text: String): List<Int> {
        val found = ArrayList<Int>()
        var start = 0
        var at = 0
        while (at < text.length) {
            val token = added.filter { text.startsWith(it.text, at) }.maxByOrNull { it.text.length }
            if (token == null) {
                at++
                continue
            }
            var end = at + token.text.length
            var begin = at
            if (token.takesBefore) while (begin > start && isSpace(text[begin - 1].code)) begin--
            if (token.takesAfter) while (end < text.length && isSpace(text[end].code)) end++
            found += ids(text, start, begin)
            found += token.id
            start = end
            at = end
        }
        return found + ids(text, start, text.length)
    }

    private fun ids(text: String, start: Int, end: Int): List<Int> =
        if (start == end) emptyList() else divider.pieces(normaliser.normalised(text.substring(start, end))).flatMap(model::ids)

    private fun addedToken(place: JsonPlace): AddedToken {
        val text = place["content"].text()
        if (place.flag("normalized") || place.flag("single_word") || text.isEmpty()) {
            throw unsupported("the added token '${text.take(40)}', which is matched after normalisation or as a word")
        }
        return AddedToken(text, place["id"].id(), place.flag("lstrip"), place.flag("rstrip"))
    }

    private fun normaliser(place: JsonPlace?): TextNormaliser {
        val kind = place?.get("type")?.text() ?: return TextNormaliser { it }
        return when (kind) {
            "BertNormalizer" -> BertNormaliser(
                cleans = place.flag("clean_text"),
                dividesChinese = place.flag("handle_chinese_chars"),
                stripsAccents = place.nullable("strip_accents")?.flag() ?: place.flag("lowercase"),
                lowers = place.flag("lowercase"),
            )
            "Lowercase" -> TextNormaliser(::lowered)
            "Sequence" -> place["normalizers"].items().map(::normaliser).let { steps ->
                TextNormaliser { text -> steps.fold(text) { found, step -> step.normalised(found) } }
            }
            else -> throw unsupported("the normalizer $kind")
        }
    }

    private fun divider(place: JsonPlace): TextDivider = when (val kind = place["type"].text()) {
        "BertPreTokenizer" -> BertDivider
        "ByteLevel" -> ByteDivider(place.flag("add_prefix_space"), place.optional("use_regex")?.flag() ?: true)
        else -> throw unsupported("the pre_tokenizer $kind")
    }

    private fun model(place: JsonPlace): TokenModel {
        val kind = place.optional("type")?.text() ?: if (place.optional("merges") != null) "BPE" else "WordPiece"
        if (kind != "WordPiece" && kind != "BPE") throw unsupported("the model $kind")
        val vocabulary = place["vocab"].entries().mapValues { it.value.id() }
        if (kind == "WordPiece") {
            if (divider !is BertDivider) throw unsupported("WordPiece of bytes")
            val unknown = place["unk_token"].text()
            return WordPiece(
                vocabulary,
                vocabulary[unknown] ?: throw unsupported("an unknown token, '${unknown.take(40)}', that has no id"),
                place.optional("continuing_subword_prefix")?.text() ?: "##",
                place.optional("max_input_chars_per_word")?.whole(least = 1, most = MOST_CHARACTERS)?.toInt() ?: 100,
            )
        }
        if (divider !is ByteDivider) throw unsupported("byte-pair encoding of characters")
        for (name in listOf("dropout", "continuing_subword_prefix", "end_of_word_suffix")) {
            if (!place.nullable(name)?.let { if (it.isText) it.text() else "x" }.isNullOrEmpty()) throw unsupported("BPE with $name")
        }
        if (place.optional("ignore_merges")?.flag() == true) throw unsupported("BPE with ignore_merges")
        return BytePairs(vocabulary, place["merges"].items().withIndex().associate { (rank, merge) -> pair(merge) to rank })
    }

    private fun pair(merge: JsonPlace): Pair<String, String> {
        val parts = if (merge.isText) merge.text().split(' ') else merge.items().map { it.text() }
        if (parts.size != 2) throw merge.wrong("two tokens")
        return parts[0] to parts[1]
    }

    /** The ids that stand before and after a text. */
    private fun ends(place: JsonPlace?): Pair<List<Int>, List<Int>> {
        val kind = place?.get("type")?.text() ?: return emptyList<Int>() to emptyList()
        return when (kind) {
            "TemplateProcessing" -> template(place)
            "BertProcessing", "RobertaProcessing" ->
                listOf(place["cls"].items()[1].id()) to listOf(place["sep"].items()[1].id())
            "ByteLevel" -> emptyList<Int>() to emptyList()
            else -> throw unsupported("the post_processor $kind")
        }
    }

    private fun template(place: JsonPlace): Pair<List<Int>, List<Int>> {
        val (before, after) = ArrayList<Int>() to ArrayList<Int>()
        var seen = false
        for (piece in place["single"].items()) {
            val special = piece.optional("SpecialToken")
            if (special == null) {
                if (seen || piece["Sequence"]["id"].text() != "A") throw unsupported("a template of several texts")
                seen = true
            } else {
                val ids = place["special_tokens"][special["id"].text()]["ids"].items().map { it.id() }
                (if (seen) after else before) += ids
            }
        }
        if (!seen) throw unsupported("a template without a text")
        return before to after
    }

    private fun unsupported(what: String) =
        InputError("the tokenizer has $what; this SDK reads WordPiece with BERT's normaliser, and BPE of bytes", HINT)

    private fun JsonPlace.flag(name: String): Boolean = optional(name)?.flag() ?: false

    private fun JsonPlace.id(): Int = whole(least = 0, most = Int.MAX_VALUE.toLong()).toInt()

    private companion object {
        const val CHARACTERS_PER_TOKEN = 64
        const val MOST_CHARACTERS = 10_000L
        const val HINT = "run the bundle with the Python SDK, or package a model with another tokenizer"
    }
}
