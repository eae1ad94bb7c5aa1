/** From words to the ids of tokens: WordPiece and byte-pair encoding. */
package pathweave.sdk.data.kinds

/** Divides one piece of a text into tokens of a vocabulary. */
internal fun interface TokenModel {
    fun ids(piece: String): List<Int>
}

/**
 * The longest known beginning, then the longest known continuation, and so on; a word that does not end so is unknown.
 *
 * [prefix]: of continuations. Words of more than [mostCharacters] are unknown.
 */
internal class WordPiece(
    private val vocabulary: Map<String, Int>,
    private val unknown: Int,
    private val prefix: String,
    private val mostCharacters: Int,
) : TokenModel {
    override fun ids(piece: String): List<Int> {
        val ends = IntArray(piece.codePointCount(0, piece.length) + 1)
        if (ends.size - 1 > mostCharacters) return listOf(unknown)
        for (at in 1 until ends.size) ends[at] = piece.offsetByCodePoints(ends[at - 1], 1)
        val found = ArrayList<Int>()
        var start = 0
        while (start < ends.size - 1) {
            val head = if (start == 0) "" else prefix
            val end = (ends.size - 1 downTo start + 1).firstOrNull {
                head + piece.substring(ends[start], ends[it]) in vocabulary
            } ?: return listOf(unknown)
            found += vocabulary.getValue(head + piece.substring(ends[start], ends[end]))
            start = end
        }
        return found
    }
}

/** Joins the neighbours of the lowest rank until no pair has one. Pieces are bytes, each written as a letter. */
internal class BytePairs(
    private val vocabulary: Map<String, Int>,
    private val ranks: Map<Pair<String, String>, Int>,
) : TokenModel {
    private val known = object : LinkedHashMap<String, List<Int>>(16, 0.75f, true) {
        override fun removeEldestEntry(eldest: MutableMap.MutableEntry<String, List<Int>>) = size > REMEMBERED
    }

    override fun ids(piece: String): List<Int> = synchronized(known) {
        known.getOrPut(piece) { joined(piece).mapNotNull(vocabulary::get) }
    }

    private fun joined(piece: String): List<String> {
        var parts: List<String> = piece.map(Char::toString)
        while (parts.size > 1) {
            val pairs = parts.zipWithNext()
            val (pair, rank) = pairs.associateWith { ranks[it] ?: Int.MAX_VALUE }.minByOrNull { it.value } ?: break
            if (rank == Int.MAX_VALUE) break
            val next = ArrayList<String>(parts.size)
            var at = 0
            while (at < parts.size) {
                if (at + 1 < parts.size && parts[at] == pair.first && parts[at + 1] == pair.second) {
                    next += pair.first + pair.second
                    at += 2
                } else {
                    next += parts[at++]
                }
            }
            parts = next
        }
        return parts
    }

    private companion object {
        const val REMEMBERED = 4_096 // pieces
    }
}
