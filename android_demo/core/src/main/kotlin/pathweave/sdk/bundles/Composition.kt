/**
 * Composing a runnable ONNX model of any stretch of blocks by concatenating fragments.
 *
 * A fragment is a serialized `GraphProto` that has only nodes and initializers. Protobuf merges repeated occurrences
 * of a message field, so a model is: header, one `graph` field per fragment, one more with name, inputs and outputs
 * (docs/bundle_format.md).
 */
package pathweave.sdk.bundles

import java.io.ByteArrayOutputStream
import java.io.File
import java.nio.ByteBuffer
import pathweave.sdk.CompositionError
import pathweave.sdk.files.deleteOrphan
import pathweave.sdk.files.newOwnFile
import pathweave.sdk.files.storageErrors
import pathweave.sdk.files.writeFully
import pathweave.sdk.numerics.narrow
import pathweave.sdk.supernet.TensorSpec

// field numbers of onnx.proto
private const val MODEL_IR_VERSION = 1
private const val MODEL_GRAPH = 7
private const val MODEL_OPSET_IMPORT = 8
private const val OPSET_VERSION = 2
private const val GRAPH_NAME = 2
private const val GRAPH_INPUT = 11
private const val GRAPH_OUTPUT = 12
private const val VALUE_NAME = 1
private const val VALUE_TYPE = 2
private const val TYPE_TENSOR = 1
private const val TENSOR_TYPE_ELEMENT = 1
private const val TENSOR_TYPE_SHAPE = 2
private const val SHAPE_DIMENSION = 1
private const val DIMENSION_VALUE = 1
private const val DIMENSION_SYMBOL = 2

private val MODEL_FILE = Regex("pathweave-model\\.[0-9a-f]+\\.onnx")
private const val MODEL_MAX_BYTES = 2_000_000_000L // protobuf's own limit is 2 GiB

/**
 * Consecutive blocks that run as one model: their fragments, what goes in and what comes out.
 *
 * [freeAxes]: by tensor, the axes (0 is the batch) whose extents the composed model leaves open, so that one session
 * runs at several input sizes. [owners]: the block or exit of each fragment, for errors; empty where unknown. [home]:
 * where it runs; empty for the first home that may run it. [providers]: those that its renditions are for; empty for
 * all. [parts]: of blocks at several homes, the stretches of equal home in order; all else but inputs and outputs is
 * theirs.
 */
public class Stretch(
    public val fragments: List<BlobBytes>,
    public val inputs: List<TensorSpec>,
    public val outputs: List<TensorSpec>,
    public val irVersion: Long,
    public val opset: Long,
    public val freeAxes: Map<String, Set<Int>> = emptyMap(),
    public val owners: List<String> = emptyList(),
    public val home: String = "",
    public val providers: List<String> = emptyList(),
    public val parts: List<Stretch> = emptyList(),
)

/**
 * The serialized ONNX model of [stretch], its batch axis symbolic.
 *
 * @throws CompositionError a fragment is not one or holds what it may not hold (Fragment.kt, Sizes.kt), two define
 *   the same name, or the blocks are at several homes.
 */
public fun compose(stretch: Stretch): ByteArray {
    val parts = composedParts(stretch)
    val model = ByteBuffer.allocate(parts.sumOf { it.remaining() })
    parts.forEach(model::put)
    return model.array()
}

/** [compose] without a copy: the model is these parts, one behind the other. */
internal fun composedParts(stretch: Stretch): List<ByteBuffer> {
    if (stretch.parts.isNotEmpty()) {
        throw CompositionError("blocks at several homes are separate models and cannot be composed")
    }
    val graphs = readFragments(stretch)
    refuseDuplicates(graphs)
    checkSizes(graphs, stretch.inputs, stretch.outputs, stretch.owners)
    val size = stretch.fragments.sumOf { it.size.toLong() }
    if (size > MODEL_MAX_BYTES) throw CompositionError("the fragments together are larger than a model may be")
    val head = ProtobufWriter().integer(MODEL_IR_VERSION, stretch.irVersion)
        .message(MODEL_OPSET_IMPORT) { integer(OPSET_VERSION, stretch.opset) }
    val boundary = ProtobufWriter().message(MODEL_GRAPH) {
        text(GRAPH_NAME, "pathweave")
        for (spec in stretch.inputs) message(GRAPH_INPUT) { valueInfo(spec, stretch.freeAxes[spec.name]) }
        for (spec in stretch.outputs) message(GRAPH_OUTPUT) { valueInfo(spec, stretch.freeAxes[spec.name]) }
    }
    val fragments = stretch.fragments.flatMap { fragment ->
        listOf(wrapped(ProtobufWriter().head(MODEL_GRAPH, fragment.size)), fragment.view())
    }
    return listOf(wrapped(head)) + fragments + wrapped(boundary)
}

