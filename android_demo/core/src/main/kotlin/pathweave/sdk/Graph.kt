/**
 * The one graph: cut points, blocks and their renditions, input sizes, exits, subnets and plans.
 *
 * A pretrained model is cut where few tensors are live. Cut points are numbered 0 (input) to N (output); a block maps
 * the tensors at its start to those at its end; a subnet is a path 0 → N that names, edge by edge, a block, the
 * rendition in which it runs and the input size of the path. These types are the ones that the manifest stores.
 *
 * The input size is a dimension of the path: the graph has one copy of the inner cut points per input size, and all
 * copies share the input and the output. Algorithms on paths see nodes and edges only and need no notion of sizes.
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
 * An input of another size than the model's own, at which the same fragments run.
 *
 * `shapes[k][n]`: of tensor n at cut point k; [golden]: what the original path answers to the golden input of this
 * size.
 */
public data class InputSize(val size: ImageSize, val shapes: List<List<List<Int>>>, val golden: Golden)

/**
 * What a rendition must answer to the seeded golden input of its start (docs/bundle_format.md).
 *
 * `samples[t]` are drawn elements of output tensor t, flattened; [tolerance] is absolute.
 */
public data class Golden(val samples: List<List<Double>>, val tolerance: Double)

/**
 * One executable form of a block. [shared] lists initializer-only blobs that it needs besides its own; [providers] of
 * the runtime that it is for, where not for all of them. [anySize]: it runs at every input size of the bundle, not only
 * at the model's own.
 */
