/** Steps between a text and its words, as Hugging Face's tokenizers have them. */
package pathweave.sdk.data.kinds

import java.text.Normalizer

/** Changes a text before it is divided. */
internal fun interface TextNormaliser {
    fun normalised(text: String): String
}

/** Divides a text into pieces, each of which becomes tokens by itself. */
internal fun interface TextDivider {
    fun pieces(text: String): List<String>
}

/**
 * BERT's cleaning: control characters go, whitespace becomes a space, Chinese characters stand alone, accents are
 * stripped, capitals become small.
 */
internal class BertNormaliser(
    private val cleans: Boolean,
    private val dividesChinese: Boolean,
    private val stripsAccents: Boolean,
    private val lowers: Boolean,
) : TextNormaliser {
    override fun normalised(text: String): String {
        var found = if (cleans) cleaned(text) else text
        if (dividesChinese) found = mapped(found) { if (isChinese(it)) " ${String(Character.toChars(it))} " else null }
        if (stripsAccents) {
            found = mapped(Normalizer.normalize(found, Normalizer.Form.NFD)) { if (isAccent(it)) "" else null }
        }
        return if (lowers) lowered(found) else found
    }

    private fun cleaned(text: String) = mapped(text) {
        when {
            it == REPLACEMENT -> ""
            it == '\t'.code || it == '\n'.code || it == '\r'.code -> " " // control characters too
            isControl(it) -> ""
            isSpace(it) -> " "
            else -> null
        }
    }

    private companion object {
        const val REPLACEMENT = 0xfffd
        val CHINESE = listOf(
            0x4e00..0x9fff, 0x3400..0x4dbf, 0x20000..0x2a6df, 0x2a700..0x2b73f, 0x2b740..0x2b81f, 0x2b920..0x2ceaf,
            0xf900..0xfaff, 0x2f800..0x2fa1f,
        )

        fun isChinese(code: Int) = CHINESE.any { code in it }

        fun isAccent(code: Int) = Character.getType(code) == Character.NON_SPACING_MARK.toInt()

        fun isControl(code: Int) = when (Character.getType(code).toByte()) {
            Character.CONTROL, Character.FORMAT, Character.PRIVATE_USE, Character.SURROGATE, Character.UNASSIGNED -> true
            else -> false
        }
    }
}

/** Letter by letter: a small sigma is the same at the end of a word. */
internal fun lowered(text: String): String = mapped(text) {
    val small = Character.toLowerCase(it)
    if (it == DOTTED_I) "i\u0307" else if (small == it) null else String(Character.toChars(small))
}

private const val DOTTED_I = 0x130

/** Words between whitespace; each punctuation mark is one. */
internal object BertDivider : TextDivider {
    override fun pieces(text: String): List<String> {
        val found = ArrayList<String>()
        val word = StringBuilder()
        fun end() {
            if (word.isNotEmpty()) found += word.toString()
            word.setLength(0)
        }
        for (code in codePoints(text)) {
            if (isSpace(code)) {
                end()
            } else if (isPunctuation(code)) {
                end()
                found += String(Character.toChars(code))
            } else {
                word.appendCodePoint(code)
            }
        }
        end()
        return found
    }

    private fun isPunctuation(code: Int): Boolean = code in ASCII_MARKS.indices && ASCII_MARKS[code] ||
        when (Character.getType(code).toByte()) {
            Character.CONNECTOR_PUNCTUATION, Character.DASH_PUNCTUATION, Character.START_PUNCTUATION,
            Character.END_PUNCTUATION, Character.INITIAL_QUOTE_PUNCTUATION, Character.FINAL_QUOTE_PUNCTUATION,
            Character.OTHER_PUNCTUATION,
            -> true
            else -> false
        }

    private val ASCII_MARKS = BooleanArray(128) { it in 33..126 && !Character.isLetterOrDigit(it) }
}

/** The pieces of GPT-2's pattern, their bytes written as one letter each. */
internal class ByteDivider(private val addsSpace: Boolean, private val divides: Boolean) : TextDivider {
    override fun pieces(text: String): List<String> {
        if (text.isEmpty()) return emptyList()
        val whole = if (addsSpace && text[0] != ' ') " $text" else text
        val parts = if (divides) PATTERN.findAll(whole).map { it.value }.toList() else listOf(whole)
        return parts.map { part ->
            buildString { for (byte in part.toByteArray()) append(LETTERS[byte.toInt() and 0xff]) }
        }
    }

    private companion object {
        const val SPACE = "[\\t-\\r \\x85\\u00a0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000]"
        const val NO_SPACE = "[^\\t-\\r \\x85\\u00a0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000]"
        const val OTHER = "[^\\t-\\r \\x85\\u00a0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000\\p{L}\\p{N}]"
        val PATTERN = Regex("'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?$OTHER+|$SPACE+(?!$NO_SPACE)|$SPACE+")

        /** Printable bytes are themselves, the others follow from 256 on. */
        val LETTERS: CharArray = CharArray(256).also { letters ->
            var next = 256
            for (byte in 0..255) {
                val printable = byte in 33..126 || byte in 161..172 || byte in 174..255
                letters[byte] = if (printable) byte.toChar() else (next++).toChar()
            }
        }
    }
}

/** Unicode's property White_Space. */
internal fun isSpace(code: Int): Boolean = when (code) {
    in 0x09..0x0d, 0x20, 0x85, 0xa0, 0x1680, in 0x2000..0x200a, 0x2028, 0x2029, 0x202f, 0x205f, 0x3000 -> true
    else -> false
}

/** The code points of [text]. */
internal fun codePoints(text: String): Sequence<Int> = sequence {
    var at = 0
    while (at < text.length) {
        val code = text.codePointAt(at)
        yield(code)
        at += Character.charCount(code)
    }
}

/** [text] with each code point as [change] says; null leaves it. */
private inline fun mapped(text: String, change: (Int) -> String?): String {
    val found = StringBuilder(text.length)
    var at = 0
    while (at < text.length) {
        val code = text.codePointAt(at)
        val changed = change(code)
        if (changed == null) found.appendCodePoint(code) else found.append(changed)
        at += Character.charCount(code)
    }
    return found.toString()
}