/**
 * Gives [use] a temporary file that has [parts], and deletes it; those that killed processes left go too.
 *
 * @throws StorageError there is no room for it.
 */
internal fun <T> withModelFile(parts: List<ByteBuffer>, use: (File) -> T): T {
    val folder = File(System.getProperty("java.io.tmpdir"))
    folder.listFiles().orEmpty().filter { MODEL_FILE.matches(it.name) }.forEach(::deleteOrphan)
    val (file, lock) = storageErrors(folder) { newOwnFile(folder, "pathweave-model.", ".onnx") }
    return lock.use {
        try {
            storageErrors(file) { parts.forEach { part -> writeFully(lock.channel, part.duplicate()) } }
            use(file)
        } finally {
            file.delete()
        }
    }
}

private fun wrapped(message: ProtobufWriter): ByteBuffer = ByteBuffer.wrap(message.toByteArray())

internal fun readFragments(stretch: Stretch): List<Fragment> = stretch.fragments.mapIndexed { number, data ->
    try {
        readFragment(data)
    } catch (error: CompositionError) {
        val owner = stretch.owners.getOrNull(number) ?: "number $number"
        throw CompositionError("the fragment of $owner is refused: ${error.message}", error)
    }
}

/** Refuses two initializers or node outputs of one name: the runtime would only warn, and take the last. */
private fun refuseDuplicates(fragments: List<Fragment>) {
    val seen = HashSet<String>()
    for (name in fragments.flatMap { it.definedNames() }) {
        if (!seen.add(name)) throw CompositionError("two fragments define '$name'")
    }
}

private fun ProtobufWriter.valueInfo(spec: TensorSpec, freeAxes: Set<Int>?) {
    text(VALUE_NAME, spec.name)
    message(VALUE_TYPE) {
        message(TYPE_TENSOR) {
            integer(TENSOR_TYPE_ELEMENT, spec.dtype.onnx)
            message(TENSOR_TYPE_SHAPE) {
                message(SHAPE_DIMENSION) { text(DIMENSION_SYMBOL, "batch") }
                for ((index, extent) in spec.shape.withIndex()) {
                    val free = freeAxes != null && index + 1 in freeAxes
                    message(SHAPE_DIMENSION) { if (!free) integer(DIMENSION_VALUE, extent.toLong()) }
                }
            }
        }
    }
}

internal const val VARINT = 0
internal const val FIXED64 = 1
internal const val LENGTH_DELIMITED = 2
internal const val FIXED32 = 5
private const val LONGEST_VARINT_SHIFT = 63

/** Builds one message. */
internal class ProtobufWriter(capacity: Int = 32) {
    private val out = ByteArrayOutputStream(capacity)

    fun integer(number: Int, value: Long): ProtobufWriter = apply {
        varint(number.toLong() shl 3 or VARINT.toLong())
        varint(value)
    }

    fun bytes(number: Int, value: ByteArray): ProtobufWriter = apply {
        head(number, value.size)
        out.write(value, 0, value.size)
    }

    fun text(number: Int, value: String): ProtobufWriter = bytes(number, value.toByteArray())

    fun message(number: Int, fill: ProtobufWriter.() -> Unit): ProtobufWriter =
        bytes(number, ProtobufWriter().apply(fill).toByteArray())

    fun toByteArray(): ByteArray = out.toByteArray()

    /** The head of a field of [size] bytes, which follow. */
    fun head(number: Int, size: Int): ProtobufWriter = apply {
        varint(number.toLong() shl 3 or LENGTH_DELIMITED.toLong())
        varint(size.toLong())
    }

    private fun varint(value: Long) {
        var rest = value
        while (rest ushr 7 != 0L) {
            out.write((rest and 0x7f or 0x80).toInt())
            rest = rest ushr 7
        }
        out.write(rest.toInt())
    }
}

/** One field of wire type [kind]: an [integer], or, where that is null, the bytes from [start] to [end] of the data. */
internal class ProtobufField(val number: Long, val kind: Int, val integer: Long?, val start: Int, val end: Int) {
    val size: Int get() = end - start
}