public data class Rendition(
    val name: String,
    val runtime: String,
    val blob: String,
    val sizeBytes: Long,
    val golden: Golden,
    val shared: List<String> = emptyList(),
    val providers: List<String> = emptyList(),
    val anySize: Boolean = false,
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

/**
 * One step of a subnet: a block id, the name of one of its renditions, and the input size of the subnet.
 *
 * [inputSize]: of the images at cut point 0; null for the model's own.
 */
public data class Edge(val block: String, val rendition: String = FP32, val inputSize: ImageSize? = null) {
    internal val withoutSize: String get() = if (rendition == FP32) block else "$block@$rendition"

    /** The same block and rendition at another input size. */
    public fun at(inputSize: ImageSize?): Edge = copy(inputSize = inputSize)

    override fun toString(): String = if (inputSize == null) withoutSize else "$withoutSize:$inputSize"
}

/** A path 0 → N, written as explicit block ids. All edges have one input size. */
public data class Subnet(val edges: List<Edge>) {
    /** Of the images that it takes; null for the model's own. */
    val inputSize: ImageSize? get() = edges.firstOrNull()?.inputSize

    /** The same blocks and renditions at another input size. */
    public fun at(inputSize: ImageSize?): Subnet = Subnet(edges.map { it.at(inputSize) })

    override fun toString(): String {
        val names = edges.joinToString(" ") { it.withoutSize }
        return if (inputSize == null) names else "$inputSize: $names"
    }
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
    /** Besides the model's own. */
    public val inputSizes: List<InputSize> = emptyList(),
) {
    private val blocksById = blocks.associateBy { it.id }
    private val exitsById = exits.associateBy { it.id }

    /** The input sizes of edges: the model's own, written as null, then the others. */
    public val sizes: List<ImageSize?> = listOf(null) + inputSizes.map { it.size }

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
        checkInputSizes(this)
    }

    private val sizeNumbers = sizes.withIndex().associate { (number, size) -> size to number }
    private val cutPointsBySize = sizes.zip(listOf(cutPoints) + inputSizes.map(::resized)).toMap()

    /**
     * Nodes of the graph: input, output, and the inner cut points once per input size, in topological order.
     *
     * With one input size, node k is cut point k.
     */
    public val nodeCount: Int get() = sizes.size * (outputIndex - 1) + 2

    /** The last node. */
    public val outputNode: Int get() = nodeCount - 1

    /** For each node, the edges that leave it and the node that each reaches. */
    public val edgesFrom: List<List<Pair<Edge, Int>>> = run {
        val leaving = List(nodeCount) { mutableListOf<Pair<Edge, Int>>() }
        for (size in sizes) {
            for (block in blocks) {
                val (start, end) = node(block.start, size) to node(block.end, size)
                for (rendition in block.renditions) {
                    if (size == null || rendition.anySize) leaving[start] += Edge(block.id, rendition.name, size) to end
                }
            }
        }
        leaving
    }

    /** All edges, by the node that they leave. */
    public val edges: List<Edge> = edgesFrom.flatMap { leaving -> leaving.map { it.first } }

    /** The path of the original blocks in their first rendition at the model's own size: the developer's model. */
    public val original: Subnet = Subnet(originals().map { Edge(it.id, it.renditions.first().name) })

    /**
     * The path of the original blocks in their first renditions that run at every input size.
     *
     * The same as [original] where there is only one size.
     */
    public val anySizeOriginal: Subnet = Subnet(
        originals().map { block ->
            Edge(block.id, block.renditions.first { it.anySize || inputSizes.isEmpty() }.name)
        },
    )

    /** By tensor, the axes (0 is the batch) whose extents differ between the input sizes. */
    internal val freeAxes: Map<String, Set<Int>> = run {
        val found = mutableMapOf<String, Set<Int>>()
        for (cut in if (inputSizes.isEmpty()) emptyList() else cutPoints) {
            for ((number, spec) in cut.tensors.withIndex()) {
                val others = inputSizes.map { it.shapes[cut.index][number] }
                val free = spec.shape.indices.filter { axis -> others.any { it[axis] != spec.shape[axis] } }
                found[spec.name] = free.map { it + 1 }.toSet()
            }
        }
        found
    }

    /** The node of cut point [position] on paths of this input size; [UsageError] where there are none. */
    public fun node(position: Int, inputSize: ImageSize? = null): Int {
        val number = sizeNumbers[inputSize] ?: throw UsageError("the bundle has no input size $inputSize")
        return when (position) {
            0 -> 0
            outputIndex -> outputNode
            else -> number * (outputIndex - 1) + position
        }
    }

    /** The cut points with the shapes of their tensors at this input size; [UsageError] if there is no such size. */
    public fun cutPointsAt(inputSize: ImageSize?): List<CutPoint> =
        cutPointsBySize[inputSize] ?: throw UsageError("the bundle has no input size $inputSize")

    /** The cut points that [edge] leads from and to, at its input size. */
    public fun ends(edge: Edge): Pair<CutPoint, CutPoint> {
        val (block, cuts) = block(edge.block) to cutPointsAt(edge.inputSize)
        return cuts[block.start] to cuts[block.end]
    }

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
        val usable = exits.filter { subnet.inputSize == null || it.renditions.runAtAnySize() }
        return usable.filter { it.position in passed }.sortedBy { it.position }
    }

    /** Throws [UsageError] unless [subnet] is a path from the input to the output. */
    public fun check(subnet: Subnet) {
        var position = 0
        cutPointsAt(subnet.inputSize)
        for ((edge, block) in walk(subnet)) {
            if (edge.inputSize != null && !rendition(edge).anySize) {
                throw UsageError("block ${edge.block}@${edge.rendition} runs only at the model's own input size")
            }
            if (edge.inputSize != subnet.inputSize) {
                throw UsageError("block ${edge.block} runs at another input size than those before it")
            }
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
            val (rendition, exit) = exitRendition(choice) to exit(choice.exit)
            if (plan.subnet.inputSize != null && !rendition.anySize) {
                throw UsageError("exit ${exit.id}@${rendition.name} runs only at the model's own input size")
            }
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

    private fun originals(): List<Block> = blocks.filter { it.kind == BlockKind.ORIGINAL }.sortedBy { it.start }

    private fun resized(to: InputSize): List<CutPoint> = cutPoints.zip(to.shapes) { cut, shapes ->
        cut.copy(tensors = cut.tensors.zip(shapes) { spec, shape -> spec.copy(shape = shape) })
    }

    private fun checkTensors(cut: CutPoint) {
        refuseUnless(cut.tensors.isNotEmpty()) { "cut point ${cut.index} has no tensor" }
        for (tensor in cut.tensors) checkShape(tensor, tensor.shape, cut)
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

/** What the other input sizes state has to fit the cut points, which were checked before. */
private fun checkInputSizes(supernet: Supernet) {
    val (cuts, found) = supernet.cutPoints to supernet.inputSizes
    val input = cuts[0].tensors[0].shape
    val sides = found.map { listOf(it.size.height, it.size.width) }
    refuseUnless((sides + listOf(input.drop(1))).distinct().size > sides.size) {
        "an input size is listed twice, or is the model's own"
    }
    for (one in found) {
        refuseUnless(one.shapes.map { it.size } == cuts.map { it.tensors.size }) {
            "the input size ${one.size} does not give one shape per tensor of every cut point"
        }
        for ((cut, shapes) in cuts.zip(one.shapes)) {
            refuseUnless(cut.tensors.zip(shapes).all { (spec, shape) -> spec.shape.size == shape.size }) {
                "at the input size ${one.size} a tensor of cut point ${cut.index} has other axes"
            }
            for ((spec, shape) in cut.tensors.zip(shapes)) checkShape(spec, shape, cut)
        }
        val ends = one.shapes.first().first() to one.shapes.last().last()
        val expected = (input.take(1) + listOf(one.size.height, one.size.width)) to cuts.last().tensors.last().shape
        refuseUnless(ends == expected) { "the input size ${one.size} has other ends than the model" }
    }
    val stuck = supernet.blocks.find { it.kind == BlockKind.ORIGINAL && !it.renditions.runAtAnySize() }
    refuseUnless(found.isEmpty() || stuck == null) {
        "block ${stuck?.id} runs at no other input size than the model's own"
    }
}

private fun List<Rendition>.runAtAnySize(): Boolean = any { it.anySize }

private fun checkShape(tensor: TensorSpec, shape: List<Int>, cut: CutPoint) {
    try {
        elements(listOf(1) + shape, tensor.dtype.bytes)
    } catch (error: InputError) {
        throw ManifestError("tensor ${tensor.name} at cut point ${cut.index}: ${error.message}", error)
    }
}

private fun checkRenditions(owner: String, renditions: List<Rendition>) {
    refuseUnless(renditions.isNotEmpty()) { "$owner has no rendition" }
    refuseUnless(renditions.distinctBy { it.name }.size == renditions.size) { "$owner has two renditions of one name" }
}

private inline fun refuseUnless(holds: Boolean, message: () -> String) {
    if (!holds) throw ManifestError(message())
}
