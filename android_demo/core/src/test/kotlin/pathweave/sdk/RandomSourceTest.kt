package pathweave.sdk

import java.math.BigInteger
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.DynamicTest
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.TestFactory
import org.junit.jupiter.api.assertThrows

class RandomSourceTest {
    @TestFactory
    fun `a seed gives the same stream everywhere`() = Contract.vectors["random"].items.map { stream ->
        DynamicTest.dynamicTest("seed ${stream["seed"].text}") {
            val seed = stream["seed"].seed
            val words = SplitMix64(seed)
            assertEquals(stream["words"].texts, stream["words"].items.map { words.next().toULong().toString() })
            val doubles = SplitMix64(seed)
            assertEquals(
                stream["uniform"].items.map { Double.fromBits(it.text.toULong(16).toLong()) },
                stream["uniform"].items.map { doubles.uniform() },
            )
            val floats = stream["uniform_floats"].floats
            assertEquals(floats, uniformFloats(seed, floats.size).toList())
            assertEquals(stream["shuffled"].items.map { it.int }, SplitMix64(seed).shuffled((0 until 10).toList()))
            for (below in stream["below"].items) {
                val random = SplitMix64(seed)
                val bound = BigInteger(below["bound"].text)
                assertEquals(below["values"].texts, below["values"].items.map { random.below(bound).toString() })
            }
        }
    }

    @Test
    fun `nothing is below zero`() {
        assertThrows<IllegalArgumentException> { SplitMix64(1).below(0) }
    }
}
