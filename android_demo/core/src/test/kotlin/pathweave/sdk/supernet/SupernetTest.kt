package pathweave.sdk.supernet

import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertNull
import org.junit.jupiter.api.Test
import pathweave.sdk.ManifestError
import pathweave.sdk.assertRefused
import pathweave.sdk.subnetOf
import pathweave.sdk.subnetsOf

private val SMALL = SampleSize(2, 2)

class SupernetTest {
    private val family = Family.supernet()
    private val one = Family.supernet(chain(5), members = emptyList())

    private fun chain(length: Int) = List(length) { Family.block("o$it", it, it + 1) }

    /** Its cut point 2 is a bottleneck. */
    private val narrow = listOf(Family.block("o0", 0, 1), Family.block("o1", 1, 3), Family.block("o2", 3, 4)) +
        Family.block("o3", 4, 5) + Family.block("into", 1, 2, BlockKind.ENCODER) +
        Family.block("from", 2, 3, BlockKind.DECODER)

    private fun stretches(start: Int, end: Int) = family.originalStretches(start, end).map { it.map(Block::id) }

    private fun assertRefusal(message: String, blocks: List<Block>, members: List<Member>) {
        val error = assertRefused<ManifestError> { Family.supernet(blocks, members) }
        assertEquals(message, error.message)
    }

    @Test
    fun `each member has an original path, the largest the first`() {
        assertEquals(listOf("a0 a1 a2", "b0 b1 b2"), subnetsOf(family.originals))
        assertEquals(family.originals[0], family.original)
        family.originals.forEach(family::check)
        assertEquals(Family.members, family.members)
    }

    @Test
    fun `at every input size too`() {
        assertEquals(family.originals, family.originalsAt(null))
        assertEquals(listOf("2x2: a0 a1@int8 a2", "2x2: b0 b1 b2"), subnetsOf(family.originalsAt(SMALL)))
        assertEquals("a0 a1@int8 a2", family.anySizeOriginal.toString())
        family.originalsAt(SMALL).forEach(family::check)
    }

    @Test
    fun `a stitch leads from one member to another`() {
        family.check(subnetOf("a0 s b2"))
        family.check(subnetOf("2x2: a0 s b2"))
    }

    @Test
    fun `originals lead between cut points of one member, between input and output those of each`() {
        assertEquals(listOf(listOf("a0", "a1", "a2"), listOf("b0", "b1", "b2")), stretches(0, 5))
        assertEquals(listOf(listOf("a1", "a2")), stretches(1, 5))
        assertEquals(listOf(listOf("b0", "b1")), stretches(0, 4))
        assertEquals(emptyList<List<String>>(), stretches(1, 4)) // the ends of the stitch
        assertEquals(emptyList<List<String>>(), stretches(2, 3))
    }

    @Test
    fun `a block replaces the originals of one member between its ends`() {
        for (block in Family.originals + Family.shrunk) assertEquals(1, family.replaced(block), block.id)
        assertEquals(2, family.replaced(Family.merged))
        assertEquals(3, family.replaced(Family.block("i", 0, 5, BlockKind("identity"))))
        assertNull(family.replaced(Family.stitch))
    }

    @Test
    fun `originals lead on from every cut point`() {
        val expected = listOf("a0 a1 a2", "a1 a2", "b1 b2", "a2", "b2", "")
        assertEquals(expected, List(6) { Subnet(family.originalsFrom(it)).toString() })
        val blocks = family.originalStretches(1, 5)[0]
        assertEquals("a1 a2", Subnet(family.edgesAlong(blocks)).toString())
        assertEquals("2x2: a1@int8 a2", Subnet(family.edgesAlong(blocks, SMALL)).toString())
    }

    @Test
    fun `one network is a member that has no name`() {
        assertEquals(listOf("o0 o1 o2 o3 o4"), subnetsOf(one.originals))
        assertEquals(listOf("2x2: o0 o1 o2 o3 o4"), subnetsOf(one.originalsAt(SMALL)))
        assertEquals(listOf(listOf("o1", "o2")), one.originalStretches(1, 3).map { it.map(Block::id) })
        assertEquals(3, one.replaced(Family.block("s", 1, 4, BlockKind.STITCH)))
        assertEquals(emptyList<Member>(), one.members)
    }

