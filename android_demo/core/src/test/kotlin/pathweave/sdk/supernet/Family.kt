package pathweave.sdk.supernet

import kotlin.math.pow

/**
 * A family of two members, and a stitch from the larger to the smaller one; at two input sizes.
 *
 * The large one passes cut points 0, 1, 3, 5 and has int8, in which alone its second block runs at both sizes; the small
 * one passes 0, 2, 4, 5.
 */
internal object Family {
    private val golden = Golden(emptyList(), 0.0)
    private val small = SampleSize(2, 2)
    val members = listOf(Member("large", listOf("a0", "a1", "a2")), Member("small", listOf("b0", "b1", "b2"), 0.5))
    val originals = listOf(
        block("a0", 0, 1, renditions = listOf(rendition("fp32"), rendition("int8"))),
        block("a1", 1, 3, renditions = listOf(rendition("fp32", anySize = false), rendition("int8"))),
        block("a2", 3, 5, renditions = listOf(rendition("fp32"), rendition("int8"))),
        block("b0", 0, 2),
        block("b1", 2, 4),
        block("b2", 4, 5),
    )
    val stitch = block("s", 1, 4, BlockKind.STITCH)
    val merged = block("m", 1, 5, BlockKind.MERGED)
    val shrunk = block("h", 1, 3, BlockKind.SHRUNK)

    fun supernet(
        blocks: List<Block> = originals + stitch + merged + shrunk,
        members: List<Member> = this.members,
        exits: List<Exit> = emptyList(),
    ): Supernet = Supernet(cuts(), blocks, exits, listOf(InputSize(small, shapes(small.height), golden)), members)

    /** Of the cut points, at a side of the input. */
    private fun shapes(side: Int) = listOf(listOf(listOf(1, side, side))) + List(5) { listOf(listOf(4)) }

    private fun cuts() = shapes(side = 4).mapIndexed { at, (shape) -> CutPoint(at, listOf(TensorSpec("cut_$at", shape))) }

    fun rendition(name: String, anySize: Boolean = true) =
        Rendition(name, "none", "0".repeat(64), 1, golden, anySize = anySize)

    /** Its MACs are ten to the power of its end. */
    fun block(
        id: String,
        start: Int,
        end: Int,
        kind: BlockKind = BlockKind.ORIGINAL,
        renditions: List<Rendition> = listOf(rendition("fp32")),
    ): Block = Block(id, start, end, kind, parameters = 0, macs = 10.0.pow(end).toLong(), renditions)
}