internal class ProtobufError(message: String) : Exception(message)

/** Reads the fields of one message, which lies in [data] from [position] to [end]. Nothing is copied. */
internal class ProtobufReader(private val data: BlobBytes, private var position: Int, private val end: Int) {
    val atEnd: Boolean get() = position >= end

    /** The next field, or null at the end; throws [ProtobufError]. */
    fun next(): ProtobufField? {
        if (position >= end) return null
        val tag = varint()
        val number = tag ushr 3
        val kind = (tag and 7).toInt()
        val length = when (kind) {
            VARINT -> return ProtobufField(number, kind, varint(), 0, 0)
            LENGTH_DELIMITED -> varint()
            FIXED64 -> 8L
            FIXED32 -> 4L
            else -> throw ProtobufError("unknown wire type $kind")
        }
        if (length < 0 || length > end - position) throw ProtobufError("truncated field")
        val start = position
        position += length.toInt()
        return ProtobufField(number, kind, null, start, position)
    }

    fun varint(): Long {
        var value = 0L
        var shift = 0
        while (true) {
            if (position >= end || shift > LONGEST_VARINT_SHIFT) throw ProtobufError("truncated or overlong varint")
            val byte = data[position++].toInt()
            value = value or ((byte and 0x7f).toLong() shl shift)
            if (byte >= 0) return value
            shift += 7
        }
    }
}

/** The integers of one field: one, or a packed list, of which the first [most] are read. */
internal fun integersIn(data: BlobBytes, field: ProtobufField, most: Int): List<Long> {
    field.integer?.let { return listOf(it) }
    val reader = ProtobufReader(data, field.start, field.end)
    return buildList { while (!reader.atEnd && size < most) add(reader.varint()) }
}

/** Calls [use] with every field of the message in [data] from [start] to [end]. */
internal inline fun readFields(
    data: BlobBytes,
    start: Int = 0,
    end: Int = data.size,
    use: (ProtobufField) -> Unit,
) {
    val reader = ProtobufReader(data, start, end)
    while (true) use(reader.next() ?: return)
}

private const val MAX_NODES = 100_000 // per fragment
private const val MAX_PARTS = 4096 // inputs, outputs and attributes per node; axes per initializer
private const val MAX_INTEGERS = 1 shl 16 // of an attribute; more are not looked at

// field numbers of onnx.proto
private const val GRAPH_NODE = 1L
private const val GRAPH_INITIALIZER = 5L
private const val NODE_INPUT = 1L
private const val NODE_OUTPUT = 2L
private const val NODE_OPERATOR = 4L
private const val NODE_ATTRIBUTE = 5L
private const val NODE_DOMAIN = 7L
private val NODE_FIELDS = setOf(NODE_INPUT, NODE_OUTPUT, 3L, NODE_OPERATOR, NODE_ATTRIBUTE, 6L, NODE_DOMAIN, 9L)
private const val ATTRIBUTE_NAME = 1L
private const val ATTRIBUTE_INT = 3L
private const val ATTRIBUTE_STRING = 4L
private const val ATTRIBUTE_TENSOR = 5L
private const val ATTRIBUTE_INTS = 8L
private const val ATTRIBUTE_DOC = 13L
private const val ATTRIBUTE_TYPE = 20L
private val GRAPH_ATTRIBUTES = setOf(6L, 11L) // one or several subgraphs
private val ATTRIBUTE_KINDS = mapOf(
    ATTRIBUTE_NAME to setOf(LENGTH_DELIMITED),
    2L to setOf(FIXED32), // float
    ATTRIBUTE_INT to setOf(VARINT),
    ATTRIBUTE_STRING to setOf(LENGTH_DELIMITED),
    ATTRIBUTE_TENSOR to setOf(LENGTH_DELIMITED),
    7L to setOf(FIXED32, LENGTH_DELIMITED), // floats
    ATTRIBUTE_INTS to setOf(VARINT, LENGTH_DELIMITED),
    9L to setOf(LENGTH_DELIMITED), // strings
    ATTRIBUTE_DOC to setOf(LENGTH_DELIMITED),
    ATTRIBUTE_TYPE to setOf(VARINT),
)
private val ATTRIBUTE_TYPES = setOf(1L, 2L, 3L, 4L, 6L, 7L, 8L) // as field 20 names the values above
private val ELEMENT_TYPE_ATTRIBUTES = setOf("to", "dtype", "output_dtype", "stash_type", "softmax_precision")
private const val TENSOR_DIMENSION = 1L
private const val TENSOR_TYPE = 2L
private const val TENSOR_INT64S = 7L
private const val TENSOR_NAME = 8L
private const val TENSOR_RAW = 9L
private const val TENSOR_EXTERNAL_DATA = 13L
private const val TENSOR_DATA_LOCATION = 14L
private val TENSOR_KINDS = mapOf(
    TENSOR_DIMENSION to setOf(VARINT, LENGTH_DELIMITED),
    TENSOR_TYPE to setOf(VARINT),
    4L to setOf(FIXED32, LENGTH_DELIMITED), // floats
    5L to setOf(VARINT, LENGTH_DELIMITED), // 32-bit integers
    TENSOR_INT64S to setOf(VARINT, LENGTH_DELIMITED),
    TENSOR_NAME to setOf(LENGTH_DELIMITED),
    TENSOR_RAW to setOf(LENGTH_DELIMITED),
    10L to setOf(FIXED64, LENGTH_DELIMITED), // doubles
    11L to setOf(VARINT, LENGTH_DELIMITED), // unsigned integers
    12L to setOf(LENGTH_DELIMITED), // documentation
    TENSOR_DATA_LOCATION to setOf(VARINT),
    16L to setOf(LENGTH_DELIMITED), // metadata
)

