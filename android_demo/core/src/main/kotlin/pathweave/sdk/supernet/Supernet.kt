/**
 * The supernet: the directed acyclic graph whose edges are the renditions of all blocks at every input size.
 *
 * It holds one pretrained network, or several that share the input and the output: a family. The cut points of all
 * members are numbered together, so that every block leads to a higher number.
 *
 * The input size is a dimension of the path: the graph has one copy of the inner cut points per input size, and all
 * copies share the input and the output. Algorithms on paths see nodes and edges only and need no notion of sizes.
 */
package pathweave.sdk.supernet

import pathweave.sdk.InputError
import pathweave.sdk.ManifestError
import pathweave.sdk.UsageError
import pathweave.sdk.numerics.elements

private const val MOST_BITS = 8 // of a value on its way to a server

/**
 * The directed acyclic graph whose edges are the renditions of all blocks.
 *
 * @throws ManifestError the parts do not make a graph on which the originals of each member lead from 0 to N.
 */
public class Supernet(
    public val cutPoints: List<CutPoint>,
    public val blocks: List<Block>,
    public val exits: List<Exit> = emptyList(),
    /** Besides the model's own. */
    public val inputSizes: List<InputSize> = emptyList(),
    /** Of a family, the largest first; none for a bundle of one network. */
    public val members: List<Member> = emptyList(),
) {
    private val blocksById = blocks.associateBy { it.id }
    private val exitsById = exits.associateBy { it.id }

    private val nextMandatory = IntArray(cutPoints.size) { Int.MAX_VALUE }.also { next ->
        for (index in cutPoints.size - 2 downTo 0) {
            next[index] = if (cutPoints[index + 1].mandatory) index + 1 else next[index + 1]
        }
    }

    /** The original blocks of each member, from the input on. */
    private val chains by lazy {
        if (members.isEmpty()) listOf(blocks.filter { it.kind == BlockKind.ORIGINAL }.sortedBy { it.start })
        else members.map { it.blocks.map(::block) }
    }

    /** The encoder that leads to each bottleneck, and the decoder that leads from it. */
    private val encoders by lazy { blocks.filter { it.kind == BlockKind.ENCODER }.associateBy { it.end } }
    private val decoders by lazy { blocks.filter { it.kind == BlockKind.DECODER }.associateBy { it.start } }

    /** For each member, its cut points and the number of its originals that lead to each. */
    private val places by lazy {
        chains.map { chain -> mapOf(0 to 0) + chain.withIndex().associate { (at, block) -> block.end to at + 1 } }
    }

    /** The input sizes of edges: the model's own, written as null, then the others. */
    public val sizes: List<SampleSize?> = listOf(null) + inputSizes.map { it.size }

    /** N, the index of the last cut point. */
    public val outputIndex: Int get() = cutPoints.size - 1

    init {
        refuseUnless(cutPoints.map { it.index } == cutPoints.indices.toList()) {
            "cut points are not numbered 0 to N without gaps"
        }
        refuseUnless(outputIndex >= 1) { "there is no cut point besides the input" }
        refuseUnless(blocksById.size == blocks.size) { "two blocks have the same id" }
        cutPoints.forEach(::checkTensors)
        checkOriginals()
        blocks.forEach(::checkBlock)
        refuseUnless(exitsById.size == exits.size) { "two exits have the same id" }
        exits.forEach(::checkExit)
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

    /** [original] of each member, the largest first. */
    public val originals: List<Subnet> = chains.map { Subnet(edgesAlong(it)) }

    /**
     * The path of the original blocks in their first rendition at the model's own size: the developer's model.
     *
     * Of a family that of the largest member.
     */
    public val original: Subnet get() = originals[0]

    private val anySizeOriginals = chains.map { Subnet(anySizeEdges(it)) }

    /**
     * The path of the original blocks in their first renditions that run at every input size.
     *
     * The same as [original] where there is only one size.
     */
    public val anySizeOriginal: Subnet get() = anySizeOriginals[0]

    /** The original path of each member at an input size, the largest member first. */
    public fun originalsAt(inputSize: SampleSize?): List<Subnet> =
        if (inputSize == null) originals else anySizeOriginals.map { it.at(inputSize) }

    /**
     * The original blocks that lead from one cut point to another: of one member; between input and output of all.
     *
     * Empty where no member passes both.
     */
    public fun originalStretches(start: Int, end: Int): List<List<Block>> =
        chains.zip(places).filter { (_, at) -> start in at && end in at }.map { (chain, at) ->
            val first = at.getValue(start)
            chain.subList(first, maxOf(first, at.getValue(end))) // empty where a block leads back, which is refused later
        }

    /** The number of originals that [block] replaces; null for one between two members. */
    public fun replaced(block: Block): Int? = originalStretches(block.start, block.end).maxOfOrNull { it.size }

    /** [blocks] in their first renditions that run at an input size. */
    public fun edgesAlong(blocks: List<Block>, inputSize: SampleSize? = null): List<Edge> =
        if (inputSize == null) blocks.map { Edge(it.id, it.renditions.first().name) }
        else anySizeEdges(blocks).map { it.at(inputSize) }

    /**
     * The original blocks from a cut point to the output, of the member that passes it.
     *
     * From a bottleneck its decoder comes first.
     */
    public fun originalsFrom(position: Int): List<Edge> {
        val decoder = decoders[position] ?: return edgesAlong(originalStretches(position, outputIndex).first())
        return edgesAlong(listOf(decoder)) + originalsFrom(decoder.end)
    }

    private val edgeSet by lazy { edges.toSet() }

    /**
     * The original paths of further members that pass exits, in each rendition.
     *
     * Answering early may make them pay, which a search among paths without exits does not see.
     */
    public val membersWithExits: List<Subnet> get() {
        val names = edges.map { it.rendition }.distinct()
        val paths = originals.drop(1).filter { exitsAlong(it).isNotEmpty() }
        return paths.flatMap { path -> names.map { inRendition(path, it) } }.distinct()
    }

    /** [subnet] in rendition [name] wherever a block has it at the subnet's input size. */
    public fun inRendition(subnet: Subnet, name: String): Subnet =
        Subnet(subnet.edges.map { edge -> Edge(edge.block, name, edge.inputSize).takeIf { it in edgeSet } ?: edge })

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
    public fun node(position: Int, inputSize: SampleSize? = null): Int {
        val number = sizeNumbers[inputSize] ?: throw UsageError("the bundle has no input size $inputSize")
        return when (position) {
            0 -> 0
            outputIndex -> outputNode
            else -> number * (outputIndex - 1) + position
        }
    }

    /** The cut points with the shapes of their tensors at this input size; [UsageError] if there is no such size. */
    public fun cutPointsAt(inputSize: SampleSize?): List<CutPoint> =
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
    public fun check(subnet: Subnet): Unit = checkStretch(subnet.edges, start = 0, end = outputIndex)

    /** Throws [UsageError] unless [edges] follow each other from cut point [start] to [end]. */
    public fun checkStretch(edges: List<Edge>, start: Int, end: Int) {
        var position = start
        edges.firstOrNull()?.let { cutPointsAt(it.inputSize) }
        for (edge in edges) {
            val (rendition, block) = rendition(edge) to block(edge.block)
            if (edge.inputSize != null && !rendition.anySize) {
                throw UsageError("block ${edge.block}@${edge.rendition} runs only at the model's own input size")
            }
            if (edge.inputSize != edges.first().inputSize) {
                throw UsageError("block ${edge.block} runs at another input size than those before it")
            }
            if (block.start != position) {
                throw UsageError("block ${edge.block} starts at cut point ${block.start}, not at $position")
            }
            position = block.end
        }
        if (position != end) {
            val where = if (end == outputIndex) "the output" else "cut point $end"
            throw UsageError("the path ends at cut point $position, not at $where")
        }
    }

    /**
     * Throws [UsageError] unless the plan is one of this supernet.
     *
     * Its subnet is a path; its exits lie on it, at most one at each cut point; what goes on at a server leaves at a
     * cut point that the subnet passes, and its tail leads from there to the output. Exits ask only in a plan that
     * asks, at or behind the cut point whose activations it sends.
     */
    public fun checkPlan(plan: Plan) {
        check(plan.subnet)
        plan.prior?.let(::checkPrior)
        val exitPositions = checkExits(plan)
        plan.exits.forEach { checkAskingEarly(it, plan) }
        plan.split?.let {
            checkSplit(it, plan.subnet, exitPositions)
            checkFallback(plan, it.fallback)
        }
        when (val hard = plan.hard) {
            Hard.AnswerLocally -> {}
            is Hard.Abstain -> checkDecider(hard.decider)
            is Hard.Ask -> {
                checkDecider(hard.decider)
                checkAsk(hard, plan.subnet)
            }
            is Hard.Cascade -> {
                checkDecider(hard.decider)
                checkCascade(hard, plan)
            }
        }
    }

    private fun checkCascade(cascade: Hard.Cascade, plan: Plan) {
        check(cascade.subnet)
        if (cascade.subnet == plan.subnet) throw UsageError("the second path of a cascade is the same as the first")
        if (plan.split != null) throw UsageError("a plan whose path goes on at a server has no second path here")
        val at = cascade.position
        if (at > 0 && head(cascade.subnet, at) != head(plan.subnet, at)) {
            throw UsageError("the paths of the cascade are not the same up to cut point $at")
        }
    }

    /** The edges of [subnet] up to a cut point. */
    private fun head(subnet: Subnet, position: Int): List<Edge> {
        val last = walk(subnet).indexOfFirst { (_, block) -> block.end == position }
        if (last < 0) throw UsageError("the path does not pass cut point $position")
        return subnet.edges.take(last + 1)
    }

    /** The edges that a cascade runs for its hard samples alone; none without a cascade. */
    internal fun secondEdges(plan: Plan): List<Edge> {
        val cascade = plan.hard as? Hard.Cascade ?: return emptyList()
        return walk(cascade.subnet).filter { (_, block) -> block.start >= cascade.position }.map { (edge, _) -> edge }
    }

    private fun checkPrior(prior: Prior) {
        val classes = cutPoints.last().tensors.last().shape.last()
        if (prior.logRatios.size != classes) {
            throw UsageError("the plan's prior is of ${prior.logRatios.size} classes, the model has $classes")
        }
    }

    private fun checkDecider(decider: Decider) {
        val classes = cutPoints.last().tensors.last().shape.last()
        if (decider is Decider.Logistic && decider.byAnswer.size !in listOf(0, classes)) {
            throw UsageError("the decider was made for ${decider.byAnswer.size} classes; the model has $classes")
        }
    }

    /** The cut points of the plan's exits. */
    private fun checkExits(plan: Plan): List<Int> {
        val along = exitsAlong(plan.subnet)
        val positions = plan.exits.map { choice ->
            val (rendition, exit) = exitRendition(choice) to exit(choice.exit)
            if (plan.inputSize != null && !rendition.anySize) {
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
        return positions
    }

    private fun checkAskingEarly(choice: ExitChoice, plan: Plan) {
        if (choice.askBelow == 0.0) return
        if (!(choice.askBelow > 0.0 && choice.askBelow <= choice.threshold)) {
            throw UsageError(
                "exit ${choice.exit} asks below a confidence of ${choice.askBelow}; " +
                    "it must lie from 0 to the threshold, ${choice.threshold}",
            )
        }
        val ask = plan.hard as? Hard.Ask
            ?: throw UsageError("exit ${choice.exit} asks a server in a plan that asks none")
        if (plan.split != null) {
            throw UsageError("exit ${choice.exit} asks a server in a plan whose path goes on at one")
        }
        val position = exit(choice.exit).position
        val sends = ask.sends
        if (sends is Sends.Activations && sends.position > position) {
            throw UsageError(
                "exit ${choice.exit} at cut point $position cannot send activations of cut point ${sends.position}",
            )
        }
    }

    private fun checkSplit(split: Split, subnet: Subnet, exitPositions: List<Int>) {
        if (split.isWhole) {
            checkWhole(split, subnet, exitPositions)
            return
        }
        checkSent(split.position, split.tail, subnet, refusal = "the subnet cannot be split")
        if (split.bits.size != cutPoints[split.position].tensors.size) {
            throw UsageError("the split gives bits for ${split.bits.size} tensors at cut point ${split.position}")
        }
        split.bits.find { it !in 1..MOST_BITS }?.let { bits ->
            throw UsageError("activations travel in 1 to $MOST_BITS bits, not in $bits")
        }
        exitPositions.lastOrNull()?.let { last ->
            if (last > split.position) {
                throw UsageError("an exit at cut point $last lies behind the split at ${split.position}")
            }
        }
    }

    private fun checkFallback(plan: Plan, fallback: Fallback) {
        if (fallback == Fallback.EXIT && plan.exits.isEmpty()) {
            throw UsageError("without its server the split's samples take an exit, and the plan has none")
        }
        val sends = (plan.hard as? Hard.Ask)?.sends
        if (fallback != Fallback.SUBNET && sends is Sends.Activations) {
            throw UsageError("activations behind a split cannot be sent: nothing runs there on this device")
        }
    }

    private fun checkWhole(split: Split, subnet: Subnet, exitPositions: List<Int>) {
        if (split.bits.isNotEmpty() || split.perChannel || split.compress) {
            throw UsageError("the input of a server's model travels as it is: such a split gives no bits and no coding")
        }
        exitPositions.lastOrNull()?.let { throw UsageError("an exit at cut point $it lies behind the split at 0") }
        if (subnet.inputSize != null) {
            throw UsageError("a path that goes on at a server runs at the model's own input size")
        }
    }

    private fun checkAsk(ask: Hard.Ask, subnet: Subnet) = when (val sends = ask.sends) {
        is Sends.Activations ->
            checkSent(sends.position, ask.tail, subnet, refusal = "activations cannot be sent from the subnet")
        Sends.Input -> if (ask.tail.isNotEmpty()) {
            throw UsageError("a plan that sends the input names no tail: the server's model runs as a whole")
        } else {
            Unit
        }
    }

    private fun checkSent(position: Int, tail: List<Edge>, subnet: Subnet, refusal: String) {
        if (subnet.inputSize != null) {
            throw UsageError("a path that goes on at a server runs at the model's own input size")
        }
        val passed = listOf(0) + walk(subnet).map { (_, block) -> block.end }
        if (position !in passed.dropLast(1)) {
            throw UsageError("$refusal at cut point $position: it does not pass there")
        }
        checkStretch(tail, start = position, end = outputIndex)
        if (tail.any { it.inputSize != null }) throw UsageError("a server runs a tail at the model's own input size")
        if (tail.any { it.home.isNotEmpty() }) {
            throw UsageError("a server runs a tail at homes of its own, which a plan does not name")
        }
    }

    /** The edges of the plan's subnet that may run on this device: all, or those before a split. */
    internal fun edgesHere(plan: Plan): List<Edge> {
        val split = plan.split?.takeIf { plan.isHead } ?: return plan.subnet.edges
        return walk(plan.subnet).filter { (_, block) -> block.end <= split.position }.map { (edge, _) -> edge }
    }

    /** The edges of [subnet] with their blocks, in order; [UsageError] if there is no such edge. */
    public fun walk(subnet: Subnet): List<Pair<Edge, Block>> = subnet.edges.map { edge ->
        rendition(edge)
        edge to block(edge.block)
    }

    private fun anySizeEdges(blocks: List<Block>): List<Edge> = blocks.map { block ->
        Edge(block.id, block.renditions.first { it.anySize || inputSizes.isEmpty() }.name)
    }

    private fun resized(to: InputSize): List<CutPoint> = cutPoints.zip(to.shapes) { cut, shapes ->
        cut.copy(tensors = cut.tensors.zip(shapes) { spec, shape -> spec.copy(shape = shape) })
    }

    private fun checkTensors(cut: CutPoint) {
        refuseUnless(cut.tensors.isNotEmpty()) { "cut point ${cut.index} has no tensor" }
        for (tensor in cut.tensors) checkShape(tensor, tensor.shape, cut)
    }

    /** Each member's originals lead from 0 to N; every other cut point is a bottleneck, or of just one member. */
    private fun checkOriginals() {
        refuseUnless(members.distinctBy { it.name }.size == members.size) { "two members have the same name" }
        val ids = blocks.filter { it.kind == BlockKind.ORIGINAL }.map { it.id }
        val listed = members.flatMap { it.blocks }.ifEmpty { ids }
        refuseUnless(listed.sorted() == ids.sorted()) { "the members do not list each original block once" }
        val passed = chains.flatMap { chain ->
            val ends = listOf(0) + chain.map { it.end }
            refuseUnless(chain.map { it.start } == ends.dropLast(1) && ends.last() == outputIndex) {
                "the original blocks do not make one path from the input to the output"
            }
            ends.drop(1).dropLast(1)
        }
        refuseUnless((passed + decoders.keys).sorted() == (1 until outputIndex).toList()) {
            "a cut point is no bottleneck and not one that just one member's original blocks pass"
        }
        for (block in blocks) {
            val (fromBottleneck, toBottleneck) = (block.start in decoders) to (block.end in decoders)
            val fits = (block.kind == BlockKind.DECODER) == fromBottleneck &&
                (block.kind == BlockKind.ENCODER) == toBottleneck
            refuseUnless(fits) { "block ${block.id} is ${block.kind}, but runs from ${block.start} to ${block.end}" }
        }
        val counts = listOf(BlockKind.ENCODER, BlockKind.DECODER).map { kind -> blocks.count { it.kind == kind } }
        refuseUnless(counts.all { it == decoders.size } && encoders.size == decoders.size) {
            "a bottleneck has not just one encoder and one decoder"
        }
    }

    private fun checkBlock(block: Block) {
        val (start, end) = block.start to block.end
        refuseUnless(start in 0 until end && end <= outputIndex) { "block ${block.id} runs from $start to $end" }
        refuseUnless(block.fitsKind(replaced(block))) {
            "block ${block.id} is ${block.kind}, but runs from $start to $end"
        }
        checkRenditions("block ${block.id}", block.renditions)
        val jumped = nextMandatory[start]
        refuseUnless(jumped >= end) { "block ${block.id} jumps over the mandatory cut point $jumped" }
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
    val sides = found.map { it.size.extents }
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
        val begins = one.shapes.first().first() == input.take(1) + one.size.extents
        refuseUnless(begins && isSameAnswer(one.shapes.last().last(), cuts.last().tensors.last().shape)) {
            "the input size ${one.size} has other ends than the model"
        }
    }
    val stuck = supernet.blocks.find { it.kind == BlockKind.ORIGINAL && !it.renditions.runAtAnySize() }
    refuseUnless(found.isEmpty() || stuck == null) {
        "block ${stuck?.id} runs at no other input size than the model's own"
    }
}

/** Whether an output of [shape] is as the model's [own] one: maps may have another resolution, texts fewer tokens. */
private fun isSameAnswer(shape: List<Int>, own: List<Int>): Boolean =
    shape == own || (shape.size > 1 && shape.size == own.size && shape[0] == own[0])

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