    @Test
    fun `a bottleneck is passed by no original path, and originals lead on from its decoder`() {
        val supernet = Family.supernet(narrow, emptyList())
        assertEquals("o0 o1 o2 o3", supernet.original.toString())
        assertEquals("from o2 o3", Subnet(supernet.originalsFrom(2)).toString())
        supernet.check(subnetOf("o0 into from o2 o3"))
    }

    @Test
    fun `a bottleneck has one encoder and one decoder`() {
        val refused = mapOf(
            narrow.dropLast(1) to "a cut point is no bottleneck and not one that just one member's original blocks pass",
            narrow - narrow[4] to "a bottleneck has not just one encoder and one decoder",
            narrow + Family.block("m", 2, 4, BlockKind.MERGED) to "block m is merged, but runs from 2 to 4",
        )
        for ((blocks, message) in refused) {
            assertRefusal(message, blocks, emptyList())
        }
    }

    @Test
    fun `two members of one name are refused`() {
        val same = Family.members.map { it.copy(name = "same") }
        assertRefusal("two members have the same name", Family.originals, same)
    }

    @Test
    fun `members that do not list each original once are refused`() {
        val (large, small) = Family.members
        for (members in listOf(
            listOf(large),
            listOf(large, small.copy(blocks = small.blocks + "a0")),
            listOf(large, small.copy(blocks = small.blocks + "c0")),
            listOf(large, small.copy(blocks = small.blocks + "s")),
            listOf(large, small.copy(blocks = small.blocks.dropLast(1))),
        )) {
            val blocks = Family.originals + Family.stitch
            assertRefusal("the members do not list each original block once", blocks, members)
        }
    }

    @Test
    fun `originals that do not make one path are refused`() {
        val message = "the original blocks do not make one path from the input to the output"
        val (large, small) = Family.members
        val exchanged = listOf(Member("large", listOf("a0", "a1", "b2")), Member("small", listOf("b0", "b1", "a2")))
        assertRefusal(message, Family.originals, exchanged)
        assertRefusal(message, Family.originals, listOf(large.copy(blocks = large.blocks.asReversed()), small))
        assertRefusal(message, Family.originals, Family.members + Member("none", emptyList()))
        assertRefusal(message, Family.originals, listOf(Member("none", emptyList()))) // lists nothing at all
        assertRefusal(message, Family.originals, emptyList())
        assertRefusal(message, chain(4), emptyList())
    }

    @Test
    fun `an inner cut point of two members, or of none, is refused`() {
        val message = "a cut point is no bottleneck and not one that just one member's original blocks pass"
        val shared = chain(5) + listOf(Family.block("b0", 0, 2), Family.block("b1", 2, 5))
        assertRefusal(message, shared, listOf(Member("a", chain(5).map { it.id }), Member("b", listOf("b0", "b1"))))
        val jumping = listOf(Family.block("o0", 0, 2), Family.block("o2", 2, 5))
        assertRefusal(message, jumping, emptyList())
    }

    @Test
    fun `what a block replaces has to fit its kind`() {
        for ((kind, ends) in listOf(
            BlockKind.SHRUNK to listOf(1 to 4, 1 to 5),
            BlockKind.MERGED to listOf(1 to 4, 1 to 3),
        )) {
            for ((start, end) in ends) {
                val message = "block x is $kind, but runs from $start to $end"
                assertRefusal(message, Family.originals + Family.block("x", start, end, kind), Family.members)
            }
        }
        Family.supernet(Family.originals + Family.block("x", 1, 4, BlockKind("unknown"))).check(subnetOf("a0 x b2"))
    }

    @Test
    fun `a block that leads back is refused, also an original`() {
        val back = listOf(Family.block("o0", 0, 2), Family.block("o1", 2, 1), Family.block("o2", 1, 5))
        val between = List(2) { Family.block("p$it", 3 * it, 3 + it) } + Family.block("p2", 4, 5)
        val members = listOf(back, between).mapIndexed { at, blocks -> Member("$at", blocks.map { it.id }) }
        val shrunk = Family.block("h", 1, 2, BlockKind.SHRUNK)
        assertRefusal("block o1 runs from 2 to 1", listOf(shrunk) + back + between, members)
    }
}
