/**
 * The one graph: cut points, blocks and their renditions, exits, subnets and plans.
 *
 * A pretrained model is cut where few tensors are live. Cut points are numbered 0 (input) to N (output); a block maps
 * the tensors at its start to those at its end; a subnet is a path 0 → N that names, edge by edge, a block and the
 * rendition in which it runs. These types are the ones that the manifest stores.
 */
package pathweave.sdk

/** The rendition that goes without saying. */
public const val FP32: String = "fp32"

/** What a block is. [text] is how the manifest writes it. */
public enum class BlockKind(public val text: String) {
    ORIGINAL("original"),
    MERGED("merged"),
    SHRUNK("shrunk"),
    IDENTITY("identity"),
    ;

    override fun toString(): String = text
}

/**
 * One tensor at a cut point. [shape] leaves the batch axis out.
 *
 * [low] and [high] bound most of its values on real data; seeded golden inputs are drawn between them.
 */
public data class TensorSpec(
    val name: String,
    val shape: List<Int>,
    val dtype: DType = DType.FLOAT32,
    val low: Double = 0.0,
    val high: Double = 1.0,
) {
    /** Number of elements of one sample. */
    val size: Long get() = shape.fold(1L) { product, extent -> product * extent }

    /** Bytes of one sample. */
    val nbytes: Long get() = size * dtype.bytes
}

/** A position where the model can be cut. No block may jump over a [mandatory] one. */
public data class CutPoint(val index: Int, val tensors: List<TensorSpec>, val mandatory: Boolean = false)

/**
 * What a rendition must answer to the seeded golden input of its start (docs/bundle_format.md).
 *
 * `samples[t]` are drawn elements of output tensor t, flattened; [tolerance] is absolute.
 */
public data class Golden(val samples: List<List<Double>>, val tolerance: Double)

/**
 * One executable form of a block. [shared] lists initializer-only blobs that it needs besides its own; [providers] of
 * the runtime that it is for, where not for all of them.
 */
public data class Rendition(
    val name: String,
    val runtime: String,
    val blob: String,
    val sizeBytes: Long,
    val golden: Golden,
    val shared: List<String> = emptyList(),
    val providers: List<String> = emptyList(),
)

/** An edge of the supernet from cut point [start] to cut point [end]. */
public data class Block(
    val id: String,
    val start: Int,
    val end: Int,
    val kind: BlockKind,
    val parameters: Long,
    val macs: Long,
    val renditions: List<Rendition>,
)

/** A branch that answers early from cut point [position]. */
public data class Exit(
    val id: String,
    val position: Int,
    val branch: String,
    val parameters: Long,
    val macs: Long,
    val renditions: List<Rendition>,
    val accuracy: Double? = null,
)

/** One step of a subnet: a block id and the name of one of its renditions. */
public data class Edge(val block: String, val rendition: String = FP32) {
    override fun toString(): String = if (rendition == FP32) block else "$block@$rendition"
}

/** A path 0 → N, written as explicit block ids. */
public data class Subnet(val edges: List<Edge>) {
    override fun toString(): String = edges.joinToString(" ")
}

/** An exit that a plan uses: it answers the samples whose confidence reaches [threshold]. */
public data class ExitChoice(val exit: String, val threshold: Double, val rendition: String = FP32)

/** What a device runs: a subnet and the exits it may take. */
public data class Plan(val subnet: Subnet, val exits: List<ExitChoice> = emptyList())

/**
 * The directed acyclic graph whose edges are the renditions of all blocks.
 *
 * @throws ManifestError the parts do not make a graph on which an original path 0 → N exists.
 */
