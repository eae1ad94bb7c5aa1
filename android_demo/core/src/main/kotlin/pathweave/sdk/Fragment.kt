/**
 * Checking one fragment, which is untrusted: each field against what it may be.
 *
 * Only known fields of the known wire type are accepted at every level, so that no reader can understand the bytes
 * differently from the runtime. No level nests: subgraphs, the only recursion in ONNX, are refused.
 */
package pathweave.sdk

private const val MAX_NODES = 100_000 // per fragment
private const val MAX_PARTS = 4096 // inputs, outputs and attributes per node; axes per initializer

// field numbers of onnx.proto
private const val GRAPH_NODE = 1L
private const val GRAPH_INITIALIZER = 5L
private const val NODE_OUTPUT = 2L
private const val NODE_OPERATOR = 4L
private const val NODE_ATTRIBUTE = 5L
private const val NODE_DOMAIN = 7L
private val NODE_FIELDS = setOf(1L, NODE_OUTPUT, 3L, NODE_OPERATOR, NODE_ATTRIBUTE, 6L, NODE_DOMAIN, 9L)
private const val ATTRIBUTE_NAME = 1L
private const val ATTRIBUTE_INT = 3L
private const val ATTRIBUTE_TENSOR = 5L
private const val ATTRIBUTE_DOC = 13L
private const val ATTRIBUTE_TYPE = 20L
private val GRAPH_ATTRIBUTES = setOf(6L, 11L) // one or several subgraphs
private val ATTRIBUTE_KINDS = mapOf(
    ATTRIBUTE_NAME to setOf(LENGTH_DELIMITED),
    2L to setOf(FIXED32), // float
    ATTRIBUTE_INT to setOf(VARINT),
    4L to setOf(LENGTH_DELIMITED), // string
    ATTRIBUTE_TENSOR to setOf(LENGTH_DELIMITED),
    7L to setOf(FIXED32, LENGTH_DELIMITED), // floats
    8L to setOf(VARINT, LENGTH_DELIMITED), // integers
    9L to setOf(LENGTH_DELIMITED), // strings
    ATTRIBUTE_DOC to setOf(LENGTH_DELIMITED),
    ATTRIBUTE_TYPE to setOf(VARINT),
)
private val ATTRIBUTE_TYPES = setOf(1L, 2L, 3L, 4L, 6L, 7L, 8L) // as field 20 names the values above
private val ELEMENT_TYPE_ATTRIBUTES = setOf("to", "dtype", "output_dtype", "stash_type", "softmax_precision")
private const val TENSOR_DIMENSION = 1L
private const val TENSOR_TYPE = 2L
private const val TENSOR_NAME = 8L
private const val TENSOR_EXTERNAL_DATA = 13L
private const val TENSOR_DATA_LOCATION = 14L
private val TENSOR_KINDS = mapOf(
    TENSOR_DIMENSION to setOf(VARINT, LENGTH_DELIMITED),
    TENSOR_TYPE to setOf(VARINT),
    4L to setOf(FIXED32, LENGTH_DELIMITED), // floats
    5L to setOf(VARINT, LENGTH_DELIMITED), // 32-bit integers
    7L to setOf(VARINT, LENGTH_DELIMITED), // 64-bit integers
    TENSOR_NAME to setOf(LENGTH_DELIMITED),
    9L to setOf(LENGTH_DELIMITED), // raw
    10L to setOf(FIXED64, LENGTH_DELIMITED), // doubles
    11L to setOf(VARINT, LENGTH_DELIMITED), // unsigned integers
    12L to setOf(LENGTH_DELIMITED), // documentation
    TENSOR_DATA_LOCATION to setOf(VARINT),
    16L to setOf(LENGTH_DELIMITED), // metadata
)

/**
 * The names that a fragment defines: its initializers and the outputs of its nodes.
 *
 * @throws CompositionError not a fragment, an operator or a type that it may not have, a subgraph, or external data.
 */
internal fun definedNames(fragment: ByteArray): List<String> {
    val names = mutableListOf<String>()
    var parts = 0
    try {
        readFields(fragment) { field ->
            val initializer = field.number == GRAPH_INITIALIZER
            if (field.kind != LENGTH_DELIMITED || !(initializer || field.number == GRAPH_NODE)) {
                throw CompositionError("field ${field.number} is not a node or an initializer")
            }
            if (++parts > MAX_NODES) throw CompositionError("more than $MAX_NODES nodes and initializers")
            if (initializer) names += checkedTensor(fragment, field) else names += checkedNode(fragment, field)
        }
    } catch (error: ProtobufError) {
        throw CompositionError("not a serialized graph: ${error.message}", error)
    }
    return names
}

/** Checks a node and returns the names of its outputs. */
private fun checkedNode(data: ByteArray, node: ProtobufField): List<String> {
    val outputs = mutableListOf<String>()
    val attributes = HashSet<String>()
    var operator = ""
    var domain = ""
    var count = 0
    readFields(data, node.start, node.end) { field ->
        if (field.number !in NODE_FIELDS || field.kind != LENGTH_DELIMITED || count++ > MAX_PARTS) {
            throw CompositionError("a node has a field ${field.number} that it may not have")
        }
        when (field.number) {
            NODE_OUTPUT -> if (field.size > 0) outputs += textOf(data, field)
            NODE_OPERATOR -> operator = textOf(data, field)
            NODE_DOMAIN -> domain = textOf(data, field)
            NODE_ATTRIBUTE -> {
                val name = checkedAttribute(data, field)
                if (!attributes.add(name)) throw CompositionError("a node has the attribute $name twice")
            }
        }
    }
    if (domain !in DOMAINS) throw CompositionError("operator $domain.$operator is not of the standard domain")
    if (operator !in OPERATORS) {
        throw CompositionError("operator $operator is not among those that a fragment may have")
    }
    return outputs
}

/** Checks an attribute and returns its name. */
private fun checkedAttribute(data: ByteArray, attribute: ProtobufField): String {
    var name = ""
    var integer: Long? = null
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
            ATTRIBUTE_INT -> integer = field.integer
            ATTRIBUTE_TENSOR -> {
                if (ATTRIBUTE_TENSOR in values) throw CompositionError("an attribute has two tensors")
                checkedTensor(data, field)
            }
        }
        if (field.number != ATTRIBUTE_NAME && field.number != ATTRIBUTE_DOC && field.number != ATTRIBUTE_TYPE) {
            values += field.number
        }
    }
    if (values.size > 1) throw CompositionError("attribute $name has values of several types")
    if (name in ELEMENT_TYPE_ATTRIBUTES && integer != 0L && integer !in ELEMENT_TYPES) {
        throw CompositionError("attribute $name is of an element type that a fragment may not have")
    }
    return name
}

/** Checks a constant and returns its name. */
private fun checkedTensor(data: ByteArray, tensor: ProtobufField): String {
    var name = ""
    var type = 0L
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
        }
    }
    if (type !in ELEMENT_TYPES) throw CompositionError("tensor $name has the element type $type, which it may not have")
    return name
}

private fun isSet(field: ProtobufField): Boolean = field.integer?.let { it != 0L } ?: (field.size > 0)

/** Latin-1 keeps every byte apart, whatever the bytes are: two names are equal only if their bytes are. */
private fun textOf(data: ByteArray, field: ProtobufField): String =
    String(data, field.start, field.size, Charsets.ISO_8859_1)