/** A constant: its elements are [raw] bytes of the fragment or [int64s], where they are stored like that. */
internal class FragmentTensor(
    val name: String,
    val elementType: Long,
    val shape: List<Long>,
    val raw: ByteBuffer?,
    val int64s: List<Long>,
)

/** One operator. [attributes]: Long, List<Long>, String and [FragmentTensor]; null for others. */
internal class FragmentNode(
    val operator: String,
    val inputs: List<String>,
    val outputs: List<String>,
    val attributes: Map<String, Any?>,
)

internal class Fragment(val nodes: List<FragmentNode>, val initializers: List<FragmentTensor>) {
    /** The names of its initializers and of its nodes' outputs. */
    fun definedNames(): List<String> =
        initializers.map { it.name } + nodes.flatMap { node -> node.outputs.filter { it.isNotEmpty() } }
}

/**
 * Read and check a fragment.
 *
 * @throws CompositionError not a fragment, an operator or a type that it may not have, a subgraph, or external data.
 */
internal fun readFragment(data: BlobBytes): Fragment {
    val nodes = mutableListOf<FragmentNode>()
    val initializers = mutableListOf<FragmentTensor>()
    try {
        readFields(data, 0, data.size) { field ->
            val initializer = field.number == GRAPH_INITIALIZER
            if (field.kind != LENGTH_DELIMITED || !(initializer || field.number == GRAPH_NODE)) {
                throw CompositionError("field ${field.number} is not a node or an initializer")
            }
            if (initializer) initializers += readTensor(data, field) else nodes += readNode(data, field)
            if (nodes.size + initializers.size > MAX_NODES) {
                throw CompositionError("more than $MAX_NODES nodes and initializers")
            }
        }
    } catch (error: ProtobufError) {
        throw CompositionError("not a serialized graph: ${error.message}", error)
    }
    return Fragment(nodes, initializers)
}

private fun readNode(data: BlobBytes, node: ProtobufField): FragmentNode {
    val inputs = mutableListOf<String>()
    val outputs = mutableListOf<String>()
    val attributes = HashMap<String, Any?>()
    var operator = ""
    var domain = ""
    var count = 0
    readFields(data, node.start, node.end) { field ->
        if (field.number !in NODE_FIELDS || field.kind != LENGTH_DELIMITED || count++ > MAX_PARTS) {
            throw CompositionError("a node has a field ${field.number} that it may not have")
        }
        when (field.number) {
            NODE_INPUT -> inputs += textOf(data, field)
            NODE_OUTPUT -> outputs += textOf(data, field)
            NODE_OPERATOR -> operator = textOf(data, field)
            NODE_DOMAIN -> domain = textOf(data, field)
            NODE_ATTRIBUTE -> {
                val (name, found) = readAttribute(data, field)
                if (name in attributes) throw CompositionError("a node has the attribute $name twice")
                attributes[name] = found
            }
        }
    }
    if (domain !in DOMAINS) throw CompositionError("operator $domain.$operator is not of the standard domain")
    if (operator !in OPERATORS) {
        throw CompositionError("operator $operator is not among those that a fragment may have")
    }
    return FragmentNode(operator, inputs, outputs, attributes)
}

