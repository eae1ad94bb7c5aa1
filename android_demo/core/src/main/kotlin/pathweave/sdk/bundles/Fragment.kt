/**
 * Checking one fragment, which is untrusted: each field against what it may be.
 *
 * Only known fields of the known wire type are accepted at every level, so that no reader can understand the bytes
 * differently from the runtime. No level nests: subgraphs, the only recursion in ONNX, are refused.
 */
package pathweave.sdk.bundles

import java.nio.ByteBuffer
import pathweave.sdk.CompositionError
import pathweave.sdk.numerics.narrow

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

/** A fragment's nodes and initializers, in order. */
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
