/**
 * Shapes and short constants inside a model, as far as they are known before it runs. Mirrors
 * device_sdk/bundles/known_values.py.
 *
 * Exporters compute the arguments of Reshape, Expand or Resize from shapes with a few operators on short lists of
 * integers, which are evaluated here.
 */
package pathweave.sdk.bundles

import kotlin.math.abs

internal const val MAX_VALUES = 1024 // a shape or a list of axes is short
internal const val MAX_PRODUCT = 1L shl 20 // of the lengths of the operands: none of the results can be longer
internal const val MAX_EXTENT = 1L shl 48
internal const val MOST = 1L shl 62 // products stop here, above every limit

/** A rule does not apply: a shape or a value that it needs is unknown, or cannot be. */
internal class UndeterminedError(message: String = "unknown") : RuntimeException(message)

internal fun undetermined(message: String = "unknown"): Nothing = throw UndeterminedError(message)

/** A tensor's [shape] (null: unknown) and, if it is a short one that is known, its [values]. */
internal class Inferred(val shape: List<Long>?, val values: Values? = null)

/** Known elements of a tensor of [shape]: [longs], or [doubles] where it is one of floats. */
internal class Values(val shape: List<Int>, val longs: LongArray?, val doubles: DoubleArray? = null) {
    val size: Int get() = longs?.size ?: doubles!!.size
    val isFloat: Boolean get() = doubles != null

    fun double(index: Int): Double = doubles?.get(index) ?: longs!![index].toDouble()

    fun long(index: Int): Long =
        longs?.get(index) ?: doubles!![index].let { if (it.isFinite()) it.toLong() else undetermined() }

    /** The elements at [indices], as a tensor of [shape]. */
    fun pick(shape: List<Int>, indices: IntArray): Values =
        if (isFloat) Values(shape, null, DoubleArray(indices.size) { doubles!![indices[it]] })
        else Values(shape, LongArray(indices.size) { longs!![indices[it]] })

    fun all(): List<Long> = List(size) { long(it) }

    companion object {
        fun of(values: List<Long>) = Values(listOf(values.size), values.toLongArray())

        fun scalar(value: Long) = Values(emptyList(), longArrayOf(value))
    }
}

internal typealias Given = List<Inferred?>

/** The attributes of a node; what is of another kind than a rule expects makes the rule inapplicable. */
internal class Attributes(private val values: Map<String, Any?>) {
    operator fun get(name: String): Any? = values[name]

    /** An integer, or [default] where there is none. */
    fun integer(name: String, default: Long): Long = when (val found = values[name]) {
        null -> if (name in values) undetermined() else default
        is Long -> found
        else -> undetermined()
    }

    /** Whether an integer is set and not 0. */
    fun flag(name: String, default: Boolean = false): Boolean =
        if (name !in values) default else (values[name] as? Long ?: 0L) != 0L

    /** A list that is not empty; null where there is none. */
    fun list(name: String): List<Long>? = when (val found = values[name]) {
        null, 0L, "" -> null
        is List<*> -> found.map { it as Long }.takeIf { it.isNotEmpty() }
        else -> undetermined()
    }
}

/** The product, at most 2⁶² and at least −2⁶². */
internal fun product(factors: Iterable<Long>): Long {
    var found = 1L
    for (factor in factors) {
        found = when {
            factor == 0L -> return 0L
            abs(found) > MOST / abs(factor) -> if ((found < 0) == (factor < 0)) MOST else -MOST
            else -> found * factor
        }
    }
    return found
}

/** The shape of an input; undetermined if it is unknown or absent. */
internal fun shapeOf(given: Given, index: Int): List<Long> = given.getOrNull(index)?.shape ?: undetermined()

/** The values of an input as integers between −2⁴⁸ and 2⁴⁸. */
internal fun integersOf(given: Given, index: Int): List<Long> {
    val values = given.getOrNull(index)?.values ?: undetermined()
    return values.all().map { it.coerceIn(-MAX_EXTENT, MAX_EXTENT) }
}

/** An input that may be left out. */
internal fun givenAt(given: Given, index: Int): Inferred? = given.getOrNull(index)

/** The shape that operands of these shapes are broadcast to; 0 only meets 0 and 1. */
internal fun broadcast(shapes: List<List<Long>>): List<Long> {
    val rank = shapes.maxOf { it.size }
    return List(rank) { axis ->
        val extents = shapes.map { shape -> shape.getOrElse(axis - rank + shape.size) { 1L } }
        if (0L in extents) 0L else extents.max()
    }
}

/** The values of an output that is computed from shapes and short constants; else null. */
internal fun knownValues(operator: String, given: Given, attributes: Attributes): Values? {
    val shape = given.firstOrNull()?.shape
    when (operator) {
        "Shape" -> if (shape != null) return sliceOf(shape, attributes)
        "Size" -> if (shape != null) return Values.scalar(minOf(product(shape), MAX_EXTENT))
        "Constant" -> return constantOf(attributes)
    }
    val rule = ARITHMETIC[operator] ?: return null
    val operands = given.map { it?.values ?: return null }
    if (operands.isEmpty()) return null
    if (operator != "Concat" && product(operands.map { maxOf(it.size, 1).toLong() }) > MAX_PRODUCT) return null
    return try {
        rule(attributes, operands).takeIf { it.size <= MAX_VALUES }
    } catch (_: RuntimeException) {
        null // operands and attributes that the operator cannot have
    }
}

private fun sliceOf(shape: List<Long>, attributes: Attributes): Values {
    val (start, end) = attributes.integer("start", 0) to attributes.integer("end", shape.size.toLong())
    fun bounded(index: Long) = (if (index < 0) index + shape.size else index).coerceIn(0, shape.size.toLong()).toInt()
    return Values.of(if (bounded(start) < bounded(end)) shape.subList(bounded(start), bounded(end)) else emptyList())
}

private fun constantOf(attributes: Attributes): Values? {
    (attributes["value"] as? Inferred)?.let { return it.values }
    (attributes["value_int"] as? Long)?.let { return Values.scalar(it) }
    return (attributes["value_ints"] as? List<*>)?.let { list -> Values.of(list.map { it as Long }) }
}
