/** SplitMix64: the project's one random generator, the same bits in Python and Kotlin. */
package pathweave.sdk

import java.math.BigInteger

private const val GAMMA = -0x61c8864680b583ebL // 0x9E3779B97F4A7C15
private const val FIRST_FACTOR = -0x40a7b892e31b1a47L // 0xBF58476D1CE4E5B9
private const val SECOND_FACTOR = -0x6b2fb644ecceee15L // 0x94D049BB133111EB
private const val WORD_BITS = 64

/**
 * A stream of 64-bit integers from a 64-bit seed.
 *
 * Source: Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014. Not for several threads.
 */
public class SplitMix64(seed: Long) {
    private var state = seed

    /** The next word; its bits are those of an unsigned integer. */
    public fun next(): Long {
        state += GAMMA
        var z = state
        z = (z xor (z ushr 30)) * FIRST_FACTOR
        z = (z xor (z ushr 27)) * SECOND_FACTOR
        return z xor (z ushr 31)
    }

    /**
     * A uniform integer in [0, [bound]) for a bound of any size.
     *
     * Takes as many words as `bound - 1` has, most significant first, keeps the lowest bits that are needed, and draws
     * again while the result is not below [bound].
     */
    public fun below(bound: BigInteger): BigInteger {
        require(bound.signum() > 0) { "bound must be positive" }
        val bits = (bound - BigInteger.ONE).bitLength()
        val words = (bits + WORD_BITS - 1) / WORD_BITS
        val lowest = BigInteger.ONE.shiftLeft(bits) - BigInteger.ONE
        while (true) { // ends: at least half of all draws are below the bound
            var value = BigInteger.ZERO
            repeat(words) { value = value.shiftLeft(WORD_BITS).or(unsigned(next())) }
            value = value.and(lowest)
            if (value < bound) return value
        }
    }

    /** A uniform integer in [0, [bound]). */
    public fun below(bound: Int): Int = below(BigInteger.valueOf(bound.toLong())).toInt()

    /** A double in [0, 1) with 53 random bits. */
    public fun uniform(): Double = (next() ushr 11) * (1.0 / (1L shl 53))

    /** [items] in random order (Fisher and Yates, from the end). */
    public fun <T> shuffled(items: List<T>): List<T> {
        val result = items.toMutableList()
        for (last in result.lastIndex downTo 1) {
            val other = below(last + 1)
            result[last] = result[other].also { result[other] = result[last] }
        }
        return result
    }
}

/** [count] float32 values in [0, 1): the top 24 bits of the first words of `SplitMix64(seed)`, exactly. */
public fun uniformFloats(seed: Long, count: Int): FloatArray {
    val random = SplitMix64(seed)
    return FloatArray(count) { (random.next() ushr 40).toFloat() * (1f / (1 shl 24)) }
}

private fun unsigned(word: Long): BigInteger {
    val low = BigInteger.valueOf(word and Long.MAX_VALUE)
    return if (word < 0) low.setBit(WORD_BITS - 1) else low
}