public class Supernet(
    public val cutPoints: List<CutPoint>,
    public val blocks: List<Block>,
    public val exits: List<Exit> = emptyList(),
) {
    private val blocksById = blocks.associateBy { it.id }
    private val exitsById = exits.associateBy { it.id }

    /** N, the index of the last cut point. */
    public val outputIndex: Int get() = cutPoints.size - 1

    init {
        refuseUnless(cutPoints.map { it.index } == cutPoints.indices.toList()) {
            "cut points are not numbered 0 to N without gaps"
        }
        refuseUnless(outputIndex >= 1) { "there is no cut point besides the input" }
        refuseUnless(blocksById.size == blocks.size) { "two blocks have the same id" }
        cutPoints.forEach(::checkTensors)
        blocks.forEach(::checkBlock)
        refuseUnless(exitsById.size == exits.size) { "two exits have the same id" }
        exits.forEach(::checkExit)
        val starts = blocks.filter { it.kind == BlockKind.ORIGINAL }.map { it.start }.sorted()
        refuseUnless(starts == (0 until outputIndex).toList()) {
            "the original blocks do not make one path from the input to the output"
        }
    }

    /** For each cut point, the edges that leave it and the cut point that each reaches. */
    public val edgesFrom: List<List<Pair<Edge, Int>>> = run {
        val leaving = cutPoints.map { mutableListOf<Pair<Edge, Int>>() }
        for (block in blocks) {
            for (rendition in block.renditions) leaving[block.start] += Edge(block.id, rendition.name) to block.end
        }
        leaving
    }

    /** All edges, by start. */
    public val edges: List<Edge> = edgesFrom.flatMap { leaving -> leaving.map { it.first } }

    /** The path of the original blocks in their first rendition: the developer's own model. */
    public val original: Subnet = Subnet(
        blocks.filter { it.kind == BlockKind.ORIGINAL }.sortedBy { it.start }
            .map { Edge(it.id, it.renditions.first().name) },
    )

    /** The block of this id, or [UsageError]. */
    public fun block(id: String): Block = blocksById[id] ?: throw UsageError("there is no block $id")

    /** The rendition that [edge] names, or [UsageError]. */
    public fun rendition(edge: Edge): Rendition = block(edge.block).renditions.find { it.name == edge.rendition }
        ?: throw UsageError("block ${edge.block} has no rendition ${edge.rendition}")

    /** The exit of this id, or [UsageError]. */
    public fun exit(id: String): Exit = exitsById[id] ?: throw UsageError("there is no exit $id")

    /** The rendition of an exit that [choice] names, or [UsageError]. */
    public fun exitRendition(choice: ExitChoice): Rendition =
        exit(choice.exit).renditions.find { it.name == choice.rendition }
            ?: throw UsageError("exit ${choice.exit} has no rendition ${choice.rendition}")

    /** What an exit answers: `exit_<id>`, shaped like the model's own answer. */
    public fun exitTensor(exit: Exit): TensorSpec {
        val answer = cutPoints.last().tensors.last()
        return TensorSpec("exit_${exit.id}", answer.shape, low = answer.low, high = answer.high)
    }

    /** The exits at cut points that [subnet] passes, by position: a merged block jumps over some. */
    public fun exitsAlong(subnet: Subnet): List<Exit> {
        val passed = walk(subnet).map { (_, block) -> block.end }.toSet()
        return exits.filter { it.position in passed }.sortedBy { it.position }
    }

    /** Throws [UsageError] unless [subnet] is a path from the input to the output. */
    public fun check(subnet: Subnet) {
        var position = 0
        for ((edge, block) in walk(subnet)) {
            if (block.start != position) {
                throw UsageError("block ${edge.block} starts at cut point ${block.start}, not at $position")
            }
            position = block.end
        }
        if (position != outputIndex) throw UsageError("the path ends at cut point $position, not at the output")
    }

    /** Throws [UsageError] unless its subnet is a path and its exits lie on it in order, at most one at a cut point. */
    public fun checkPlan(plan: Plan) {
        check(plan.subnet)
        val along = exitsAlong(plan.subnet)
        val positions = plan.exits.map { choice ->
            exitRendition(choice)
            val exit = exit(choice.exit)
            if (exit !in along) {
                throw UsageError("the subnet does not pass cut point ${exit.position}, where exit ${exit.id} is")
            }
            exit.position
        }
        if (positions != positions.toSortedSet().toList()) {
            throw UsageError("a plan's exits follow each other, one at a cut point")
        }
    }

    /** The edges of [subnet] with their blocks, in order; [UsageError] if there is no such edge. */
    public fun walk(subnet: Subnet): List<Pair<Edge, Block>> = subnet.edges.map { edge ->
        rendition(edge)
        edge to block(edge.block)
    }

    private fun checkTensors(cut: CutPoint) {
        refuseUnless(cut.tensors.isNotEmpty()) { "cut point ${cut.index} has no tensor" }
        for (tensor in cut.tensors) {
            try {
                elements(listOf(1) + tensor.shape, tensor.dtype.bytes)
            } catch (error: InputError) {
                throw ManifestError("tensor ${tensor.name} at cut point ${cut.index}: ${error.message}", error)
            }
        }
    }

    private fun checkBlock(block: Block) {
        val (start, end) = block.start to block.end
        refuseUnless(start in 0 until end && end <= outputIndex) { "block ${block.id} runs from $start to $end" }
        // an identity skips a span of any length
        refuseUnless(block.kind == BlockKind.IDENTITY || (end - start > 1) == (block.kind == BlockKind.MERGED)) {
            "block ${block.id} is ${block.kind}, but runs from $start to $end"
        }
        checkRenditions("block ${block.id}", block.renditions)
        val jumped = cutPoints.subList(start + 1, end).find { it.mandatory }
        refuseUnless(jumped == null) { "block ${block.id} jumps over the mandatory cut point ${jumped?.index}" }
    }

    private fun checkExit(exit: Exit) {
        refuseUnless(exit.position in 1 until outputIndex) {
            "exit ${exit.id} is at cut point ${exit.position}; exits lie between 0 and $outputIndex"
        }
        checkRenditions("exit ${exit.id}", exit.renditions)
    }
}

private fun checkRenditions(owner: String, renditions: List<Rendition>) {
    refuseUnless(renditions.isNotEmpty()) { "$owner has no rendition" }
    refuseUnless(renditions.distinctBy { it.name }.size == renditions.size) { "$owner has two renditions of one name" }
}

private inline fun refuseUnless(holds: Boolean, message: () -> String) {
    if (!holds) throw ManifestError(message())
}