private fun readAttribute(data: BlobBytes, attribute: ProtobufField): Pair<String, Any?> {
    var name = ""
    var found: Any? = null
    val integers = mutableListOf<Long>()
    val values = HashSet<Long>()
    readFields(data, attribute.start, attribute.end) { field ->
        if (field.number in GRAPH_ATTRIBUTES) throw CompositionError("a node has a subgraph, which is not allowed")
        if (field.kind !in ATTRIBUTE_KINDS[field.number].orEmpty()) {
            throw CompositionError("an attribute has a field ${field.number} that it may not have")
        }
        when (field.number) {
            ATTRIBUTE_NAME -> name = textOf(data, field)
            ATTRIBUTE_TYPE -> if (field.integer !in ATTRIBUTE_TYPES) {
                throw CompositionError("an attribute has the type ${field.integer}, which it may not have")
            }
            ATTRIBUTE_INT -> found = field.integer
            ATTRIBUTE_STRING -> found = textOf(data, field)
            ATTRIBUTE_TENSOR -> {
                if (ATTRIBUTE_TENSOR in values) throw CompositionError("an attribute has two tensors")
                found = readTensor(data, field)
            }
            ATTRIBUTE_INTS -> integers += integersIn(data, field, MAX_INTEGERS)
        }
        if (field.number != ATTRIBUTE_NAME && field.number != ATTRIBUTE_DOC && field.number != ATTRIBUTE_TYPE) {
            values += field.number
        }
    }
    if (values.size > 1) throw CompositionError("attribute $name has values of several types")
    if (name in ELEMENT_TYPE_ATTRIBUTES && found != 0L && found !in ELEMENT_TYPES) {
        throw CompositionError("attribute $name is of an element type that a fragment may not have")
    }
    return name to if (ATTRIBUTE_INTS in values) integers else found
}

private fun readTensor(data: BlobBytes, tensor: ProtobufField): FragmentTensor {
    var name = ""
    var type = 0L
    val shape = mutableListOf<Long>()
    var raw: ByteBuffer? = null
    val int64s = mutableListOf<Long>()
    readFields(data, tensor.start, tensor.end) { field ->
        val elsewhere = field.number == TENSOR_DATA_LOCATION && isSet(field)
        if (field.number == TENSOR_EXTERNAL_DATA || elsewhere) {
            throw CompositionError("data is kept outside the bundle, which is not allowed")
        }
        if (field.kind !in TENSOR_KINDS[field.number].orEmpty()) {
            throw CompositionError("a tensor has a field ${field.number} that it may not have")
        }
        when (field.number) {
            TENSOR_NAME -> name = textOf(data, field)
            TENSOR_TYPE -> type = field.integer ?: 0L
            TENSOR_DIMENSION -> shape += integersIn(data, field, MAX_PARTS + 1)
            TENSOR_RAW -> raw = bytesOf(data, field)
            TENSOR_INT64S -> if (int64s.size <= MAX_VALUES) int64s += integersIn(data, field, MAX_VALUES + 1)
        }
    }
    if (type !in ELEMENT_TYPES) throw CompositionError("tensor $name has the element type $type, which it may not have")
    if (shape.size > MAX_PARTS || shape.any { it < 0 }) {
        throw CompositionError("tensor $name has the shape ${shape.take(8)}")
    }
    if (product(shape) > tensor.size) { // at least a byte each, however they are stored
        throw CompositionError("tensor $name has fewer elements than its shape ${shape.take(8)} says")
    }
    return FragmentTensor(name, type, shape, raw, int64s)
}

private fun isSet(field: ProtobufField): Boolean = field.integer?.let { it != 0L } ?: (field.size > 0)

/** Latin-1 keeps every byte apart, whatever the bytes are: two names are equal only if their bytes are. */
private fun textOf(data: BlobBytes, field: ProtobufField): String {
    val bytes = ByteArray(field.size)
    for (index in bytes.indices) bytes[index] = data[field.start + index]
    return String(bytes, Charsets.ISO_8859_1)
}

private fun bytesOf(data: BlobBytes, field: ProtobufField): ByteBuffer {
    val bytes = data.view()
    narrow(bytes, field.start, field.end)
    return bytes.slice()
}
